"""ExecuTorch's tensor data, against files that FlatBuffers' own library writes, and ExecuTorch's serialiser."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flatbuffers
import ml_dtypes
import numpy as np
import pytest

import cachec
from cachec.testing.formats import Check, FormatConformance
from cachec.weights.formats.ptd import DTYPES, head_of
from tests.needs import need_packages

NUMBERS = {name: number for number, name in DTYPES.items()}


def written(path: Path, entries: Mapping[str, tuple[Any, int]], segments: list[bytes], **other: Any) -> Path:
    """A file by FlatBuffers' builder. entries: name -> (what its layout is of, or None; its segment)."""
    builder = flatbuffers.Builder(1024)

    def vector(items: list[Any], size: int, add: Any) -> int:
        builder.StartVector(size, len(items), size)
        for item in reversed(items):
            add(item)
        return builder.EndVector()

    offsets, end = [], 0
    for data in segments:
        offsets.append(end)
        end += len(data) + -len(data) % 16
    rows = []
    for offset, data in zip(offsets, segments, strict=True):
        builder.StartObject(2)
        builder.PrependUint64Slot(0, offset, 0)
        builder.PrependUint64Slot(1, len(data), 0)
        rows.append(builder.EndObject())
    named = []
    for name, (array, segment) in entries.items():
        key, layout = builder.CreateString(name), 0
        if array is not None:
            sizes = vector(list(array.shape), 4, builder.PrependInt32)
            order = vector(other.get("order", list(range(array.ndim))), 1, builder.PrependByte)
            builder.StartObject(3)
            builder.PrependInt8Slot(0, other.get("scalar", NUMBERS[array.dtype.name]), 0)
            builder.PrependUOffsetTRelativeSlot(1, sizes, 0)
            builder.PrependUOffsetTRelativeSlot(2, order, 0)
            layout = builder.EndObject()
        builder.StartObject(3)
        builder.PrependUOffsetTRelativeSlot(0, key, 0)
        builder.PrependUint32Slot(1, segment, 0)
        builder.PrependUOffsetTRelativeSlot(2, layout, 0)
        named.append(builder.EndObject())
    rows_at = vector(rows, 4, builder.PrependUOffsetTRelative)
    named_at = vector(named, 4, builder.PrependUOffsetTRelative)
    builder.StartObject(3)
    builder.PrependUint32Slot(0, other.get("version", 0), 0)
    builder.PrependUOffsetTRelativeSlot(1, rows_at, 0)
    builder.PrependUOffsetTRelativeSlot(2, named_at, 0)
    builder.Finish(builder.EndObject(), b"FT01")
    tables = bytes(builder.Output())
    base = 48 + len(tables) + -len(tables) % 16
    header = b"FH01" + struct.pack("<IQQQQ", 40, 48, len(tables), base, end) + bytes(8)
    (root,) = struct.unpack_from("<I", tables)
    whole = struct.pack("<I", root + 48) + tables[4:8] + header + tables[8:]
    data = b"".join(each + bytes(-len(each) % 16) for each in segments)
    path.write_bytes(whole + bytes(base - len(whole)) + data)
    return path


class TestConformance(FormatConformance):
    suffix = ".ptd"
    is_written = True

    def write(self, path: Path, arrays: Mapping[str, Any]) -> Path:
        entries = {name: (array, number) for number, (name, array) in enumerate(arrays.items())}
        return written(path, entries, [array.tobytes() for array in arrays.values()])

    def end(self, path: Path) -> int:
        return path.stat().st_size - 4  # three int32 in segments of 16


def test_types_ties_and_bytes_of_a_backend(tmp_path: Path) -> None:
    kinds = [getattr(ml_dtypes, name) if name.startswith(("bf", "float8")) else name for name in NUMBERS]
    arrays = {str(number): np.ones((2, 3), kind) for number, kind in enumerate(kinds)}
    arrays |= {"scalar": np.asarray(2.5, "f4"), "empty": np.zeros((0, 4), "f4")}
    entries = {name: (array, number) for number, (name, array) in enumerate(arrays.items())}
    again = {"same": (arrays["0"], 0), "packed": (None, 1)}
    path = written(tmp_path / "m.ptd", entries | again, [array.tobytes() for array in arrays.values()])
    wanted = {name: array.tobytes() for name, array in arrays.items()}
    weights = Check.reads(path, wanted | {"same": wanted["0"], "packed": wanted["1"]})
    for name, array in arrays.items():
        assert (weights[name].dtype, weights[name].shape) == (array.dtype.name, array.shape)
    assert (weights["packed"].dtype, weights["packed"].shape) == ("uint8", (6,))
    weights.select(list(arrays)).save(tmp_path / "again.ptd")
    Check.reads(tmp_path / "again.ptd", wanted)


