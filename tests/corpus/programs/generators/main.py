from itertools import groupby, islice, pairwise

import cachec

cache = cachec.Cache()


def lines(path):
    with open(path) as f:
        for line in f:
            yield line.strip()


def expand(path):
    for line in lines(path):
        name, count = line.split()
        yield from [name] * int(count)


@cache.stage
def runs(path):
    return [(name, len(list(group))) for name, group in groupby(expand(path))]


@cache.stage
def neighbours(path):
    pairs = (f"{a}>{b}" for a, b in pairwise(expand(path)) if a != b)
    return list(islice(pairs, 3))


print("RESULT", runs("ops.list"))
print("RESULT", neighbours("ops.list"))
