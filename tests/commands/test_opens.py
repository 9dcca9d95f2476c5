"""Opens are seen on the inode: under every name, by every process, to the last one before the exit."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cachec.base.inotify import IN_OPEN, IN_Q_OVERFLOW, InotifyEvent, parse_events
from cachec.commands.opens import FolderWatch, OpenWatch


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "w.bin"
    path.write_bytes(b"weights")
    return path


def test_nothing_is_seen_where_nothing_happens(file: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("x")
    with OpenWatch([file]) as watch:
        (tmp_path / "other").read_text()
        os.stat(file)
        os.listdir(tmp_path)
        assert watch.touched() == frozenset()


def test_an_open_is_seen_once(file: Path) -> None:
    with OpenWatch([file]) as watch:
        file.read_bytes()
        assert watch.touched() == {str(file)}
        assert watch.touched() == frozenset()


@pytest.mark.parametrize("kind", ["hard", "symbolic"])
def test_opens_through_links_are_seen(file: Path, tmp_path: Path, kind: str) -> None:
    other = tmp_path / "deep" / "name"
    other.parent.mkdir()
    if kind == "hard":
        other.hardlink_to(file)
    else:
        other.symlink_to(file)
    with OpenWatch([file]) as watch:
        subprocess.run(["cat", other], check=True, stdout=subprocess.DEVNULL)
        assert watch.touched() == {str(file)}


def test_a_watch_through_a_link_is_on_the_file(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)
    with OpenWatch([link]) as watch:
        file.read_bytes()
        assert watch.touched() == {str(link)}


def test_a_read_through_a_descriptor_of_before_is_seen(file: Path) -> None:
    fd = os.open(file, os.O_RDONLY)
    try:
        with OpenWatch([file]) as watch:
            os.read(fd, 1)
            assert watch.touched() == {str(file)}
    finally:
        os.close(fd)


def test_replacing_the_file_is_seen(file: Path, tmp_path: Path) -> None:
    (tmp_path / "new").write_bytes(b"other")
    with OpenWatch([file]) as watch:
        os.rename(tmp_path / "new", file)
        assert watch.touched() == {str(file)}


def test_only_the_file_that_was_opened(file: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.write_bytes(b"")
    with OpenWatch([file, second]) as watch:
        second.read_bytes()
        assert watch.touched() == {str(second)}


def test_two_names_of_one_inode_are_both_touched(file: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.hardlink_to(file)
    with OpenWatch([file, second]) as watch:
        file.read_bytes()
        assert watch.touched() == {str(file), str(second)}


def test_no_event_is_lost_at_the_exit_of_a_process(file: Path) -> None:
    lost = 0
    for _ in range(50):
        with OpenWatch([file]) as watch:
            subprocess.run(["sh", "-c", f"exec 3<{file}"], check=True)
            lost += watch.touched() != {str(file)}
    assert lost == 0


def test_an_overflow_counts_for_every_file(file: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.write_bytes(b"")
    with OpenWatch([file, second]) as watch:
        assert watch.affected([InotifyEvent(-1, IN_Q_OVERFLOW)]) == {str(file), str(second)}
        assert watch.affected([]) == set()


def test_events_are_parsed_with_names_and_refused_when_cut() -> None:
    one = struct.pack("iIII", 1, IN_OPEN, 0, 16) + b"name".ljust(16, b"\0")
    two = struct.pack("iIII", -1, IN_Q_OVERFLOW, 0, 0)
    assert list(parse_events(one + two)) == [InotifyEvent(1, IN_OPEN, b"name"), InotifyEvent(-1, IN_Q_OVERFLOW)]
    for cut in range(1, len(one)):
        with pytest.raises(ValueError, match="cut at byte"):
            list(parse_events(one[:cut]))


def test_a_missing_file_is_named_and_leaves_no_descriptor(file: Path, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError, match="absent"):
        OpenWatch([file, tmp_path / "absent"])
    assert len(os.listdir("/proc/self/fd")) == before


def _written(path: Path) -> None:
    with path.open("r+") as file:
        file.write("y")


def _replaced(path: Path) -> None:
    beside = path.parent.parent / "outside"
    beside.rename(path)


#: What is done to a folder with a file "t", which of its files count as read then, and which as torn.
DONE: dict[str, tuple[Callable[[Path], object], set[str], set[str]]] = {
    "read": (lambda folder: (folder / "t").read_text(), {"t"}, set()),
    "read twice": (lambda folder: [(folder / "t").read_text() for _ in range(2)], {"t"}, set()),
    "held open": (lambda folder: _held.append(os.open(folder / "t", os.O_RDONLY)), {"t"}, set()),
    "written": (lambda folder: _written(folder / "t"), set(), set()),
    "appended to": (lambda folder: (folder / "t").open("a").write("x"), set(), set()),
    "written anew": (lambda folder: (folder / "t").write_text("y"), set(), set()),
    "opened to write, and not written": (lambda folder: (folder / "t").open("r+").close(), {"t"}, set()),
    "written, then read": (lambda folder: (_written(folder / "t"), (folder / "t").read_text()), {"t"}, set()),
    "read, then written": (lambda folder: ((folder / "t").read_text(), _written(folder / "t")), set(), {"t"}),
    "read, then written anew": (
        lambda folder: ((folder / "t").read_text(), (folder / "t").write_text("")),
        set(),
        {"t"},
    ),
    "held open, then written": (
        lambda folder: (_held.append(os.open(folder / "t", os.O_RDONLY)), _written(folder / "t")),
        set(),
        {"t"},
    ),
    "replaced, then read": (lambda folder: (_replaced(folder / "t"), (folder / "t").read_text()), {"t"}, set()),
    "read, then replaced": (lambda folder: ((folder / "t").read_text(), _replaced(folder / "t")), set(), {"t"}),
    "read, then removed": (lambda folder: ((folder / "t").read_text(), (folder / "t").unlink()), set(), {"t"}),
    "read, then moved away": (
        lambda folder: ((folder / "t").read_text(), (folder / "t").rename(folder.parent / "new")),
        set(),
        {"t"},
    ),
    "removed, made again and read": (
        lambda folder: ((folder / "t").unlink(), (folder / "t").write_text("y"), (folder / "t").read_text()),
        {"t"},
        set(),
    ),
    "made": (lambda folder: (folder / "new").touch(), set(), set()),
    "made, read, written and removed": (
        lambda folder: (
            (folder / "new").write_text("x"),
            (folder / "new").read_text(),
            _written(folder / "new"),
            (folder / "new").unlink(),
        ),
        set(),
        set(),
    ),
    "linked": (lambda folder: os.link(folder / "t", folder / "new"), set(), set()),
    "moved there": (lambda folder: os.rename(folder.parent / "outside", folder / "new"), set(), set()),
    "moved away": (lambda folder: os.rename(folder / "t", folder.parent / "new"), set(), set()),
    "below": (lambda folder: (folder / "d" / "x").read_text(), set(), set()),
    "a folder listed and removed": (
        lambda folder: (os.listdir(folder / "e"), (folder / "e").rmdir()),
        set(),
        set(),
    ),
}
_held: list[int] = []


@pytest.mark.parametrize("name", DONE)
def test_what_is_done_in_a_folder(tmp_path: Path, name: str) -> None:
    do, read, torn = DONE[name]
    folder = tmp_path / "watched"
    (folder / "d").mkdir(parents=True)
    (folder / "e").mkdir()
    for place in (folder / "t", folder / "d" / "x", tmp_path / "outside"):
        place.write_text("x")
    watch = FolderWatch([str(tmp_path / "gone"), str(folder)])
    do(folder)
    while _held:
        if watch.drained():
            os.close(_held.pop())
    for _ in range(2):  # what was told is kept
        found = watch.drained()
        assert found[:2] == tuple({str(folder / each) for each in names} for names in (read, torn))
    watch.close()
    watch.close()
    assert watch.drained() == found


def test_a_second_watch_tells_nothing_of_the_first_and_a_child_nothing_of_its_parent(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    first = FolderWatch([str(tmp_path / "a")])
    (tmp_path / "a" / "file").read_text()
    first.close()
    second = FolderWatch([str(tmp_path / "b")])
    (tmp_path / "a" / "file").read_text()
    assert second.drained()[:2] == (frozenset(), frozenset())
    second.close()
    parents = FolderWatch([str(tmp_path / "a")])
    child = os.fork()
    if not child:
        own = FolderWatch([str(tmp_path / "b")])
        (tmp_path / "b" / "file").read_text()
        right = own.drained()[0] == {str(tmp_path / "b" / "file")}
        own.close()
        parents.close()
        os._exit(not right)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    (tmp_path / "a" / "file").read_text()
    assert parents.drained()[:2] == ({str(tmp_path / "a" / "file")}, frozenset())
    parents.close()


def test_what_happens_between_two_watches_of_a_folder_is_told_to_neither(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    first = FolderWatch([str(tmp_path / "a"), str(tmp_path / "b")])
    first.close()
    (tmp_path / "a" / "file").write_text("written before the next run, which reads it")
    (tmp_path / "b" / "file").read_text()
    second = FolderWatch([str(tmp_path / "a")])
    (tmp_path / "a" / "file").read_text()
    (tmp_path / "b" / "file").read_text()
    assert second.drained()[:2] == ({str(tmp_path / "a" / "file")}, frozenset())
    second.close()
    (tmp_path / "a").rename(tmp_path / "gone")  # with its watch
    (tmp_path / "a").mkdir()
    third = FolderWatch([str(tmp_path / "a")])
    (tmp_path / "gone" / "file").read_text()
    assert third.drained()[:2] == (frozenset(), frozenset())
    (tmp_path / "outside").write_text("x")
    (tmp_path / "outside").rename(tmp_path / "a" / "file")
    (tmp_path / "a" / "file").read_text()
    assert third.drained()[:2] == ({str(tmp_path / "a" / "file")}, frozenset())
    third.close()


def test_a_queue_that_runs_over_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").write_text("x")
    watch = FolderWatch([str(tmp_path)])
    for _ in range(int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())):
        for name in ("a", "b"):  # two alike are one event
            os.close(os.open(tmp_path / name, os.O_RDONLY))
    assert not watch.overflowed
    watch.drained()
    assert watch.overflowed
    watch.close()
