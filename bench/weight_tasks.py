"""What ``bench.weights`` measures in processes of their own: ``python -m bench.weight_tasks TASK ARGUMENT...``.

A task gets ready (imports, memory that is not to be counted), says so, waits for a line on stdin, and then does what is
measured. It answers with one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Work = Callable[[], dict[str, float]]


def open_cachec(checkpoint: str, count: str) -> Work:
    from cachec.weights import open_weights

    def work() -> dict[str, float]:
        before = _memory_from_now()
        started = time.perf_counter()
        weights = open_weights(checkpoint)
        taken = time.perf_counter() - started
        assert len(weights) == int(count)
        return {"seconds": taken, "grown": _peak() - before}

    return work


def open_safetensors(checkpoint: str, count: str) -> Work:
    from safetensors import safe_open

    def work() -> dict[str, float]:
        before = _memory_from_now()
        started = time.perf_counter()
        index = json.loads(Path(checkpoint, "model.safetensors.index.json").read_text())
        names: set[str] = set()
        for file in sorted(set(index["weight_map"].values())):
            with safe_open(Path(checkpoint, file), "numpy") as opened:
                names.update(opened.keys())
        taken = time.perf_counter() - started
        assert len(names) == int(count)
        return {"seconds": taken, "grown": _peak() - before}

    return work


def overlay(base: str, adapter: str) -> Work:
    from cachec.weights import open_weights

    def work() -> dict[str, float]:
        started = time.perf_counter()
        weights = open_weights(base)
        opened = time.perf_counter()
        over = weights.overlay(open_weights(adapter))
        taken = time.perf_counter()
        assert len(over) == len(weights)
        return {"base": opened - started, "more": taken - opened}

    return work


def add(source: str, store: str) -> Work:
    from cachec.store.store import Store
    from cachec.weights import open_weights
    from cachec.weights.library.stored_weights import WeightStore

    return lambda: {"count": WeightStore(Store(store)).add(open_weights(source), "m").count}


def save(source: str, target: str, kind: str) -> Work:
    from cachec.weights import open_weights

    def work() -> dict[str, float]:
        open_weights(source).save(target, format="irpa" if kind == "irpa" else "safetensors")
        return {}

    return work


def sum_cachec(source: str, access: str) -> Work:
    import numpy  # noqa: F401 - part of getting ready

    from cachec.weights import open_weights

    def load() -> Iterable[tuple[str, Any]]:
        weights = open_weights(source, access="read" if access == "read" else "mmap")
        return ((name, weight.read()) for name, weight in weights.items())

    return lambda: _summed(load)


def sum_load_file(source: str) -> Work:
    from safetensors.numpy import load_file

    return lambda: _summed(lambda: load_file(source).items())


def sum_numpy_load(source: str) -> Work:
    import numpy as np

    return lambda: _summed(lambda: np.load(source).items())


def _summed(load: Callable[[], Iterable[tuple[str, Any]]]) -> dict[str, float]:
    """All arrays are kept until the end, as a model keeps its weights."""
    started = time.perf_counter()
    first, total = 0.0, 0.0
    kept: list[Any] = []
    for _, array in load():
        if not kept:
            array.flat[0]
            first = time.perf_counter() - started
        kept.append(array)
        total += float(array.sum())
    return {"first": first, "seconds": time.perf_counter() - started, "sum": total, "count": len(kept)}


def stream(source: str, access: str, largest: str) -> Work:
    import numpy as np

    from cachec.weights import open_weights

    device = np.ones(int(largest), np.uint8)  # touched now, so it is not counted

    def work() -> dict[str, float]:
        started = time.perf_counter()
        count = 0
        for weight in open_weights(source, access="read" if access == "read" else "mmap").stream():
            device[: weight.nbytes] = weight.read().reshape(-1).view(np.uint8)
            count += 1
        return {"seconds": time.perf_counter() - started, "count": count}

    return work


def one_rank(folder: str, rank: str, size: str, access: str) -> Work:
    import numpy  # noqa: F401 - part of getting ready

    from cachec.weights import open_weights

    def work() -> dict[str, float]:
        before = _io()
        with open_weights(
            folder, rank=int(rank), world_size=int(size), access="read" if access == "read" else "mmap"
        ) as weights:
            total = sum(float(weight.read().sum()) for weight in weights.values())
            nbytes = weights.nbytes
        after = _io()
        return {key: after[key] - before[key] for key in before} | {"nbytes": nbytes, "sum": total}

    return work


def _io() -> dict[str, float]:
    """Counters of ``/proc/self/io`` (proc(5)): rchar, what was asked of read(2); read_bytes, what came from disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return {key: float(value) for key, value in (line.split(": ") for line in lines) if key in {"rchar", "read_bytes"}}


def _memory_from_now() -> int:
    """Resident bytes; the peak is counted anew from here (proc(5), ``clear_refs``)."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field} line")


TASKS: dict[str, Callable[..., Work]] = {
    task.__name__: task
    for task in (
        open_cachec,
        open_safetensors,
        overlay,
        add,
        save,
        sum_cachec,
        sum_load_file,
        sum_numpy_load,
        stream,
        one_rank,
    )
}


def main() -> None:
    """Run one task."""
    work = TASKS[sys.argv[1]](*sys.argv[2:])
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(work()), flush=True)
    sys.stdin.readline()  # stay until the memory was looked at for the last time


if __name__ == "__main__":
    main()
