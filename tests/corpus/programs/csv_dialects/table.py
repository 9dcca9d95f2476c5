import csv

import cachec

cache = cachec.Cache()


def rows(path):
    with open(path, newline="") as f:
        yield from csv.reader(f, "team")


@cache.stage
def costs(path):
    return {name: cost for name, cost in rows(path)}
