"""Isolated stages: what a miss adds where a worker runs it, and what a hit costs in a new process."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from bench.harness import Row

#: Prints how long each call of a stage took. Wall time, of a stage that does nothing: all of it is overhead.
_PROGRAM = """
import json, sys, time
import cachec

cache = cachec.Cache({store!r}, log="off", mode="on")

@cache.stage(isolated={isolated})
def stage(number: int) -> int:
    return number + 1

def timed(number):
    began = time.perf_counter()
    stage(number)
    return time.perf_counter() - began

if __name__ == "__main__":
    print(json.dumps([timed(number) for number in range({count})]))
"""

#: The same where each stage lowers a small function with JAX.
_JAX = _PROGRAM.replace(
    "    return number + 1",
    "    return len(jax.jit(lambda x: jnp.tanh(x) @ x * number).lower(jnp.ones((4, 4))).as_text())",
).replace("import cachec\n", "import jax\nimport jax.numpy as jnp\nimport cachec\n", 1)


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the full number of rounds."""
    rounds = max(1, int(5 * scale))
    firsts, laters, hits, bare = [], [], [], []
    for _ in range(rounds):
        first, *later = _calls(folder, _PROGRAM, isolated=True, count=10, keep=False)
        firsts.append(first)
        laters += later
        hits += _calls(folder, _PROGRAM, isolated=True, count=10, keep=True)[1:]
        bare += _calls(folder, _PROGRAM, isolated=False, count=10, keep=False)[1:]
    rows = [
        _row("an isolated miss, no starter yet", statistics.median(firsts), 150),
        _row("an isolated miss, with a starter", statistics.median(laters), 60),
        _row("a miss in process", statistics.median(bare), None),
        _row("a hit of an isolated stage", statistics.median(hits), None),
    ]
    ratios = []
    for _ in range(max(1, rounds // 2)):
        isolated = sum(_calls(folder, _JAX, isolated=True, count=20, keep=False))
        ratios.append(isolated / sum(_calls(folder, _JAX, isolated=False, count=20, keep=False)))
    ratio = statistics.median(ratios)
    return [*rows, Row("20 small stages with JAX, no starter yet, over in process", ratio, "x", "<= 3", ratio <= 3)]


def _row(name: str, seconds: float, bar: int | None) -> Row:
    milliseconds = seconds * 1e3
    if bar is None:
        return Row(name, milliseconds, "ms")
    return Row(name, milliseconds, "ms", f"<= {bar} ms", milliseconds <= bar)


def _calls(folder: Path, program: str, *, isolated: bool, count: int, keep: bool) -> list[float]:
    """Seconds of each call in a new process. keep: leave the store as the process before has left it."""
    store = folder / "store"
    if not keep:
        shutil.rmtree(store, ignore_errors=True)
    script = folder / "main.py"
    script.write_text(program.format(store=str(store), isolated=isolated, count=count))
    environ = {**os.environ, "CACHEC_SERVER": "off"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, env=environ, cwd=folder)
    times: list[float] = json.loads(done.stdout)
    return times
