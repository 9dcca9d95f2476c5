"""Artifacts: stored once, checked when used, healed when damaged."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cachec.base import fsio, hashing
from cachec.base.hashing import FileDigests, digest_bytes
from cachec.errors import StoreFault
from cachec.model import ArtifactRef, Fault
from cachec.store.leases import collecting
from cachec.store.objects import HASHED_BELOW, REFRESH_SECONDS, SEAL_NS, Objects

CONTENT = b"some content\n" * 1000


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects(tmp_path / "objects", tmp_path / "tmp", FileDigests())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(CONTENT)
    return path


def fault_of(call: Callable[[], object]) -> Fault:
    with pytest.raises(StoreFault) as raised:
        call()
    return raised.value.fault


def stored(tmp_path: Path) -> list[str]:
    return sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "objects").rglob("*") if path.is_file())


def add_in_pieces(objects: Objects, _source: Path) -> ArtifactRef:
    with objects.staging() as writer:
        writer.write(CONTENT[:7])
        writer.write(memoryview(CONTENT)[7:])
        return writer.commit()


ADD: list[Callable[[Objects, Path], ArtifactRef]] = [
    lambda objects, _source: objects.add_bytes(CONTENT),
    lambda objects, _source: objects.add_bytes(memoryview(bytearray(CONTENT))),
    lambda objects, source: objects.add_file(source),
    add_in_pieces,
]


@pytest.mark.parametrize("add", ADD)
def test_every_way_in_gives_the_same_object(
    tmp_path: Path, objects: Objects, source: Path, add: Callable[[Objects, Path], ArtifactRef]
) -> None:
    assert objects.take_written_bytes() == 0
    ref = add(objects, source)
    assert (objects.take_written_bytes() > 0, objects.take_written_bytes()) == (True, 0)
    assert ref == ArtifactRef(digest_bytes(CONTENT), len(CONTENT))
    path = objects.path(ref)
    assert path == tmp_path / "objects" / ref.digest[:2] / ref.digest
    assert path.read_bytes() == CONTENT
    assert objects.read(ref) == CONTENT
    assert objects.content(ref.digest) == CONTENT
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert list((tmp_path / "tmp").iterdir()) == []
    inode = path.stat().st_ino
    assert add(objects, source) == ref
    assert path.stat().st_ino == inode  # reused
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"x"])
def test_small_objects(objects: Objects, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "source").write_bytes(content)
    assert objects.add_bytes(content) == objects.add_file(tmp_path / "source")
    assert objects.read(objects.add_bytes(content)) == content


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o277])
def test_modes_do_not_depend_on_the_umask(tmp_path: Path, mask: int) -> None:
    old = os.umask(mask)
    try:
        objects = Objects(tmp_path / "store" / "objects", tmp_path / "store" / "tmp", FileDigests())
        path = objects.path(objects.add_bytes(CONTENT))
        assert stat.S_IMODE(path.stat().st_mode) == 0o444
        for folder in (path.parent, path.parent.parent, tmp_path / "store", tmp_path / "store" / "tmp"):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        os.umask(old)


@pytest.mark.parametrize("refusal", [errno.EXDEV, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_is_copied_by_hand_where_the_kernel_does_not(
    objects: Objects, source: Path, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    def refuse(*_args: object) -> int:
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(os, "copy_file_range", refuse)
    if refusal == errno.EIO:  # a real error is one
        assert fault_of(lambda: objects.add_file(source)) is Fault.IO_ERROR
    else:
        assert objects.read(objects.add_file(source)) == CONTENT


def test_a_file_of_a_file_system_without_sizes(objects: Objects) -> None:
    ref = objects.add_file("/proc/self/limits")
    assert b"Max open files" in objects.read(ref)


def test_a_file_that_keeps_changing_is_not_stored(
    objects: Objects, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = os.copy_file_range

    def copy_and_change(*args: Any) -> int:
        with open(source, "ab") as file:
            file.write(b"more")
        return copy(*args)

    monkeypatch.setattr(os, "copy_file_range", copy_and_change)
    # Each call changes it, so the copy would never end either: one chunk is enough.
    monkeypatch.setattr(
        "cachec.store.object_writer.ObjectWriter.copy", lambda writer, fd: copy_and_change(fd, writer._staged.fd, 5)
    )
    with pytest.raises(StoreFault, match="kept changing"):
        objects.add_file(source)
    assert not (tmp_path / "objects").exists() or stored(tmp_path) == []
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_change_during_the_first_copy_is_copied_again(
    objects: Objects, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, calls = os.copy_file_range, []

    def change_once(*args: Any) -> int:
        done = copy(*args)
        if not calls:
            source.write_bytes(b"second")
        calls.append(1)
        return done

    monkeypatch.setattr(os, "copy_file_range", change_once)
    assert objects.read(objects.add_file(source)) == b"second"


def test_what_is_no_regular_file_is_refused(objects: Objects, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(ValueError, match="no regular file"):
            objects.add_file(path)
    with pytest.raises(FileNotFoundError):  # the stage's own mistake, not the store's
        objects.add_file(tmp_path / "nothing")


def test_leaving_without_commit_leaves_nothing(objects: Objects, tmp_path: Path) -> None:
    def fail() -> None:
        with objects.staging() as writer:
            writer.write(CONTENT)
            raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert list(objects.iterate()) == []


# --- damage

DAMAGE: dict[str, Callable[[Path], object]] = {
    "shorter": lambda path: os.truncate(path, 17),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: replace(path, CONTENT + b"x"),
    "altered": lambda path: replace(path, b"S" + CONTENT[1:]),
    "altered in place": lambda path: alter_in_place(path),
    "a link": lambda path: (path.rename(path.with_name("moved")), path.symlink_to("/etc/hostname")),
}


def replace(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


def alter_in_place(path: Path) -> None:
    before = path.stat()
    path.chmod(0o644)
    with open(path, "r+b") as file:
        file.write(b"S")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    path.chmod(0o444)


@pytest.mark.parametrize("settle", [False, True])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_object_is_noticed_and_heals(
    objects: Objects, damage: str, settle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsio, "SETTLE_SECONDS", 0.05)
    ref = objects.add_bytes(CONTENT)
    path = objects.path(ref)
    if settle:  # so that the digest is remembered
        time.sleep(0.1)
        assert objects.path(ref) == path
        assert objects.path(ref) == path
    DAMAGE[damage](path)
    assert fault_of(lambda: objects.path(ref)) is Fault.ARTIFACT_CORRUPT
    assert fault_of(lambda: objects.path(ref)) is Fault.ARTIFACT_MISSING  # it was removed
    assert objects.add_bytes(CONTENT) == ref
    assert objects.path(ref).read_bytes() == CONTENT


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_new_process_notices_it_too(objects: Objects, tmp_path: Path, damage: str) -> None:
    ref = objects.add_bytes(CONTENT)
    DAMAGE[damage](objects.path(ref))
    fresh = Objects(tmp_path / "objects", tmp_path / "tmp", FileDigests())
    assert fault_of(lambda: fresh.path(ref)) is Fault.ARTIFACT_CORRUPT


@pytest.mark.parametrize("damage", [name for name in DAMAGE if name != "a link"])
def test_reading_notices_it_too(objects: Objects, damage: str) -> None:
    for read in (objects.read, lambda ref: objects.content(ref.digest)):
        ref = objects.add_bytes(CONTENT)
        DAMAGE[damage](objects.path(ref))
        assert fault_of(lambda: read(ref)) is Fault.ARTIFACT_CORRUPT
        assert objects.content(ref.digest) is None


@pytest.mark.parametrize("damage", DAMAGE)
def test_adding_replaces_a_damaged_object_and_never_writes_in_place(objects: Objects, damage: str) -> None:
    ref = objects.add_bytes(CONTENT)
    path = objects.path(ref)
    DAMAGE[damage](path)
    with open(path, "rb") as before:
        held = before.read()
        assert objects.add_bytes(CONTENT) == ref
        assert before.seek(0) == 0
        assert before.read() == held  # a reader of the old file keeps what it has
    assert objects.path(ref).read_bytes() == CONTENT
    assert not path.is_symlink()


def test_a_missing_object_heals(objects: Objects, tmp_path: Path) -> None:
    ref = objects.add_bytes(CONTENT)
    path = objects.path(ref)
    path.unlink()
    assert fault_of(lambda: objects.path(ref)) is Fault.ARTIFACT_MISSING
    assert fault_of(lambda: objects.read(ref)) is Fault.ARTIFACT_MISSING
    shutil.rmtree(tmp_path / "objects")
    shutil.rmtree(tmp_path / "tmp")
    assert fault_of(lambda: objects.path(ref)) is Fault.ARTIFACT_MISSING
    assert objects.add_bytes(CONTENT) == ref
    assert objects.path(ref).read_bytes() == CONTENT


def test_a_reference_with_another_size_is_refused_and_the_object_stays(objects: Objects) -> None:
    ref = objects.add_bytes(CONTENT)
    for _ in range(2):  # first use, and later
        assert fault_of(lambda: objects.path(ArtifactRef(ref.digest, ref.size + 1))) is Fault.ARTIFACT_CORRUPT
        assert objects.path(ref).read_bytes() == CONTENT


def test_a_remembered_object_is_not_hashed_again(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsio, "SETTLE_SECONDS", 0.05)
    ref = objects.add_bytes(CONTENT)
    time.sleep(0.1)
    hashed: list[int] = []
    digest = hashing.digest_extent
    monkeypatch.setattr(hashing, "digest_extent", lambda *args: (hashed.append(1), digest(*args))[1])
    objects.path(ref)
    objects.path(ref)
    objects.path(ref)
    assert len(hashed) == 1
    os.utime(objects.path(ref))  # another identity
    time.sleep(0.1)
    objects.path(ref)
    objects.path(ref)
    assert len(hashed) == 2


# --- maintenance


def test_reuse_refreshes_an_old_mtime_and_leaves_a_new_one(objects: Objects) -> None:
    ref = objects.add_bytes(CONTENT)
    path = objects.path(ref)
    old = time.time() - 2 * REFRESH_SECONDS
    os.utime(path, (old, old))
    assert objects.add_bytes(CONTENT) == ref
    assert path.stat().st_mtime > old + REFRESH_SECONDS
    before = path.stat()
    objects.add_bytes(CONTENT)
    assert (path.stat().st_mtime_ns, path.stat().st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns)


def test_iterate_lists_objects_alone(objects: Objects, tmp_path: Path) -> None:
    assert list(objects.iterate()) == []
    refs = [objects.add_bytes(f"{number}".encode()) for number in range(20)]
    (tmp_path / "objects" / "readme").touch()
    (tmp_path / "objects" / "ab").mkdir(exist_ok=True)
    (tmp_path / "objects" / "ab" / "stray").touch()
    assert [ref for ref, _ in objects.iterate()] == sorted(refs, key=lambda ref: ref.digest)
    assert all(abs(mtime - time.time()) < 60 for _, mtime in objects.iterate())


def test_an_object_is_never_lost_between_a_reuse_and_a_removal(objects: Objects, tmp_path: Path) -> None:
    """What ``gc`` may do at any moment: remove what nobody holds. What was reused is held, however old its file is."""
    ref = objects.add_bytes(CONTENT)
    path = objects.path(ref)
    collector = Objects(tmp_path / "objects", tmp_path / "tmp", FileDigests())
    stop = threading.Event()
    removed: list[str] = []
    errors: list[BaseException] = []

    def collect() -> None:
        try:
            while not stop.is_set():
                with collecting(tmp_path / "leases") as held:
                    held.drop_dead()
                    removed.extend(digest for digest, _ in collector.remove_unleased([ref.digest], held))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        for number in range(20_000):
            if number >= 100 and removed:
                break  # one of the two may have all of the processor for long
            user = objects.leasing()
            assert user.add_bytes(CONTENT) == ref
            assert user.has(ref)
            assert path.read_bytes() == CONTENT  # nobody may remove it until the lease is given up
            user.release()
            objects.release()
    finally:
        stop.set()
        thread.join()
    assert errors == []
    assert removed != [], "it never was removed in between: this says nothing"


# --- the seal

LARGE = b"x" * HASHED_BELOW


def is_sealed(path: Path) -> bool:
    return path.stat().st_mtime_ns % 10**9 == SEAL_NS


def fresh(objects: Objects) -> Objects:
    """As a new process sees them that remembers no digest."""
    return Objects(objects.root, objects.tmp, FileDigests())


@pytest.fixture
def no_hashing(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(FileDigests, "_of_extent", lambda *_args: pytest.fail("hashed"))


@pytest.mark.parametrize("content", [b"", CONTENT, LARGE, bytearray(LARGE)], ids=["empty", "small", "large", "mutable"])
def test_what_is_published_is_sealed_within_the_last_second(objects: Objects, content: bytes) -> None:
    started = time.time()
    path = objects.path(objects.add_bytes(content))
    assert is_sealed(path)
    assert started - 1.5 < path.stat().st_mtime <= time.time()


def test_large_sealed_objects_are_not_hashed_and_small_ones_are(objects: Objects, no_hashing: Any) -> None:
    small, large = objects.add_bytes(CONTENT), objects.add_bytes(LARGE)
    files = {"a": (large, False), "b": (large, True)}
    tree = objects.tree(files)
    assert objects.tree(files) == tree
    no_hashing()
    assert fresh(objects).path(large).read_bytes() == LARGE
    assert fresh(objects).has(large)
    assert fresh(objects).tree(files) == tree
    with pytest.raises(pytest.fail.Exception, match="hashed"):
        fresh(objects).path(small)


@pytest.mark.parametrize("damage", ["in place", "anew", "through a link", "cut"])
def test_a_large_object_that_was_written_is_noticed_by_a_new_process(
    objects: Objects, tmp_path: Path, damage: str
) -> None:
    ref = objects.add_bytes(LARGE)
    path = objects.path(ref)
    if damage == "anew":
        path.unlink()
        path.write_bytes(b"y" + LARGE[1:])
    elif damage == "cut":
        os.truncate(path, HASHED_BELOW - 1)
    else:
        os.link(path, tmp_path / "other name")
        path.chmod(0o644)
        with open(path if damage == "in place" else tmp_path / "other name", "r+b") as file:
            file.write(b"y")
    assert fault_of(lambda: fresh(objects).path(ref)) is Fault.ARTIFACT_CORRUPT
    assert not path.exists()
    assert objects.add_bytes(LARGE) == ref
    assert objects.read(ref) == LARGE


def test_a_large_object_without_a_seal_is_hashed_once_and_sealed_anew(objects: Objects, no_hashing: Any) -> None:
    ref = objects.add_bytes(LARGE)
    path = objects.path(ref)
    os.utime(path, (5000.0, 5000.0))  # restored by what keeps whole seconds
    fresh(objects).check(ref)
    assert path.stat().st_mtime == 5000.0, "a question writes nothing"
    started = time.time()
    assert fresh(objects).path(ref) == path
    assert is_sealed(path)
    assert started - 1.5 < path.stat().st_mtime <= time.time()
    no_hashing()
    assert fresh(objects).path(ref) == path


def test_a_store_that_is_only_read_hashes_what_has_no_seal(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = objects.add_bytes(LARGE)
    os.utime(objects.path(ref), (5000.0, 5000.0))

    def refuse(*_args: object, **_how: object) -> None:
        raise PermissionError(errno.EPERM, "not yours")

    monkeypatch.setattr(os, "utime", refuse)
    for _ in range(2):
        assert fresh(objects).path(ref).read_bytes() == LARGE
    assert objects.path(ref).stat().st_mtime == 5000.0


def test_a_sealed_object_whose_times_were_set_back_is_found(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachec.store.objects.SEAL_SLACK_NS", 50_000_000)
    ref = objects.add_bytes(b"a" * HASHED_BELOW)
    path = objects.path(ref)
    before = path.stat()
    # A seal of the second before: the clock then shows what was done now, as it does days later.
    os.utime(path, ns=(before.st_mtime_ns, before.st_mtime_ns - 10**9))
    before = path.stat()
    path.chmod(0o644)
    path.write_bytes(b"b" * HASHED_BELOW)
    path.chmod(0o444)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(StoreFault, match="does not hold"):
        fresh(objects).path(ref)


def test_verify_believes_no_seal_and_nothing_that_is_remembered(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsio, "SETTLE_SECONDS", 0.05)
    good, bad = objects.add_bytes(LARGE), objects.add_bytes(LARGE + b"z")
    assert (objects.verify(good), objects.verify(bad)) == ("", "")
    alter_in_place(objects.path(bad))
    assert objects.path(bad)  # its times were set back: no look tells
    identity = fsio.identity(objects.path(bad))
    objects.digests._known[identity, 0, bad.size] = bad.digest  # as a disk that lost a bit leaves it
    assert "its bytes have the digest" in objects.verify(bad)
    assert objects.verify(bad) == "it is gone"
    assert fault_of(lambda: objects.path(bad)) is Fault.ARTIFACT_MISSING
    assert objects.verify(good) == ""


def test_memory_that_changes_while_it_is_stored_is_never_sealed_under_another_name(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray(LARGE)
    write = fsio.Staging.write

    def meanwhile(staged: fsio.Staging, view: Any) -> None:
        data[7] = 0
        write(staged, view)

    monkeypatch.setattr(fsio.Staging, "write", meanwhile)
    ref = objects.add_bytes(data)
    assert ref.digest == digest_bytes(bytes(data)) != digest_bytes(LARGE)
    assert objects.verify(ref) == ""


def test_a_new_object_replaces_no_file_that_is_there(objects: Objects) -> None:
    """A set that is open compares inodes: the second of two publishers leaves the first one's file."""
    with objects.staging() as one, objects.staging() as two:
        one.write(LARGE)
        two.write(LARGE)
        path = objects.path(one.commit())
        inode = path.stat().st_ino
        two.commit()
    assert path.stat().st_ino == inode
    assert list(objects.tmp.iterdir()) == []


