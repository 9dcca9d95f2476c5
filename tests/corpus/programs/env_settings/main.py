import os

import cachec
import settings

cache = cachec.Cache()

ISA = {"cpu": "x86", "cuda": "ptx"}


@cache.stage
def tiles(n: int):
    return [(i, min(i + settings.TILE, n)) for i in range(0, n, settings.TILE)]


@cache.stage
def flags():
    backend = os.environ.get("KERNEL_BACKEND", "cpu")
    result = ["--target", ISA[backend]]
    if settings.DEBUG:
        result += ["-g"]
    return result


if __name__ == "__main__":
    print("RESULT", tiles(30))
    print("RESULT", flags())
