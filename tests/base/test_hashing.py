"""The framed hasher, and when a file's digest may be remembered."""

from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
from blake3 import blake3

from cachec.base import fsio, hashing
from cachec.base.hashing import EMPTY, FileDigests, Hasher, digest_bytes, frame
from cachec.base.mounts import Mounts


def digest(*parts: tuple[str, bytes]) -> str:
    hasher = Hasher("test")
    for label, data in parts:
        hasher.part(label, data)
    return hasher.digest()


def test_no_two_lists_of_parts_feed_the_same_bytes():
    lists = [
        [],
        [("a", b"")],
        [("", b"a")],
        [("a", b"b")],
        [("ab", b"")],
        [("a", b""), ("b", b"")],
        [("b", b""), ("a", b"")],
        [("a", b"b"), ("", b"")],
        [("a", frame("b", b""))],
    ]
    assert len({digest(*parts) for parts in lists}) == len(lists)
    assert Hasher("one").digest() != Hasher("two").digest()


def test_large_parts_are_framed_like_small_ones():
    data = bytes(10_000)
    whole = blake3(frame("domain", b"test") + frame("x", b"1") + frame("big", data) + frame("y", b"2")).hexdigest()
    assert digest(("x", b"1"), ("big", data), ("y", b"2")) == whole
    assert digest(("x", b"1"), ("big", memoryview(data)), ("y", b"2")) == whole  # type: ignore[arg-type]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    return path


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    real = hashing.digest_extent

    def digest(fd: int, offset: int, nbytes: int):
        calls.append(nbytes)
        return real(fd, offset, nbytes)

    monkeypatch.setattr(hashing, "digest_extent", digest)
    return calls


def test_a_settled_file_is_hashed_once(file, counted, seconds_later):
    seconds_later(2.1)
    digests = FileDigests()
    assert digests.of_path(file) == digests.of_path(file) == digest_bytes(b"content")
    assert len(counted) == 1


def test_a_young_file_is_hashed_each_time(file, counted):
    digests = FileDigests()
    digests.of_path(file)
    digests.of_path(file)
    assert len(counted) == 2


def test_a_file_with_a_writer_is_hashed_each_time(file, counted, seconds_later):
    seconds_later(2.1)
    digests = FileDigests()
    with file.open("r+b"):
        digests.of_path(file)
        digests.of_path(file)
    assert len(counted) == 2


def test_a_store_through_a_writable_map_is_seen(file, seconds_later):
    file.write_bytes(bytes(4096))
    digests = FileDigests()
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 4096) as shared:
        opened.close()
        shared[0] = 1  # the page is dirty now: further stores leave no mark on the file
        seconds_later(2.1)
        first = digests.of_path(file)
        shared[1] = 1
        assert digests.of_path(file) != first
    assert first == digest_bytes(b"\x01" + bytes(4095))


def test_a_file_on_tmpfs_is_hashed_each_time(counted, seconds_later):
    if Mounts().kind("/dev/shm") != "tmpfs":
        pytest.skip("/dev/shm is no tmpfs here")
    path = Path("/dev/shm") / f"cachec-test-{os.getpid()}"
    path.write_bytes(b"content")
    try:
        seconds_later(2.1)
        digests = FileDigests()
        digests.of_path(path)
        digests.of_path(path)
        assert len(counted) == 2
    finally:
        path.unlink()


def test_a_write_that_keeps_size_and_mtime_is_seen(file, seconds_later):
    seconds_later(2.1)
    digests = FileDigests()
    before, times = digests.of_path(file), file.stat()
    file.write_bytes(b"CONTENT")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert digests.of_path(file) != before


def test_a_replaced_file_is_seen(file, tmp_path, seconds_later):
    seconds_later(2.1)
    digests = FileDigests()
    before, times = digests.of_path(file), file.stat()
    (tmp_path / "new").write_bytes(b"CONTENT")
    os.replace(tmp_path / "new", file)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert digests.of_path(file) != before


def test_digests_are_remembered_between_processes_by_the_same_rule(file, counted, seconds_later):
    class Table(dict[str, bytes]):
        def recall(self, name: str) -> bytes | None:
            return self.get(name)

        def remember(self, name: str, value: bytes) -> None:
            self[name] = value

    seconds_later(2.1)
    table = Table()
    FileDigests(table).of_path(file)
    assert FileDigests(table).of_path(file) == digest_bytes(b"content")
    assert len(counted) == 1
    for name in table:
        table[name] = b"damaged"
    assert FileDigests(table).of_path(file) == digest_bytes(b"content")
    assert len(counted) == 2


