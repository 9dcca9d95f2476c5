import sys

import cachec
import passes

cache = cachec.Cache()


@cache.stage
def optimize(expr, names):
    return passes.run(names, expr)


@cache.stage
def known():
    from passes.manager import REGISTRY

    return sorted((name, after, repeat) for name, (_, after, repeat) in REGISTRY.items())


if __name__ == "__main__":
    print("RESULT", optimize("a+0+b+0", sys.argv[1:]), optimize("x+0", ["lower"]))
    print("RESULT", known())
