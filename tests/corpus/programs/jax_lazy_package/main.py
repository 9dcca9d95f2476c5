import functional

import cachec

cache = cachec.Cache()


@cache.stage(tools=["jax", "jaxlib"])
def norm(kind: str, n: int) -> float:
    return round(float(getattr(functional, f"{kind}_norm")(n)), 4)


@cache.stage(tools=["jax", "jaxlib"])
def text(n: int) -> int:
    return len(functional.lowered(n))


if __name__ == "__main__":
    for kind in ("l1", "l2"):
        print("RESULT", kind, norm(kind, 5))
    print("RESULT", text(4))
