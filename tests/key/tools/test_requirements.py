"""What a distribution requires in its turn is in the key of a stage, by version."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import cachec
from cachec import Reason
from cachec.base import fsio
from cachec.base.distributions import Distributions
from cachec.key.tools.requirements import Requirement, Requirements, parse_requirements
from cachec.maintain.maintainer import Maintainer
from cachec.maintain.selector import Selector
from cachec.model import PartKind


def _wheel(site: Path, name: str, version: str, *requires: str, text: str = "") -> None:
    for earlier in site.glob(f"{name}-*.dist-info"):
        shutil.rmtree(earlier)
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (site / f"{name}.py").write_text(text or f"VERSION = {version!r}\n")
    lines = [f"Requires-Dist: {each}\n" for each in requires]
    (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n{''.join(lines)}\nRequires-Dist: body\n")
    (info / "RECORD").write_text(f"{name}.py,,\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n")


def _names(site: Path, *names: str) -> list[str]:
    return [part.detail for part in Requirements(Distributions([os.fspath(site)]), lambda: 0.0, 1.0).parts(names)]


def test_a_copy_that_setuptools_brings_along_is_no_requirement(tmp_path) -> None:
    """Importing setuptools puts its folder of copies in the path, and torch imports it during a compile."""
    copies = tmp_path / "setuptools" / "_vendor"
    _wheel(tmp_path, "one", "1.0", "two; python_version < '3.10'")
    _wheel(copies, "two", "2.0")
    requirements = Requirements(Distributions([os.fspath(tmp_path), os.fspath(copies)]), lambda: 0.0, 1.0)
    assert requirements.parts(["one"]) == ()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Q_2.x", [Requirement("q-2-x", (), "")]),
        ("q2 (>=1.0,<3) ", [Requirement("q2", (), "")]),
        ("q2>=1; python_version < '3.99'", [Requirement("q2", (), "")]),
        ("q2[Fast, big] >= 1", [Requirement("q2", ("fast", "big"), "")]),
        ("q2 @ https://example.org/q2.whl", [Requirement("q2", (), "")]),
        ('q2>=1; extra == "test"', [Requirement("q2", (), "test")]),
        ("q2; (extra=='A_b') and python_version < '3.99'", [Requirement("q2", (), "a-b")]),
        ('q2; extra == "a" or extra == "b"', [Requirement("q2", (), "a"), Requirement("q2", (), "b")]),
        ('q2; python_version >= "3.8" or extra == "x"', [Requirement("q2", (), ""), Requirement("q2", (), "x")]),
        ('q2; extra == "tensor" and sys_platform == "linux"', [Requirement("q2", (), "tensor")]),
        (">=1", []),
        ("", []),
    ],
)
def test_a_requirement_is_read(line: str, expected: list[Requirement]) -> None:
    assert (
        list(parse_requirements(f"Metadata-Version: 2.1\r\nrequires-dist: {line}\r\n\r\nRequires-Dist: body\r\n"))
        == expected
    )


def test_all_that_is_required_counts_as_it_is_installed(tmp_path: Path) -> None:
    _wheel(tmp_path, "lib", "1.0", "mid[fast]", "gone", "Lib", "test; extra == 'test'")
    _wheel(tmp_path, "mid", "2.0", "leaf", "extra; extra == 'fast'", "other; extra == 'slow'", "lib")
    for name in ("leaf", "extra", "other", "test", "body"):
        _wheel(tmp_path, name, "3.0")
    assert _names(tmp_path, "lib") == ["extra 3.0", "leaf 3.0", "mid 2.0"]
    assert _names(tmp_path, "lib", "mid") == ["extra 3.0", "leaf 3.0"]
    assert _names(tmp_path, "leaf") == []
    assert _names(tmp_path, "nowhere") == []
    _wheel(tmp_path, "cachec", "1.0", "leaf")
    assert _names(tmp_path, "cachec") == []


@pytest.mark.parametrize("name", ["old-3.0.egg-info", "old-3.0-py3.11.egg-info"])
def test_what_has_no_dist_info_counts_by_its_version(tmp_path: Path, name: str) -> None:
    _wheel(tmp_path, "lib", "1.0", "old", "file")
    (tmp_path / name).mkdir()
    (tmp_path / "file-2.0.egg-info").write_text("Metadata-Version: 1.0")
    assert _names(tmp_path, "lib") == ["file 2.0", "old 3.0"]
    _wheel(tmp_path, "old", "4.0")
    assert _names(tmp_path, "lib") == ["file 2.0", "old 4.0"]


@pytest.mark.parametrize("settled", [True, False])
def test_what_a_process_has_looked_at_is_looked_at_again(tmp_path: Path, settled: bool) -> None:
    """An installer may set the folder's time back, and the METADATA of an equal version may say something else."""
    times = (10**18, 10**18)
    _wheel(tmp_path, "lib", "1.0", "mid")
    _wheel(tmp_path, "mid", "1.0")
    _wheel(tmp_path, "leaf", "1.0")
    os.utime(tmp_path, ns=times)
    if settled:
        time.sleep(fsio.SETTLE_SECONDS + 0.1)
    requirements = Requirements(Distributions([os.fspath(tmp_path)]), lambda: 0.0, 0.0)

    def found() -> list[str]:
        return [part.detail for part in requirements.parts(["lib"], fresh=True)]

    assert found() == ["mid 1.0"]
    shutil.rmtree(tmp_path / "mid-1.0.dist-info")
    _wheel(tmp_path, "mid", "1.0", "leaf")
    os.utime(tmp_path, ns=times)
    assert found() == ["leaf 1.0", "mid 1.0"]
    shutil.rmtree(tmp_path / "leaf-1.0.dist-info")
    _wheel(tmp_path, "leaf", "2.0")
    os.utime(tmp_path, ns=times)
    assert found() == ["leaf 2.0", "mid 1.0"]


