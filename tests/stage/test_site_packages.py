"""Files beside installed packages: those that a RECORD lists are tools, any other is a file as all are."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cachec
from cachec import Reason
from cachec.key.code import ran
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
    kept = (ran._library_folders, getattr(ran, "_site_folders", ran._library_folders))
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
