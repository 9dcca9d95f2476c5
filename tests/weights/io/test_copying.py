"""The copying engine: what it copies, what it hashes, how it ends early, how much memory it takes."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachec.base import fsio
from cachec.base.hashing import digest_bytes
from cachec.errors import WeightsChanged
from cachec.weights.io import copying
from cachec.weights.io.copying import Copier
from cachec.weights.sources import Extent, OpenedFile

MIB = 1 << 20


def random(nbytes: int) -> bytes:
    return os.urandom(nbytes)


def opened(path: Path, offset: int = 0, nbytes: int | None = None, check: Any = lambda: None) -> Extent:
    fd = fsio.open_read(path)
    found = fsio.identity(fd)
    return Extent(
        fd, offset, found.size - offset if nbytes is None else nbytes, OpenedFile(str(path), found, 0, ""), check
    )


@pytest.fixture
def target(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "target", os.O_RDWR | os.O_CREAT | os.O_EXCL)
    yield fd
    os.close(fd)


def content(fd: int) -> bytes:
    return fsio.pread_exact(fd, 0, os.fstat(fd).st_size)


SIZES = [0, 1, 4095, 4096, MIB - 1, MIB, MIB + 1, 4 * MIB, 4 * MIB + 1, 9 * MIB + 123]


@pytest.mark.parametrize(("begin", "at"), [(0, 0), (4096, 8192), (4103, 7), (7, 64), (0, 1), (8, 0)])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("hashed", [True, False])
def test_a_range_of_a_file_is_copied_and_hashed(
    tmp_path: Path, target: int, size: int, begin: int, at: int, hashed: bool
) -> None:
    data = random(size)
    (tmp_path / "source").write_bytes(bytes(begin) + data + b"after")
    with Copier() as copier:
        digest = copier.copy(opened(tmp_path / "source", begin, size), target, at, digest=hashed)
        assert (digest is not None) == hashed
        assert digest is None or digest.result() == digest_bytes(data)
    assert content(target)[at:] == data


@pytest.mark.parametrize(("begin", "kernel"), [(0, True), (8192, True), (4096 + 8, False)])
def test_only_what_lies_on_its_pages_as_its_target_is_copied_by_the_kernel(
    tmp_path: Path, target: int, monkeypatch: pytest.MonkeyPatch, begin: int, kernel: bool
) -> None:
    real, calls = os.copy_file_range, [0]

    def counting(*args: int) -> int:
        calls[0] += 1
        return real(*args)

    monkeypatch.setattr(os, "copy_file_range", counting)
    (tmp_path / "source").write_bytes(bytes(20_000))
    with Copier() as copier:
        copier.copy(opened(tmp_path / "source", begin, 9000), target)
    assert calls == [1 if kernel else 0]


@pytest.mark.parametrize("size", SIZES)
def test_bytes_in_memory_are_copied_and_hashed(target: int, size: int) -> None:
    data = random(size)
    with Copier() as copier:
        digest = copier.copy(memoryview(data), target)
        assert digest is not None
        assert digest.result() == digest_bytes(data)
    assert content(target) == data


def test_without_a_digest_no_thread_is_made(target: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying._Follower, "start", lambda self: pytest.fail("a thread was started"))
    with Copier() as copier:
        assert copier.copy(memoryview(bytes(3 * MIB)), target, digest=False) is None
    assert os.fstat(target).st_size == 3 * MIB


def test_many_copies_through_one_copier(tmp_path: Path) -> None:
    data = [random(size) for size in (3 * MIB, 10, 5 * MIB, 2 * MIB + 1, 0, 7 * MIB)]
    seen: list[tuple[int, int]] = []
    total = sum(map(len, data))
    with Copier(lambda done, total: seen.append((done, total)), total + 100) as copier:
        for number, one in enumerate(data):
            (tmp_path / f"s{number}").write_bytes(one)
            fd = os.open(tmp_path / f"t{number}", os.O_RDWR | os.O_CREAT)
            digest = copier.copy(opened(tmp_path / f"s{number}"), fd)
            assert digest is not None
            assert digest.result() == digest_bytes(one)
            assert content(fd) == one
            os.close(fd)
        copier.skip(100)
    assert seen == sorted(seen)
    assert seen[-1] == (total + 100, total + 100)


@pytest.mark.parametrize("code", ["EXDEV", "EINVAL", "ENOSYS", "EOPNOTSUPP", "EPERM"])
def test_where_the_kernel_can_not_copy_a_buffer_does(
    tmp_path: Path, target: int, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    def refuse(*args: Any) -> int:
        raise OSError(getattr(errno, code), code)

    monkeypatch.setattr(os, "copy_file_range", refuse)
    data = random(5 * MIB + 3)
    (tmp_path / "source").write_bytes(data)
    with Copier() as copier:
        digest = copier.copy(opened(tmp_path / "source"), target)
        assert digest is not None
        assert digest.result() == digest_bytes(data)
    assert content(target) == data


def test_an_error_of_the_disk_is_no_reason_to_copy_in_another_way(
    tmp_path: Path, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> int:
        raise OSError(errno.EIO, "disk")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    (tmp_path / "source").write_bytes(random(5 * MIB))
    with Copier() as copier, pytest.raises(OSError, match="disk"):
        copier.copy(opened(tmp_path / "source"), target)


def test_a_kernel_that_copies_in_small_steps_or_says_nothing_is_there(
    tmp_path: Path, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.copy_file_range, [0]

    def stingy(src: int, dst: int, count: int, offset_src: int, offset_dst: int) -> int:
        calls[0] += 1
        return real(src, dst, min(count, 100_001), offset_src, offset_dst) if calls[0] % 3 else 0

    monkeypatch.setattr(os, "copy_file_range", stingy)
    data = random(3 * MIB)
    (tmp_path / "source").write_bytes(data)
    with Copier() as copier:
        digest = copier.copy(opened(tmp_path / "source"), target)
        assert digest is not None
        assert digest.result() == digest_bytes(data)
    assert content(target) == data


@pytest.mark.parametrize("error", [OSError(errno.ENODEV, "no map"), ValueError("too short")])
def test_a_file_that_can_not_be_mapped(
    tmp_path: Path, target: int, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*args: Any, **how: Any) -> Any:
        raise error

    data = random(2 * MIB + 1)
    (tmp_path / "source").write_bytes(b"x" + data)
    extent = opened(tmp_path / "source", 1)
    monkeypatch.setattr(mmap, "mmap", refuse)
    with Copier() as copier:
        digest = copier.copy(extent, target)
        assert digest is not None
        assert digest.result() == digest_bytes(data)
    assert content(target) == data


def test_a_file_that_is_cut_while_it_is_mapped_is_an_error_and_no_signal(
    tmp_path: Path, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").write_bytes(random(9 * MIB))
    write, lock = os.pwrite, threading.Lock()

    def cut_and_write(*args: Any) -> int:
        with lock:  # whichever of the two threads writes first, all that is beyond is read after the cut
            os.truncate(tmp_path / "source", 2 * MIB + 4096)
        return write(*args)

    monkeypatch.setattr(os, "pwrite", cut_and_write)
    with Copier() as copier, pytest.raises(WeightsChanged, match="became shorter"):
        copier.copy(opened(tmp_path / "source", 8), target)


class Clones:
    """Stands for a file system that can clone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        monkeypatch.setattr(fcntl, "ioctl", self)

    def __call__(self, fd: int, request: int, source: int) -> int:
        assert request == 0x40049409
        self.asked += 1
        os.pwrite(fd, content(source), 0)
        return 0


