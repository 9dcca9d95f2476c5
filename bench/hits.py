"""Hits in one process: what a call costs that finds its result, and that this does not depend on weight bytes."""

from __future__ import annotations

import base64
import hashlib
import mmap
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from blake3 import blake3

import cachec
from bench.harness import Row, interleaved, private_bytes, settle, sharded_checkpoint, sparse_checkpoint
from cachec.base.distributions import Distributions
from cachec.base.hashing import FileDigests
from cachec.key.tools.distribution_watch import MIN_LOOKUPS
from cachec.key.tools.toolchain import RECHECK_SECONDS, ToolKeys

MIB, GIB, TIB = 1 << 20, 1 << 30, 1 << 40

#: Hits, or calls of what they are measured against, that follow one another: after another task the caches of the
#: processor are cold.
BLOCK = 50

#: Files of torch 2.9 with CUDA, in so many folders.
FILES, FOLDERS = 14_621, 1_500


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the full number of rounds and bytes; the test suite runs this with a small one, untimed."""
    rounds = max(3, int(2000 * scale))
    cache = cachec.Cache(folder / "cache", log="off", mode="on")

    @cache.stage
    def lower(weights: cachec.WeightSet, batch: int, seq: int) -> cachec.Program:
        specs = weights.placeholders("lower").specs
        return cachec.Program(f"program {len(specs)} {batch} {seq}", format="bench:text", manifest=weights.manifest)

    sizes = {"1 MiB": MIB, "1 GiB": int(GIB * scale), "1 TiB": int(TIB * scale)}
    files = {
        name: sparse_checkpoint(folder / f"{i}.safetensors", 200, size) for i, (name, size) in enumerate(sizes.items())
    }
    many = sharded_checkpoint(folder / "many", 2000, 100, int(TIB * scale))
    settle(folder)

    def call(weights: cachec.WeightSet) -> object:
        return lower(weights, 3, 16)

    sources = {**files, "2,000 tensors": many}
    for source in sources.values():
        call(cachec.open_weights(source))
        _, outcome = cache.call(lower, cachec.open_weights(source), 3, 16)
        assert outcome.hit, outcome
    settle(folder / "cache")  # before, the artifacts are hashed again at each hit
    opened = {name: partial(cachec.open_weights, source) for name, source in sources.items()}
    before = private_bytes()
    times = interleaved(dict.fromkeys(sources, call), rounds, fresh=opened)
    grown = private_bytes() - before
    opening = interleaved({name: lambda make=make: call(make()) for name, make in opened.items()}, rounds)
    spread = max(times[n] for n in sizes) / min(times[n] for n in sizes)
    rows = [Row(f"hit p50, 200 tensors, {name}", times[name] * 1e6, "µs") for name in sizes]
    rows.append(Row("hit p50, 1 MiB to 1 TiB, slowest over fastest", spread, "x", "<= 1.5", spread <= 1.5))
    slow, few = times["2,000 tensors"], times["1 TiB"]
    name = "hit p50, 2,000 tensors in 100 files"
    rows.append(Row(name, slow * 1e6, "µs", "<= 3x of 200 in one", slow <= 3 * few, "200 in one", slow / few))
    rows.append(Row(f"private memory grown over {4 * rounds} hits", grown / 1e6, "MB", "< 5", grown < 5e6))
    rows += [
        Row(f"the same with open_weights, {name}", opening[name] * 1e6, "µs") for name in ("1 GiB", "2,000 tensors")
    ]
    weights = cachec.open_weights(files["1 GiB"])
    rows.append(_against_floor(folder, lambda: call(weights), max(2, int(60 * scale))))
    rows += _after_idling(folder, cache, weights, scale)
    rows += _against_joblib(folder, lambda: call(opened["1 GiB"]()), int(GIB * scale))
    return rows


def _in_blocks(tasks: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median seconds of one call of each task; ``BLOCK`` calls follow one another, each timed."""
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(rounds + 1):
        for name, task in tasks.items():
            for _ in range(BLOCK):
                started = time.perf_counter()
                task()
                if number:
                    times[name].append(time.perf_counter() - started)
    return {name: statistics.median(each) for name, each in times.items()}


def _against_floor(folder: Path, hit: Callable[[], object], rounds: int) -> Row:
    """Less than one row read, and one artifact opened and hashed, no cache of this kind can do."""
    import diskcache

    table = diskcache.Cache(folder / "floor")
    table["key"] = os.urandom(300)
    artifact = folder / "artifact"
    artifact.write_bytes(os.urandom(2048))
    place = str(artifact)

    def floor() -> str:
        table.get("key")
        fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        os.close(fd)
        return blake3(mapped).hexdigest()

    times = _in_blocks({"hit": hit, "floor": floor}, rounds)
    ratio = times["hit"] / times["floor"]
    what = "diskcache.get + open, mmap, BLAKE3 of 2 KB"
    peer = f"{what}: {times['floor'] * 1e6:.0f} µs"
    return Row("hit p50, 200 tensors", times["hit"] * 1e6, "µs", "<= 2.2x of the floor", ratio <= 2.2, peer, ratio)


