from cfg import Model


def layers():
    return [f"dense({Model.WIDTH})+{Model.ACT}" for _ in range(Model.DEPTH)]
