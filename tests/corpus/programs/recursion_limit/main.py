import sys

import cachec

cache = cachec.Cache()


def nest(depth):
    tree = ()
    for _ in range(depth):
        tree = (tree,)
    return tree


def depth_of(tree):
    return 1 + depth_of(tree[0]) if tree else 0


@cache.stage
def measure(depth: int):
    try:
        return depth_of(nest(depth))
    except RecursionError:
        return "too deep"


if __name__ == "__main__":
    sys.setrecursionlimit(5000)
    print("RESULT", measure(3000))
    print("RESULT", measure(10))
