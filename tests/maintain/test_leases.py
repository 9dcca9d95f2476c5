"""Leases: what a living process was handed is seen by others, from before it is handed out until the process ends."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cachec.base import fsio
from cachec.base.hashing import digest_bytes
from cachec.errors import StoreFault
from cachec.model import Fault
from cachec.store.leases import LeasedArtifacts, Leases, collecting
from cachec.store.store import Store

from .conftest import start

InChild = Callable[[Callable[[], object]], int]

A, B, C = (digest_bytes(name) for name in (b"a", b"b", b"c"))


def held_in(folder: Path) -> set[str]:
    """What living processes hold, looked at anew."""
    with collecting(folder) as held:
        held.drop_dead()
        held.refresh()
        return {digest.hex() for digest in held.digests}


def test_what_is_taken_is_held_until_it_is_released(tmp_path: Path) -> None:
    leases = Leases(tmp_path / "leases")
    assert held_in(tmp_path / "leases") == set()
    leases.take((A, B))
    assert leases.holds(A)
    assert not leases.holds(C)
    assert held_in(tmp_path / "leases") == {A, B}
    leases.take((C,))
    assert held_in(tmp_path / "leases") == {A, B, C}
    leases.release()
    assert held_in(tmp_path / "leases") == set()
    assert list((tmp_path / "leases").iterdir()) == []
    assert not leases.holds(A)
    leases.take((A,))
    assert held_in(tmp_path / "leases") == {A}


def test_one_that_is_given_up_between_its_name_and_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, others = Leases(tmp_path / "leases"), Leases(tmp_path / "leases")
    mine.take((A,))
    (mine_at,) = (tmp_path / "leases").iterdir()
    others.take((B,))
    names_in = fsio.names_in

    def then_gone(*args: Any, **how: Any) -> list[str]:
        names = [name for name in names_in(*args, **how) if name != mine_at.name]
        mine_at.unlink()
        return [mine_at.name, *names, mine_at.name]

    with collecting(tmp_path / "leases") as held:
        monkeypatch.setattr(fsio, "names_in", then_gone)
        held.refresh()
    assert {digest.hex() for digest in held.digests} == {B}


def test_opening_makes_nothing_and_a_second_take_writes_nothing(tmp_path: Path) -> None:
    leases = Leases(tmp_path / "leases")
    assert not (tmp_path / "leases").exists()
    leases.take((A,))
    (file,) = (tmp_path / "leases").iterdir()
    assert file.stat().st_size == 32
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    leases.take((A,))
    assert file.stat().st_size == 32


def test_a_cache_that_is_no_longer_used_gives_up_its_leases(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.objects.add_bytes(b"x")
    assert list((tmp_path / "leases").iterdir()) != []
    del store
    assert list((tmp_path / "leases").iterdir()) == []


def test_an_artifact_is_leased_when_it_is_added_reused_and_handed_out(tmp_path: Path) -> None:
    writer, other, reader = Store(tmp_path), Store(tmp_path), Store(tmp_path)
    ref = writer.objects.add_bytes(b"artifact")
    assert writer.leases.holds(ref.digest)
    assert not other.leases.holds(ref.digest)
    other.objects.add_bytes(b"artifact")
    assert other.leases.holds(ref.digest)
    assert reader.objects.read(ref) == b"artifact"  # its content alone is not its path
    assert not reader.leases.holds(ref.digest)
    reader.objects.path(ref)
    assert reader.leases.holds(ref.digest)


def test_a_tree_is_leased(tmp_path: Path) -> None:
    writer, reader = Store(tmp_path), Store(tmp_path)
    files = {
        "bin/tool": (writer.objects.add_bytes(b"tool"), True),
        "notes": (writer.objects.add_bytes(b"notes"), False),
    }
    path = writer.objects.tree(files)
    writer.leases.release()
    assert reader.objects.tree(files) == path
    assert held_in(tmp_path / "leases") == {path.name}


def test_the_leases_of_a_killed_process_end_with_it(tmp_path: Path) -> None:
    ready, wait = os.pipe(), os.pipe()

    def child() -> None:
        leases = Leases(tmp_path / "leases")
        leases.take((A,))
        os.write(ready[1], b"x")
        os.read(wait[0], 1)

    pid = start(child)
    os.read(ready[0], 1)
    assert held_in(tmp_path / "leases") == {A}
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert list((tmp_path / "leases").iterdir()) != []
    assert held_in(tmp_path / "leases") == set()
    assert list((tmp_path / "leases").iterdir()) == []


def test_a_forked_child_keeps_what_its_parent_was_handed(tmp_path: Path) -> None:
    ready, wait = os.pipe(), os.pipe()
    leases = Leases(tmp_path / "leases")
    leases.take((A,))

    def child() -> None:
        leases.take((B,))
        os.write(ready[1], b"x")
        os.read(wait[0], 1)

    pid = start(child)
    os.read(ready[0], 1)
    leases.release()
    assert held_in(tmp_path / "leases") == {A, B}
    os.write(wait[1], b"x")
    os.waitpid(pid, 0)
    assert held_in(tmp_path / "leases") == set()


def test_while_gc_is_at_work_nothing_that_was_leased_is_forgotten(tmp_path: Path, in_child: InChild) -> None:
    """A process may publish a row that gc has not seen, and end: its lease has to be seen all the same."""
    folder = tmp_path / "leases"

    def child() -> None:
        leases = Leases(folder)
        leases.take((A,))
        leases.release()

    with collecting(folder) as held:
        held.drop_dead()
        assert in_child(child) == 0
        held.refresh()
        assert A in held
        assert B not in held
    assert held_in(folder) == set()


def test_a_lease_is_read_on_from_where_it_was_read_before(tmp_path: Path) -> None:
    leases = Leases(tmp_path / "leases")
    with collecting(tmp_path / "leases") as held:
        leases.take((A,))
        held.refresh()
        leases.take((B,))
        held.refresh()
        assert held.digests == {bytes.fromhex(A), bytes.fromhex(B)}


@pytest.mark.parametrize("fitting", [0, 31, 33])
def test_a_torn_lease_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fitting: int) -> None:
    faults: list[Fault] = []
    leases = Leases(tmp_path / "leases", lambda fault, _detail: faults.append(fault))
    leases.take((A,))
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, data[:fitting]))
        leases.take((B, C))
    assert faults == [Fault.STORE_FULL]
    assert not leases.holds(B)
    leases.take((B, C))
    assert held_in(tmp_path / "leases") >= {A, B, C}


@pytest.mark.parametrize(
    ("error", "told"), [(errno.ENOSPC, [Fault.STORE_FULL]), (errno.EIO, [Fault.IO_ERROR]), (errno.EROFS, [])]
)
def test_a_hit_does_without_a_lease_that_can_not_be_written_and_a_publication_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, told: list[Fault]
) -> None:
    faults: list[Fault] = []
    leases = Leases(tmp_path / "leases", lambda fault, _detail: faults.append(fault))

    def refuse(*_args: object, **_more: object) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "open", refuse)
    leases.take((A,))
    leases.take((A,))
    assert not leases.holds(A)
    assert faults == told
    with pytest.raises(StoreFault):
        leases.take((A,), strict=True)


def test_a_store_that_was_cleared_is_leased_anew(tmp_path: Path) -> None:
    import shutil

    store = Store(tmp_path)
    ref = store.objects.add_bytes(b"x")
    other = store.objects.add_bytes(b"y")
    shutil.rmtree(tmp_path / "leases")
    store.objects.add_bytes(b"z")
    assert held_in(tmp_path / "leases") >= {ref.digest, other.digest}


def test_gc_may_remove_a_lease_between_its_making_and_its_locking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    flock, removed = fcntl.flock, []

    def late(fd: int, how: int) -> None:
        if how == fcntl.LOCK_SH and not removed:
            removed.extend((tmp_path / "leases").iterdir())
            removed[0].unlink()
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    leases = Leases(tmp_path / "leases")
    leases.take((A,))
    assert removed
    assert held_in(tmp_path / "leases") == {A}


def test_garbage_in_the_folder_of_leases_holds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "leases"
    folder.mkdir()
    (folder / "1-0123456789abcdef").write_bytes(b"short")
    (folder / "1-x").write_bytes(bytes(32))  # no name of a lease: somebody else's
    held = LeasedArtifacts(folder)
    held.refresh()
    assert held.digests == set()
    assert held.drop_dead() == 1
    assert [path.name for path in folder.iterdir()] == ["1-x"]
