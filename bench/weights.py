"""Weights: opening, importing, loading, streaming, cutting up, deriving and exporting, against what others do."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import select
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.copies import in_turn
from bench.harness import Row, against, settle, sharded_checkpoint, sparse_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

MIB, GIB = 1 << 20, 1 << 30
ROOT = Path(__file__).parents[1]

#: Memory of two threads' stacks, an interpreter's caches and the like, where a bar is counted in tensors.
_SLACK = 4 * MIB


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the full number of bytes and rounds."""
    rounds = max(2, int(9 * scale))
    rows: list[Row] = []
    for part in (_opening, _copying, _tiny, _loading, _one_rank, _second_fine_tune, _quantizing):
        place = folder / part.__name__.strip("_")
        place.mkdir()
        rows += part(place, scale, rounds)
        shutil.rmtree(place)  # gigabytes
    return rows


# --- opening


def _opening(folder: Path, scale: float, rounds: int) -> list[Row]:
    nbytes, count = int(500e9 * scale), 5000
    base = sharded_checkpoint(folder / "base", count, 100, nbytes)
    adapter = sparse_checkpoint(folder / "adapter.safetensors", count // 100, nbytes // 100)
    settle(folder)
    tasks = {
        "mine": ("open_cachec", str(base), str(count)),
        "peer": ("open_safetensors", str(base), str(count)),
        "overlay": ("overlay", str(base), str(adapter)),
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, task in tasks.items():  # a process each time: a second opening would be remembered
            found[name].append(_child(*task).answer)
    mine, peer = (_median(found[name], "seconds") for name in ("mine", "peer"))
    grown, peer_grown, more = (
        _median(found["mine"], "grown"),
        _median(found["peer"], "grown"),
        _median(found["overlay"], "more"),
    )
    return [
        Row(
            "open a sharded checkpoint, sparse 500 GB, 5,000 tensors, 100 files",
            mine * 1e3,
            "ms",
            "<= 0.2x of safe_open",
            mine <= 0.2 * peer,
            f"safetensors.safe_open on each {peer * 1e3:.1f} ms",
            mine / peer,
        ),
        Row("memory of that", grown / 1e6, "MB", "< 40", grown < 40e6, f"safe_open {peer_grown / 1e6:.1f} MB"),
        against("overlay of a 1% adapter on it, more than opening the base", more, 0.2, "safe_open on the base", peer),
    ]


# --- importing and exporting, one tensor being three quarters of all


def _copying(folder: Path, scale: float, rounds: int) -> list[Row]:
    """A quarter of a model of 2 GiB: why no more at once is told in ``bench.copies``."""
    import numpy as np

    from cachec.store.store import Store
    from cachec.weights import from_arrays, open_weights
    from cachec.weights.library.stored_weights import WeightStore

    large, small = int(384 * MIB * scale) // 4, int(8 * MIB * scale) // 4
    source = folder / "source.safetensors"
    arrays = {"embedding": _noise(large, 0)} | {f"layers.{i}.weight": _noise(small, i + 1) for i in range(16)}
    from_arrays(arrays).save(source, fsync=True)
    del arrays
    nbytes = source.stat().st_size
    store, copy = folder / "store", folder / "copy"
    made = {"cp": copy, "import": store, "safetensors": folder / "out.safetensors", "irpa": folder / "out.irpa"}
    work: dict[str, Callable[[], object]] = {
        "cp": lambda: subprocess.run(["cp", source, copy], check=True),
        "import": lambda: WeightStore(Store(store)).add(open_weights(source), "m"),
        "safetensors": lambda: open_weights(source).save(made["safetensors"]),
        "irpa": lambda: open_weights(source).save(made["irpa"], format="irpa"),
    }
    took = in_turn(work, made, 3 * rounds)
    peaks = {
        "import": _child("add", str(source), str(store)).peak,
        "safetensors": _child("save", str(source), str(made["safetensors"]), "safetensors").peak,
        "irpa": _child("save", str(source), str(made["irpa"]), "irpa").peak,
    }
    size = f"{nbytes / MIB:.0f} MiB"
    titles = {"import": f"import {size} with digests", "safetensors": f"export {size} to safetensors"}
    titles["irpa"] = f"export {size} to IRPA"
    rows = []
    for name, title in titles.items():
        ratio = took.speed(name, "cp")
        rate, peer = (nbytes / took.seconds(each) / GIB for each in (name, "cp"))
        said = f"cp {peer:.2f} GiB/s; processors {took.cost(name, 'cp'):.2f}x of cp's; {took.said}"
        holds = ratio >= 0.8 if took.is_quiet else None
        rows.append(Row(title, rate, "GiB/s", ">= 0.8x of cp", holds, said, ratio))
        peak = peaks[name]
        rows.append(Row(f"peak private memory of that ({name})", peak / MIB, "MiB", "< 64", peak < 64 * MIB))
    with WeightStore(Store(store)).open("m") as owned:
        assert np.array_equal(owned["layers.7.weight"].read(), _noise(small, 8))
    return rows


def _tiny(folder: Path, scale: float, rounds: int) -> list[Row]:
    """Many small tensors: what each of them costs beyond its bytes."""
    from cachec.store.store import Store
    from cachec.weights import from_arrays, open_weights
    from cachec.weights.library.stored_weights import WeightStore

    count, source = max(50, int(5000 * scale)), folder / "source.safetensors"
    from_arrays({f"layers.{i}.weight": _noise(1 << 14, i) for i in range(count)}).save(source, fsync=True)
    made = {"cp": folder / "copy", "import": folder / "store"}
    work: dict[str, Callable[[], object]] = {
        "cp": lambda: subprocess.run(["cp", source, made["cp"]], check=True),
        "import": lambda: WeightStore(Store(made["import"])).add(open_weights(source), "m"),
    }
    took = in_turn(work, made, rounds)
    title = f"import {count:,} tensors of 64 KiB, a file each"
    seconds, theirs = took.seconds("import"), took.seconds("cp")
    return [against(title, seconds, 0, "cp of one file", theirs)]


# --- loading, and streaming


def _loading(folder: Path, scale: float, rounds: int) -> list[Row]:
    import numpy as np

    from cachec.weights import from_arrays

    count = 64
    each = int(2 * GIB * scale) // count // 4
    arrays = {f"layers.{i}.weight": _noise(each, i) for i in range(count)}
    source, zipped = folder / "source.safetensors", folder / "source.npz"
    from_arrays(arrays).save(source, fsync=True)
    np.savez(zipped, **arrays)  # type: ignore[arg-type]
    nbytes = sum(array.nbytes for array in arrays.values())
    del arrays
    settle(folder)
    tasks = {
        "maps": ("sum_cachec", str(source), "mmap"),
        "load_file": ("sum_load_file", str(source)),
        "numpy.load": ("sum_numpy_load", str(zipped)),
        "stream": ("stream", str(source), "mmap", str(each * 4)),
        "stream read": ("stream", str(source), "read", str(each * 4)),
    }
    found: dict[str, list[_Measured]] = {name: [] for name in tasks}
    for _ in range(max(2, rounds // 2)):
        for name, task in tasks.items():
            found[name].append(_child(*task))
    assert len({one.answer["sum"] for name in ("maps", "load_file", "numpy.load") for one in found[name]}) == 1
    peaks = {name: statistics.median(one.peak for one in each) for name, each in found.items()}
    first = {name: _median([one.answer for one in found[name]], "first") for name in ("maps", "load_file")}
    times = {name: _median([one.answer for one in each], "seconds") for name, each in found.items()}
    peers = f"load_file {peaks['load_file'] / nbytes:.2f}x, numpy.load {peaks['numpy.load'] / nbytes:.2f}x"
    share = peaks["maps"] / nbytes
    limit = 2 * each * 4 + _SLACK
    rows = [
        Row("private memory of 2 GiB loaded through maps and summed", share * 100, "%", "< 1", share < 0.01, peers),
        against("time to first tensor of that", first["maps"], 0.01, "load_file", first["load_file"]),
        against("time of that", times["maps"], 0, "load_file", times["load_file"]),
        against("time of that, against numpy.load", times["maps"], 0, "numpy.load", times["numpy.load"]),
    ]
    for name, title in (("stream", "mapped"), ("stream read", "access='read'")):
        peak = max(one.peak for one in found[name])
        tensors = f"private memory of 2 GiB streamed to a consumer that copies, {title}"
        rows.append(Row(tensors, peak / (each * 4), "tensors", "<= 2 (+ 4 MiB)", peak <= limit))
        rows.append(Row(f"throughput of that, {title}", nbytes / times[name] / GIB, "GiB/s"))
    return rows


# --- the shards of one rank


def _one_rank(folder: Path, scale: float, rounds: int) -> list[Row]:
    from cachec.weights import from_arrays

    side = max(8, int((256 * MIB * scale / 16 / 4) ** 0.5) // 8 * 8)
    arrays = {f"layers.{i}.{name}": _noise(side * side, i).reshape(side, side) for i in range(8) for name in "ab"}
    shards = folder / "shards"
    from_arrays(arrays).save_shards(shards, {"*.a": 0, "*.b": 1}, 8, fsync=True)
    files = sorted(shards.glob("*.safetensors"))
    own, others = shards / "rank-4-of-8.safetensors", [file for file in files if file.name != "rank-4-of-8.safetensors"]
    assert len(others) == 7
    size = own.stat().st_size
    rows = []
    for access in ("mmap", "read"):
        for file in files:
            _drop_cache(file)
        left = sum(map(_resident, files))
        answer = _child("one_rank", str(shards), "3", "8", access).answer
        resident = sum(map(_resident, others))
        counted = answer["read_bytes"] if access == "mmap" else answer["rchar"]
        what = "from disk" if access == "mmap" else "by read(2)"
        rows += [
            Row(
                f"rank 3 of 8 reads {what}, access={access!r}, of its own {size / MIB:.1f} MiB",
                counted / MIB,
                "MiB",
                "its own shards only",
                counted <= size + 256 * 1024,
            ),
            Row(
                f"bytes of other ranks' files that came into memory, access={access!r}",
                resident,
                "bytes",
                "0",
                resident == 0 if left == 0 else None,  # None: this file system does not let go of its pages
            ),
        ]
    return rows


# --- what is shared


def _second_fine_tune(folder: Path, scale: float, rounds: int) -> list[Row]:
    from cachec.store.store import Store
    from cachec.weights import from_arrays, open_weights
    from cachec.weights.library.stored_weights import WeightStore

    count, each = 200, int(512 * MIB * scale) // 200 // 4
    arrays = {f"layers.{i}.weight": _noise(each, i) for i in range(count)}
    files = [folder / "base.safetensors", folder / "tuned.safetensors"]
    from_arrays(arrays).save(files[0])
    from_arrays(arrays | {f"layers.{i}.weight": _noise(each, i + 1000) for i in range(count // 100)}).save(files[1])
    store = WeightStore(Store(folder / "store"))
    store.add(open_weights(files[0]), "base")
    before = _disk(store.folder)
    store.add(open_weights(files[1]), "tuned")
    grown = _disk(store.folder) - before
    limit = count * each * 4 / 100 + MIB
    share = grown / (count * each * 4) * 100
    return [
        Row(
            "disk that a second fine-tune takes, 1% of its tensors changed",
            share,
            "%",
            "<= 1 (+ 1 MiB)",
            grown <= limit,
        )
    ]


def _quantizing(folder: Path, scale: float, rounds: int) -> list[Row]:
    import numpy as np

    import cachec
    from cachec.weights import from_arrays
    from cachec.weights.overlay import ComputedWeight

    count, each = 200, int(512 * MIB * scale) // 200 // 4
    source = folder / "base.safetensors"
    from_arrays({f"layers.{i}.weight": _noise(each, i) for i in range(count)}).save(source)
    settle(folder)
    cache = cachec.Cache(folder / "cache", log="off", mode="on")

    @cache.stage
    def warm() -> bytes:
        return b"the folders and the database of the store are made"

    @cache.stage
    def quantize(weights: cachec.WeightSet) -> cachec.WeightSet:
        def rounded(given: cachec.WeightSet) -> np.ndarray[tuple[int, ...], np.dtype[np.int8]]:
            return (given["layers.7.weight"].read() * 127).astype(np.int8)

        return weights.derive({"layers.7.weight": ComputedWeight("int8", (each,), rounded)})

    warm()
    before, files = _disk(folder / "cache"), _large_files(folder / "cache", each)
    weights = cachec.open_weights(source)
    made, outcome = cache.call(quantize, weights)
    assert not outcome.hit, outcome
    assert made["layers.7.weight"].dtype == "int8"
    assert made["layers.8.weight"].place() == weights["layers.8.weight"].place()
    grown = _disk(folder / "cache") - before
    new = _large_files(folder / "cache", each) - files
    _, again = cache.call(quantize, cachec.open_weights(source))
    assert again.hit, again
    return [
        Row("quantize 1 tensor of 200, derived set: tensors written", len(new), "", "1", len(new) == 1),
        Row(
            "disk that takes beyond that tensor",
            max(0, grown - each) / 1024,
            "KiB",
            "< 256 (records)",
            grown - each < 256 * 1024,
        ),
    ]


# --- helpers


class _Measured(NamedTuple):
    """What a task answered, and how much its private memory grew at most, in bytes."""

    answer: dict[str, float]
    peak: int


def _child(*task: str) -> _Measured:
    """Run a task of ``bench.weight_tasks``; its memory is looked at from here, every 2 ms, while it works."""
    command = [sys.executable, "-m", "bench.weight_tasks", *task]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=environ, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n", task
        before = peak = _private(child.pid)
        child.stdin.write("go\n")
        child.stdin.flush()
        while not select.select([child.stdout], [], [], 0.002)[0]:
            peak = max(peak, _private(child.pid))
        answer = child.stdout.readline()
        peak = max(peak, _private(child.pid))
        child.stdin.write("end\n")
    assert child.returncode == 0, task
    return _Measured(json.loads(answer), peak - before)


def _private(pid: int) -> int:
    """Anonymous memory of a process: what it allocated, and private copies of mapped pages (proc(5))."""
    total = 0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(("RssAnon:", "RssShmem:")):
            total += int(line.split()[1]) * 1024
    return total


def _median(answers: list[dict[str, float]], key: str) -> float:
    return statistics.median(answer[key] for answer in answers)


def _noise(count: int, seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    import numpy as np

    return np.random.default_rng(seed).random(count, np.float32)


def _disk(folder: Path) -> int:
    """Bytes of disk that the files of a folder take."""
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


def _large_files(folder: Path, nbytes: int) -> set[Path]:
    return {file for file in folder.rglob("*") if file.is_file() and file.stat().st_size >= nbytes}


def _drop_cache(file: Path) -> None:
    """Let the kernel forget the pages of a file; nothing else is using it."""
    fd = os.open(file, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _resident(file: Path) -> int:
    """Bytes of a file that are in the page cache, by mincore(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = file.stat().st_size
    with _mapped(file, size) as address:
        pages = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
        if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), pages):
            raise OSError(ctypes.get_errno(), "mincore")
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


@contextmanager
def _mapped(file: Path, size: int) -> Iterator[int]:
    """The address of a private map of a file, of which no page is touched."""
    import numpy as np

    with file.open("rb") as opened, mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        address: int = view.ctypes.data
        del view
        yield address
