"""Measuring: interleaved medians, private memory, and the rows of the result table."""

from __future__ import annotations

import gc
import json
import statistics
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One measured figure. bar: in words; holds: whether the figure keeps it (None where there is no bar); peer, ratio:
    what it was measured against in the same run."""

    name: str
    value: float
    unit: str
    bar: str = ""
    holds: bool | None = None
    peer: str = ""
    ratio: float | None = None

    def json(self) -> dict[str, object]:
        return asdict(self)


def against(name: str, seconds: float, most: float, peer: str, theirs: float) -> Row:
    """A row in milliseconds. Its bar is a multiple (``most``; 0 for no bar) of what a peer took in the same run."""
    ratio = seconds / theirs
    bar, holds = (f"<= {most:g}x", ratio <= most) if most else ("", None)
    return Row(name, seconds * 1e3, "ms", bar, holds, f"{peer} {theirs * 1e3:,.1f} ms", ratio)


def interleaved(
    tasks: Mapping[str, Callable[..., object]],
    rounds: int,
    *,
    warmup: int = 1,
    fresh: Mapping[str, Callable[[], object]] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """The median seconds of each task over ``rounds`` rounds; each round runs every task once, in turn.

    fresh: makes the argument of a task anew each time, outside what is timed.
    """
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(-warmup, rounds):
        for name, task in tasks.items():
            given = (fresh[name](),) if fresh else ()
            started = clock()
            task(*given)
            taken = clock() - started
            if number >= 0:
                times[name].append(taken)
        if number % 64 == 0:
            gc.collect()
    return {name: statistics.median(each) for name, each in times.items()}


def private_bytes() -> int:
    """Private memory of this process: dirty pages of its own, from ``/proc/self/smaps_rollup`` (proc(5))."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/smaps_rollup has no Private_Dirty line")


def sparse_checkpoint(path: Path, tensors: int, nbytes: int, *, first: int = 0) -> Path:
    """A valid safetensors file of ``tensors`` float32 vectors, ``nbytes`` in all, that holds no blocks on disk."""
    each = nbytes // tensors // 4
    header = json.dumps(
        {
            f"layers.{first + i}.weight": {
                "dtype": "F32",
                "shape": [each],
                "data_offsets": [i * each * 4, (i + 1) * each * 4],
            }
            for i in range(tensors)
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(header)) + header)
        out.truncate(8 + len(header) + tensors * each * 4)
    return path


def sharded_checkpoint(folder: Path, tensors: int, files: int, nbytes: int) -> Path:
    """A new folder in Hugging Face's layout: an index, and ``files`` sparse shards of ``tensors`` tensors together."""
    folder.mkdir()
    each = tensors // files
    names: dict[str, str] = {}
    for i in range(files):
        name = f"model-{i + 1:05}-of-{files:05}.safetensors"
        sparse_checkpoint(folder / name, each, nbytes // files, first=i * each)
        names |= {f"layers.{i * each + j}.weight": name for j in range(each)}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": nbytes}, "weight_map": names}))
    return folder


#: More than cachec waits before it remembers the digest of a file (``fsio.SETTLE_SECONDS``).
SETTLE_SECONDS = 2.1


def settle(folder: Path) -> None:
    """Let time pass since the last change, as real checkpoints have: before, no digest may be remembered."""
    newest = max((file.stat().st_ctime for file in folder.rglob("*")), default=0.0)
    time.sleep(max(0.0, newest + SETTLE_SECONDS - time.time()))