def test_ranges_and_the_empty_file(file, tmp_path):
    (tmp_path / "empty").touch()
    digests = FileDigests()
    assert digests.of_path(tmp_path / "empty") == EMPTY
    fd = fsio.open_read(file)
    try:
        assert digests.of_extent(fd, 1, 3) == digest_bytes(b"ont")
        with pytest.raises(EOFError):
            digests.of_extent(fd, 5, 3)
    finally:
        os.close(fd)


def test_nobody_opens_for_writing_what_writers_are_kept_out_of(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    with fsio.closing(fsio.open_read(path)) as fd:
        if not fsio.keep_writers_out(fd):
            pytest.skip("no read lease can be had here")
        with pytest.raises(BlockingIOError):
            os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        with fsio.closing(fsio.open_read(path)):  # readers go on
            pass
        assert fsio.let_writers_in(fd)
        with fsio.closing(os.open(path, os.O_WRONLY | os.O_NONBLOCK)):
            assert not fsio.keep_writers_out(fd)


def test_a_lease_that_was_taken_away_is_no_error(tmp_path):
    """As the kernel does after 45 seconds, where the process was stopped and somebody wants to write."""
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    with fsio.closing(fsio.open_read(path)) as fd:
        if not fsio.keep_writers_out(fd):
            pytest.skip("no read lease can be had here")
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        assert not fsio.let_writers_in(fd)


_CHECKING = """
import os, signal, sys
from cachec.base import fsio
signal.signal(signal.SIGIO, signal.SIG_DFL)
fd = fsio.open_read(sys.argv[1])
print("ready", flush=True)
answers = set()
while answers != {True, False}:
    answers.add(fsio.no_writer(fd))
for _ in range(20000):
    fsio.no_writer(fd)
"""


@pytest.mark.timeout(120)
def test_a_writer_that_comes_while_a_lease_is_held_ends_no_process(tmp_path):
    """The kernel tells the holder of a lease by a signal; SIGIO, its default, ends the process."""
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    with subprocess.Popen([sys.executable, "-c", _CHECKING, str(path)], stdout=subprocess.PIPE) as checking:
        assert checking.stdout is not None
        assert checking.stdout.readline() == b"ready\n"
        while checking.poll() is None:
            os.close(os.open(path, os.O_RDWR))
        assert checking.returncode == 0


def test_mounts_with_strange_names(tmp_path):
    """proc(5): space, tab, newline and backslash are octal in ``mountinfo``; other characters are as they are."""
    folders = {name: tmp_path / name for name in ("a b", "\u00fc", "back\\slash", "a")}
    lines = ["1 0 999:1 / / rw - ext4 none rw"]
    for number, (name, folder) in enumerate(folders.items()):
        folder.mkdir()
        mount = str(folder).replace("\\", "\\134").replace(" ", "\\040")
        lines.append(f"{number} 1 999:{number + 2} / {mount} rw - kind{number} none rw")
        assert name in str(folder)
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text("\n".join(lines))
    kinds = [Mounts(mountinfo).kind(folder) for folder in folders.values()]
    assert kinds == ["kind0", "kind1", "kind2", "kind3"]
    assert Mounts(mountinfo).kind(tmp_path) == "ext4"
    (folders["a"] / "inner").mkdir()
    assert Mounts(mountinfo).kind(folders["a"] / "inner") == "kind3"


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ("rw,lowerdir=/gone/l/AB:/gone/l/CD,upperdir=/gone/diff,workdir=/gone/work", "overlay"),
        ("rw,lowerdir=/gone/a,workdir={there}", "overlay"),
        ("rw,lowerdir=/gone/l/AB:{there},upperdir=/gone/diff", "overlay.open"),
        ("rw,lowerdir+=/gone/l/AB,lowerdir+={there}", "overlay.open"),
        ("ro,lowerdir=/gone/a::{there}", "overlay.open"),
        ("rw,lowerdir=/gone,upperdir={there}", "overlay.open"),
        ("rw,lowerdir=low,upperdir=/gone", "overlay.open"),
        ("rw", "overlay.open"),
    ],
)
def test_an_overlay_whose_layers_can_be_reached_is_another_kind(tmp_path, options, kind):
    there = tmp_path / "a layer"
    there.mkdir()
    mountinfo = tmp_path / "mountinfo"
    given = options.format(there=str(there).replace(" ", "\\040"))
    mountinfo.write_text(f"1 0 0:1 / / rw - overlay overlay {given}")
    assert Mounts(mountinfo).kind(tmp_path) == kind
