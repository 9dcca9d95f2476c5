from passes import manager

manager.REGISTRY["lower"] = (lambda expr: f"[{expr}]", (), 1)

from passes import lower  # noqa: the last wins

manager.REGISTRY["simplify"] = (lambda expr: expr.upper(), (), 1)
