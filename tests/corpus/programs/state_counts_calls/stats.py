from collections import Counter

COUNTS = Counter()


def count(name):
    COUNTS[name] += 1
