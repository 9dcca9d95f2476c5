"""Putting outputs in place: whole or not at all, and new."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from cachec.launcher import restore


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(os.urandom(1000))
    path.chmod(0o444)
    return path


def test_a_new_file(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    assert restore.restore_file(str(source), str(target), 0o640)
    assert target.read_bytes() == source.read_bytes()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert target.stat().st_ino != source.stat().st_ino
    assert sorted(os.listdir(tmp_path)) == ["source", "target"]


@pytest.mark.parametrize("restat", [False, True])
def test_the_same_content_gets_the_time_of_now(source: Path, tmp_path: Path, restat: bool) -> None:
    target = tmp_path / "target"
    target.write_bytes(source.read_bytes())
    os.utime(target, (5, 5))
    assert not restore.restore_file(str(source), str(target), 0o755, restat=restat)
    assert (target.stat().st_mtime == 5) == restat


@pytest.mark.parametrize(("mode", "names", "hardlink", "refused"), [
    (0o644, 1, False, ""), (0o600, 1, False, "mode 600"), (0o755, 1, False, "mode 755"), (0o4644, 1, False, "4644"),
    (0o644, 2, False, "second name"), (0o644, 2, True, "second name"), (0o444, 2, True, ""),
    (0o444, 1, True, "444|written"), (0o444, 2, False, "second name|written"),
])  # fmt: skip
def test_what_may_be_in_the_place_of_an_output(
    tmp_path: Path, mode: int, names: int, hardlink: bool, refused: str
) -> None:
    target = tmp_path / "target"
    target.write_text("old")
    target.chmod(mode)
    if names == 2:
        os.link(target, tmp_path / "second")
    if refused:
        with pytest.raises(OSError, match=refused):
            restore.check_place(str(target), 0o644, hardlink=hardlink)
    else:
        restore.check_place(str(target), 0o644, hardlink=hardlink)
    assert stat.S_IMODE(target.stat().st_mode) == mode


def test_extended_attributes_in_the_place_of_an_output(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("old")
    target.chmod(0o644)
    os.setxattr(target, "user.origin", b"x")
    with pytest.raises(OSError, match="extended attributes"):
        restore.check_place(str(target), 0o644)


def test_a_folder_of_another_mode(tmp_path: Path) -> None:
    os.mkdir(tmp_path / "folder", 0o700)
    restore.check_folder(str(tmp_path / "folder"), 0o700)
    restore.check_folder(str(tmp_path / "missing"), 0o755)
    with pytest.raises(OSError, match="mode 700"):
        restore.check_folder(str(tmp_path / "folder"), 0o755)


@pytest.mark.parametrize("hardlink", [False, True])
def test_a_file_whose_time_only_its_owner_may_set_is_replaced(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hardlink: bool
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "not yours")

    target = tmp_path / "target"
    target.write_bytes(source.read_bytes())
    monkeypatch.setattr(os, "utime", refuse)
    before = target.stat().st_ino
    assert restore.restore_file(str(source), str(target), 0o644, hardlink=hardlink)
    assert target.stat().st_ino not in {before, source.stat().st_ino}
    assert restore.restore_bytes(source.read_bytes(), str(target), 0o644)
    assert target.read_bytes() == source.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["source", "target"]


@pytest.mark.parametrize("cloned", [False, True])
def test_any_way_of_copying(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cloned: bool) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EXDEV, "not here")

    monkeypatch.setattr(restore, "_has_cloned", lambda read, fd: cloned and os.write(fd, os.read(read, 2000)) > 0)
    monkeypatch.setattr(os, "copy_file_range", refuse)
    target = tmp_path / "target"
    restore.restore_file(str(source), str(target), 0o644)
    assert target.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("hardlink", [False, True])
def test_a_folder_in_the_place_of_a_file_stays(source: Path, tmp_path: Path, hardlink: bool) -> None:
    (tmp_path / "target" / "inner").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        restore.restore_file(str(source), str(tmp_path / "target"), 0o644, hardlink=hardlink)
    assert sorted(os.listdir(tmp_path)) == ["source", "target"]


def test_a_failure_leaves_the_old_file_and_nothing_else(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    target.write_text("old")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(restore, "_share", refuse)
    with pytest.raises(OSError, match="full"):
        restore.restore_file(str(source), str(target), 0o644)
    assert target.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["source", "target"]


def test_bytes(tmp_path: Path) -> None:
    target = tmp_path / "target"
    assert restore.restore_bytes(b"abc", str(target), 0o600)
    for restat in (True, False):
        os.utime(target, (5, 5))
        assert not restore.restore_bytes(b"abc", str(target), 0o600, restat=restat)
        assert (target.stat().st_mtime == 5) == restat
    assert restore.restore_bytes(b"", str(target), 0o600)
    assert target.read_bytes() == b""


@pytest.mark.parametrize("word", ["", "x", "9", "-1", "77777", "0o9"])
def test_what_is_no_mode(word: str) -> None:
    with pytest.raises(ValueError, match=r"mode|invalid literal"):
        restore.mode_of(word)
