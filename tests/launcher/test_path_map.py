"""Inputs that are named from the current folder, so that checkouts in different folders share hits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cachec.launcher.adapters import every
from cachec.launcher.path_map import PathMap, find_leaks
from tests.needs import need

from .conftest import Launcher, write

#: Tool -> the input, and flags with which its name is in the result.
NAMED = {
    "mlir-opt-19": ("m.mlir", ("--emit-bytecode",)),
    "mlir-translate-19": ("l.mlir", ("--mlir-to-llvmir",)),
    "opt-19": ("x.ll", ("-S",)),
    "llc-19": ("x.ll", ("-filetype=asm",)),
}

SOURCES = {
    "m.mlir": "func.func @f(%x: i32) -> i32 {\n  return %x : i32\n}\n",
    "l.mlir": "llvm.func @f(%x: i32) -> i32 {\n  llvm.return %x : i32\n}\n",
    "x.ll": "define i32 @f(i32 %x) {\n  ret i32 %x\n}\n",
}


@pytest.mark.parametrize("tool", NAMED)
def test_two_checkouts_share_a_result_that_names_its_input(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    need(tool)
    name, flags = NAMED[tool]
    for checkout in ("one", "two/deeper"):
        base = launcher.folder / checkout
        write(f"{checkout}/src/{name}", SOURCES[name])
        (base / "build").mkdir()
        monkeypatch.setenv("CACHEC_BASE_DIR", str(base))
        monkeypatch.chdir(base / "build")
        assert launcher.run(tool, f"{base}/src/{name}", "-o", f"{base}/build/out", *flags).code == 0
        assert os.fsencode(base) not in (base / "build" / "out").read_bytes()
        monkeypatch.chdir(launcher.folder)
    assert launcher.reasons() == ["miss:new-input", "hit"]


def test_an_input_in_another_place_of_the_checkout_is_named_otherwise(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("mlir-opt-19")
    write("src/m.mlir", SOURCES["m.mlir"])
    monkeypatch.setenv("CACHEC_BASE_DIR", str(launcher.folder))
    found = []
    for build in ("build", "build/deeper"):
        (launcher.folder / build).mkdir()
        monkeypatch.chdir(launcher.folder / build)
        assert launcher.run("mlir-opt-19", launcher.folder / "src/m.mlir", "-o", "out", "--emit-bytecode").code == 0
        found.append(Path("out").read_bytes())
    assert b"../../src/m.mlir" in found[1]
    assert b"../../src/m.mlir" not in found[0]
    assert launcher.last().detail.endswith("only a folder differs: use the same one below base_dir")


def test_the_miss_says_that_a_folder_was_the_reason(launcher: Launcher) -> None:
    need("mlir-opt-19")
    for checkout in ("one", "two"):
        write(f"{checkout}/m.mlir", SOURCES["m.mlir"])
        launcher.run("mlir-opt-19", launcher.folder / checkout / "m.mlir", "-o", "out")
    assert launcher.last().reason.value == "miss:option-changed"
    assert launcher.last().detail.endswith("only a folder differs: set base_dir (CACHEC_BASE_DIR) to the checkout")


def test_names_from_the_current_folder(tmp_path: Path) -> None:
    base = tmp_path / "base"
    for folder in ("src", "build"):
        (base / folder).mkdir(parents=True)
    for name in ("src/m", "build/-m", "build/@m"):
        (base / name).write_text("x")
    (tmp_path / "outside").write_text("x")
    (base / "linked").symlink_to(base / "build" / "deep" / "er")
    (base / "build" / "deep" / "er").mkdir(parents=True)
    places = PathMap(str(base), str(base / "build"))
    assert places.relative_name(f"{base}/src/m") == "../src/m"
    for path in (f"{tmp_path}/outside", f"{base}/build/-m", f"{base}/build/@m"):
        assert places.relative_name(path) == path
    for other in (
        PathMap(None, str(base / "build")),
        PathMap(str(base), str(tmp_path)),
        PathMap(str(base), str(base / "linked")),  # `..` leads elsewhere
    ):
        assert other.relative_name(f"{base}/src/m") == f"{base}/src/m"


def test_every_adapter_whose_inputs_come_into_the_result_is_one() -> None:
    wanted = {tool.removesuffix("-19") for tool in NAMED} | {"iree-compile", "iree-opt"}
    assert {adapter.name for adapter in every() if adapter.relative} == wanted


def test_which_folders_come_into_what_was_written(tmp_path: Path) -> None:
    folders = {"cwd": "/one/two", "base_dir": "/three"}
    written = tmp_path / "out"
    written.write_bytes(b"x /one/two/a.c y")
    (tmp_path / "empty").touch()
    assert find_leaks(folders, [str(tmp_path / "empty")], [b"", b"at /three/b"]) == {"base_dir": "its messages"}
    assert find_leaks(folders, [str(tmp_path / "empty"), str(written)], [b"/one"]) == {"cwd": str(written)}


def test_what_a_relative_path_finds_below_the_current_folder_counts_from_there(tmp_path: Path) -> None:
    for name in ("one/src", "two/src", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    one, two = (PathMap(None, str(tmp_path / name)) for name in ("one", "two"))
    for where, counts_as in ((".", "."), ("src", "./src"), ("../elsewhere", f"{tmp_path}/elsewhere")):
        for each in (one, two):
            assert each.folder(where, os.path.realpath(os.path.join(each.cwd, where))) == counts_as
    assert one.folder(f"{tmp_path}/one/src", f"{tmp_path}/one/src") == f"{tmp_path}/one/src"
