import argparse
import sys

import cachec

cache = cachec.Cache()
KINDS = {"box": lambda n: n * n, "line": lambda n: n}


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=2)
    parser.add_argument("--kind", choices=sorted(KINDS), default="line")
    parser.add_argument("--scale", type=float, default=1.5)
    return parser.parse_args()


@cache.stage
def area():
    args = options()
    return KINDS[args.kind](args.size) * args.scale


@cache.stage
def title():
    return " ".join(sys.argv[1:])


print("RESULT", area())
print("RESULT", title())
