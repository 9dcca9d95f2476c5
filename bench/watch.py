"""Watching: from a saved file to the report of what is stale, and what it costs while nothing happens."""

from __future__ import annotations

import os
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import msgspec

from bench.harness import Row, against

_STAGES = """
import cachec
cache = cachec.Cache()
FACTOR = 1

@cache.stage(tools=["numpy"])
def scaled(n: int) -> int:
    return n * FACTOR
"""

_DEBOUNCE = 0.1
#: Seconds without a report after which there is none to come.
_LONGEST = 30.0


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the full number of edits, and of the idle time."""
    (folder / "stages.py").write_text(_STAGES)
    (folder / "cachec.toml").write_text(
        '[warm.targets.t]\ncall = "stages:scaled"\nmatrix = { n = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] }\n'
    )
    environ = {**os.environ, "CACHEC_DIR": str(folder / "store"), "CACHEC_LOG": "off"}
    cachec = [sys.executable, "-m", "cachec"]
    subprocess.run([*cachec, "warm"], cwd=folder, env=environ, check=True, capture_output=True)
    process = subprocess.Popen(
        [*cachec, "watch", "--json", "--debounce", str(_DEBOUNCE)],
        cwd=folder, env=environ, stdout=subprocess.PIPE, bufsize=0,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        _until(process.stdout, "watching")
        time.sleep(0.5)
        latency, asking = _latency(
            folder, process.stdout, max(2, int(20 * scale)), [*cachec, "warm", "--check"], environ
        )
        time.sleep(0.5)
        seconds = max(0.5, 20 * scale)
        used = _processor(process.pid)
        time.sleep(seconds)
        idle = (_processor(process.pid) - used) / seconds
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
        process.stdout.close()
    return [
        against(
            "cachec watch: a saved source file to the report of what is stale, after the debounce",
            latency,
            0.5,
            "cachec warm --check",
            asking,
        ),
        Row("cachec watch: use of the processor while nothing happens", idle * 100, "%", "< 1", idle < 0.01),
    ]


def _latency(
    folder: Path, told: IO[bytes], rounds: int, ask: list[str], environ: Mapping[str, str]
) -> tuple[float, float]:
    """The medians over edits that make stale, and edits back: until it is told, and of asking after each."""
    taken, asking = [], []
    for number in range(rounds):
        stale = number % 2 == 0
        started = time.perf_counter()
        (folder / "stages.py").write_text(_STAGES.replace("FACTOR = 1", "FACTOR = 2") if stale else _STAGES)
        _until(told, "stale" if stale else "warm")
        taken.append(time.perf_counter() - started - _DEBOUNCE)
        time.sleep(0.6)  # the other targets, and the next worker
        started = time.perf_counter()
        subprocess.run(ask, cwd=folder, env=environ, check=False, capture_output=True)
        asking.append(time.perf_counter() - started)
    return statistics.median(taken), statistics.median(asking)


def _until(told: IO[bytes], kind: str) -> None:
    """Read lines to the first of this kind. Those of the same kind that belong to the edit before are gone by then."""
    while True:
        ready, _, _ = select.select([told], [], [], _LONGEST)
        assert ready, f"cachec watch did not tell what is {kind} in {_LONGEST} s"
        line = told.readline()
        assert line, "cachec watch ended"
        if msgspec.json.decode(line)["kind"] == kind:
            return


def _processor(pid: int) -> float:
    """Seconds of the processor that a process and its children took so far (proc(5))."""
    total = 0.0
    for each in (pid, *_children(pid)):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def _children(pid: int) -> list[int]:
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
