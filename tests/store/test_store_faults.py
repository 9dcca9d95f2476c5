"""The store under faults: killed at every step, no room, no permission, many at once, damaged pages."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cachec.errors import StoreFault
from cachec.model import Fault
from cachec.store.store import Store
from tests.effort import WHOLE, sample

K = "0123456789abcdef" * 4
OLD = "e" * 64

InChild = Callable[[Callable[[], object]], int]


def fault_of(call: Callable[[], object]) -> Fault:
    with pytest.raises(StoreFault) as raised:
        call()
    return raised.value.fault


class KillAt:
    """Kills this process with SIGKILL right before the n-th call that reaches the system or SQLite.

    ``sys.setprofile`` sees every call of a C function; those of ``posix``, ``fcntl`` and ``sqlite3`` are the steps.
    What is on disk changes in no other place.
    """

    def __init__(self, number: int | None) -> None:
        self.left = number
        self.steps = 0

    def __call__(self, _frame: object, event: str, function: Any) -> None:
        if event != "c_call":
            return
        owner = getattr(function, "__self__", None)
        module = getattr(function, "__module__", None)
        if module in {"posix", "fcntl", "_sqlite3"} or type(owner).__module__ == "sqlite3":
            self.steps += 1
            if self.steps == self.left:
                os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.long
@pytest.mark.fuzz
@pytest.mark.parametrize("start", ["an empty store", "another entry", "the same entry"])
def test_a_process_killed_at_every_step_of_publication(
    tmp_path: Path, publisher: Any, in_child: InChild, start: str
) -> None:
    def prepared(name: str) -> Path:
        folder = tmp_path / name
        if start != "an empty store":
            publisher.publish(Store(folder), OLD)
        if start == "the same entry":
            publisher.publish(Store(folder), K, read="/first")
        return folder

    def publish(folder: Path, kill: KillAt) -> None:
        store = Store(folder)
        sys.setprofile(kill)
        publisher.publish(store, K, read="/second")
        store.close()
        sys.setprofile(None)

    publish(prepared("first"), KillAt(None))  # so that what is imported for it is no step
    count = KillAt(None)
    publish(prepared("count"), count)
    assert count.steps > 80
    seen = set()
    some = [*range(1, count.steps, 5 if start == "another entry" else 13), count.steps]  # every one: make faults
    for number in sample(some):
        folder = prepared(str(number))
        assert in_child(lambda: publish(folder, KillAt(number))) == -signal.SIGKILL
        store = Store(folder)
        entry = store.lookup(K)
        seen.add(None if entry is None else tuple(trace.reads[0].where for trace in entry.traces))
        if entry is not None:
            publisher.assert_right(store, K)
        if start != "an empty store":
            publisher.assert_right(store, OLD)
        for ref, _ in store.objects.iterate():
            assert store.objects.read(ref)  # whatever is there is whole
        publisher.publish(store, K, read="/second")  # and the next run gets through
        publisher.assert_right(store, K)
        assert store.lookup(K).traces[0].reads[0].where == "/second"  # type: ignore[union-attr]
        assert store.recent(publisher.stage).keys[0] == K
        assert not list((folder / "index").glob("corrupt-*"))
        store.close()
        shutil.rmtree(folder)
    before = ("/first",) if start == "the same entry" else None
    after = ("/second", "/first") if start == "the same entry" else ("/second",)
    assert seen == {before, after}


# --- no room


@pytest.mark.parametrize("limit", [0, 1, 100, 4095, 4096, 8192, 20_000, 60_000, 200_000])
def test_a_file_size_limit(tmp_path: Path, publisher: Any, in_child: InChild, limit: int) -> None:
    publisher.publish(Store(tmp_path / "filled"), OLD)

    def publish() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        for name in ("filled", "empty"):
            store = Store(tmp_path / name)
            faults: list[StoreFault] = []
            for number in range(40):
                key = f"{number:064x}"
                try:
                    publisher.publish(store, key)
                    publisher.assert_right(store, key)
                except StoreFault as error:
                    faults.append(error)
                    assert store.lookup(key) is None
            assert {error.fault for error in faults} <= {Fault.STORE_FULL}, faults
            if name == "filled":
                publisher.assert_right(store, OLD)
            if limit == 0:
                assert store.lookup("0" * 64) is None

    assert in_child(publish) == 0
    store = Store(tmp_path / "filled")
    publisher.assert_right(store, OLD)
    for entry in list(store.entries()):
        publisher.assert_right(store, entry.key)
    publisher.publish(store, K)  # with room again
    publisher.assert_right(store, K)


def test_a_full_file_system(small_file_system: Any, publisher: Any) -> None:
    store = Store(small_file_system.path / "store")
    keys = [f"{number:064x}" for number in range(200)]
    held, refused = [], []
    for key in keys:
        try:
            publisher.publish(store, key)
            held.append(key)
        except StoreFault as error:
            refused.append((key, error.fault))
    assert held
    assert refused
    for key in held:
        publisher.assert_right(store, key)
    for key, fault in refused:
        assert fault is Fault.STORE_FULL
        assert store.lookup(key) is None
    assert [entry.key for entry in Store(store.folder).entries()] == held
    assert list((store.folder / "tmp").iterdir()) == []


# --- no permission


def test_a_store_that_can_not_be_written_is_read(small_file_system: Any, publisher: Any) -> None:
    """A tmpfs mounted read-only: root may write everywhere else."""
    folder = small_file_system.path / "store"
    writer = Store(folder)
    publisher.publish(writer, K)
    writer.close()
    small_file_system.set_read_only()
    store = Store(folder)
    publisher.assert_right(store, K)
    assert store.recent(publisher.stage).keys == (K,)
    assert [entry.key for entry in store.entries()] == [K]
    assert store.lookup(OLD) is None
    for change in (
        lambda: publisher.publish(store, OLD),
        lambda: store.invalidate(K),
        lambda: store.quarantine(K, "x"),
        lambda: store.lock(K).try_acquire(),
    ):
        assert fault_of(change) is Fault.STORE_UNWRITABLE
    publisher.assert_right(store, K)


@pytest.mark.parametrize("error", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_every_error_of_opening_a_file_is_a_fault(
    tmp_path: Path, publisher: Any, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """Faked by ``os.open``, since root may write everywhere."""
    store = Store(tmp_path)
    publisher.publish(store, K)
    trace = publisher.trace(store, K)

    def refuse(path: Any, *_args: object, **_more: object) -> int:
        raise OSError(error, os.strerror(error), path)

    expected = {
        errno.EACCES: Fault.STORE_UNWRITABLE,
        errno.EROFS: Fault.STORE_UNWRITABLE,
        errno.ENOSPC: Fault.STORE_FULL,
        errno.EDQUOT: Fault.STORE_FULL,
        errno.EIO: Fault.IO_ERROR,
    }[error]
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        assert fault_of(lambda: store.objects.add_bytes(b"new")) is expected
        assert fault_of(lambda: store.lock(K).try_acquire()) is expected
        fresh = Store(tmp_path / "fresh")
        assert fault_of(lambda: fresh.publish(K, "s", (), trace.value.artifacts[0], trace)) is expected
    publisher.assert_right(store, K)


def test_a_file_in_the_place_of_the_store(tmp_path: Path, publisher: Any) -> None:
    (tmp_path / "store").touch()
    store = Store(tmp_path / "store")
    assert store.lookup(K) is None
    with pytest.raises(StoreFault):
        publisher.publish(store, K)
    with pytest.raises(StoreFault):
        store.lock(K).try_acquire()


# --- many at once


@pytest.mark.long
def test_sixteen_processes_publish_the_same_key(tmp_path: Path, publisher: Any) -> None:
    children = []
    for process in range(16):
        pid = os.fork()
        if pid == 0:
            try:
                store = Store(tmp_path)
                for number in range(3):
                    publisher.publish(store, K, read=f"/{process}/{number}")
                    publisher.assert_right(store, K)
                publisher.publish(store, f"{process:064x}")
                store.close()
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 16
    store = Store(tmp_path)
    publisher.assert_right(store, K)
    entry = store.lookup(K)
    assert entry is not None
    assert len({trace.reads[0].where for trace in entry.traces}) == len(entry.traces) == 32
    assert set(store.recent(publisher.stage).keys) == {K, *(f"{process:064x}" for process in range(16))}
    assert len(list(store.objects.iterate())) == 2 * 17
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not list((tmp_path / "index").glob("corrupt-*"))


def test_threads_publish_and_look_up(tmp_path: Path, publisher: Any) -> None:
    store = Store(tmp_path)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(20):
                key = f"{number % 2:032x}{turn:032x}"
                publisher.publish(store, key, read=f"/{number}")
                publisher.assert_right(store, key)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(list(store.entries())) == 40
    assert all(len(entry.traces) == 2 for entry in store.entries())


def test_a_store_is_carried_across_a_fork(tmp_path: Path, publisher: Any, in_child: InChild) -> None:
    store = Store(tmp_path)
    publisher.publish(store, K)
    publisher.assert_right(store, K)
    lock = store.lock(K)
    assert lock.try_acquire()

    def child() -> None:
        publisher.assert_right(store, K)
        assert not store.lock(K).try_acquire()
        publisher.publish(store, OLD)

    assert in_child(child) == 0
    publisher.assert_right(store, OLD)
    lock.release()


def test_processes_that_find_the_index_corrupt_repair_it_once(tmp_path: Path, publisher: Any) -> None:
    store = Store(tmp_path)
    publisher.publish(store, OLD)
    store.close()
    (tmp_path / "index" / "cache.db").write_bytes(b"garbage" * 2000)
    children = []
    for process in range(6):
        pid = os.fork()
        if pid == 0:
            code = 0
            try:
                own = Store(tmp_path)
                for _ in range(3):
                    publisher.publish(own, f"{process:064x}")
                publisher.assert_right(own, f"{process:064x}")
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                code = 1
            os._exit(code)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 6
    assert len(list((tmp_path / "index").glob("corrupt-*"))) == 1
    for process in range(6):
        publisher.assert_right(Store(tmp_path), f"{process:064x}")


def test_a_write_between_the_moves_of_a_repair_is_kept(
    tmp_path: Path, publisher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    publisher.publish(store, OLD)
    store.close()
    (tmp_path / "index" / "cache.db").write_bytes(b"garbage" * 2000)
    rename = Path.rename

    def renamed(self: Path, target: Path) -> Path:
        moved = rename(self, target)
        if self == tmp_path / "index":
            publisher.publish(Store(tmp_path), K)
        return moved

    monkeypatch.setattr(Path, "rename", renamed)
    assert Store(tmp_path).index.repair() is not None
    publisher.assert_right(Store(tmp_path), K)
    assert [path.name[:8] for path in sorted(tmp_path.glob("index*/corrupt-*"))] == ["corrupt-"]
    assert [path.name for path in tmp_path.glob("index*")] == ["index"]


# --- damaged pages


@pytest.mark.long
def test_altered_pages_never_give_a_wrong_entry(tmp_path: Path, publisher: Any) -> None:
    writer = Store(tmp_path / "whole")
    keys = [f"{number:064x}" for number in range(24)]
    for key in keys:
        publisher.publish(writer, key)
    expected = {key: writer.lookup(key) for key in keys}
    writer.close()
    whole = (tmp_path / "whole" / "index" / "cache.db").read_bytes()
    random_ = random.Random(11)
    wrong = 0
    for number in sample(range(120)):
        damaged = bytearray(whole)
        for _ in range(random_.choice([1, 20, 400])):
            damaged[random_.randrange(len(whole))] ^= 1 << random_.randrange(8)
        (tmp_path / "whole" / "index" / "cache.db").write_bytes(damaged)
        store = Store(tmp_path / "whole")
        for key in keys:
            try:
                entry = store.lookup(key)
                wrong += entry != expected[key]
                assert entry in (None, expected[key])
            except StoreFault:
                wrong += 1
        try:
            with contextlib.suppress(StoreFault):
                store.lookup(K)  # as every call does before it publishes
            publisher.publish(store, K)
            publisher.assert_right(store, K)
        except StoreFault as error:
            pytest.fail(f"damage {number} stops publication: {error}")
        store.close()
        shutil.rmtree(tmp_path / "whole" / "index")
        (tmp_path / "whole" / "index").mkdir()
    assert wrong > (100 if WHOLE else 10)  # the damage did reach entries


def test_an_index_cut_in_mid_use_loses_entries_and_nothing_else(tmp_path: Path, publisher: Any, rows: Any) -> None:
    store = Store(tmp_path)
    keys = [f"{number:064x}" for number in range(40)]
    for key in keys:
        publisher.publish(store, key)
    rows.settle()
    os.truncate(tmp_path / "index" / "cache.db", 9000)
    for key in keys:
        assert fault_of(lambda: Store(tmp_path).lookup(key)) is Fault.INDEX_CORRUPT
    for key in keys:
        publisher.publish(store, key)
        publisher.assert_right(store, key)
    assert len(list(Store(tmp_path).entries())) == 40
