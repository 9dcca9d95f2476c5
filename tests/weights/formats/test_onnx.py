"""ONNX initialisers, inline and external, against the official package."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from cachec.errors import CheckpointError, WeightsChanged
from cachec.weights import open_weights
from cachec.weights.formats.onnx import DTYPES
from tests.weights.formats.suite import ShippedFormat

EDITS = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 4), st.binary(max_size=4)), min_size=1, max_size=3)
ONE = st.tuples(st.integers(0, 1 << 16), st.just(1), st.binary(min_size=1, max_size=1))


def official(path: Path) -> dict[str, bytes]:
    """name -> bytes, as the package reads them."""
    model = onnx.load(path)
    return {tensor.name: numpy_helper.to_array(tensor).tobytes() for tensor in model.graph.initializer}


def model_of(tensors: list[TensorProto]) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Identity", [tensor.name], [f"out{i}"], doc_string="x" * 50)
        for i, tensor in enumerate(tensors)
    ]
    outputs = [helper.make_tensor_value_info(f"out{i}", tensor.data_type, None) for i, tensor in enumerate(tensors)]
    return helper.make_model(helper.make_graph(nodes, "g", [], outputs, initializer=tensors))


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "w": rng.standard_normal((20, 30)).astype("f4"),
        "h": rng.standard_normal(3).astype("f2"),
        "flags": np.array([True, False]),
        "größe": np.arange(3, dtype="i8"),
        "scalar": np.array(2.5),
        "none": np.zeros((0, 4), "f4"),
        "c": np.array([1 + 2j], "c8"),
    }


class TestOnnx(ShippedFormat):
    suffix = ".onnx"
    official = staticmethod(official)

    def write(self, path: Path, arrays: Any) -> Path:
        onnx.save(model_of([numpy_helper.from_array(array, name) for name, array in arrays.items()]), path)
        return path


def test_inline_values_in_place(tmp_path: Path, check: Any) -> None:
    wanted = arrays()
    path = tmp_path / "m.onnx"
    onnx.save(model_of([numpy_helper.from_array(array, name) for name, array in wanted.items()]), path)
    weights = check.reads(path, {name: array.tobytes() for name, array in wanted.items()})
    for name, array in wanted.items():
        assert (weights[name].shape, weights[name].dtype) == (array.shape, array.dtype.name)
        np.testing.assert_array_equal(weights[name].read(), array)
    assert weights["w"].place().path == path
    assert official(path) == {name: array.tobytes() for name, array in wanted.items()}


@pytest.mark.parametrize("one_file", [True, False])
@pytest.mark.parametrize("threshold", [0, 1024])
def test_external_data(tmp_path: Path, check: Any, one_file: bool, threshold: int) -> None:
    wanted = arrays()
    path = tmp_path / "m.onnx"
    onnx.save(
        model_of([numpy_helper.from_array(array, name) for name, array in wanted.items()]),
        path,
        save_as_external_data=True,
        all_tensors_to_one_file=one_file,
        location="m.onnx.data" if one_file else None,
        size_threshold=threshold,
    )
    assert len(list(tmp_path.iterdir())) > 1
    data = {name: array.tobytes() for name, array in wanted.items()}
    assert official(path) == data
    weights = check.reads(path, data)
    assert weights["w"].place().path != path


TYPED = [
    (TensorProto.FLOAT, [0.5, -1.0, 2.0]),
    (TensorProto.DOUBLE, [0.5, -1.0]),
    (TensorProto.COMPLEX64, [1 + 2j, -3j]),
    (TensorProto.COMPLEX128, [1 + 2j]),
    (TensorProto.INT64, [1, -(2**63), 2**63 - 1]),
    (TensorProto.INT32, [1, -(2**31), 2**31 - 1]),
    (TensorProto.INT16, [-(2**15), 5]),
    (TensorProto.INT8, [-128, 127]),
    (TensorProto.UINT8, [0, 255]),
    (TensorProto.UINT16, [65535]),
    (TensorProto.UINT32, [2**32 - 1]),
    (TensorProto.UINT64, [2**64 - 1, 0]),
    (TensorProto.BOOL, [True, False]),
    (TensorProto.FLOAT16, [0.5, -2.0]),
    (TensorProto.BFLOAT16, [0.5, -2.0]),
    (TensorProto.FLOAT8E4M3FN, [0.5, -2.0]),
    (TensorProto.FLOAT8E5M2, [0.5, -2.0]),
]


@pytest.mark.parametrize(("kind", "values"), TYPED)
def test_typed_fields(tmp_path: Path, check: Any, kind: int, values: list) -> None:
    tensor = helper.make_tensor("t", kind, [len(values)], values)
    assert not tensor.HasField("raw_data")
    path = tmp_path / "m.onnx"
    onnx.save(model_of([tensor]), path)
    wanted = numpy_helper.to_array(tensor)
    weight = check.reads(path, {"t": wanted.tobytes()})["t"]
    assert weight.dtype == DTYPES[kind]
    np.testing.assert_array_equal(weight.read().astype(wanted.dtype), wanted)


def _varint(number: int) -> bytes:
    out = b""
    while number >= 0x80:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def _message(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _model(*tensors: bytes) -> bytes:
    return _message(7, b"".join(_message(5, tensor) for tensor in tensors))


def test_fields_that_are_not_packed(tmp_path: Path, check: Any) -> None:
    path = tmp_path / "m.onnx"
    ints = b"\x08\x02\x10\x06" + _message(8, b"i") + b"\x28\x05\x28" + _varint(2**64 - 7)
    floats = (
        b"\x0a\x01\x02\x10\x01"
        + _message(8, b"f")
        + b"\x25"
        + np.float32(1.5).tobytes()
        + b"\x25"
        + np.float32(2).tobytes()
    )
    runs = (
        b"\x08\x03\x10\x01"
        + _message(8, b"r")
        + _message(4, np.ones(2, "f4").tobytes())
        + b"\x25"
        + np.float32(3).tobytes()
    )
    path.write_bytes(_model(ints, floats, runs))
    wanted = {
        "i": np.array([5, -7], "i4").tobytes(),
        "f": np.array([1.5, 2], "f4").tobytes(),
        "r": np.array([1, 1, 3], "f4").tobytes(),
    }
    assert official(path) == wanted
    check.reads(path, wanted)


def _external(**changes: str) -> bytes:
    entries = {"location": "x.bin", "offset": "4", "length": "8", **changes}
    pairs = b"".join(
        _message(13, _message(1, key.encode()) + _message(2, value.encode()))
        for key, value in entries.items()
        if value != "-"
    )
    return b"\x08\x02\x10\x01" + _message(8, b"t") + pairs + b"\x70\x01"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder ``model`` with x.bin of 12 bytes, and one outside."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "x.bin").write_bytes(bytes(range(12)))
    (tmp_path / "outside.bin").write_bytes(bytes(range(12)))
    return tmp_path / "model"


def test_offset_and_length_may_be_left_out(folder: Path, check: Any) -> None:
    path = folder / "m.onnx"
    for changes, data in (
        ({}, bytes(range(4, 12))),
        ({"length": "-"}, bytes(range(4, 12))),
        ({"offset": "-"}, bytes(range(8))),
        ({"checksum": hashlib.sha1(bytes(range(12))).hexdigest()}, bytes(range(4, 12))),
    ):
        path.write_bytes(_model(_external(**changes)))
        assert official(path) == {"t": data}
        check.reads(path, {"t": data})


@pytest.mark.parametrize(
    "location",
    ["../outside.bin", "/etc/hostname", "", "a/../../outside.bin", "link.bin", "linked/outside.bin", "..", "x.bin\0",
     "none.bin", "-", "a\\x.bin", "."],
)  # fmt: skip
def test_external_files_stay_in_the_folder(folder: Path, location: str) -> None:
    (folder / "link.bin").symlink_to(folder.parent / "outside.bin")
    (folder / "linked").symlink_to(folder.parent)
    path = folder / "m.onnx"
    path.write_bytes(_model(_external(location=location)))
    with pytest.raises(CheckpointError, match=r"m\.onnx: tensor 't'"):
        open_weights(path)


def test_links_within_the_folder_and_of_a_hub_cache(folder: Path, check: Any) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "link.bin").symlink_to("../x.bin")
    path = folder / "m.onnx"
    path.write_bytes(_model(_external(location="sub/link.bin")))
    check.reads(path, {"t": bytes(range(4, 12))})
    # Hugging Face's cache: the model and its data are links into one folder of blobs.
    blobs, snapshot = folder.parent / "blobs", folder.parent / "snapshots" / "1"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "b1").write_bytes(_model(_external()))
    (blobs / "b2").write_bytes(bytes(range(12)))
    (snapshot / "m.onnx").symlink_to("../../blobs/b1")
    (snapshot / "x.bin").symlink_to("../../blobs/b2")
    check.reads(snapshot / "m.onnx", {"t": bytes(range(4, 12))})


def test_a_pipe_is_no_data(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "m.onnx").write_bytes(_model(_external(location="pipe")))
    with pytest.raises(CheckpointError, match="regular file"):
        open_weights(folder / "m.onnx")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offset": "5"}, r"m\.onnx: tensor 't': expected its bytes within the 12 of 'x\.bin', found 8 at offset 5"),
        ({"offset": "5", "length": "-"}, "expected 8 bytes .* found 7 at offset 5"),
        ({"offset": "99", "length": "-"}, "found 0 at offset 99"),
        ({"length": "4"}, "expected 8 bytes for float32 of shape .2., found 4"),
        ({"offset": "-4"}, "a number from 0, found '-4'"),
        ({"offset": "٤"}, "a number from 0"),
        ({"offset": "1_0"}, "a number from 0"),
        ({"offset": "9" * 30}, "a number from 0"),
    ],
)
def test_external_ranges(folder: Path, changes: dict[str, str], message: str) -> None:
    path = folder / "m.onnx"
    path.write_bytes(_model(_external(**changes)))
    with pytest.raises(CheckpointError, match=message):
        open_weights(path)


def test_an_external_file_that_changes(folder: Path) -> None:
    path = folder / "m.onnx"
    path.write_bytes(_model(_external()))
    weights = open_weights(path)
    (folder / "x.bin").write_bytes(bytes(12))
    with pytest.raises(WeightsChanged, match=r"x\.bin"):
        weights["t"].read()
    assert open_weights(path)["t"].read().sum() == 0


NAMED = _message(8, b"t")
RAW = _message(9, bytes(8))
PACKED = {21: "UINT4", 22: "INT4", 23: "FLOAT4E2M1", 25: "UINT2", 26: "INT2", 27: "FLOAT6E2M3", 28: "FLOAT6E3M2"}
GOOD = b"\x08\x02\x10\x01" + NAMED + RAW
REFUSED = {
    "no-graph": (b"", "found none"),
    "two-graphs": (_model(GOOD) * 2, "one graph"),
    "graph-number": (b"\x38\x01", "expected bytes in field 7"),
    "no-name": (_model(b"\x08\x02\x10\x01" + RAW), "a name of its own, found none"),
    "name-twice": (_model(GOOD, GOOD), "'t' twice"),
    "name-field-twice": (_model(GOOD + NAMED), "field 8 once"),
    "raw-twice": (_model(GOOD + RAW), "field 9 once"),
    "kind-twice": (_model(GOOD + b"\x10\x01"), "field 2 once"),
    "raw-short": (_model(b"\x08\x03\x10\x01" + NAMED + RAW), "12 bytes for float32 of shape .3., found 8"),
    "no-values": (_model(b"\x08\x02\x10\x01" + NAMED), "8 bytes of values, found none"),
    "no-type": (_model(b"\x08\x02" + NAMED + RAW), "data type"),
    "strings": (_model(b"\x08\x02\x10\x08" + NAMED + RAW), "strings"),
    "string-data": (_model(b"\x08\x01\x10\x08" + NAMED + _message(6, b"x")), "strings"),
    **{
        f"packed-{kind}": (_model(b"\x08\x02\x10" + bytes([kind]) + NAMED + RAW), f"{name}, which packs")
        for kind, name in PACKED.items()
    },
    "segment": (_model(GOOD + _message(3, b"\x08\x00")), "segment"),
    "two-fields": (_model(GOOD + _message(4, bytes(8))), "one field, found 2"),
    "wrong-field": (_model(b"\x08\x01\x10\x01" + NAMED + b"\x28\x01"), "a field that holds float32, found int32_data"),
    "out-of-range": (_model(b"\x08\x01\x10\x03" + NAMED + b"\x28\x80\x01"), "values of int8, found 128"),
    "bool-2": (_model(b"\x08\x01\x10\x09" + NAMED + b"\x28\x02"), "0 or 1, found 2"),
    "too-many-values": (_model(b"\x08\x01\x10\x06" + NAMED + b"\x28\x01\x28\x01"), "found more"),
    "too-few-values": (_model(b"\x08\x02\x10\x06" + NAMED + b"\x28\x01"), "found 4"),
    "float-run": (_model(b"\x08\x02\x10\x01" + NAMED + _message(4, bytes(7))), "8 bytes in float_data, found 7"),
    "location-2": (_model(GOOD + b"\x70\x02"), "data_location 0 or 1"),
    "external-and-raw": (_model(_external() + RAW), "external data alone"),
    "external-key-twice": (_model(_external() + _message(13, _message(1, b"offset") + _message(2, b"0"))), "twice"),
    "negative-dim": (_model(b"\x08" + _varint(2**64 - 2) + b"\x10\x01" + NAMED + RAW), "dimensions from 0"),
    "many-dims": (_model(b"\x08\x01" * 65 + b"\x10\x01" + NAMED + RAW), "dimensions"),
    "huge": (_model((b"\x08" + _varint(2**62)) * 2 + b"\x10\x01" + NAMED + RAW), "2..63"),
    "sparse": (_message(7, _message(5, GOOD) + _message(15, b"")), "sparse"),
    "varint-too-long": (b"\xff" * 11, "64 bits"),
    "field-0": (b"\x00\x01", "field number"),
    "group": (b"\x0b\x0c", "wire type 0, 1, 2 or 5"),
    "length-too-long": (b"\x3a\xff\x01", "truncated"),
    "name-utf8": (_model(b"\x08\x02\x10\x01" + _message(8, b"\xff") + RAW), "UTF-8"),
    "not-onnx": (b"hello, this is text", "m.onnx"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(folder: Path, name: str) -> None:
    data, message = REFUSED[name]
    path = folder / "m.onnx"
    path.write_bytes(_model(GOOD))
    assert open_weights(path)["t"].shape == (2,)
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=message) as error:
        open_weights(path)
    assert str(path) in str(error.value)


def test_bfloat16_raw(tmp_path: Path, check: Any) -> None:
    values = np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3)
    tensor = helper.make_tensor("b", TensorProto.BFLOAT16, [2, 3], values.tobytes(), raw=True)
    onnx.save(model_of([tensor]), tmp_path / "m.onnx")
    np.testing.assert_array_equal(check.reads(tmp_path / "m.onnx", {"b": values.tobytes()})["b"].read(), values)


def test_cut_at_every_byte(folder: Path, check: Any) -> None:
    path = folder / "m.onnx"
    path.write_bytes(_model(GOOD, _external().replace(b"t", b"u", 1)))
    check.cuts(path, {"t": bytes(8), "u": bytes(range(4, 12))})
    whole = (folder / "x.bin").read_bytes()
    for size in range(len(whole)):
        check.rewrite(folder / "x.bin", whole[:size])
        with pytest.raises(CheckpointError, match=r"m\.onnx: tensor 'u'.*truncated"):
            open_weights(path)


@pytest.fixture(scope="module")
def original() -> bytes:
    tensors = [
        numpy_helper.from_array(np.arange(6, dtype="f4").reshape(2, 3), "w"),
        helper.make_tensor("i", TensorProto.INT32, [3], [1, -2, 3]),
        helper.make_tensor("f", TensorProto.FLOAT, [2], [1.0, 2.0]),
        helper.make_tensor("h", TensorProto.FLOAT16, [2], [1.0, 2.0]),
    ]
    return model_of(tensors).SerializeToString()


@pytest.mark.fuzz
def test_mutations(original: bytes, check: Any) -> None:
    assert check.mutated(original, [], ".onnx", official)

    @check.quick
    @given(st.lists(ONE, min_size=1, max_size=2) | EDITS)
    def run(edits: list) -> None:
        check.mutated(original, edits, ".onnx", official)

    run()


@pytest.mark.fuzz
def test_mutations_of_a_model_with_external_data(check: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        (Path(folder) / "x.bin").write_bytes(bytes(range(40)))
        original = _model(
            _external(), _external(offset="8").replace(b"\x42\x01t", b"\x42\x01u"), GOOD.replace(b"t", b"v")
        )
        path.write_bytes(original)
        assert set(official(path)) == {"t", "u", "v"}
        assert check.agrees(path, official)

        @check.quick
        @given(st.lists(ONE, min_size=1, max_size=2))
        def run(edits: list) -> None:
            changed = bytearray(original)
            for at, _, put in edits:
                changed[at % len(changed)] = put[0]
            check.rewrite(path, changed)
            check.agrees(path, official)

        run()


def test_large_inline_values_are_not_read(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "m.onnx"
    count, size = 8, 1 << 26
    dims = b"\x08" + _varint(size) + b"\x10\x02"
    heads = [dims + _message(8, b"t%d" % i) + b"\x4a" + _varint(size) for i in range(count)]
    bodies = [b"\x2a" + _varint(len(head) + size) + head for head in heads]
    total = sum(len(body) + size for body in bodies)
    with path.open("wb") as file:  # sparse
        file.write(b"\x3a" + _varint(total))
        for body in bodies:
            file.write(body)
            file.seek(size, os.SEEK_CUR)
        file.truncate(file.tell())
    tracemalloc.start()
    weights = open_weights(path)
    assert tracemalloc.get_traced_memory()[1] < 2 << 20
    tracemalloc.stop()
    assert weights.nbytes == count * size
    assert weights["t7"].read()[-1] == 0