def _after_idling(folder: Path, cache: cachec.Cache, weights: cachec.WeightSet, scale: float) -> list[Row]:
    site = folder / "site"
    _install(site, "large", int(FILES * scale), max(2, int(FOLDERS * scale)))
    settle(site)
    sys.path.append(str(site))
    try:
        there = [name for name in ("jax", "jaxlib", "iree-base-compiler") if Distributions().find(name) is not None]
        tools = {"no tools": [], "jax, jaxlib, iree": there, f"{FILES:,} files (torch)": ["large"]}
        return _due_rows(cache, weights, tools, rounds=max(1, int(7 * scale)), blocks=max(1, int(20 * scale)))
    finally:
        sys.path.remove(str(site))


def _due_rows(
    cache: cachec.Cache, weights: cachec.WeightSet, tools: dict[str, list[str]], rounds: int, blocks: int
) -> list[Row]:
    """Hits that come when tools are due for a look: one after another, and after that time has really passed, when the
    caches of the processor are cold too."""

    def compiled(weights: cachec.WeightSet) -> cachec.Program:
        return cachec.Program(f"{len(weights)}", format="bench:text", manifest=weights.manifest)

    calls = {
        name: partial(cache.stage(name=f"idle {number}", tools=each)(compiled), weights)
        for number, (name, each) in enumerate(tools.items())
    }

    for call in calls.values():
        call()
    settle(cache.settings.dir)
    later = _Later()
    cache._engine.tools.key_builder._tools._clock = later  # no setting: nobody else is ahead of time
    due = {name: partial(later, call) for name, call in calls.items()}
    for _ in range(MIN_LOOKUPS + 2):
        for late_call in due.values():
            late_call()
    slept: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():  # a sleep each: the first to wake pays for all
            time.sleep(RECHECK_SECONDS * 1.05 if rounds > 1 else 0)
            started = time.perf_counter()
            call()
            slept[name].append(time.perf_counter() - started)
    idle = {name: statistics.median(each) for name, each in slept.items()}
    soon, late = _in_blocks(calls, blocks), _in_blocks(due, blocks)
    rows = []
    for name, each in tools.items():
        if each:
            ratio = late[name] / soon[name]
            peer = f"a look at every file: {_look(each) * 1e3:.1f} ms"
            what = f"hit when tools are due for a look, {name}"
            rows.append(Row(what, late[name] * 1e6, "µs", "<= 3x of one at once", ratio <= 3, peer, ratio))
            ratio, peer = idle[name] / idle["no tools"], f"no tools: {idle['no tools'] * 1e6:.0f} µs"
            what = f"hit after {RECHECK_SECONDS:.0f} s, {name}"
            rows.append(Row(what, idle[name] * 1e6, "µs", "<= 3x of one without tools", ratio <= 3, peer, ratio))
    return rows


class _Later:
    """A clock that is ahead by a second more with each call of a function that is made by it."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def __call__(self, task: Callable[[], object] | None = None) -> float:
        if task is not None:
            self._ahead += RECHECK_SECONDS
            task()
        return time.monotonic() + self._ahead


def _look(tools: Sequence[str]) -> float:
    made = ToolKeys(FileDigests())
    for name in tools:
        made.distribution(name)
    started = time.perf_counter()
    for name in tools:
        made.distribution(name, fresh=True)
    return time.perf_counter() - started


def _install(site: Path, name: str, files: int, folders: int) -> None:
    """A distribution of small files, as an installer leaves it."""
    content = b"a file\n"
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    rows = []
    for number in range(files):
        path = f"{name}/{number % folders}/{number}.py"
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(content)
        rows.append(f"{path},sha256={digest},{len(content)}\n")
    record = site / f"{name}-1.0.dist-info/RECORD"
    record.parent.mkdir()
    record.write_text("".join(rows))


def _against_joblib(folder: Path, hit: Callable[[], object], nbytes: int) -> list[Row]:
    import joblib
    import numpy as np

    arrays = {f"w{i}": np.ones(nbytes // 200 // 4, "f4") for i in range(200)}
    memory = joblib.Memory(folder / "joblib", verbose=0)
    cached = memory.cache(_joblib_stage)
    cached(arrays, 3, 16)
    block = 200  # hits that follow a joblib call alone would run with every processor cache cold
    times = interleaved({"cachec": lambda: [hit() for _ in range(block)], "joblib": lambda: cached(arrays, 3, 16)}, 5)
    times["cachec"] /= block
    ratio = times["joblib"] / times["cachec"]
    return [
        Row(
            "hit at 1 GiB against joblib.Memory",
            times["cachec"] * 1e6,
            "µs",
            ">= 5,000x faster",
            ratio >= 5000,
            f"joblib.Memory {times['joblib'] * 1e3:.0f} ms",
            ratio,
        )
    ]


def _joblib_stage(weights: dict[str, object], batch: int, seq: int) -> str:
    return f"program {len(weights)} {batch} {seq}"
