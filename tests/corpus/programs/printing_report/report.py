import sys
from collections import namedtuple
from pathlib import Path

from tabulate import tabulate

import cachec

cache = cachec.Cache()
Op = namedtuple("Op", "name m n k")


def read(path):
    for line in Path(path).read_text().splitlines():
        name, *dims = line.split()
        yield Op(name, *map(int, dims))


def flops(op):
    return 2 * op.m * op.n * op.k


@cache.stage
def report(path):
    rows = []
    for op in read(path):
        print("counting", op.name)
        rows.append((op.name, flops(op)))
    print(f"{len(rows)} operations", file=sys.stderr)
    return tabulate(rows, headers=["op", "flops"], tablefmt="github")


print("RESULT", repr(report("shapes.txt")))
