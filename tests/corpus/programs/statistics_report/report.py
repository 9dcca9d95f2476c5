import argparse
import datetime
import json
import statistics
from collections import defaultdict

import cachec

cache = cachec.Cache()


def read(path):
    with open(path) as f:
        for line in f:
            row = json.loads(line)
            row["day"] = datetime.date.fromisoformat(row["day"])
            yield row


def by_kernel(path, since):
    groups = defaultdict(list)
    for row in read(path):
        if row["day"] >= since:
            groups[row["kernel"]].append(row["us"])
    return groups


@cache.stage
def medians(path: str, since: datetime.date):
    return {kernel: statistics.median(values) for kernel, values in sorted(by_kernel(path, since).items())}


@cache.stage
def span(path: str):
    days = [row["day"] for row in read(path)]
    return (max(days) - min(days)).days, min(days).strftime("%a")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--since", type=datetime.date.fromisoformat)
    args = parser.parse_args()
    print("RESULT", medians("runs.jsonl", args.since))
    print("RESULT", span("runs.jsonl"))
