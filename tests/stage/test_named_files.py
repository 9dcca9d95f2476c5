"""What a stage names to cachec's own functions is the stage's look: it counts as if the stage had opened it."""

from __future__ import annotations

import ctypes
import json
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
    arrays["a"].tofile(folder / "raw")


def _opened(name: str) -> Callable[[str], Any]:
    return lambda place: float(cachec.open_weights(os.path.join(place, name))["a"].read().sum())


def _program(place: str) -> str:
    from cachec_mlir import program

    return program(os.path.join(place, "module.mlir")).program.text


def _stripped(place: str) -> bytes:
    from cachec_mlir import strip

    return strip(os.path.join(place, "module.mlir")).ir


def _raw(place: str) -> float:
    spec = cachec.WeightSpec(name="a", dtype="float32", shape=(3,), nbytes=12)
    return float(cachec.WeightSet.from_files({"a": (os.path.join(place, "raw"), spec)})["a"].read().sum())


def _several(place: str) -> float:
    return float(cachec.open_weights([os.path.join(place, "w.safetensors")])["a"].read().sum())


#: What is done with the folder that is named.
DEEDS: dict[str, Callable[[str], Any]] = {
    "a checkpoint": _opened("w.safetensors"),
    "a folder of one": _opened("hub"),
    "an archive": _opened("w.npz"),
    "a list": _several,
    "files of single weights": _raw,
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


def _nothing(_folder: Path) -> None:
    pass


def _index(folder: Path) -> None:
    index = {"weight_map": {"a": "part.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _cut_up(folder: Path) -> None:
    save_file({"a": np.ones(3, "f4")}, folder / "rank-1-of-2.safetensors")


def _gguf(folder: Path) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(folder / "w.gguf", "llama")
    writer.add_tensor("a", np.ones(3, "f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _linked(folder: Path) -> None:
    (folder / "w.safetensors").symlink_to("hub/model.safetensors")


def _damaged(folder: Path) -> None:
    (folder / "w.safetensors").write_bytes(b"x" * 40)


def _tables(folder: Path) -> None:
    """A tensor cache that names no file that is there."""
    spec = {"name": "a", "shape": [3], "dtype": "float32", "format": "raw", "nbytes": 12, "byteOffset": 0}
    part = {"dataPath": "raw", "format": "raw-shard", "nbytes": 12, "records": [spec]}
    (folder / "tensor-cache.json").write_text(json.dumps({"metadata": {}, "records": [part]}))


def _saved(name: str) -> Callable[[Path], object]:
    return lambda folder: save_file({"a": np.ones(3, "f4")}, folder / name)


#: What is there at first, and can't be opened; what is made of it; the name that is opened.
FAILING: dict[str, tuple[Callable[[Path], object], Callable[[Path], object], str | list[str]]] = {
    "safetensors": (_nothing, _saved("w.safetensors"), "w.safetensors"),
    "npz": (_nothing, lambda folder: np.savez(folder / "w.npz", a=np.ones(3, "f4")), "w.npz"),
    "npy": (_nothing, lambda folder: np.save(folder / "a.npy", np.ones(3, "f4")), "a.npy"),
    "gguf": (_nothing, _gguf, "w.gguf"),
    "one of a list": (_saved("b.safetensors"), _saved("w.safetensors"), ["b.safetensors", "w.safetensors"]),
    "no index": (_nothing, _saved("model.safetensors"), "."),
    "an index without its shard": (_index, _saved("part.safetensors"), "."),
    "an index file": (_nothing, _index, "model.safetensors.index.json"),
    "a shard of an index": (_index, _saved("part.safetensors"), "model.safetensors.index.json"),
    "shards of workers": (_nothing, _cut_up, "."),
    "a tensor cache": (_nothing, _tables, "."),
    "a file of a tensor cache": (_tables, lambda folder: np.ones(3, "f4").tofile(folder / "raw"), "."),
    "a dangling link": (_linked, _saved("hub/model.safetensors"), "w.safetensors"),
    "a damaged file": (_damaged, _saved("w.safetensors"), "w.safetensors"),
    "a folder in its place": (
        lambda folder: (folder / "w.safetensors").mkdir(),
        _saved("w.safetensors/model.safetensors"),
        "w.safetensors",
    ),
}


@pytest.mark.filterwarnings("ignore:.*names a f.* but is a str")
@pytest.mark.parametrize("name", FAILING)
def test_what_can_not_be_opened_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A stage may go on without what it looked for; once that can be opened, it would not."""
    cache, (before, after, opened) = cachec.Cache(tmp_path / "store"), FAILING[name]

    @cache.stage(name=name, version="1")
    def stage(places: str | list[str]) -> str:
        try:
            return str(cachec.open_weights(places).specs)
        except (OSError, cachec.CachecError) as error:
            return type(error).__name__ + str(error).partition(": ")[2]

    monkeypatch.chdir(tmp_path)
    for form, root in (("absolute", str(tmp_path)), ("relative", "")):
        data = tmp_path / form
        (data / "hub").mkdir(parents=True)
        before(data)
        place = os.path.join(root, form)
        named = [os.path.join(place, each) for each in opened] if isinstance(opened, list) else f"{place}/{opened}"
        failed = cache.call(stage, named)[0]
        assert failed == stage.uncached(named)
        assert cache.call(stage, named)[1].hit
        after(data)
        found, outcome = cache.call(stage, named)
        assert found == stage.uncached(named) != failed
        assert outcome.reason is Reason.DEPENDENCY_CHANGED
        assert cache.call(stage, named)[1].hit


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
