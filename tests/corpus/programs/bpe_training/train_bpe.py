import argparse
import glob
import os
from collections import Counter

import cachec

cache = cachec.Cache()
END = "_"


def words(folder):
    counts = Counter()
    for path in sorted(glob.glob(os.path.join(folder, "*.txt"))):
        with open(path, encoding="utf-8") as f:
            counts.update(f.read().split())
    return counts


def merge(symbols, pair):
    out, index = [], 0
    while index < len(symbols):
        if symbols[index : index + 2] == pair:
            out.append("".join(pair))
            index += 2
        else:
            out.append(symbols[index])
            index += 1
    return tuple(out)


@cache.stage
def train(folder, merges):
    vocabulary = {(*word, END): count for word, count in words(folder).items()}
    learned = []
    for _ in range(merges):
        pairs = Counter()
        for symbols, count in vocabulary.items():
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] += count
        # the most frequent pair
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        learned.append("".join(best))
        vocabulary = {merge(symbols, best): count for symbols, count in vocabulary.items()}
    return learned


@cache.stage
def most_common(folder, n):
    return words(folder).most_common(n)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--merges", type=int, default=3)
    args = parser.parse_args()
    print("RESULT", train("corpus", args.merges))
    print("RESULT", most_common("corpus", 2))
