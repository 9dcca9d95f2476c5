"""TVM tensor caches against TVM's own writer and reader."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachec.errors import CheckpointError, WeightsChanged
from cachec.model import WeightSpec
from cachec.weights import open_weights
from tests.needs import Later
from tests.weights.formats.suite import ShippedFormat

tvm: Any = Later("tvm")
tvmjs: Any = Later("tvm.contrib.tvmjs")

NAME = "tensor-cache.json"


def official(path: Path) -> dict[str, bytes]:
    """name -> bytes, as TVM reads them."""
    params, _ = tvmjs.load_tensor_cache(str(path.parent), tvm.cpu())
    return {name: array.numpy().tobytes() for name, array in params.items()}


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "f": rng.standard_normal((300, 1000)).astype("f4"),
        "h": rng.standard_normal((4, 5)).astype("f2"),
        "i": np.arange(7, dtype="i4"),
        "u": np.arange(3, dtype="u1"),
        "l": np.arange(3, dtype="i8"),
        "d": np.ones((), "f8"),
    }


def test_a_list_that_is_too_long_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / NAME).write_text('{"metadata": {}, "records": []}')
    assert not open_weights(tmp_path / NAME)
    monkeypatch.setattr("cachec.weights.formats.tvm._MAX_JSON", 10)
    os.utime(tmp_path / NAME, (5, 5))
    with pytest.raises(CheckpointError, match="expected at most 10 bytes of JSON, found 31"):
        open_weights(tmp_path / NAME)


def dump(folder: Path, params: dict[str, Any], **how: Any) -> Path:
    tvmjs.dump_tensor_cache(params, str(folder), show_progress=False, **({"encode_format": "raw"} | how))
    return folder / NAME


class TestTvm(ShippedFormat):
    suffix = ".json"
    official = staticmethod(official)

    def write(self, path: Path, arrays: Any) -> Path:
        return dump(path.parent, arrays)


@pytest.mark.parametrize("shard_mb", [1, 32])
def test_whatever_tvm_writes_is_read_equal(tmp_path: Path, check: Any, shard_mb: int) -> None:
    wanted = arrays()
    path = dump(tmp_path / "c", wanted, shard_cap_mb=shard_mb)
    data = {name: array.tobytes() for name, array in wanted.items()}
    for source in (path, tmp_path / "c"):
        weights = check.reads(source, data)
        for name, array in wanted.items():
            assert (weights[name].shape, weights[name].dtype) == (array.shape, array.dtype.name)
    assert official(path) == data
    path.rename(tmp_path / "c" / "ndarray-cache.json")  # its name before TVM 0.21
    check.reads(tmp_path / "c", data)


def test_formats(tmp_path: Path, check: Any) -> None:
    half = {"h": np.ones(3, "f2")}
    check.reads(dump(tmp_path / "h", half, encode_format="f32-to-bf16"), {"h": half["h"].tobytes()})
    path = dump(tmp_path / "f", {"f": np.ones(3, "f4")}, encode_format="f32-to-bf16")
    with pytest.raises(CheckpointError, match=r"tensor 'f'.*'f32-to-bf16'.*encode_format='raw'"):
        open_weights(path)
    bf16 = {"b": np.arange(6, dtype=ml_dtypes.bfloat16)}
    assert check.reads(dump(tmp_path / "b", bf16), {"b": bf16["b"].tobytes()})["b"].dtype == "bfloat16"


def test_shards_by_rank(tmp_path: Path) -> None:
    whole = np.arange(24, dtype="f4").reshape(4, 6)
    params = {f"param_0_shard-{i + 1}-of-2": whole[:, 3 * i : 3 * i + 3].copy() for i in range(2)}
    path = dump(tmp_path / "c", params)
    np.testing.assert_array_equal(open_weights(path, rank=1, world_size=2)["param_0"].read(), whole[:, 3:])
    spec = WeightSpec(name="param_0", dtype="float32", shape=(4, 3), nbytes=48, shard=(1, 2))
    weights = open_weights(path, rank=1, world_size=2, specs={"param_0": spec})
    assert weights.specs["param_0"] == spec
    np.testing.assert_array_equal(weights["param_0"].read(), whole[:, 3:])
    with pytest.raises(CheckpointError, match="world_size=2"):
        open_weights(path, rank=0, world_size=4)


def test_specs_say_which_axis_an_uneven_split_has(tmp_path: Path) -> None:
    params = {"w_shard-1-of-2": np.ones((2, 3), "f4"), "w_shard-2-of-2": np.ones((2, 1), "f4")}
    path = dump(tmp_path / "c", params)
    with pytest.raises(CheckpointError, match="shard 2 expected"):
        open_weights(path, rank=1, world_size=2)
    spec = WeightSpec(name="w", dtype="float32", shape=(2, 1), nbytes=8, shard=(1, 2))
    assert open_weights(path, rank=1, world_size=2, specs={"w": spec}).specs["w"] == spec


def _edited(path: Path, change: Any) -> None:
    cache = json.loads(path.read_text())
    change(cache, cache["records"][0], cache["records"][0]["records"])
    path.write_text(json.dumps(cache))


CHANGES = {
    "data-path-outside": (lambda c, s, r: s.update(dataPath="../x.bin"), "within the folder"),
    "data-path-absolute": (lambda c, s, r: s.update(dataPath="/etc/hostname"), "within the folder"),
    "data-path-missing": (lambda c, s, r: s.update(dataPath="none.bin"), "none"),
    "shard-format": (lambda c, s, r: s.update(format="raw"), "raw-shard"),
    "shard-size": (lambda c, s, r: s.update(nbytes=s["nbytes"] + 1), "bytes, found"),
    "format": (lambda c, s, r: r[0].update(format="zip"), "format 'raw', found 'zip'"),
    "dtype": (lambda c, s, r: r[0].update(dtype="float33"), "float33"),
    "shape": (lambda c, s, r: r[0].update(shape=[3]), r"'a'.*12 bytes"),
    "negative": (lambda c, s, r: r[0].update(shape=[-2]), "shape"),
    "huge": (lambda c, s, r: r[0].update(shape=[2**62, 2**62]), r"2\*\*63"),
    "outside": (lambda c, s, r: r[1].update(byteOffset=9), r"'b'.*offset 9"),
    "overlap": (lambda c, s, r: r[1].update(byteOffset=4), "overlaps 'a'"),
    "twice": (lambda c, s, r: r[1].update(name="a"), "'a' twice"),
    "no-name": (lambda c, s, r: r[1].update(name=""), "empty"),
    "file-twice": (lambda c, s, r: c["records"].append(s | {"records": []}), "twice"),
    "not-a-cache": (lambda c, s, r: c.pop("records"), "tensor cache"),
    "string-offset": (lambda c, s, r: r[0].update(byteOffset="0"), "byteOffset"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_refused(tmp_path: Path, name: str) -> None:
    path = dump(tmp_path / "c", {"a": np.ones(2, "f4"), "b": np.ones(2, "f4")})
    (tmp_path / "x.bin").write_bytes(bytes(16))
    open_weights(path)
    change, message = CHANGES[name]
    _edited(path, change)
    with pytest.raises(CheckpointError, match=message) as error:
        open_weights(path)
    assert str(path.parent) in str(error.value)


def test_a_key_twice_and_a_link_out(tmp_path: Path) -> None:
    path = dump(tmp_path / "c", {"a": np.ones(2, "f4")})
    text = path.read_text()
    path.write_text(text.replace('"byteOffset"', '"byteOffset": 0, "byteOffset"', 1))
    with pytest.raises(CheckpointError, match="twice"):
        open_weights(path)
    path.write_text(text)
    data = tmp_path / "c" / "params_shard_0.bin"
    data.rename(tmp_path / "elsewhere")
    data.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="a link to"):
        open_weights(path)
    (tmp_path / "elsewhere").rename(tmp_path / "c" / "beside")
    data.unlink()
    data.symlink_to("beside")
    assert open_weights(path)["a"].read().sum() == 2


def test_a_data_file_that_changes(tmp_path: Path) -> None:
    path = dump(tmp_path / "c", {"a": np.ones(2, "f4")})
    weights = open_weights(path)
    (tmp_path / "c" / "params_shard_0.bin").write_bytes(bytes(8))
    with pytest.raises(WeightsChanged, match="params_shard_0"):
        weights["a"].read()


def test_cut_at_every_byte(tmp_path: Path, check: Any) -> None:
    wanted = {"a": np.ones(2, "f4")}
    path = dump(tmp_path / "c", wanted)
    check.cuts(path, {name: array.tobytes() for name, array in wanted.items()})
    data = tmp_path / "c" / "params_shard_0.bin"
    whole = data.read_bytes()
    for size in range(len(whole)):
        check.rewrite(data, whole[:size])
        with pytest.raises(CheckpointError, match=r"params_shard_0\.bin.*expected 8 bytes, found"):
            open_weights(path)


@pytest.mark.fuzz
def test_mutations_of_the_json(check: Any) -> None:
    params = {"a": np.arange(4, dtype="f4").reshape(2, 2), "b": np.arange(5, dtype="i2")}
    with tempfile.TemporaryDirectory() as folder:
        path = dump(Path(folder), params)
        original = path.read_bytes()
        data = {file.name: file.read_bytes() for file in Path(folder).iterdir()}
        assert check.agrees(path, official, is_good=True)
        tokens = [
            b'"',
            b"\\",
            b"{",
            b"}",
            b"[",
            b"]",
            b",",
            b":",
            b"-",
            b"0",
            b"9",
            b"null",
            b"1e3",
            b"float16",
            b"\xff",
        ]
        edit = st.tuples(st.integers(0, len(original)), st.integers(0, 4), st.sampled_from([b"", *tokens]))

        @check.quick
        @given(st.lists(edit, min_size=1, max_size=2))
        def run(edits: list) -> None:
            changed = original
            for at, cut, put in edits:
                changed = changed[:at] + put + changed[at + cut :]
            check.rewrite(path, changed)
            check.agrees(path, official)
            assert {file.name for file in Path(folder).iterdir()} == set(data)

        run()
