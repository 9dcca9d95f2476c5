"""Opens are seen on the inode: under every name, by every process, to the last one before the exit."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from cachec.base.inotify import IN_OPEN, IN_Q_OVERFLOW, InotifyEvent, parse_events
from cachec.stage.folder_watch import FolderWatch


def test_events_are_parsed_with_names_and_refused_when_cut() -> None:
    one = struct.pack("iIII", 1, IN_OPEN, 0, 16) + b"name".ljust(16, b"\0")
    two = struct.pack("iIII", -1, IN_Q_OVERFLOW, 0, 0)
    assert list(parse_events(one + two)) == [InotifyEvent(1, IN_OPEN, b"name"), InotifyEvent(-1, IN_Q_OVERFLOW)]
    for cut in range(1, len(one)):
        with pytest.raises(ValueError, match="cut at byte"):
            list(parse_events(one[:cut]))


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
        if watch.drain():
            os.close(_held.pop())
    for _ in range(2):  # what was told is kept
        found = watch.drain()
        assert found[:2] == tuple({str(folder / each) for each in names} for names in (read, torn))
    watch.close()
    watch.close()
    assert watch.drain() == found


def test_a_second_watch_tells_nothing_of_the_first_and_a_child_nothing_of_its_parent(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    first = FolderWatch([str(tmp_path / "a")])
    (tmp_path / "a" / "file").read_text()
    first.close()
    second = FolderWatch([str(tmp_path / "b")])
    (tmp_path / "a" / "file").read_text()
    assert second.drain()[:2] == (frozenset(), frozenset())
    second.close()
    parents = FolderWatch([str(tmp_path / "a")])
    child = os.fork()
    if not child:
        own = FolderWatch([str(tmp_path / "b")])
        (tmp_path / "b" / "file").read_text()
        right = own.drain()[0] == {str(tmp_path / "b" / "file")}
        own.close()
        parents.close()
        os._exit(not right)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    (tmp_path / "a" / "file").read_text()
    assert parents.drain()[:2] == ({str(tmp_path / "a" / "file")}, frozenset())
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
    assert second.drain()[:2] == ({str(tmp_path / "a" / "file")}, frozenset())
    second.close()
    (tmp_path / "a").rename(tmp_path / "gone")  # with its watch
    (tmp_path / "a").mkdir()
    third = FolderWatch([str(tmp_path / "a")])
    (tmp_path / "gone" / "file").read_text()
    assert third.drain()[:2] == (frozenset(), frozenset())
    (tmp_path / "outside").write_text("x")
    (tmp_path / "outside").rename(tmp_path / "a" / "file")
    (tmp_path / "a" / "file").read_text()
    assert third.drain()[:2] == ({str(tmp_path / "a" / "file")}, frozenset())
    third.close()


def test_a_queue_that_runs_over_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").write_text("x")
    watch = FolderWatch([str(tmp_path)])
    for _ in range(int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())):
        for name in ("a", "b"):  # two alike are one event
            os.close(os.open(tmp_path / name, os.O_RDONLY))
    assert not watch.overflowed
    watch.drain()
    assert watch.overflowed
    watch.close()


def test_what_is_opened_in_a_pause_does_not_count_and_what_changes_does(tmp_path: Path) -> None:
    for name in ("before", "within", "after", "changed"):
        (tmp_path / name).write_bytes(b"1")
    watch = FolderWatch([str(tmp_path)])
    (tmp_path / "before").read_bytes()
    (tmp_path / "changed").read_bytes()
    with watch.pause(), watch.pause():
        (tmp_path / "within").read_bytes()
        _written(tmp_path / "changed")
    (tmp_path / "after").read_bytes()
    read, torn, _ = watch.drain()
    watch.close()
    assert {os.path.basename(path) for path in read} == {"before", "after"}
    assert torn == {str(tmp_path / "changed")}
