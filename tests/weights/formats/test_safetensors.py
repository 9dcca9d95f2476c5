"""The header reader against the official library: what it writes is read equal; what it refuses is refused."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from cachec.errors import CheckpointError
from cachec.weights import open_weights
from cachec.weights.dtypes import SAFETENSORS
from tests.effort import rounds
from tests.weights.formats.suite import ShippedFormat

NUMPY = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "F16": "float16", "I32": "int32",
    "U32": "uint32", "F32": "float32", "C64": "complex64", "F64": "float64", "I64": "int64", "U64": "uint64",
}  # fmt: skip
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(lambda n: n != "__metadata__")
shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
tensors = st.dictionaries(names, st.tuples(st.sampled_from(sorted(NUMPY.values())), shapes), max_size=8)
metadata = st.none() | st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8), st.text('ab"\\', max_size=4)
)
quick = settings(max_examples=rounds(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class TestSafetensors(ShippedFormat):
    suffix = ".safetensors"
    is_written = True

    def write(self, path: Path, arrays: Any) -> Path:
        save_file(dict(arrays), path)
        return path

    def official(self, path: Path) -> dict[str, bytes]:
        return {name: array.tobytes() for name, array in load_file(path).items()}


@quick
@given(tensors, metadata)
def test_whatever_the_library_writes_is_read_equal(wanted: dict, extra: dict | None) -> None:
    rng = np.random.default_rng(0)
    arrays = {}
    for name, (dtype, shape) in wanted.items():
        raw = rng.bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize)
        arrays[name] = np.ndarray(shape, dtype, raw) if dtype != "bool" else rng.integers(0, 2, shape).astype(bool)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.safetensors"
        save_file(arrays, path, metadata=extra)
        # Without tensors but with an empty metadata, 0.8 writes text that is no JSON, which it can't read either.
        assume(_library(path.read_bytes()) is not None)
        for access in ("mmap", "read"):
            weights = open_weights(path, access=access)  # type: ignore[arg-type]
            assert list(weights) == sorted(arrays)
            for name, array in arrays.items():
                found = weights[name].read()
                assert (found.dtype, found.shape) == (array.dtype, array.shape)
                assert found.tobytes() == array.tobytes()
                assert weights[name].spec.nbytes == array.nbytes
                assert not found.flags.writeable


BASE = (
    b'{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},'
    b'"b":{"dtype":"U8","shape":[0],"data_offsets":[24,24]},"c":{"dtype":"I16","shape":[],"data_offsets":[24,26]}}  '
)
TOKENS = [
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"-", b"0", b"1", b".", b"e1", b"null", b"true", b" ", b"\x00",
    b"\xff", b"a", b'"a":', b"\\u0061", b"F32", b"BF16", b"18446744073709551616", b'"x":{},', b"__metadata__", b"NaN",
]  # fmt: skip
edit = st.tuples(st.integers(0, len(BASE)), st.integers(0, 6), st.sampled_from([b"", *TOKENS]))


def _library(data: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]] | None:
    try:
        return {n: (e["dtype"], tuple(e["shape"]), bytes(e["data"])) for n, e in safetensors.deserialize(data)}
    except safetensors.SafetensorError:
        return None


@settings(quick, max_examples=rounds(600))
@given(st.lists(edit, max_size=3), st.binary(min_size=26, max_size=26))
@example([], bytes(26))
@example([(BASE.index(b"[0,24]") + 1, 0, b"-")], bytes(26))
def test_a_mutated_header_is_refused_or_read_as_the_library_reads_it(edits: list, data: bytes) -> None:
    header = BASE
    for at, cut, put in edits:
        header = header[:at] + put + header[at + cut :]
    whole = len(header).to_bytes(8, "little") + header + data
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.safetensors"
        path.write_bytes(whole)
        try:
            weights = open_weights(path)
        except CheckpointError as error:
            refused = str(error)
        else:
            refused = ""
        if refused:
            assert str(path) in refused
            assert edits, "the unchanged header is good"
            return
        library = _library(whole)
        assert library is not None, f"only cachec accepts {header!r}"
        assert set(weights) == set(library)
        for name, (code, shape, raw) in library.items():
            assert (weights[name].dtype, weights[name].shape) == (SAFETENSORS[code][0], shape)
            assert bytes(weights[name].raw()) == raw


def test_the_library_knows_the_dtypes_that_cachec_knows() -> None:
    for code, (dtype, size) in SAFETENSORS.items():
        text = b'{"a":{"dtype":"%s","shape":[2],"data_offsets":[0,%d]}}' % (code.encode(), 2 * size)
        assert _library(len(text).to_bytes(8, "little") + text + bytes(2 * size)) is not None, code
        if code in NUMPY:
            assert NUMPY[code] == dtype


@pytest.mark.parametrize(("code", "scalar"), [
    ("BF16", ml_dtypes.bfloat16), ("F8_E4M3", ml_dtypes.float8_e4m3fn), ("F8_E5M2", ml_dtypes.float8_e5m2),
    ("F8_E8M0", ml_dtypes.float8_e8m0fnu), ("F8_E4M3FNUZ", ml_dtypes.float8_e4m3fnuz),
    ("F8_E5M2FNUZ", ml_dtypes.float8_e5m2fnuz),
])  # fmt: skip
def test_types_of_ml_dtypes(tmp_path: Path, code: str, scalar: type) -> None:
    array = np.array([[0.5, 1, 2], [4, 8, 16]], dtype=scalar)
    text = b'{"a":{"dtype":"%s","shape":[2,3],"data_offsets":[0,%d]}}' % (code.encode(), array.nbytes)
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + array.tobytes())
    weight = open_weights(path)["a"]
    found = weight.read()
    assert weight.dtype == array.dtype.name == found.dtype.name
    np.testing.assert_array_equal(found.astype(np.float32), array.astype(np.float32))


def test_a_data_section_that_begins_anywhere_is_read_aligned(tmp_path: Path) -> None:
    array = np.arange(5, dtype=np.float64)
    for pad in range(8):
        text = b'{"a":{"dtype":"F64","shape":[5],"data_offsets":[0,40]}}' + b" " * pad
        path = tmp_path / f"{pad}.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text + array.tobytes())
        weight = open_weights(path)["a"]
        for found in (weight.read(), weight.private()):
            assert found.flags.aligned
            np.testing.assert_array_equal(found, array)


def test_sharded_checkpoints_of_the_hub(tmp_path: Path) -> None:
    """An index and its shards, as Hugging Face's library writes and reads them."""
    hub = pytest.importorskip("huggingface_hub")
    torch = pytest.importorskip("torch")
    wanted = {f"l{number}.weight": torch.arange(16.0).reshape(4, 4) + number for number in range(5)}
    (tmp_path / "theirs").mkdir()
    hub.save_torch_state_dict(wanted, tmp_path / "theirs", max_shard_size=150)
    weights = open_weights(tmp_path / "theirs")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) == 3
    assert list(weights) == sorted(wanted)
    for name, tensor in wanted.items():
        np.testing.assert_array_equal(weights[name].read(), tensor.numpy())
    (tmp_path / "ours").mkdir()
    weights.save(tmp_path / "ours" / "model.safetensors", shard_size=150)
    index = "model.safetensors.index.json"
    ours, theirs = (json.loads((tmp_path / side / index).read_text()) for side in ("ours", "theirs"))
    assert ours["weight_map"] == theirs["weight_map"]
    assert ours["metadata"]["total_size"] == theirs["metadata"]["total_size"]
    model = torch.nn.Module()
    for number in range(5):
        model.add_module(f"l{number}", torch.nn.Linear(4, 4, bias=False))
    hub.load_torch_model(model, tmp_path / "ours", strict=True)
    for name, tensor in wanted.items():
        assert torch.equal(model.state_dict()[name], tensor)
