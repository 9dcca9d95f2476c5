"""docs/build-systems.md: its commands work, its CMake, Make and Ninja texts too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.needs import need

from .conftest import PROJECTS, ROOT, Build

TEXT = (ROOT / "docs" / "build-systems.md").read_text()

COMMANDS = [
    (command, lines)
    for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
    for command, *lines in (each.splitlines() for each in block.split("$ ") if each)
]


def text_of(language: str, word: str) -> str:
    return next(block for block in re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL) if word in block)


@pytest.mark.long
def test_the_commands_work_in_order(build: Build) -> None:
    need("cmake", "ninja", "mlir-opt-19", "mlir-translate-19", "llc-19", "clang-19")
    build.project(ROOT / "examples" / "ninja", "examples/ninja")
    build.project(PROJECTS / "cmake", "project")
    assert len(COMMANDS) == 9
    for command, lines in COMMANDS:
        said = build.run("sh", "-c", command, cwd=build.folder)
        for line in lines:
            assert line in said.splitlines(), command
    assert (build.folder / "project" / "CMakeLists.txt").exists()
    assert (build.folder / "build" / "packed.bin").exists()


def test_the_program_of_the_cmake_text(build: Build) -> None:
    need("cmake", "ninja")
    (build.folder / "bin" / "iree-compile").write_text("#!/bin/sh\n")
    (build.folder / "bin" / "iree-compile").chmod(0o755)
    lists = "cmake_minimum_required(VERSION 3.20)\nproject(p LANGUAGES NONE)\n"
    lists += text_of("cmake", "find_package") + text_of("cmake", "cachec_launch")
    (build.folder / "CMakeLists.txt").write_text(lists)
    for name in ("minilm.mlir", "minilm.safetensors"):
        (build.folder / name).touch()
    package = ROOT / "plugins" / "cmake"
    build.run("cmake", "-S.", "-Bb", "-GNinja", f"-Dcachec_DIR={package}", cwd=build.folder)
    rules = (build.folder / "b" / "build.ninja").read_text()
    assert "--weights" in rules
    assert "--iree-hal-local-target-device-backends=llvm-cpu" in rules


@pytest.mark.long
def test_the_make_text(build: Build) -> None:
    need("make", "mlir-opt-19")
    (build.folder / "Makefile").write_text(text_of("make", "cachec_program"))
    (build.folder / "a.mlir").write_text("module {}\n")
    (build.folder / "minilm.mlir").touch()
    (build.folder / "minilm.safetensors").touch()
    said = build.run("make", "-n", "minilm.vmfb", cwd=build.folder)
    line = "-- iree-compile minilm.mlir -o minilm.vmfb --iree-hal-target-backends=llvm-cpu"
    assert f"--weights minilm.safetensors=opened {line}" in said
    build.run("make", "a.bc", cwd=build.folder)
    assert (build.folder / "a.bc").read_bytes()[:4] == b"ML\xefR"


def test_the_ninja_text(build: Build) -> None:
    need("ninja", "mlir-opt-19")
    (build.folder / "build.ninja").write_text(text_of("ninja", "rule mlir") + "build o.mlir: mlir i.mlir\n")
    (build.folder / "i.mlir").write_text("module {}\n")
    assert build.outcomes("ninja", cwd=build.folder) == {"miss mlir-opt": 1}


@pytest.mark.parametrize("keyword", re.findall(r"`([A-Z_]+)`", TEXT.split("| keyword")[1].split("\n\n")[0]))
def test_every_keyword_is_one(keyword: str) -> None:
    source = (Path(ROOT) / "plugins" / "cmake" / "cachecConfig.cmake").read_text()
    known = re.findall(r"set\((?:switches|single|several) ([^)]*)\)", source)
    if keyword not in {"FILE", "PATH"}:
        assert keyword in " ".join(known).split()
