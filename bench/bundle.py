"""Bundles: a store of 1 GiB as one file, and back, in a running process, against ``cp`` of that file.

Beside that the least that takes a digest of what it copies: the file, by two threads that read, hash and write.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from bench.harness import Row, against, interleaved
from cachec.bundle import add, create
from cachec.model import Leaf, Trace
from cachec.store.store import Store
from cachec.weights.io.copy_and_hash import Relay

_GIB = 1 << 30
#: Of a build: a few large artifacts, and many small ones. Sizes in bytes, and how many.
_SIZES = ((256 << 20, 2), (32 << 20, 12), (1 << 20, 128))

#: The peak of a child counts from the size of the process that started it (getrusage(2)), so a small one starts it.
_PEAK = """
import os, sys
_, status, usage = os.wait4(os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ), 0)
print(status, usage.ru_maxrss)
"""


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the bytes and entries."""
    store, file = folder / "store", folder / "warm.cachec"
    nbytes = _fill(store, scale)
    _create(store, file)
    targets = {name: folder / name for name in ("cp", "hashed", "create", "add")}
    took = interleaved(
        {
            "cp": lambda _: subprocess.run(["cp", file, targets["cp"]], check=True),
            "hashed": partial(_copy_hashed, file),
            "create": partial(_create, store),
            "add": lambda folder: _add(folder, file),
        },
        max(1, round(5 * scale)),
        # All of them, each time: pages of theirs that are yet to be written would slow down whoever comes next.
        fresh={name: partial(_fresh, target, targets.values()) for name, target in targets.items()},
    )
    rows = []
    for verb, what in (("create", ["-o", str(targets["create"])]), ("add", [str(file)])):
        ratio = took["cp"] / took[verb]
        rate = nbytes / took[verb] / _GIB
        peer = f"cp {nbytes / took['cp'] / _GIB:.2f} GiB/s"
        name = f"cachec bundle {verb}, 1 GiB in 142 artifacts"
        rows.append(Row(name, rate, "GiB/s", ">= 0.8x of cp", ratio >= 0.8, peer, ratio))
        rows.append(against(f"{name}, time", took[verb], 0, "copied and hashed", took["hashed"]))
        _removed(targets[verb])
        peak = _peak(targets["add"] if verb == "add" else store, verb, *what)
        rows.append(Row(f"cachec bundle {verb}, peak memory", peak, "MiB", "<= 64", peak <= 64))
    assert filecmp.cmp(targets["create"], file, shallow=False), "one content has one bundle"
    return rows


def _fill(folder: Path, scale: float) -> int:
    """A store of a GiB; how many bytes."""
    store = Store(folder)
    nbytes = 0
    for size, count in _SIZES:
        for number in range(max(1, round(count * scale))):
            data = os.urandom(max(1024, round(size * scale) if size > 1 << 20 else size))
            ref = store.objects.add_bytes(data)
            parts = store.objects.add_bytes(b"[]" + b" " * number)
            key = os.urandom(32).hex()
            store.publish(
                key,
                f"stage{number % 7}",
                (),
                parts,
                Trace(reads=(), value=Leaf("bytes", (ref,)), seconds=1.0, created=1.0),
            )
            nbytes += len(data)
    store.close()
    return nbytes


def _removed(path: Path) -> Path:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return path


def _fresh(target: Path, targets: Iterable[Path]) -> Path:
    for each in targets:
        _removed(each)
    return target


def _line(store: Path, *words: str) -> Sequence[str]:
    return [sys.executable, "-m", "cachec", "--dir", str(store), "bundle", *words]


def _create(folder: Path, file: Path) -> None:
    store = Store(folder)
    assert create(store, [entry.key for entry in store.entries()], file).unusable == 0
    store.close()


def _copy_hashed(file: Path, target: Path) -> None:
    with file.open("rb") as source, target.open("wb") as out:
        Relay(source.fileno(), 0, file.stat().st_size, out.fileno(), 0).run(lambda _: None)


def _add(folder: Path, file: Path) -> None:
    store = Store(folder)
    assert add(store, file).objects > 0
    store.close()


def _peak(store: Path, *words: str) -> float:
    """MiB of memory that a command has used at most."""
    line = [sys.executable, "-c", _PEAK, *_line(store, *words)]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
    *_, status, peak = done.stdout.split()
    assert status == "0"
    return int(peak) / 1024
