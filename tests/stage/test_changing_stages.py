"""Stages that change what they look at: a call gives what the same stage gives without a cache, on a copy of the
folder as the call finds it. A stranger's finds, each of which was a wrong hit.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import cachec


def made_if_need_be(p: str) -> Any:
    os.makedirs(f"{p}/cache", exist_ok=True)
    return Path(p, "cache/x").read_text() if os.path.exists(f"{p}/cache/x") else None


def listed_if_need_be(p: str) -> Any:
    os.makedirs(f"{p}/cache", exist_ok=True)
    Path(p, "cache/own").write_text("own")
    return sorted(os.listdir(f"{p}/cache"))


def given_if_need_be(p: str) -> Any:
    os.makedirs(f"{p}/cache", exist_ok=True)
    Path(p, "cache/own").write_text("own")
    return cachec.Dir(f"{p}/cache")


def touched_and_read(p: str) -> Any:
    Path(p, "log").touch()
    return Path(p, "log").read_text()


def opened_to_add_and_read(p: str) -> Any:
    with open(f"{p}/log", "a+") as file:
        file.seek(0)
        return file.read()


def opened_both_ways(p: str) -> Any:
    fd = os.open(f"{p}/log", os.O_RDWR | os.O_CREAT)
    try:
        return os.read(fd, 100).decode()
    finally:
        os.close(fd)


def added_to_and_read(p: str) -> Any:
    with open(f"{p}/a", "a") as file:
        file.write("x")
    return Path(p, "a").read_text()


def _file_after(change: Callable[[str], object]) -> Callable[[str], Any]:
    def stage(p: str) -> Any:
        time.sleep(0.02)  # later than the tick in which the run began
        change(f"{p}/a")
        return cachec.File(f"{p}/a")

    return stage


def _add(path: str) -> None:
    with open(path, "a") as file:
        file.write("x")


def over_a_folder(p: str) -> Any:
    return Path(os.path.join(p, "s", "..", "a")).read_text()


def gone_to_a_link(p: str) -> Any:
    with contextlib.chdir(f"{p}/link"):
        return Path("b").read_text()


def by_a_link_held(p: str) -> Any:
    folder = os.open(f"{p}/link", os.O_RDONLY | os.O_DIRECTORY)
    try:
        return os.stat("b", dir_fd=folder).st_size, sorted(os.listdir(folder))
    finally:
        os.close(folder)


def a_link_removed(p: str) -> Any:
    try:
        os.remove(f"{p}/dangling")
    except FileNotFoundError:
        return "none"
    return "removed"


def written_and_led_to(p: str) -> Any:
    Path(p, "log").write_text("x")
    return os.path.islink(f"{p}/log"), os.path.basename(os.path.realpath(f"{p}/log"))


def written_and_asked(p: str) -> Any:
    Path(p, "a").write_text("x")
    return os.access(f"{p}/a", os.X_OK)


def removed_in_vain(p: str) -> Any:
    with contextlib.suppress(OSError):
        os.rmdir(p)
    return os.path.exists(f"{p}/log")


def _filled(p: Path) -> None:
    (p / "cache").mkdir(exist_ok=True)
    (p / "cache/x").write_text("more")


def _other_link(p: Path) -> None:
    (p / "link").unlink()
    (p / "link").symlink_to("s/more")


def _a_link_for_a_folder(p: Path) -> None:
    (p / "s").rename(p / "t")
    (p / "s").symlink_to("t/more")


def _log(p: Path) -> None:
    (p / "log").write_text("data")


def _log_elsewhere(p: Path) -> None:
    (p / "log").unlink()
    (p / "log").symlink_to("s/b")


def _other_a(p: Path) -> None:
    (p / "a").write_text("2")


def _nothing(p: Path) -> None:
    pass


CASES: list[tuple[Callable[[str], Any], Callable[[Path], object]]] = [
    *((each, _filled) for each in (made_if_need_be, listed_if_need_be, given_if_need_be)),
    *((each, _log) for each in (touched_and_read, opened_to_add_and_read, opened_both_ways, removed_in_vain)),
    *((added_to_and_read, edit) for edit in (_nothing, _other_a)),
    (_file_after(_add), _other_a),
    (_file_after(lambda path: os.chmod(path, 0o755)), _other_a),
    (_file_after(lambda path: os.utime(path)), _other_a),
    (_file_after(lambda path: os.truncate(path, 1)), _other_a),
    *((over_a_folder, edit) for edit in (_a_link_for_a_folder, lambda p: shutil.rmtree(p / "s"))),
    *((each, _other_link) for each in (gone_to_a_link, by_a_link_held)),
    (a_link_removed, lambda p: (p / "dangling").symlink_to("nowhere")),
    (written_and_led_to, _log_elsewhere),
    (written_and_asked, lambda p: (p / "a").chmod(0o755)),
]


def _told(call: Callable[[], Any]) -> Any:
    try:
        value = call()
    except Exception as error:
        return type(error).__name__
    if isinstance(value, cachec.Dir):
        return sorted(os.listdir(value))
    return Path(value).read_bytes() if isinstance(value, cachec.File) else value


@pytest.mark.filterwarnings("ignore:.*names a f.* but is a str")
@pytest.mark.parametrize(("body", "edit"), CASES)
def test_a_call_gives_what_the_stage_gives(
    tmp_path: Path, body: Callable[[str], Any], edit: Callable[[Path], object]
) -> None:
    folder, copy = tmp_path / "p", tmp_path / "copy" / "p"
    (folder / "s/more").mkdir(parents=True)
    for name, text in {"a": "11", "s/a": "beside", "s/b": "2", "s/more/b": "other"}.items():
        (folder / name).write_text(text)
    (folder / "link").symlink_to("s")
    with closing(cachec.Cache(tmp_path / "store", log="off")) as cache:
        stage = cache.stage(body)
        _told(lambda: stage(str(folder)))
        edit(folder)
        shutil.copytree(folder, copy, symlinks=True)
        assert _told(lambda: stage(str(folder))) == _told(lambda: body(str(copy)))


def test_a_path_that_goes_back_often_is_no_work(tmp_path: Path) -> None:
    """Once a step, and not twice as much with each."""
    (tmp_path / "s").mkdir()
    (tmp_path / "a").write_text("1")
    path = f"{tmp_path}/{'s/../' * 60}a"
    with closing(cachec.Cache(tmp_path / "store", log="off")) as cache:
        stage = cache.stage(lambda n: Path(path).read_text(), name="back", version="1")
        assert [cache.call(stage, 1)[1].hit for _ in range(2)] == [False, True]
