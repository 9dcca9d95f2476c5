"""The size limit: a publication that takes the store over its limit cleans it, and no other one does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import cachec
from cachec.errors import StoreFault
from cachec.events import read_log
from cachec.maintain.maintainer import Maintainer
from cachec.model import RECORD_VERSION, Fault, Reason
from cachec.store import store_size
from cachec.store.store_size import ROW, Usage

from .conftest import Yard, key_of

MIB = 1 << 20


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The disk, with as many bytes free as ``free`` says."""
    disk = SimpleNamespace(free=1 << 50)
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(f_bavail=disk.free // 4096, f_frsize=4096))
    return disk


def test_the_limit_is_max_size_and_no_more_than_a_share_of_the_disk(tmp_path: Path, disk: SimpleNamespace) -> None:
    assert store_size.limit(20 * MIB, tmp_path, 0) == 20 * MIB
    assert store_size.limit(0, tmp_path, 0) is None
    disk.free = 16 * MIB
    assert store_size.limit(20 * MIB, tmp_path, 0) == 8 * MIB
    assert (
        store_size.limit(20 * MIB, tmp_path, 8 * MIB) == 12 * MIB
    )  # what the store has is not free, and still its share
    assert store_size.limit(20 * MIB, tmp_path / "not" / "made" / "yet", 0) == 8 * MIB


def test_when_a_gc_may_help() -> None:
    def usage(nbytes: int, rest: int = 0) -> Usage:
        return Usage(version=RECORD_VERSION, nbytes=nbytes, rest=rest)

    assert not store_size.is_due(usage(1000), 1000)
    assert store_size.is_due(usage(1001), 1000)
    # The last gc could not go below 1,200: the next one waits until a tenth of the limit is new.
    assert not store_size.is_due(usage(1299, 1200), 1000)
    assert store_size.is_due(usage(1301, 1200), 1000)
    assert not store_size.is_due(usage(500, 1200), 1000)


def test_the_counter_is_what_a_measurement_finds(yard: Yard) -> None:
    assert yard.store.usage() is None
    assert yard.maintainer.usage().nbytes == 0
    yard.store.prepare()
    yard.maintainer.measure()
    yard.publish(key_of(1), size=10_000 // 64 * 64)
    yard.publish(key_of(2))
    yard.publish(key_of(2), seconds=5.0)  # nothing new on disk
    files = {"a": (yard.store.objects.add_bytes(b"#!/bin/sh" * 1000), True)}
    yard.store.objects.tree(files)
    yard.publish(key_of(3))
    counted = yard.store.usage()
    assert counted is not None
    assert counted.nbytes == yard.maintainer.measure().nbytes
    assert counted.nbytes == 12288 + 2 * 4096 + 3 * 4096 + 2 * 12288


@pytest.mark.parametrize("row", [b"garbage", b"cachec\x09" + b"0" * 60])
def test_a_damaged_counter_is_measured_anew(yard: Yard, row: bytes) -> None:
    yard.publish(key_of(1))
    yard.store.index.write(ROW, row, "x")
    yard.publish(key_of(2))
    yard.store.keep_bound(lambda store, found: Maintainer(store, max_size=1 << 40).keep_bound(found))
    yard.store.settle()
    assert yard.store.usage() == Usage(version=RECORD_VERSION, nbytes=4 * 4096)
    yard.store.index.write(ROW, row, "x")
    assert yard.maintainer.estimate().nbytes == 4 * 4096
    assert Maintainer(yard.store, max_size=1 << 40).collect(dry_run=True).before == 4 * 4096
    assert yard.store.index.read(ROW) == row  # nobody who only looks writes it
    assert Maintainer(yard.store, max_size=1 << 40).collect().after == 4 * 4096
    assert yard.store.usage() == Usage(version=RECORD_VERSION, nbytes=4 * 4096)


def test_a_publication_that_fails_is_counted_by_the_next(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    yard.store.prepare()
    yard.maintainer.measure()
    with monkeypatch.context() as patch:
        patch.setattr(yard.store.index, "atomically", _fail)
        with pytest.raises(StoreFault, match="no room"):
            yard.publish(key_of(1))
    assert yard.store.usage() == Usage(version=RECORD_VERSION, nbytes=0)
    yard.publish(key_of(2))
    assert yard.store.usage() == yard.maintainer.measure_usage()


def _fail(*_args: object, **_more: object) -> None:
    raise StoreFault(Fault.STORE_FULL, "no room")


_SCRIPT = """
import sys
import cachec

cache = cachec.Cache(sys.argv[1], log="off", mode="on", max_size="400KB")

@cache.stage
def build(value: int) -> bytes:
    return f"{value:08}".encode() * 2048

for value in range(int(sys.argv[2]), int(sys.argv[3])):
    assert build(value) == f"{value:08}".encode() * 2048
print(cache.store.usage().nbytes)
"""


@pytest.mark.long
def test_publications_keep_the_store_within_its_size(tmp_path: Path, disk: SimpleNamespace) -> None:
    script, store = tmp_path / "script.py", tmp_path / "store"
    script.write_text(_SCRIPT)
    for start in range(0, 60, 10):  # each process holds what it published, until it ends
        command = [sys.executable, str(script), str(store), str(start), str(start + 10)]
        subprocess.run(command, check=True, capture_output=True)
    yard = Yard(store)
    measured = yard.maintainer.measure().nbytes
    assert 150_000 < measured <= 400_000 + 10 * 20480  # of the last process nothing goes
    assert yard.maintainer.collect(limit=400_000).after <= 400_000
    yard.store.close()
    cache = cachec.Cache(store, log="off", mode="on")
    assert sum(1 for _ in cache.store.entries()) >= 10


def test_a_publication_within_the_limit_looks_at_nothing(cache: cachec.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    @cache.stage
    def build(value: int) -> bytes:
        return bytes([value]) * 9000

    build(1)  # measures the new store

    def refuse(*_args: object, **_more: object) -> None:
        raise AssertionError("the store was looked through")

    monkeypatch.setattr("cachec.store.objects.Objects.iterate", refuse)
    monkeypatch.setattr("cachec.maintain.collect.Collector.run", refuse)
    build(2)
    assert cache.store.usage() is not None
    monkeypatch.setattr("cachec.store.store_size.limit", refuse)
    build(2)  # a hit does not even ask


def test_a_gc_that_fails_is_a_fault_and_the_result_is_there(
    cache: cachec.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_more: object) -> None:
        raise cachec.errors.StoreFault(Fault.IO_ERROR, "no")  # type: ignore[attr-defined]

    monkeypatch.setattr("cachec.maintain.maintainer.Maintainer.keep_bound", fail)

    @cache.stage
    def build(value: int) -> int:
        return value + 1

    assert build(1) == 2
    assert cache.events.faults == {Fault.IO_ERROR: 1}
    assert build(1) == 2
    assert cache.events.faults == {Fault.IO_ERROR: 1}


def test_a_gc_that_can_not_help_is_not_run_at_each_publication(yard: Yard, disk: SimpleNamespace) -> None:
    runs = []
    maintainer = Maintainer(yard.store, max_size=200_000)
    for number in range(60):
        yard.publish(key_of(number))  # this process holds them all
        yard.store.keep_bound(lambda _store, found: runs.append(maintainer.keep_bound(found)))
        yard.store.settle()
    done = [each for each in runs if each is not None]
    assert len(runs) == 60
    assert 2 <= len(done) <= 16
    assert not done[-1].is_within


def _folder(path: Path, content: bytes) -> Path:
    path.mkdir()
    for number in range(3):
        (path / str(number)).write_bytes(content[number::3])
    return path


@pytest.mark.parametrize("kind", ["bytes", "array", "file", "folder", "files", "pieces"])
def test_a_result_larger_than_the_store_is_handed_out_and_evicts_nothing(tmp_path: Path, kind: str) -> None:
    cache = cachec.Cache(tmp_path / "store", log="off", mode="on", max_size=1_000_000)
    content = os.urandom(1_200_000)

    @cache.stage
    def small(value: int) -> bytes:
        return bytes([value]) * 50_000

    @cache.stage(version=kind, ignore=["kind", "content", "folder"])
    def large(kind: str, content: bytes, folder: Path) -> object:
        (folder / "file").write_bytes(content)
        match kind:
            case "bytes":
                return content
            case "array":
                return np.frombuffer(content, "u1")
            case "file":
                return cachec.File(folder / "file")
            case "files":
                return {"parts": [cachec.File(path) for path in sorted(_folder(folder / "parts", content).iterdir())]}
            case "folder":
                return cachec.Dir(_folder(folder / "parts", content))
        return cachec.WeightSet.from_arrays({"w": np.frombuffer(content, "u1")})

    for value in range(3):
        small(value)
    before = Maintainer(cache.store).measure_usage().nbytes
    for turn in range(2):
        (tmp_path / str(turn)).mkdir()
        result = large(kind, content, tmp_path / str(turn))
        assert result is not None
        *_, last = read_log(cache.store.folder)
        assert (last.reason, last.fault, last.stored) == (Reason.FIRST_RUN, Fault.STORE_FULL, False)
        assert cache.events.faults == {Fault.STORE_FULL: turn + 1}
    assert Maintainer(cache.store).measure_usage().nbytes == before
    small(3)
    assert [small.check(value).hit for value in range(4)] == [True] * 4


def test_a_result_as_large_as_the_store_may_be_is_stored(tmp_path: Path) -> None:
    cache = cachec.Cache(tmp_path / "store", log="off", mode="on", max_size=100_000)

    @cache.stage
    def build(size: int) -> bytes:
        return b"x" * size

    build(100_000)
    assert not cache.events.faults
    build(100_001)
    assert cache.events.faults == {Fault.STORE_FULL: 1}
