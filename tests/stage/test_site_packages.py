"""Files beside installed packages: those that a RECORD lists are tools, any other is a file as all are."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import cachec
from cachec import Reason
from cachec.key.code import run_reads
from tests.base.test_distributions import install


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of installed packages, with a package of which RECORD lists a file and one that came by hand."""
    site = tmp_path / "lib" / "site-packages"
    install(site, "listed", "1.0", {"listed/data.txt": "1"})
    (site / "listed" / "more.txt").write_text("1")
    (site / "loose").mkdir()
    (site / "loose" / "data.txt").write_text("1")
    paths = {"purelib": os.fspath(site), "platlib": os.fspath(site)}
    real = sysconfig.get_path
    kept = (run_reads._library_folders, getattr(run_reads, "_site_folders", run_reads._library_folders))
    with monkeypatch.context() as patched:
        patched.setattr(sys, "path", [os.fspath(site), *sys.path])
        patched.setattr(sysconfig, "get_path", lambda name: paths.get(name) or real(name))
        for each in kept:
            each.cache_clear()
        yield site
    for each in kept:
        each.cache_clear()


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else "none"


def _names(path: Path) -> str:
    return ",".join(sorted(os.listdir(path)))


@pytest.mark.parametrize(
    ("look", "at", "written"),
    [
        (_read, "loose/data.txt", "loose/data.txt"),
        (_read, "listed/more.txt", "listed/more.txt"),
        (_read, "beside.txt", "beside.txt"),
        (_read, "listed/new.txt", "listed/new.txt"),
        (_names, "loose", "loose/new.txt"),
        (_names, "listed", "listed/new.txt"),
    ],
)
def test_what_no_distribution_lists_counts(
    tmp_path: Path, site: Path, look: Callable[[Path], str], at: str, written: str
) -> None:
    cache, place = cachec.Cache(tmp_path / "store", log="off", mode="on"), site / at

    @cache.stage
    def stage() -> str:
        return look(place)

    before = stage()
    assert stage.call()[1].reason is Reason.HIT
    (site / written).write_text("22")
    value, outcome = stage.call()
    assert outcome.reason is Reason.DEPENDENCY_CHANGED
    assert value == look(place) != before


def test_a_file_that_one_lists_is_of_its_part(tmp_path: Path, site: Path) -> None:
    cache, place = cachec.Cache(tmp_path / "store", log="off", mode="on"), site / "listed" / "data.txt"

    @cache.stage(tools=["listed"])
    def stage() -> str:
        return place.read_text()

    assert stage() == "1"
    place.write_text("22")
    assert stage.call()[1].reason is not Reason.DEPENDENCY_CHANGED  # it is looked at a second later, as tools are


def _entry_points(_: str) -> list[str]:
    return sorted(each.name for each in importlib.metadata.entry_points(group="toys"))


def _of_one(name: str) -> list[str]:
    return sorted(each.name for each in importlib.metadata.distribution(name).entry_points)


@pytest.mark.parametrize(
    ("folder", "has_record"),
    [("toy-1.0.dist-info", True), ("toy-1.0.dist-info", False), ("toy-1.0.egg-info", False), ("toy.egg-info", False)],
)
@pytest.mark.parametrize("look", [_entry_points, _of_one])
def test_entry_points_count_whatever_the_installer_left(
    tmp_path: Path, site: Path, look: Callable[[str], list[str]], folder: str, has_record: bool
) -> None:
    place = site / folder
    place.mkdir()
    (place / "METADATA").write_text("Name: toy\nVersion: 1.0\n")
    (place / "PKG-INFO").write_text("Name: toy\nVersion: 1.0\n")
    if has_record:  # of an editable install: it lists no entry
        (place / "RECORD").write_text(f"{folder}/RECORD,,\n")
        (place / "direct_url.json").write_text('{"url": "file:///toy", "dir_info": {"editable": true}}')
    with closing(cachec.Cache(tmp_path / "store", log="off", mode="on")) as cache:
        stage = cache.stage(lambda name: look(name), name="stage")
        for names in ([], ["one", "two"], ["two"]):
            lines = "".join(f"{name} = toy:{name}\n" for name in names)
            (place / "entry_points.txt").write_text(f"[toys]\n{lines}")
            value, outcome = stage.call("toy")
            assert (value, outcome.hit, outcome.stored) == (names, False, True), outcome
            assert stage.call("toy")[1].hit


def test_a_distribution_that_comes_without_dist_info_counts(tmp_path: Path, site: Path) -> None:
    with closing(cachec.Cache(tmp_path / "store", log="off", mode="on")) as cache:
        stage = cache.stage(lambda name: look(name), name="stage")
        look = _entry_points
        assert stage("toy") == []
        place = site / "toy-1.0.egg-info"
        place.mkdir()
        (place / "PKG-INFO").write_text("Name: toy\nVersion: 1.0\n")
        (place / "entry_points.txt").write_text("[toys]\none = toy:one\n")
        assert stage("toy") == ["one"]
        assert stage.call("toy")[1].hit
