"""Misses: what caching adds to a function that has to run anyway."""

from __future__ import annotations

import itertools
from pathlib import Path

import cachec
from bench.harness import Row, interleaved


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the full number of rounds."""
    cache = cachec.Cache(folder / "cache", log="off", mode="on", fsync=False)

    @cache.stage
    def stage(number: int) -> bytes:
        return b"artifact %d" % number

    numbers = itertools.count()
    bare = stage.__wrapped__
    tasks = {"bare": lambda: bare(next(numbers)), "stage": lambda: stage(next(numbers))}
    times = interleaved(tasks, max(3, int(300 * scale)), warmup=20)
    added = times["stage"] - times["bare"]
    return [Row("overhead of a miss, fsync off", added * 1e3, "ms", "<= 2", added <= 2e-3, "the bare function")]