def test_it_is_looked_up_again_after_a_second(tmp_path: Path) -> None:
    _wheel(tmp_path, "lib", "1.0", "leaf", "later")
    _wheel(tmp_path, "leaf", "1.0")
    now = [0.0]
    requirements = Requirements(Distributions([os.fspath(tmp_path)]), lambda: now[0], 1.0)
    (before,) = requirements.parts(["lib"])
    _wheel(tmp_path, "leaf", "2.0")
    assert requirements.parts(["lib"]) == (before,)
    now[0] = 1.0
    (after,) = requirements.parts(["lib"])
    assert (after.kind, after.name, after.version) == (PartKind.REQUIREMENT, "leaf", "2.0")
    assert after.digest != before.digest
    _wheel(tmp_path, "later", "1.0")
    assert len(requirements.parts(["lib"])) == 1
    assert len(requirements.parts(["lib"], fresh=True)) == 2


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    site = tmp_path / "site"
    _wheel(
        site,
        "cachec_t_lib",
        "1.0",
        "cachec_t_leaf",
        text="import cachec_t_leaf\ndef f(): return cachec_t_leaf.VERSION\n",
    )
    _wheel(site, "cachec_t_leaf", "1.0")
    monkeypatch.syspath_prepend(os.fspath(site))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # what is compiled is told apart by whole seconds
    yield site
    for name in ("cachec_t_lib", "cachec_t_leaf"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("tools", [(), ("cachec_t_lib",)])
def test_another_version_of_what_a_library_requires_is_a_miss(
    tmp_path: Path, site: Path, tools: tuple[str, ...]
) -> None:
    lib = importlib.import_module("cachec_t_lib")

    def again() -> tuple[str, cachec.Outcome]:
        cache = cachec.Cache(tmp_path / "store", log="off", mode="on")

        @cache.stage(tools=tools, name="stage")
        def stage() -> str:
            return lib.f()

        return cache.call(stage)

    assert again()[0] == "1.0"
    assert again()[1].reason is Reason.HIT
    _wheel(site, "cachec_t_leaf", "2.0")
    del sys.modules["cachec_t_leaf"], lib.cachec_t_leaf
    lib.cachec_t_leaf = importlib.import_module("cachec_t_leaf")
    found = Maintainer(cachec.Cache(tmp_path / "store", log="off").store).find(Selector(stale=True))
    assert len(list(found)) == 1
    value, outcome = again()
    assert (value, outcome.reason) == ("2.0", Reason.TOOL_CHANGED)
    assert "cachec-t-leaf" in (outcome.detail or "")
    assert again()[1].reason is Reason.HIT


def test_reached_in_a_run_it_is_a_read(tmp_path: Path, site: Path) -> None:
    def again() -> tuple[str, cachec.Outcome]:
        cache = cachec.Cache(tmp_path / "store", log="off", mode="on")

        @cache.stage(name="stage")
        def stage(name: str) -> str:
            return importlib.import_module(name).f()

        return cache.call(stage, "cachec_t_lib")

    assert again()[0] == "1.0"
    assert again()[1].reason is Reason.HIT
    _wheel(site, "cachec_t_leaf", "2.0")
    for name in ("cachec_t_lib", "cachec_t_leaf"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    value, outcome = again()
    assert (value, outcome.reason) == ("2.0", Reason.TOOL_CHANGED)
