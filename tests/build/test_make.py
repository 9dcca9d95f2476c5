"""plugins/make: the project built twice, and when Make calls the launcher."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.needs import need

from .conftest import PROJECTS, Build


@pytest.fixture
def project(build: Build) -> Path:
    need("make", "mlir-opt-19", "mlir-translate-19")
    return build.project(PROJECTS / "make")


def all_of(answer: str) -> Counter[str]:
    return Counter({f"{answer} mlir-opt": 2, f"{answer} mlir-translate": 1})


@pytest.mark.long
def test_a_project_built_twice(build: Build, project: Path) -> None:
    assert build.outcomes("make", "-j2", cwd=project) == all_of("miss")
    written = {path.name: path.read_bytes() for path in (project / "out").iterdir()}
    assert b"define i32 @scale" in written["scale.ll"]
    shutil.rmtree(project / "out")
    assert build.outcomes("make", "-j2", cwd=project) == all_of("hit")
    assert {path.name: path.read_bytes() for path in (project / "out").iterdir()} == written
    assert build.outcomes("make", cwd=project) == Counter()


@pytest.mark.long
def test_an_output_that_stays_the_same_ends_the_build_there(build: Build, project: Path) -> None:
    build.run("make", cwd=project)
    size = (project / "out" / "size").stat().st_mtime_ns
    (project / "scale.mlir").touch()
    assert build.outcomes("make", cwd=project) == Counter({"hit mlir-opt": 1})  # mlir-translate is not called
    assert (project / "out" / "size").stat().st_mtime_ns == size
    assert build.outcomes("make", cwd=project) == Counter()  # nor is the first one again


@pytest.mark.long
def test_a_changed_input_is_built_to_the_end(build: Build, project: Path) -> None:
    build.run("make", cwd=project)
    before = (project / "out" / "scale.ll").read_bytes()
    scale = project / "scale.mlir"
    scale.write_text(scale.read_text().replace("constant 3", "constant 33333"))
    assert build.outcomes("make", cwd=project) == Counter({"miss mlir-opt": 1, "miss mlir-translate": 1})
    after = (project / "out" / "scale.ll").read_bytes()
    assert after != before
    assert (project / "out" / "size").read_text().strip() == str(len(after))


@pytest.mark.long
def test_a_lost_output_is_made_again(build: Build, project: Path) -> None:
    build.run("make", cwd=project)
    (project / "out" / "scale.ll").unlink()
    assert build.outcomes("make", cwd=project) == Counter({"hit mlir-translate": 1})
    assert (project / "out" / "scale.ll").exists()


def test_a_dry_run_calls_nothing(build: Build, project: Path) -> None:
    assert build.outcomes("make", "-n", cwd=project) == Counter()
    assert not (project / "out").exists()


def test_weights_and_options(build: Build) -> None:
    need("make")
    project = build.folder / "one"
    project.mkdir()
    (project / "Makefile").write_text(
        "include $(shell cachec config --make-include)\n"
        "$(eval $(call cachec_program,a.out,a.mlir,mycc,-O2,w.bin v.bin=name u.bin=opened,--portable))\n"
    )
    for name in ("a.mlir", "w.bin", "u.bin"):  # v.bin is not even there
        (project / name).touch()
    said = build.run("make", "-n", cwd=project)
    weights = "--weights w.bin --weights v.bin=name --weights u.bin=opened"
    wanted = f"cachec exec --restat --portable {weights} -- mycc a.mlir -o a.out -O2"
    assert wanted in said


def test_the_rules_that_make_has_for_c(build: Build) -> None:
    need("make", "gcc")
    project = build.folder / "c"
    project.mkdir()
    (project / "a.c").write_text("int f;\n")
    time.sleep(0.05)
    line = ("make", "a.o", "CC=cachec exec -- gcc")
    assert build.outcomes(*line, cwd=project) == Counter({"miss gcc": 1})
    (project / "a.o").unlink()
    assert build.outcomes(*line, cwd=project, OF_ANOTHER="1") == Counter({"hit gcc": 1})
