import argparse

import cachec
import data

cache = cachec.Cache()


@cache.stage
def make_batch(seed, n):
    return data.batch(seed, n)


@cache.stage
def shuffle(seed, n=8):
    return data.order(seed, n)


@cache.stage
def augment(seed):
    return data.pick(seed, ["flip", "crop", "noise"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--order-seed", type=int, default=11)
    args = parser.parse_args()
    print("RESULT", make_batch(args.seed, 4).tolist())
    print("RESULT", shuffle(args.order_seed))
    print("RESULT", augment(args.seed))
