import itertools
import multiprocessing

import cachec
from worker import score

cache = cachec.Cache()


@cache.stage
def sweep(tiles, unrolls):
    configs = list(itertools.product(tiles, unrolls))
    with multiprocessing.Pool(2) as pool:
        scores = pool.map(score, configs)
    return sorted(zip(scores, configs))


if __name__ == "__main__":
    print("RESULT", sweep((8, 16, 32), (1, 2)))