@pytest.mark.parametrize(
    ("entries", "other", "words"),
    [
        ({"w": 0}, {"version": 1}, "version expected 0, found 1"),
        ({"w": 0}, {"scalar": 16}, "expected a scalar type"),
        ({"w": 0}, {"scalar": 7}, "expected 48 bytes for float64"),
        ({"w": 0}, {"order": [1, 0]}, "in their order"),
        ({"w": 0}, {"order": []}, "in their order"),
        ({"w": 1}, {}, "expected one of 1 segments, found 1"),
        ({"": 0}, {}, "names of their own"),
    ],
)
def test_what_is_refused(tmp_path: Path, entries: Any, other: Any, words: str) -> None:
    array = np.ones((2, 3), "f4")
    rows = {name: (array, segment) for name, segment in entries.items()}
    with pytest.raises(cachec.CheckpointError, match=words):
        cachec.open_weights(written(tmp_path / "m.ptd", rows, [array.tobytes()], **other))


def test_what_is_not_written(tmp_path: Path) -> None:
    weights = cachec.WeightSet.from_arrays({"w": np.ones(2, "c8")})
    with pytest.raises(cachec.UsageError, match=r"a \.ptd has no complex64"):
        weights.save(tmp_path / "m.ptd")
    with pytest.raises(cachec.UsageError, match="no place for metadata"):
        cachec.WeightSet.from_arrays({"w": np.ones(2, "f4")}).save(tmp_path / "m.ptd", metadata={"a": "b"})


@pytest.mark.long
def test_executorch_reads_what_is_written_and_the_other_way_round(tmp_path: Path) -> None:
    need_packages("executorch", "ruamel.yaml", "tabulate")
    from executorch.exir._serialize._cord import Cord
    from executorch.exir._serialize.data_serializer import DataEntry, DataPayload
    from executorch.exir.scalar_type import ScalarType
    from executorch.exir.tensor_layout import TensorLayout
    from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer

    arrays = {"a": np.arange(6, dtype="f4").reshape(2, 3), "b": np.ones((), "f2"), "c": np.arange(9)}
    weights = cachec.WeightSet.from_arrays(arrays)
    keys = {"a": "a", "again": "a", "b": "b", "c": "c"}
    head = head_of(keys, {name: weights[name].spec for name in arrays})
    whole = bytearray(head.data + bytes(head.size - len(head.data)))
    for name, at in head.places.items():
        whole[at : at + weights[name].nbytes] = weights[name].raw()
    payload = FlatTensorSerializer().deserialize(Cord(bytes(whole)))
    assert payload.named_data.keys() == keys.keys()
    for key, entry in payload.named_data.items():
        array = arrays[keys[key]]
        assert payload.buffers[entry.buffer_index] == array.tobytes()
        assert (entry.tensor_layout.sizes, list(entry.tensor_layout.dim_order)) == (
            list(array.shape),
            list(range(array.ndim)),
        )
        assert entry.tensor_layout.scalar_type == NUMBERS[array.dtype.name]
    assert payload.named_data["a"].buffer_index == payload.named_data["again"].buffer_index

    layout = TensorLayout(ScalarType.FLOAT, [2, 3], [0, 1])
    theirs = DataPayload([arrays["a"].tobytes()], {"x": DataEntry(0, 16, layout), "y": DataEntry(0, 1, None)})
    (tmp_path / "m.ptd").write_bytes(bytes(FlatTensorSerializer().serialize(theirs)))
    opened = Check.reads(tmp_path / "m.ptd", {"x": arrays["a"].tobytes(), "y": arrays["a"].tobytes()})
    assert (opened["x"].dtype, opened["x"].shape) == ("float32", (2, 3))
