"""What native code opens below the current folder and the project counts, within the bounds of what is watched."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

import cachec
from cachec.base import folder_names
from cachec.base.inotify import Inotify
from cachec.base.mounts import Mounts
from cachec.stage import watched_folders
from cachec.stage.watched_folders import LEVELS, MIN_LOOKUPS, Below, WatchedFolders, texts_of

from .conftest import Program

_MAIN = """import os, pathlib, cachec
cache = cachec.Cache()
HERE = pathlib.Path(__file__).parent
NAMED = {named!r}
@cache.stage
def stage(x):
    from safetensors.numpy import load_file
    path = {path}
    {before}
    value = load_file(path)["scale"].tolist()
    {after}
    return value
value, outcome = cache.call(stage, 1)
print(value, outcome.reason.value)
"""


def _weights(value: float) -> bytes:
    return save({"scale": np.array([value], "f4")})


class Project:
    """A project with a checkpoint in a folder of it, called in new processes."""

    def __init__(
        self,
        program: Program,
        folder: Path,
        place: str,
        path: str,
        *,
        named: str = "",
        before: str = "",
        after: str = "",
    ) -> None:
        self.program = program
        self.folder, self.place = folder / "p", folder / "p" / place
        self.place.parent.mkdir(parents=True, exist_ok=True)
        (self.folder / "pyproject.toml").touch()
        (self.folder / "main.py").write_text(_MAIN.format(path=path, named=named, before=before, after=after))
        self.place.write_bytes(_weights(1))

    def __call__(self, cwd: Path | None = None) -> str:
        return self.program(self.folder / "main.py", cwd, CACHEC_DIR=str(self.folder.parent / "store"))


CASES = {
    "relative": ("ckpt/m.safetensors", "'ckpt/m.safetensors'", ""),
    "beside the source": ("ckpt/m.safetensors", "HERE / 'ckpt' / 'm.safetensors'", ""),
    "asked before": ("ckpt/m.safetensors", "pathlib.Path('ckpt/m.safetensors')", "assert path.exists()"),
    "three below": ("a/b/c/m.safetensors", "os.path.join('a', 'b', 'c', 'm' + '.safetensors')", ""),
}


@pytest.mark.parametrize("name", CASES)
def test_an_edit_of_a_checkpoint_in_a_folder_below_is_a_miss(tmp_path: Path, program: Program, name: str) -> None:
    place, path, before = CASES[name]
    project = Project(program, tmp_path, place, path, before=before)
    assert project() == "[1.0] miss:first-run"
    project.place.with_name("other.safetensors").write_bytes(_weights(3))
    assert project() == "[1.0] hit"
    project.place.write_bytes(_weights(2))
    assert project() == "[2.0] miss:dependency-changed"


def test_what_a_command_opens_there_counts_and_nothing_else(tmp_path: Path, program: Program) -> None:
    after = "cachec.run(['sh', '-c', 'cat c*/s* c*/M* > /dev/null'], cwd='.')"  # names none
    project = Project(program, tmp_path, "ckpt/m.safetensors", "'ckpt/m.safetensors'", after=after)
    folder = project.place.parent
    for name in ("s.py", "s.o", "Makefile", "other.txt"):
        (folder / name).write_text("1")
    assert project() == "[1.0] miss:first-run"
    (folder / "other.txt").write_text("2")
    assert project() == "[1.0] hit"
    for name in ("s.py", "Makefile"):
        (folder / name).write_text("2")
        assert project() == "[1.0] miss:dependency-changed"
    assert project() == "[1.0] hit"


def test_from_another_current_folder(tmp_path: Path, program: Program) -> None:
    project = Project(program, tmp_path, "ckpt/m.safetensors", "HERE / 'ckpt' / 'm.safetensors'")
    assert project(cwd=tmp_path) == "[1.0] miss:first-run"
    project.place.write_bytes(_weights(2))
    assert project(cwd=tmp_path) == "[2.0] miss:dependency-changed"


def test_a_link_to_a_checkpoint_elsewhere(tmp_path: Path, program: Program) -> None:
    project = Project(program, tmp_path, "ckpt/m.safetensors", "'ckpt/m.safetensors'")
    for n in (1, 2):
        (tmp_path / "blobs").mkdir(exist_ok=True)
        (tmp_path / "blobs" / f"abc{n}").write_bytes(_weights(n))
    project.place.unlink()
    project.place.symlink_to(tmp_path / "blobs" / "abc1")
    assert project() == "[1.0] miss:first-run"
    assert project() == "[1.0] hit"
    project.place.unlink()
    project.place.symlink_to(tmp_path / "blobs" / "abc2")
    assert project() == "[2.0] miss:dependency-changed"


def test_beyond_the_bounds_what_the_code_names_is_seen(tmp_path: Path, program: Program) -> None:
    deep = "/".join("abcdef") + "/m.weights-1"
    for named, then in ((deep, "[2.0] miss:dependency-changed"), ("", "[1.0] hit")):  # the latter: a limit of keys.md
        folder = tmp_path / ("named" if named else "built")
        path = "NAMED" if named else "os.path.join(*'abcdef', 'm.weights' + '-1')"
        project = Project(program, folder, deep, path, named=named)
        assert project() == "[1.0] miss:first-run"
        project.place.write_bytes(_weights(2))
        assert project() == then


def test_a_nested_stage_makes_no_read_of_what_was_looked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p" / "data").mkdir(parents=True)
    (tmp_path / "p" / "data" / "w.bin").write_bytes(b"w")
    monkeypatch.chdir(tmp_path / "p")
    cache = cachec.Cache(tmp_path / "store", log="off")

    @cache.stage
    def inner(n: int) -> int:
        return n + 1

    @cache.stage
    def outer(n: int) -> int:
        return inner(n) + 1

    assert outer(1) == 3
    (tmp_path / "p" / "data" / "more.bin").write_bytes(b"w")
    assert cache.call(outer, 1)[1].hit


# --- what is watched


def _watched(root: Path, below: Below | None = None) -> set[str]:
    places = WatchedFolders((), str(root), lambda path: False, below or Below())
    places.add_below([str(root)])
    return {os.path.relpath(each, root) for each in places.folders}


def _data(*folders: Path) -> None:
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "m.gguf").touch()


def test_folders_with_data_within_so_many_levels(tmp_path: Path) -> None:
    levels = ["/".join("abcdef"[:count]) for count in range(1, LEVELS + 2)]
    _data(*(tmp_path / each for each in levels))
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "a.c").touch()
    assert _watched(tmp_path) == {".", *levels[:-1]}


def test_no_more_folders_than_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_folders, "FOLDERS", 3)
    _data(*(tmp_path / each for each in "abcd"))
    assert _watched(tmp_path) == {".", "a", "b"}


@pytest.mark.parametrize(
    "name",
    [".hidden", "node_modules", "__pycache__", "lib/site-packages", "CMakeCache.txt", "pyvenv.cfg", "CACHEDIR.TAG"],
)
def test_what_programs_fill_is_passed_over(tmp_path: Path, name: str) -> None:
    if "." in name[1:]:
        _data(tmp_path / "build")
        (tmp_path / "build" / name).touch()
    else:
        _data(tmp_path / name)
    assert _watched(tmp_path) == {"."}


def test_a_folder_is_listed_again_once_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds_later: Callable[[float], None]
) -> None:
    below = Below()
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    seconds_later(10.0)
    assert _watched(tmp_path, below) == {"."}
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", lambda _: pytest.fail("listed without a need"))
        assert _watched(tmp_path, below) == {"."}
    (tmp_path / "a" / "b" / "m.safetensors").touch()
    assert _watched(tmp_path, below) == {".", "a/b"}
    (tmp_path / "a" / "b" / "m.safetensors").rename(tmp_path / "elsewhere" / "m.onnx")
    assert _watched(tmp_path, below) == {".", "elsewhere", "link"}
    (tmp_path / "elsewhere" / "CMakeCache.txt").touch()
    assert _watched(tmp_path, below) == {"."}


def test_what_is_not_told_of_a_folder_is_looked_at_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds_later: Callable[[float], None]
) -> None:
    """On a file system whose folders may not have another time when a name comes."""
    below = Below()
    (tmp_path / "a").mkdir()
    seconds_later(10.0)
    monkeypatch.setattr(Mounts, "kind_of_device", lambda *_: "fuse.other")
    assert _watched(tmp_path, below) == {"."}
    state = (tmp_path / "a").stat()
    (tmp_path / "a" / "m.safetensors").touch()
    monkeypatch.setattr(os, "stat", lambda path, stat=os.stat: state if path == str(tmp_path / "a") else stat(path))
    assert _watched(tmp_path, below) == {".", "a"}


class Followed:
    """A project whose folders are followed: the next look is one only where something happened."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.below, self.walks = root, Below(), 0
        _data(root / "a" / "b", root / "c")
        (root / "d" / "e").mkdir(parents=True)
        walk = WatchedFolders._walk

        def counted(*given: Any, **more: Any) -> Any:
            self.walks += 1
            return walk(*given, **more)

        monkeypatch.setattr(WatchedFolders, "_walk", counted)
        for _ in range(MIN_LOOKUPS + 1):
            assert self.look() == {".", "a/b", "c"}
        assert self.walks == MIN_LOOKUPS + 1
        assert self.look() == {".", "a/b", "c"}
        assert self.walks == MIN_LOOKUPS + 1

    def look(self) -> set[str]:
        return _watched(self.root, self.below)


