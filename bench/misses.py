"""Misses: what caching adds to a function that has to run anyway."""

from __future__ import annotations

import itertools
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import cachec
from bench.harness import Row, interleaved

#: Objects that a miss adds (the result, and what the key says), and rows that it writes.
_FILES, _ROWS = 2, 4


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the full number of rounds. Time of the processor: on a busy machine a miss waits for its turn."""
    caches = {
        record: cachec.Cache(folder / record, log="off", mode="on", fsync=False, record=record)
        for record in ("auto", "off")
    }
    numbers = itertools.count()

    def body(number: int) -> bytes:
        return b"artifact %d" % number

    auto, off = (cache.stage(name="stage")(body) for cache in caches.values())
    with closing(sqlite3.connect(folder / "floor.db", isolation_level=None)) as table:
        floor = _floor(folder / "floor", table)
        tasks: dict[str, Callable[[], object]] = {
            "bare": lambda: body(next(numbers)),
            "auto": lambda: auto(next(numbers)),
            "off": lambda: off(next(numbers)),
            "floor": lambda: floor(next(numbers)),
        }
        times = interleaved(tasks, max(3, int(300 * scale)), warmup=20, clock=time.process_time)
    added = times["auto"] - times["bare"]
    ratio = added / times["floor"]
    recorded = times["auto"] / times["off"]
    peer = f"{_FILES} files and {_ROWS} rows written: {times['floor'] * 1e3:.2f} ms"
    return [
        Row("overhead of a miss, fsync off", added * 1e3, "ms", "<= 15x of the floor", ratio <= 15, peer, ratio),
        Row("a miss that is recorded, against one that is not", recorded, "x", "<= 1.5", recorded <= 1.5),
    ]


def _floor(folder: Path, table: sqlite3.Connection) -> Callable[[int], None]:
    """The least that keeps a result: its files under their names, and rows in one transaction."""
    folder.mkdir()
    table.execute("PRAGMA journal_mode = wal")
    table.execute("PRAGMA synchronous = 1")
    table.execute("CREATE TABLE kept (key TEXT PRIMARY KEY, value BLOB)")

    def floor(number: int) -> None:
        for each in range(_FILES):
            place = folder / f"{number}-{each}"
            fd = os.open(f"{place}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.write(fd, b"artifact" * 100)
            os.close(fd)
            os.rename(f"{place}.new", place)
        table.execute("BEGIN IMMEDIATE")
        rows = [(f"{number % 8}-{each}", b"row" * 300) for each in range(_ROWS)]
        table.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?)", rows)
        table.execute("COMMIT")

    return floor
