"""gc under faults: killed at every step, two at once, and beside hits, misses and invalidations."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachec
from cachec.errors import StoreFault
from cachec.events import read_log
from cachec.maintain import sweep
from cachec.maintain.selector import Selector
from cachec.model import Fault
from cachec.store.store import references
from cachec.weights.library.stored_weights import WeightStore
from tests.effort import WHOLE, rounds, sample

from .conftest import Yard, key_of, start

#: Calls that change something on disk, or end a transaction.
CHANGING = frozenset(
    {"unlink", "rename", "rmdir", "mkdir", "write", "pwrite", "utime", "chmod", "execute", "ftruncate"}
)


class KillAt:
    """Kills this process with SIGKILL right before the n-th call that may change something.

    ``sys.setprofile`` sees every call of a C function; those of ``posix`` and ``sqlite3`` are the steps.
    """

    def __init__(self, number: int | None) -> None:
        self.left = number
        self.steps = 0

    def __call__(self, _frame: object, event: str, function: Any) -> None:
        if event != "c_call" or getattr(function, "__name__", "") not in CHANGING:
            return
        owner = getattr(function, "__self__", None)
        if getattr(function, "__module__", None) == "posix" or type(owner).__module__ == "sqlite3":
            self.steps += 1
            if self.steps == self.left:
                os.kill(os.getpid(), signal.SIGKILL)


def prepared(folder: Path) -> Yard:
    """Four entries, of which two share an artifact, which owned weights have too; weights that have no name any more;
    an orphan, a damaged row, remains of a killed process.
    """
    yard = Yard(folder)
    for number, content in enumerate((None, b"shared" * 900, b"shared" * 900, None)):
        yard.publish(key_of(number), seconds=1.0 + number, content=content)
    yard.store.objects.add_bytes(b"orphan")
    weights = WeightStore(yard.store, clock=lambda: yard.now)
    weights.add(cachec.WeightSet.from_arrays({"a": np.frombuffer(b"shared" * 900, "u1"), "b": np.ones(9)}), "named")
    weights.add(cachec.WeightSet.from_arrays({"b": np.ones(9), "c": np.zeros(9)}), "loose")
    weights.remove("loose")
    yard.store.index.write(f"entry:default:{key_of(9)}", b"garbage", "x")
    (folder / "tmp" / f"stage-999999999-{'0' * 16}").touch()
    yard.age()
    yard.store.close()
    return yard


def collect(folder: Path, kill: KillAt | None) -> None:
    """A gc that has to evict two of the four entries."""
    yard = Yard(folder)
    sys.setprofile(kill)
    try:
        yard.maintainer.collect(limit=3 * 4096)
    finally:
        sys.setprofile(None)


def state(folder: Path) -> dict[str, object]:
    """Everything that gc decides about."""
    yard = Yard(folder)
    rows = [name for name, _ in yard.store.index.rows("") if not name.startswith(("digest:", "recent:", "near:"))]
    files = [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.relative_to(folder).parts[0] not in {"index", "log"}
    ]
    return {"rows": rows, "files": sorted(files), "usage": yard.store.usage()}


@pytest.mark.long
def test_a_gc_killed_at_every_step_comes_to_the_same_end(
    tmp_path: Path, in_child: Callable[[Callable[[], object]], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    import diskcache  # noqa: F401 - so that its import is no step

    monkeypatch.setattr("cachec.maintain.collect.BATCH", 1)
    prepared(tmp_path / "count")
    count = KillAt(None)
    collect(tmp_path / "count", count)
    expected = state(tmp_path / "count")
    assert count.steps > 60
    assert len([row for row in expected["rows"] if row.startswith("entry:")]) == 2  # type: ignore[attr-defined]
    prepared(tmp_path / "start")
    between = set()
    for number in sample(range(1, count.steps + 1, 2)):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "start", folder)  # times of files too
        assert in_child(lambda: collect(folder, KillAt(number))) == -signal.SIGKILL
        yard = Yard(folder)
        for entry in yard.store.entries():
            for ref in references(entry):
                assert len(yard.store.objects.read(ref)) == ref.size  # no row before its artifacts are gone
        assert WeightStore(yard.store).verify("named") == ()
        between.add((len(yard.keys()), len(yard.objects())))
        yard.store.close()
        collect(folder, None)
        assert state(folder) == expected, number
        shutil.rmtree(folder)
    assert len(between) > (4 if WHOLE else 1)  # it was killed in the middle of things


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO, errno.ENOSPC])
def test_an_error_of_one_file_is_told_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    yard = prepared(tmp_path)
    unlink, refused = os.unlink, []

    def refuse(path: Any, **more: Any) -> None:
        if "/objects/" in str(path) and len(refused) < 1:
            refused.append(path)
            raise OSError(error, os.strerror(error), path)
        unlink(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        done = yard.maintainer.collect(limit=1)
    assert done.entries == 4
    assert len(yard.faults) == 1
    assert list(yard.store.index.keys(prefix="condemned:")) != []
    yard.maintainer.collect(limit=1)
    assert yard.objects() == set(WeightStore(yard.store).find("named").digests.values())
    assert list(yard.store.index.keys(prefix="condemned:")) == []


def test_an_index_that_can_not_be_written_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yard = prepared(tmp_path)
    before = yard.objects()

    def full(_self: object, _change: object) -> None:
        raise cachec.errors.StoreFault(Fault.STORE_FULL, "no room")  # type: ignore[attr-defined]

    with monkeypatch.context() as patch:
        patch.setattr("cachec.store.index.DiskcacheIndex.atomically", full)
        with pytest.raises(cachec.CachecError, match="no room"):
            yard.maintainer.collect(limit=1)
    assert yard.objects() == before
    assert yard.maintainer.collect(limit=1).entries == 4


def test_two_at_once(tmp_path: Path) -> None:
    yard = prepared(tmp_path)
    children = [start(lambda: collect(tmp_path, None)) for _ in range(4)]
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 4
    assert yard.maintainer.collect(limit=3 * 4096).entries == 0
    assert len(yard.keys()) == 2
    for entry in yard.store.entries():
        for ref in references(entry):
            assert len(yard.store.objects.read(ref)) == ref.size


def churn(folder: Path, number: int, ran: Path) -> None:
    """Calls a stage with few keys, keeps what it was handed, and looks at it again and again."""
    cache = cachec.Cache(folder, log="off", mode="on", max_size=0)

    @cache.stage(ignore=["ran"], tags=["churn"])
    def build(value: int, ran: Path) -> cachec.File:
        with ran.open("a") as out:
            out.write(f"{value}\n")
        with cachec.scratch() as scratch:
            (scratch / "out").write_bytes(f"{value} ".encode() * 4000)
            return cachec.File(scratch / "out")

    rng, held = random.Random(number), {}
    for _ in range(rounds(400)):
        value = rng.randrange(40)
        file, outcome = cache.call(build, value, ran)
        assert outcome.reason.kind in {"hit", "miss"}, outcome
        assert outcome.fault in {None, Fault.ARTIFACT_MISSING}, outcome
        held[value] = file
        for kept, known in held.items():
            assert known.read_bytes() == f"{kept} ".encode() * 4000
        if len(held) > 12:
            held.clear()
            cache.store.release()


def clean(folder: Path, number: int) -> None:
    """Runs gc with a small bound, and invalidates."""
    yard = Yard(folder, now=time.time())
    rng = random.Random(number)
    for _ in range(rounds(200)):
        if rng.random() < 0.7:
            yard.maintainer.collect(limit=rng.choice([1, 300_000, 800_000]))
        else:
            keys = tuple(entry.key for entry in yard.store.entries() if rng.random() < 0.2)
            yard.maintainer.plan(Selector(keys=keys, tags=("churn",))).apply()
        time.sleep(0.01)
    assert set(yard.faults) <= {Fault.ARTIFACT_MISSING}


def beside(folder: Path) -> Counter[str]:
    """Six processes that hit and miss, two that clean; what was pinned and what is held stays. Outcomes by kind."""
    pinned = Yard(folder, now=time.time())
    refs = {number: pinned.publish(key_of(number), tags=("keep",) if number % 2 else ()) for number in range(4)}
    pinned.maintainer.pins.add("tag", "keep")
    for number in (0, 2):
        pinned.maintainer.pins.add("key", key_of(number))
    pinned.age()
    user = Yard(folder)
    held = user.publish(key_of(7), content=b"held" * 5000)
    children = [start(lambda n=n: churn(folder, n, folder / "ran")) for n in range(6)]  # type: ignore[misc]
    children += [start(lambda n=n: clean(folder, n)) for n in range(2)]  # type: ignore[misc]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert codes == [0] * 8
    for number, ref in refs.items():
        assert pinned.store.lookup(key_of(number)) is not None, number
        assert len(pinned.store.objects.read(ref)) == ref.size
    assert user.store.objects.path(held).read_bytes() == b"held" * 5000
    log = Counter(outcome.reason.kind for outcome in read_log(folder))
    assert pinned.maintainer.collect(limit=1).kept_pinned == 4
    return log


@pytest.mark.long
@pytest.mark.fuzz
def test_hits_misses_gc_and_invalidation_in_eight_processes(tmp_path: Path) -> None:
    (tmp_path / "ran").touch()
    log = beside(tmp_path)
    assert set(log) == {"hit", "miss"}
    assert log["hit"] > 5  # how many depends on who comes first
    assert log["miss"] > 5


def test_what_the_system_refuses_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that brings its store back into its bounds catches faults, and nothing else."""
    yard = Yard(tmp_path / "store")
    yard.publish(key_of(1))
    names_in = sweep.fsio.names_in

    def refuse(folder: Path, *args: Any, **how: Any) -> list[str]:
        if os.path.basename(folder) == "tmp":
            raise OSError(errno.EMFILE, "no descriptor is free")
        return names_in(folder, *args, **how)

    monkeypatch.setattr(sweep.fsio, "names_in", refuse)
    with pytest.raises(StoreFault):
        yard.maintainer.collect(limit=1)


@pytest.mark.parametrize("name", ["objects", "trees"])
def test_a_folder_that_the_system_does_not_list_once_is_not_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Of no folder that may not be listed is it known how full it is: to say that all is done would be wrong."""
    yard = Yard(tmp_path / "store")
    yard.publish(key_of(1))
    place = yard.store.objects.trees.root if name == "trees" else tmp_path / "store" / name
    place.mkdir(exist_ok=True)
    fstat, scandir = os.fstat, os.scandir

    def refused(folder: object) -> bool:
        return os.path.realpath(f"/proc/self/fd/{folder}" if isinstance(folder, int) else str(folder)) == str(place)

    def refuse_stat(fd: int) -> os.stat_result:
        if refused(fd):
            raise PermissionError(errno.EACCES, "refused")
        return fstat(fd)

    def refuse_scan(folder: Any) -> Any:
        if refused(folder):
            raise PermissionError(errno.EACCES, "refused")
        return scandir(folder)

    monkeypatch.setattr(os, "fstat", refuse_stat)
    monkeypatch.setattr(os, "scandir", refuse_scan)
    with pytest.raises(StoreFault):
        yard.maintainer.collect(limit=1)
    monkeypatch.undo()
    yard.maintainer.collect(limit=1)
