"""What a stage names to cachec's own functions is the stage's look: it counts as if the stage had opened it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import cachec
from cachec.model import Reason

_MODULE = 'module {\n  "op.of%s"() : () -> ()\n}\n'


def _write(folder: Path, number: int) -> None:
    for name in ("sub", "hub"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "module.mlir").write_text(_MODULE % number)
    (folder / "sub/text").write_text(str(number))
    arrays = {"a": np.full(3, number, "f4")}
    save_file(arrays, folder / "w.safetensors")
    save_file(arrays, folder / "hub/model.safetensors")
    np.savez(folder / "w.npz", **arrays)


def _opened(name: str) -> Callable[[str], Any]:
    return lambda place: float(cachec.open_weights(os.path.join(place, name))["a"].read().sum())


def _program(place: str) -> str:
    from cachec_mlir import program

    return program(os.path.join(place, "module.mlir")).program.text


def _stripped(place: str) -> bytes:
    from cachec_mlir import strip

    return strip(os.path.join(place, "module.mlir")).ir


def _several(place: str) -> float:
    return float(cachec.open_weights([os.path.join(place, "w.safetensors")])["a"].read().sum())


#: What is done with the folder that is named.
DEEDS: dict[str, Callable[[str], Any]] = {
    "a checkpoint": _opened("w.safetensors"),
    "a folder of one": _opened("hub"),
    "an archive": _opened("w.npz"),
    "a list": _several,
    "specs alone": lambda place: str(cachec.open_weights(os.path.join(place, "w.safetensors")).specs),
    "weights as the result": lambda place: cachec.open_weights(os.path.join(place, "w.safetensors")),
    "a program": _program,
    "a stripped module": _stripped,
    "a file as the result": lambda place: cachec.File(os.path.join(place, "sub/text")),
    "a folder as the result": lambda place: cachec.Dir(os.path.join(place, "sub")),
    "bytes of a file": lambda place: cachec.File(os.path.join(place, "sub/text")).read_bytes(),
}


def _plain(value: Any) -> Any:
    if isinstance(value, cachec.File):
        return value.path.read_bytes()
    if isinstance(value, cachec.Dir):
        return {each.name: each.read_bytes() for each in value.path.iterdir()}
    return value["a"].read().tolist() if isinstance(value, cachec.WeightSet) else value


@pytest.mark.filterwarnings("ignore:.*names a f.* but is a str")
@pytest.mark.parametrize("is_relative", [False, True])
@pytest.mark.parametrize("name", DEEDS)
def test_what_a_stage_names_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_relative: bool
) -> None:
    cache, deed = cachec.Cache(tmp_path / "store"), DEEDS[name]

    @cache.stage(name=name, version="1")
    def stage(place: str) -> Any:
        return deed(place)

    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    place = "data" if is_relative else str(tmp_path / "data")
    _write(tmp_path / "data", 1)
    cache.call(stage, place)
    assert cache.call(stage, place)[1].hit
    _write(tmp_path / "data", 2)
    found, outcome = cache.call(stage, place)
    assert _plain(found) == _plain(stage.uncached(place))
    if name != "specs alone":
        assert outcome.reason is Reason.DEPENDENCY_CHANGED
    assert cache.call(stage, place)[1].hit
    if is_relative:
        _write(tmp_path / "other/data", 3)
        monkeypatch.chdir(tmp_path / "other")
        assert _plain(stage(place)) == _plain(stage.uncached(place))


def test_what_the_key_has_is_no_more_than_that(tmp_path: Path) -> None:
    """An argument that counts by content, elsewhere with the same content."""
    cache = cachec.Cache(tmp_path / "store")

    @cache.stage
    def opened(place: Path, file: cachec.File, folder: cachec.Dir) -> tuple[float, cachec.File, cachec.Dir]:
        assert file.read_bytes()
        return float(cachec.open_weights(place)["a"].read().sum()), file, folder

    for name, reason in (("one", Reason.NEW_INPUT), ("two", Reason.HIT)):
        _write(tmp_path / name, 1)
        given = tmp_path / name
        _, outcome = cache.call(
            opened, given / "w.safetensors", cachec.File(given / "sub/text"), cachec.Dir(given / "sub")
        )
        assert outcome.reason is reason, outcome.detail


def test_what_the_run_made_itself_may_be_gone(tmp_path: Path) -> None:
    """Also by native code, of which no event tells."""
    cache = cachec.Cache(tmp_path / "store")
    libc = ctypes.CDLL(None)

    @cache.stage(version="1")
    def made(number: int) -> tuple[float, cachec.File, cachec.Dir]:
        folder = tmp_path / "made"
        folder.mkdir()
        save_file({"a": np.full(3, number, "f4")}, folder / "w.safetensors")
        total = float(cachec.open_weights(folder / "w.safetensors")["a"].read().sum())
        (folder / "in").mkdir()
        fd = libc.creat(os.fsencode(folder / "in/native"), 0o600)
        libc.write(fd, b"text", 4)
        libc.close(fd)
        return total, cachec.File(folder / "in/native"), cachec.Dir(folder / "in")

    assert made(1)[0] == 3.0
    import shutil

    shutil.rmtree(tmp_path / "made")
    assert cache.call(made, 1)[1].hit
