import cachec
from helpers import *
from constants import *

cache = cachec.Cache()


@cache.stage
def tile(n):
    padded = round_up(n, LANES)
    return padded, ceil_div(padded, TILE), ceil_div(n, TILE)


print("RESULT", tile(100))
print("RESULT", tile(64))
