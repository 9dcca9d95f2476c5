import argparse
import random

import cachec
import data

cache = cachec.Cache()


@cache.stage
def split(names):
    return data.split(names, 0.75)


@cache.stage
def crop(size):
    return random.randrange(size), random.randrange(size)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    print("RESULT", split(["a", "b", "c", "d", "e", "f", "g", "h"]))
    print("RESULT", crop(100))
