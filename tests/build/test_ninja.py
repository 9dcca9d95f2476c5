"""examples/ninja: built twice, run, and built from a second checkout."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.needs import need

from .conftest import ROOT, Build

EXAMPLE = ROOT / "examples" / "ninja"


@pytest.fixture(autouse=True)
def _tools() -> None:
    need("ninja", "mlir-opt-19", "mlir-translate-19", "llc-19", "clang-19")


def all_of(answer: str) -> Counter[str]:
    return Counter({f"{answer} {tool}": 2 for tool in ("mlir-opt", "mlir-translate", "llc")}) + Counter(
        {f"{answer} clang": 1}
    )


def result(build: Build, project: Path) -> str:
    return build.run(project / "out" / "run", cwd=project).strip()


@pytest.mark.long
def test_a_project_built_twice(build: Build) -> None:
    project = build.project(EXAMPLE)
    for answer in ("miss", "hit"):
        assert build.outcomes("ninja", "-j2", cwd=project) == all_of(answer)
        assert result(build, project) == "40"
        assert build.outcomes("ninja", cwd=project) == Counter()
        shutil.rmtree(project / "out")


@pytest.mark.long
def test_a_second_checkout(build: Build) -> None:
    """With a base folder a second checkout hits, which has headers by relative names; without one its folder counts."""
    one, two, apart = (build.project(EXAMPLE, name) for name in ("one", "two", "apart"))
    for project, answer in ((one, "miss"), (two, "hit")):
        (project / "cachec.toml").write_text('base_dir = "."\n')
        assert build.outcomes("ninja", cwd=project) == all_of(answer)
    assert build.outcomes("ninja", cwd=apart) == all_of("miss")
    assert [result(build, project) for project in (two, apart)] == ["40", "40"]


@pytest.mark.long
def test_what_changes_is_built_and_nothing_else(build: Build) -> None:
    project = build.project(EXAMPLE)
    build.run("ninja", cwd=project)
    shift = project / "shift.mlir"
    shift.write_text("// a comment\n" + shift.read_text())
    assert build.outcomes("ninja", cwd=project) == Counter({"miss mlir-opt": 1})  # its output stays the same
    shift.write_text(shift.read_text().replace("constant 4", "constant 5"))
    found = build.outcomes("ninja", cwd=project)
    assert found == Counter({"miss mlir-opt": 1, "miss mlir-translate": 1, "miss llc": 1})
    assert result(build, project) == "41"
    header = project / "modules.h"
    header.write_text(header.read_text() + "/* more */\n")
    assert build.outcomes("ninja", cwd=project) == Counter({"miss clang": 1})  # by the depfile


@pytest.mark.long
def test_a_failing_compiler_fails_the_build_and_is_not_kept(build: Build) -> None:
    project = build.project(EXAMPLE)
    text = (project / "scale.mlir").read_text()
    (project / "scale.mlir").write_text(text.replace("muli", "nonsense"))
    for _ in range(2):
        said = build.run("ninja", "-j1", "out/scale.llvm.mlir", cwd=project, code=1)
        assert "nonsense" in said
        assert not (project / "out" / "scale.llvm.mlir").exists()
    (project / "scale.mlir").write_text(text)
    assert build.outcomes("ninja", "out/scale.llvm.mlir", cwd=project) == Counter({"miss mlir-opt": 1})
