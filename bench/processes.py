"""Hits across processes: the first one of a new process, and many at once."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from bench.harness import Row, interleaved, settle, sparse_checkpoint

_STAGE = """
import sys, time
from pathlib import Path
import cachec

cache = cachec.Cache(sys.argv[1], log="off", mode="on")

@cache.stage(ignore=["started"])
def lower(weights: cachec.WeightSet, batch: int, started: Path) -> cachec.Program:
    with started.open("a") as out:
        out.write("ran\\n")
    time.sleep(0.2)
    return cachec.Program(f"program {len(weights.specs)} {batch}", format="bench:text", manifest=weights.manifest)

if len(sys.argv) > 4:
    while not Path(sys.argv[4]).exists():
        time.sleep(0.001)
program, outcome = cache.call(lower, cachec.open_weights(sys.argv[2]), 3, Path(sys.argv[3]))
assert program.text == "program 200 3"
print(outcome.reason.value, sorted({"numpy", "jax", "iree", "torch"} & set(sys.modules)))
"""


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the full number of rounds and processes."""
    script, checkpoint = folder / "stage_script.py", sparse_checkpoint(folder / "w.safetensors", 200, 1 << 30)
    script.write_text(_STAGE)
    settle(folder)
    return _first_hit(folder, script, checkpoint, scale) + _at_once(folder, script, checkpoint, scale)


def _command(script: Path, cache: Path, checkpoint: Path, ran: Path) -> list[str]:
    return [sys.executable, str(script), str(cache), str(checkpoint), str(ran)]


def _first_hit(folder: Path, script: Path, checkpoint: Path, scale: float) -> list[Row]:
    command = _command(script, folder / "cache", checkpoint, folder / "ran")
    subprocess.run(command, check=True, capture_output=True)
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert out.split(" ", 1) == ["hit", "[]\n"], out  # and neither numpy nor a compiler was imported
    times = interleaved(
        {
            "bare": lambda: subprocess.run([sys.executable, "-c", "pass"], check=True),
            "hit": lambda: subprocess.run(command, check=True, capture_output=True),
        },
        max(2, int(21 * scale)),
    )
    added = times["hit"] - times["bare"]
    return [
        Row(
            "first hit in a new process, above bare Python",
            added * 1e3,
            "ms",
            "<= 80, no numpy, no compiler",
            added <= 80e-3,
            f"python -c pass {times['bare'] * 1e3:.0f} ms",
            times["hit"] / times["bare"],
        )
    ]


def _at_once(folder: Path, script: Path, checkpoint: Path, scale: float) -> list[Row]:
    count = max(4, int(16 * scale))
    go, ran = folder / "go", folder / "ran-at-once"
    command = [*_command(script, folder / "cache-at-once", checkpoint, ran), str(go)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    go.touch()
    outcomes = Counter(child.communicate()[0].split()[0] for child in children)
    executions = len(ran.read_text().splitlines())
    holds = executions == 1 and outcomes["hit"] == count - 1
    return [
        Row(f"{count} processes, one key: executions", executions, "", "1", executions == 1),
        Row(f"{count} processes, one key: hits", outcomes["hit"], "", str(count - 1), holds),
    ]
