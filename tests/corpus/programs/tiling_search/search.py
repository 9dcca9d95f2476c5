import itertools

import cachec
from cost import Machine, traffic

cache = cachec.Cache()
SIZES = (8, 16, 32)


@cache.stage
def best(shape: tuple, machine: Machine):
    tiles = itertools.product(SIZES, repeat=2)
    return min(((traffic(shape, tile, machine), tile) for tile in tiles))


@cache.stage
def table(shape: tuple):
    return {str(tile): round(traffic(shape, (tile, tile), Machine()), 3) for tile in SIZES}


if __name__ == "__main__":
    print("RESULT", best((64, 64, 64), Machine()))
    print("RESULT", best((64, 64, 64), Machine(l1=512)))
    print("RESULT", table((128, 64, 32)))