def test_a_whole_file_is_cloned_where_that_can_be(tmp_path: Path, target: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clones = Clones(monkeypatch)
    monkeypatch.setattr(os, "copy_file_range", lambda *args: pytest.fail("copied"))
    data = random(6 * MIB + 1)
    (tmp_path / "source").write_bytes(data)
    with Copier() as copier:
        digest = copier.copy(opened(tmp_path / "source"), target)
        assert digest is not None
        assert digest.result() == digest_bytes(data)
    assert clones.asked == 1


def test_a_part_of_a_file_is_not_cloned(tmp_path: Path, target: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clones = Clones(monkeypatch)
    (tmp_path / "source").write_bytes(b"0123456789")
    with Copier() as copier:
        copier.copy(opened(tmp_path / "source", 0, 5), target)
        copier.copy(opened(tmp_path / "source", 5, 5), target, 5)
        copier.copy(opened(tmp_path / "source"), target, 10)
    assert clones.asked == 0
    assert content(target) == b"01234567890123456789"


@pytest.mark.parametrize("begin", [0, 8])
def test_a_full_disk_passes_on_and_the_copier_can_go_on(
    tmp_path: Path, target: int, monkeypatch: pytest.MonkeyPatch, begin: int
) -> None:
    name = "pwrite" if begin else "copy_file_range"
    real, armed = getattr(os, name), [True]

    def full(*args: Any) -> int:
        if args[-1] >= 4 * MIB and armed[0]:
            raise OSError(errno.ENOSPC, "no space")
        return int(real(*args))

    monkeypatch.setattr(os, name, full)
    data = random(9 * MIB)
    (tmp_path / "source").write_bytes(bytes(begin) + data)
    with Copier() as copier:
        for _ in range(20):  # more often than there are buffers
            with pytest.raises(OSError, match="no space"):
                copier.copy(opened(tmp_path / "source", begin), target)
        armed[0] = False
        digest = copier.copy(opened(tmp_path / "source", begin), target)
        assert digest is not None
        assert digest.result() == digest_bytes(data)


def test_after_a_failed_copy_the_digest_thread_is_done_with_the_file(
    tmp_path: Path, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").write_bytes(random(64 * MIB))
    reading: list[int] = []
    real = copying._update

    def slow(hasher: Any, fd: int, *rest: Any) -> None:
        reading.append(fd)
        real(hasher, fd, *rest)
        reading.remove(fd)

    monkeypatch.setattr(copying, "_update", slow)

    def stop(done: int, total: int) -> None:
        if done >= 40 * MIB:
            raise KeyboardInterrupt

    with Copier(stop) as copier:
        with pytest.raises(KeyboardInterrupt):
            copier.copy(opened(tmp_path / "source"), target)
        assert reading == []


def test_an_error_of_the_digest_thread_reaches_the_caller(
    tmp_path: Path, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> None:
        raise OSError(errno.EIO, "bad disk")

    monkeypatch.setattr(copying, "_update", broken)
    (tmp_path / "source").write_bytes(random(9 * MIB))
    with Copier() as copier:
        digest = copier.copy(opened(tmp_path / "source"), target)
        assert digest is not None
        with pytest.raises(OSError, match="bad disk"):
            digest.result()


def test_a_source_that_became_shorter(tmp_path: Path, target: int) -> None:
    (tmp_path / "source").write_bytes(random(3 * MIB))
    extent = opened(tmp_path / "source")
    os.truncate(tmp_path / "source", MIB)
    with Copier() as copier:
        with pytest.raises(WeightsChanged, match="became shorter"):
            copier.copy(extent, target)
        with pytest.raises(WeightsChanged, match="became shorter"):
            copier.hash(extent)


def test_a_source_that_changed_is_refused_after_the_copy(tmp_path: Path, target: int) -> None:
    def changed() -> None:
        raise WeightsChanged("changed")

    (tmp_path / "source").write_bytes(random(3 * MIB))
    with Copier() as copier:
        with pytest.raises(WeightsChanged):
            copier.copy(opened(tmp_path / "source", check=changed), target)
        with pytest.raises(WeightsChanged):
            copier.hash(opened(tmp_path / "source", check=changed))


def test_the_digest_is_of_what_was_written(tmp_path: Path, target: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source in memory that changes while it is copied: the digest must fit the copy."""
    data = bytearray(random(9 * MIB))

    def scribble(done: int, total: int) -> None:
        data[:done] = bytes(done)

    with Copier(scribble) as copier:
        digest = copier.copy(memoryview(data).toreadonly(), target)
        assert digest is not None
        assert digest.result() == digest_bytes(content(target)) != digest_bytes(data)


@pytest.mark.parametrize("source", ["file", "memory"])
def test_hash_without_a_copy(tmp_path: Path, source: str) -> None:
    data = random(2 * MIB + 5)
    (tmp_path / "source").write_bytes(b"x" + data)
    with Copier() as copier:
        found = copier.hash(opened(tmp_path / "source", 1) if source == "file" else memoryview(data))
    assert found == digest_bytes(data)


PEAK = """
import os, sys
from cachec.base import fsio
from cachec.weights.io.copying import Copier
from cachec.weights.sources import Extent, OpenedFile
peak = 0
def look(done, total):
    global peak
    with open("/proc/self/smaps_rollup") as lines:
        peak = max(peak, sum(int(l.split()[1]) for l in lines if l.startswith(("Private_Dirty:", "Private_Clean:"))))
fd = fsio.open_read(sys.argv[1])
found = fsio.identity(fd)
out = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
with Copier(look) as copier:
    begin = int(sys.argv[3])
    extent = Extent(fd, begin, found.size - begin, OpenedFile("", found, 0, ""), lambda: None)
    copier.copy(extent, out).result()
print(peak)
"""


@pytest.mark.parametrize("begin", [0, 8])
def test_memory_is_bounded_whatever_the_size(tmp_path: Path, begin: int) -> None:
    with (tmp_path / "source").open("wb") as file:
        file.truncate(200 * MIB)
    command = [sys.executable, "-c", PEAK, str(tmp_path / "source"), str(tmp_path / "target"), str(begin)]
    peak = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert peak < 64 << 10  # KiB
    (tmp_path / "target").unlink()


def test_an_untracked_map_reads_and_keeps_no_descriptor(tmp_path: Path) -> None:
    data = random(10_000)
    (tmp_path / "source").write_bytes(data)
    fd = fsio.open_read(tmp_path / "source")
    before = len(os.listdir("/proc/self/fd"))
    views = [fsio.map_untracked(fd, 5000, 100) for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(fd)
    assert all(view == data[5000:5100] and view.readonly and view.format == "B" for view in views)
    assert Path("/proc/self/maps").read_text().count(str(tmp_path / "source")) == 50
    del views
    assert str(tmp_path / "source") not in Path("/proc/self/maps").read_text()
    assert bytes(fsio.map_untracked(0, 0, 0)) == b""


def test_an_untracked_map_of_nothing_that_can_be_mapped_raises(tmp_path: Path) -> None:
    read, write = os.pipe()
    with pytest.raises(OSError, match="No such device"):
        fsio.map_untracked(read, 0, 10)
    os.close(read)
    os.close(write)
