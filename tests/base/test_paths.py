"""What a path leads to, by what links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cachec.base.paths import absolute, access_letters, descriptor_path, entries, links_on, relative_to


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("x", "x"),
        ("./deep//../x", "x"),
        ("deep/er/../../x", "x"),
        ("link/../x", "link/../x"),
        ("link/../../x", "link/../../x"),
        ("deep/../link/./../x", "link/../x"),
        ("none/../x", "none/../x"),
        ("x/../y", "x/../y"),
        ("../" * 60, "/"),
    ],
)
def test_the_same_file_from_the_root(path: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "link").symlink_to("deep/er")
    (tmp_path / "x").touch()
    monkeypatch.chdir(tmp_path)
    assert absolute(path) == os.path.join(tmp_path, place)
    assert absolute(os.path.join(tmp_path, path)) == absolute(path)
    if place != "/":
        assert relative_to(absolute(path), os.getcwd()) == place
        assert relative_to(absolute(path), os.path.join(tmp_path, "deep")) == f"../{place}"


def test_links_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "deep/x").touch()
    (tmp_path / "link").symlink_to("deep/er")
    (tmp_path / "over").symlink_to("link/../x")
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "nowhere").symlink_to(tmp_path / "none")
    above = links_on(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for path, met in {
        "deep/x": (),
        "none/x": (),
        "link": (("link", "deep/er"),),
        "link/../x": (("link", "deep/er"),),
        "over": (("over", "link/../x"), ("link", "deep/er")),
    }.items():
        assert links_on(path) == (*above, *met), path
        assert os.path.realpath(path) == os.path.join(tmp_path, os.path.relpath(os.path.realpath(path)))
    assert links_on("nowhere")[len(above)] == ("nowhere", str(tmp_path / "none"))
    assert len(links_on("round")) == 40


def test_what_is_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch(mode=0o600)
    for name, target in (("to a file", "file"), ("to a folder", "folder"), ("nowhere", "none")):
        (tmp_path / name).symlink_to(target)
    assert sorted(entries(str(tmp_path))) == ["file", "folder/", "nowhere/@", "to a file/@", "to a folder/@/"]
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert sorted(entries(fd)) == sorted(entries(str(tmp_path)))
        assert descriptor_path(fd) == os.path.realpath(tmp_path)
    finally:
        os.close(fd)
    assert descriptor_path(fd) is None
    assert access_letters(str(tmp_path / "file")) == "rw"
    (tmp_path / "file").chmod(0o700)
    assert access_letters(str(tmp_path / "file")) == "rwx"
    assert access_letters(str(tmp_path / "none")) == ""
