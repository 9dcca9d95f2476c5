"""An ONNX model counts with the files that its values are in, whoever reads them, and where nothing is recorded too."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import cachec
from cachec.model import Reason
from cachec.weights.formats.onnx import external_files
from tests.plugins.onnx_models import arrays, helper, model, node, onnx, perceptron, saved


@pytest.mark.parametrize("record", ["auto", "off"])
def test_a_path_counts_with_its_external_data(tmp_path: Path, record: Literal["auto", "off"]) -> None:
    cache = cachec.Cache(tmp_path / "cache", log="off", record=record)

    @cache.stage(version="1")
    def stage(path: Path) -> str:
        return path.name

    def called(folder: str, seed: int, **more: Any) -> Any:
        (tmp_path / folder).mkdir(exist_ok=True)
        path = saved(tmp_path / folder / "m.onnx", perceptron(arrays(seed)), external=True)
        for name, data in more.items():
            (path.parent / name).write_bytes(data)
        return cache.call(stage, path)[1].reason

    assert called("a", 0).kind == "miss"
    assert called("a", 0) is Reason.HIT
    assert called("b", 0, other=b"1") is Reason.HIT
    assert called("a", 1).kind == "miss"
    assert called("a", 1) is Reason.HIT
    (tmp_path / "a" / "m.data").unlink()
    assert cache.call(stage, tmp_path / "a" / "m.onnx")[1].reason.kind == "miss"
    assert cache.call(stage, tmp_path / "a" / "m.onnx")[1].reason is Reason.HIT


def test_external_data_that_changes_during_a_run_keeps_the_result_out(tmp_path: Path) -> None:
    cache = cachec.Cache(tmp_path / "cache", log="off", record="off")
    path = saved(tmp_path / "m.onnx", perceptron(arrays(0)), external=True)

    @cache.stage(version="1")
    def stage(path: Path) -> int:
        data = path.with_suffix(".data")
        data.write_bytes(data.read_bytes() + b"more")
        return 1

    assert cache.call(stage, path)[1].reason is Reason.INPUT_CHANGED


def test_a_declared_model_counts_with_its_external_data(tmp_path: Path) -> None:
    cache = cachec.Cache(tmp_path / "cache", log="off")
    path = saved(tmp_path / "m.onnx", perceptron(arrays(0)), external=True)

    @cache.stage(version="1", depends=[path])
    def stage() -> int:
        return 1

    assert cache.call(stage)[1].reason.kind == "miss"
    assert cache.call(stage)[1].reason is Reason.HIT
    saved(path, perceptron(arrays(1)), external=True)
    assert cache.call(stage)[1].reason.kind == "miss"


def _model(tensor: Any, where: str) -> bytes:
    """A model that has this tensor as an initializer, a constant of a node, or one of a subgraph."""
    constant = node("Constant", "", "y", value=tensor)
    if where == "initializer":
        made = model([node("Identity", "w", "y")], {"w": tensor})
    elif where == "node":
        made = model([constant], {})
    else:
        branch = helper.make_graph([constant], "b", [], [helper.make_tensor_value_info("y", 1, [2, 9])])
        made = model([node("If", "x", "y", then_branch=branch, else_branch=branch)], {})
    data: bytes = made.SerializeToString()
    return data


@pytest.mark.parametrize("where", ["initializer", "node", "subgraph"])
@pytest.mark.parametrize("location", ["w.data", "below/" + "long" * 60 + ".data", "\u00fc.data"])
def test_the_files_of_a_model_are_found(tmp_path: Path, where: str, location: str) -> None:
    tensor = helper.make_tensor("w", 1, [2, 9], bytes(72), raw=True)
    (tmp_path / "m.onnx").write_bytes(_model(tensor, where))
    assert external_files(str(tmp_path / "m.onnx")) == ()
    onnx.external_data_helper.set_external_data(tensor, location, offset=0, length=72)
    tensor.ClearField("raw_data")
    (tmp_path / "m.onnx").write_bytes(_model(tensor, where))
    assert external_files(str(tmp_path / "m.onnx")) == (location,)


def test_values_of_an_initializer_name_no_file(tmp_path: Path) -> None:
    words = b"\x0a\x08location\x12\x04none" * 1000
    made = model([node("Identity", "w", "y")], {"w": np.frombuffer(words, "u1")})
    path = saved(tmp_path / "m.onnx", made)
    assert external_files(str(path)) == ()


def test_what_is_no_model_names_no_file(tmp_path: Path) -> None:
    whole = _model(helper.make_tensor("w", 1, [2, 9], bytes(72), raw=True), "node")
    for data in (b"", b"\xff" * 40, whole[:-30], b"\x0a\x08location\x12"):
        (tmp_path / "m.onnx").write_bytes(data)
        assert external_files(str(tmp_path / "m.onnx")) == ()
    with pytest.raises(OSError, match="none"):
        external_files(str(tmp_path / "none.onnx"))
