"""Paths that mean the same place on two machines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cachec.base.anchors import Anchors, anchors_of, project_folder


def anchors() -> Anchors:
    return Anchors({"project": "/home/a/work", "home": "/home/a", "prefix": "/home/a/work/.venv", "base_dir": None})


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/home/a/work/x/t.json", "project:x/t.json"),
        ("/home/a/work/.venv/lib/t", "prefix:lib/t"),
        ("/home/a/t", "home:t"),
        ("/home/ab/t", "/home/ab/t"),
        ("/etc/t", "/etc/t"),
        ("t.json", "t.json"),
        ("project:t.json", "./project:t.json"),
    ],
)
def test_the_deepest_anchor_is_kept_and_resolved_by_who_looks(path: str, kept: str) -> None:
    assert anchors().keep(path) == kept
    assert os.path.normpath(anchors().resolve(kept) or "") == path
    other = Anchors({"project": "/srv/b", "home": "/home/b", "prefix": "/opt/v"})
    moved = {"project:x/t.json": "/srv/b/x/t.json", "prefix:lib/t": "/opt/v/lib/t", "home:t": "/home/b/t"}
    assert other.resolve(kept) == moved.get(kept, kept)


def test_an_anchor_that_is_not_here_leads_nowhere() -> None:
    assert Anchors({"project": "/p"}).resolve("base_dir:t") is None
    with pytest.raises(ValueError, match="'other' is none of"):
        Anchors({"other": "/p"})


def test_a_project_is_the_nearest_marked_folder_above_the_source(tmp_path: Path) -> None:
    (tmp_path / "outer" / "inner" / "src").mkdir(parents=True)
    source = str(tmp_path / "outer" / "inner" / "src" / "m.py")
    (tmp_path / "outer" / "pyproject.toml").touch()
    assert project_folder(source) == str(tmp_path / "outer")
    (tmp_path / "outer" / "inner" / "cachec.toml").touch()
    assert project_folder(source) == str(tmp_path / "outer" / "inner")


def test_what_was_typed_in_belongs_to_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cachec.toml").touch()
    monkeypatch.chdir(tmp_path)
    anchors_of.cache_clear()
    assert anchors_of("<stdin>", None, None).keep(str(tmp_path / "t")) == "project:t"
    anchors_of.cache_clear()
