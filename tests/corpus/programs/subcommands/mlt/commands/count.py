from collections import Counter

from mlt.model import parse


def run(lines, by):
    ops = [parse(line) for line in lines]
    return sorted(Counter(getattr(op, by) for op in ops).items())