def _replace(folder: Path, root: Path) -> None:
    folder.rename(folder.with_name("before"))
    _data(root / "other")


CHANGES: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    "data in a folder that had none": (lambda root: (root / "d" / "e" / "m.gguf").touch(), {".", "a/b", "c", "d/e"}),
    "data that is renamed": (lambda root: (root / "c" / "m.gguf").rename(root / "c" / "m"), {".", "a/b"}),
    "data that is moved away": (lambda root: (root / "c" / "m.gguf").rename(root.with_name("m")), {".", "a/b"}),
    "data that goes": (lambda root: (root / "c" / "m.gguf").unlink(), {".", "a/b"}),
    "data that is linked": (lambda root: os.link(root / "c/m.gguf", root / "d/m.gguf"), {".", "a/b", "c", "d"}),
    "a folder that comes": (lambda root: _data(root / "d" / "f"), {".", "a/b", "c", "d/f"}),
    "a folder that goes": (lambda root: shutil.rmtree(root / "a"), {".", "c"}),
    "a folder that is renamed": (lambda root: (root / "a").rename(root / "f"), {".", "f/b", "c"}),
    "a folder that is moved away": (lambda root: (root / "a").rename(root.with_name("f")), {".", "c"}),
    "a mark of what programs fill": (lambda root: (root / "a" / "b" / "pyvenv.cfg").touch(), {".", "c"}),
    "another project at its place": (lambda root: _replace(root, root), {".", "other"}),
    "another folder above it": (lambda root: _replace(root.parent, root), {".", "other"}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_happens_in_folders_that_are_followed_is_seen_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    change, expected = CHANGES[name]
    root = tmp_path / "up" / "p"
    project = Followed(root, monkeypatch)
    change(root)
    for _ in range(MIN_LOOKUPS + 2):
        assert project.look() == expected
    (root / "late").mkdir()
    (root / "late" / "m.gguf").touch()
    assert project.look() == {*expected, "late"}


def test_folders_are_looked_at_again_where_something_is_mounted_or_in_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Followed(tmp_path / "p", monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(Inotify, "poll", lambda self: (False, True))
        project.look()
    assert project.walks == MIN_LOOKUPS + 2

    pid = os.fork()
    if pid == 0:
        for number in range(2 * MIN_LOOKUPS):
            _data(tmp_path / "p" / "d" / f"f{number}")
            if f"d/f{number}" not in project.look():
                os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(project.look()) == 3 + 2 * MIN_LOOKUPS


@pytest.mark.parametrize("refused", ["queue", "watch"])
def test_without_a_watch_folders_are_looked_at_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no more")

    monkeypatch.setattr(folder_names, "folder_watcher", lambda own=folder_names.FolderWatcher(): own)
    monkeypatch.setattr(watched_folders, "folder_watcher", folder_names.folder_watcher)
    monkeypatch.setattr(Inotify, "__init__" if refused == "queue" else "watch", refuse)
    _data(tmp_path / "a")
    below = Below()
    for number in range(3 * MIN_LOOKUPS):
        (tmp_path / f"b{number}").mkdir()
        assert len(_watched(tmp_path, below)) == 2 + number
        (tmp_path / f"b{number}" / "m.gguf").touch()
    assert len(_watched(tmp_path, below)) == 2 + 3 * MIN_LOOKUPS


def test_folders_below_a_link_are_looked_at_each_time(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    _data(tmp_path / "elsewhere")
    (tmp_path / "p" / "link").symlink_to(tmp_path / "elsewhere")
    below = Below()
    for _ in range(2 * MIN_LOOKUPS):
        assert _watched(tmp_path / "p", below) == {".", "link"}
    (tmp_path / "elsewhere" / "m.gguf").unlink()
    assert _watched(tmp_path / "p", below) == {"."}


def test_links_in_circles_end(tmp_path: Path) -> None:
    _data(tmp_path / "a")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "latest").symlink_to(tmp_path / "a")
    assert {".", "a", "latest"} <= _watched(tmp_path)


CKPT = Path("models/of/global.bin")


def test_names_of_files_in_code() -> None:
    def helper(default: str = "d/default.bin") -> Iterator[object]:
        yield from ("h/helper.bin", ("in/tuple.bin",), default, CKPT)

    closed: Callable[[], object] = helper

    def stage() -> object:
        """A sentence. With a / in it."""
        return [lambda: "l/lambda.bin", closed(), "no name", "", "/", "..", "two\nlines.bin", ctypes]

    found = texts_of(stage, lambda file: file == __file__)
    names = {"d/default.bin", "h/helper.bin", "in/tuple.bin", "models/of/global.bin", "l/lambda.bin"}
    assert names <= {*found}
    assert {*found}.isdisjoint({"no name", "", "/", "..", "two\nlines.bin"})
