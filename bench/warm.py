"""Warming: a check of many targets that hit, and workers against one another on a real model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from bench.harness import Row, against
from bench.minilm import left_out

EXAMPLE = Path(__file__).parents[1] / "examples" / "minilm"
_CLI = [sys.executable, "-m", "cachec"]

_SMALL = """
import cachec
cache = cachec.Cache()

@cache.stage(tools=["numpy"])
def scaled(n: int, factor: float, config: cachec.File) -> list:
    return [n * factor, config.read_bytes().decode()]

def target(n, factor):
    scaled(n, factor, cachec.File("config.txt"))
"""

_MINILM = """
from checkpoint import open_checkpoint
from model import minilm
from stages import build, lower

def target(level, evaluate, tile):
    program = lower(minilm, open_checkpoint().select(exclude=LEFT_OUT), 3, 16)
    flags = (f"--iree-opt-level={level}", f"--iree-opt-const-eval={evaluate}", f"--iree-opt-data-tiling={tile}")
    build(program, options=flags)
"""


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the full number of targets, option sets and rounds; below 1 MiniLM has one layer."""
    return [_check(folder / "check", scale), _workers(folder / "workers", scale)]


def _check(folder: Path, scale: float) -> Row:
    count = max(2, int(20 * scale))
    folder.mkdir()
    (folder / "small.py").write_text(_SMALL)
    (folder / "config.txt").write_text("config")
    factors = ", ".join(f"{n / 2}" for n in range(10))
    (folder / "cachec.toml").write_text(
        f'[warm.targets.t]\ncall = "small:target"\nmatrix = {{ n = {list(range(count))}, factor = [{factors}] }}\n'
    )
    targets = 10 * count
    environ = {**os.environ, "CACHEC_DIR": str(folder / "store"), "CACHEC_LOG": "off"}
    started = time.perf_counter()
    _cachec(folder, environ, "warm")
    cold = time.perf_counter() - started
    taken = []
    for _ in range(max(1, int(5 * scale))):
        started = time.perf_counter()
        assert f"{targets} hit in " in _cachec(folder, environ, "warm", "--check")
        taken.append(time.perf_counter() - started)
    seconds = sorted(taken)[len(taken) // 2]
    name = f"cachec warm --check of {targets} targets that all hit, the whole command"
    return against(name, seconds, 0.5, "storing their results, each of which takes no time", cold)


def _workers(folder: Path, scale: float) -> Row:
    """MiniLM with several sets of options: one worker, then two, each from an empty store."""
    levels, switches = ["O0", "O1"][: max(1, int(2 * scale))], ["true", "false"][: max(1, int(2 * scale))]
    count = len(levels) * len(switches) ** 2
    folder.mkdir()
    (folder / "minilm_targets.py").write_text(f"LEFT_OUT = {left_out(scale)}\n{_MINILM}")
    (folder / "cachec.toml").write_text(
        f'[warm.targets.minilm]\ncall = "minilm_targets:target"\npath = ["{EXAMPLE}"]\n'
        f"matrix = {{ level = {levels}, evaluate = {switches}, tile = {switches} }}\n"
    )
    seconds: dict[int, float] = {}
    for _ in range(max(1, int(2 * scale))):
        for jobs in (1, 2):
            environ = {**os.environ, "CACHEC_DIR": str(folder / "store"), "CACHEC_LOG": "off"}
            shutil.rmtree(folder / "store", ignore_errors=True)
            started = time.perf_counter()
            told = _cachec(folder, environ, "warm", "--jobs", str(jobs))
            assert f"{count} compiled in " in told, told
            seconds[jobs] = min(seconds.get(jobs, float("inf")), time.perf_counter() - started)
    ratio = seconds[1] / seconds[2]
    name = f"2 workers warming MiniLM x {count} option sets"
    peer = f"1 worker {seconds[1]:.1f} s; two bare loops reach {_ceiling(scale):.2f}x of one here"
    return Row(name, seconds[2], "s", ">= 1.4x of one worker", ratio >= 1.4, peer, ratio)


def _ceiling(scale: float) -> float:
    """What two processes reach of one on this machine as it is now, with nothing to wait for."""
    words = [sys.executable, "-c", f"total = 0\nfor n in range({int(2e7 * scale)}): total += n * n"]

    def beside(count: int) -> float:
        started = time.perf_counter()
        for process in [subprocess.Popen(words) for _ in range(count)]:
            process.wait()
        return time.perf_counter() - started

    return 2 * min(beside(1) for _ in range(3)) / min(beside(2) for _ in range(3))


def _cachec(folder: Path, environ: dict[str, str], *words: str) -> str:
    done = subprocess.run([*_CLI, *words], cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
