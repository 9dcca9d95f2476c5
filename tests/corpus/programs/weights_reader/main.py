import cachec

cache = cachec.Cache()


def fold(weights):
    scale = weights["scale"].read()
    return round(float(scale.sum()), 6)


@cache.stage
def lower(weights: cachec.WeightSet):
    shapes = {name: list(spec.shape) for name, spec in weights.specs.items()}
    return {"constant": fold(weights), "shapes": sorted(shapes.items())}


if __name__ == "__main__":
    weights = cachec.open_weights("model.safetensors")
    print("RESULT", lower(weights))
