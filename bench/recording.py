"""Recording: what it adds to a miss, to a hit and to the first hit of a process. Time of the processor, in turn."""

from __future__ import annotations

import itertools
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cachec
from bench import transformer
from bench.harness import Row, interleaved, settle

BLOCKS = 24
RECORD = ("off", "auto")
_HITS = 50  # in one measure: a single one is shorter than the clock is fine

_SCRIPT = """
import sys, time
import cachec, transformer

started = time.process_time()
cache = cachec.Cache(sys.argv[1], log="off", mode="on", record=sys.argv[2])

@cache.stage
def lower(blocks: int) -> str:
    return transformer.lowered(blocks)

_, outcome = cache.call(lower, 1)
print(outcome.reason.value, time.process_time() - started)
"""


def lower(number: int, blocks: int) -> str:
    return transformer.lowered(blocks)


def trace(number: int, blocks: int) -> str:
    return str(transformer.traced(blocks).jaxpr.effects)


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the full number of rounds and blocks."""
    blocks, rounds = max(1, int(BLOCKS * scale)), max(2, int(15 * scale))
    seen = sys.version_info >= (3, 12)  # on 3.11 a profile function is called for whatever runs, mostly JAX's own
    return [
        _misses(folder, lower, f"lowering {BLOCKS} blocks of a transformer", blocks, rounds, 1.15 if seen else None),
        _misses(folder, trace, "tracing them, the Python part", blocks, rounds, None if seen else 2.5),
        _hits(folder, blocks, max(2, int(100 * scale))),
        _first_hits(folder / "first", max(2, int(21 * scale))),
    ]


def _misses(
    folder: Path, function: Callable[[int, int], str], what: str, blocks: int, rounds: int, bar: float | None
) -> Row:
    numbers = itertools.count()
    stages = _stages(folder, function)
    tasks = {name: lambda stage=stage: stage(next(numbers), blocks) for name, stage in stages.items()}
    return _row(f"miss with recording: {what}", interleaved(tasks, rounds, clock=time.process_time), bar)


def _hits(folder: Path, blocks: int, rounds: int) -> Row:
    stages = _stages(folder, lower)
    for stage in stages.values():
        stage(-1, blocks)
    settle(folder)
    tasks = {name: lambda stage=stage: [stage(-1, blocks) for _ in range(_HITS)] for name, stage in stages.items()}
    times = interleaved(tasks, rounds, clock=time.process_time)
    return _row("hit with recording, in process", {name: each / _HITS for name, each in times.items()}, 1.05)


def _first_hits(folder: Path, rounds: int) -> Row:
    """Of the small project of a script and its model, from when its modules are imported."""
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    shutil.copy(transformer.__file__, folder)
    script = folder / "script.py"
    script.write_text(_SCRIPT)

    def first(record: str) -> tuple[str, float]:
        command = [sys.executable, str(script), str(folder / record), record]
        outcome, seconds = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        return outcome, float(seconds)

    for record in RECORD:
        first(record)
    settle(folder)
    times: dict[str, list[float]] = {record: [] for record in RECORD}
    for _ in range(rounds):
        for record in RECORD:
            outcome, seconds = first(record)
            assert outcome == "hit", outcome
            times[record].append(seconds)
    medians = {record: statistics.median(each) for record, each in times.items()}
    return _row("first hit of a process with recording", medians, 1.1)


def _stages(folder: Path, function: Callable[[int, int], str]) -> dict[str, Callable[[int, int], object]]:
    return {
        record: cachec.Cache(folder / record, log="off", mode="on", fsync=False, record=record).stage(function)
        for record in RECORD
    }


def _row(name: str, times: dict[str, float], bar: float | None) -> Row:
    ratio = times["auto"] / times["off"]
    return Row(
        name,
        times["auto"] * 1e3,
        "ms",
        "" if bar is None else f"<= {bar}x",
        None if bar is None else ratio <= bar,
        f"without {times['off'] * 1e3:.3g} ms",
        ratio,
    )
