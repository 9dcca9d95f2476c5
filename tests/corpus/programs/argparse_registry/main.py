import argparse

import cachec
import models  # registers the models
from registry import create

cache = cachec.Cache()


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="shallow")
    parser.add_argument("--depth", type=int, default=2)
    return parser.parse_args()


@cache.stage
def summarize(name, depth):
    model = create(name, depth)
    return model.layers, sum(model.layers)


@cache.stage
def plan(args):
    return [f"{args.model}/{index}" for index in range(args.depth)]


def main():
    args = parse_args()
    print("RESULT", summarize(args.model, args.depth))
    print("RESULT", plan(args))


if __name__ == "__main__":
    main()