def _make_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [os.mkfifo, _make_folder, lambda path: path.symlink_to("elsewhere")])
@pytest.mark.timeout(20)
def test_what_is_no_regular_file_is_no_object(objects: Objects, make: Callable[[Path], None]) -> None:
    ref = objects.add_bytes(b"content")
    place = objects.path(ref, lease=False)
    for ask in (lambda: objects.read(ref), lambda: objects.content(ref.digest), lambda: objects.path(ref)):
        place.unlink()
        make(place)
        assert fault_of(ask) is Fault.ARTIFACT_CORRUPT  # and none waits for a writer
        if place.is_dir():
            place.rmdir()
        assert not os.path.lexists(place)
        objects.add_bytes(b"content")
        assert objects.read(ref) == b"content"


@pytest.mark.timeout(20)
def test_a_file_of_a_tebibyte_is_not_read_for_damage(objects: Objects) -> None:
    ref = objects.add_bytes(b"content")
    place = objects.path(ref, lease=False)
    for ask in (
        lambda: objects.read(ref),
        lambda: objects.path(ref),
        lambda: objects.content(ref.digest),
        lambda: objects.verify(ref),
    ):
        place.chmod(0o600)
        os.truncate(place, 1 << 40)
        with contextlib.suppress(StoreFault):
            assert ask() == f"it is no regular file of {ref.size} bytes"
        if not objects.has(ref):
            objects.add_bytes(b"content")
        assert objects.read(ref) == b"content"
