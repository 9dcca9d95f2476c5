"""Initialisers of an ONNX model: in place in the model's file, or in the external files that it names.

The model is a protobuf ``ModelProto`` (onnx/onnx.proto). Only its wire format is walked here
(protobuf.dev/programming-guides/encoding), and of that only:

    ModelProto   graph = 7
    GraphProto   initializer = 5 (TensorProto), sparse_initializer = 15 (refused)
    TensorProto  dims = 1, data_type = 2, segment = 3 (refused), float_data = 4, int32_data = 5,
                 string_data = 6 (refused), int64_data = 7, name = 8, raw_data = 9, double_data = 10,
                 uint64_data = 11, external_data = 13, data_location = 14 (1 is external)
    StringStringEntryProto  key = 1, value = 2

External data (docs/ExternalData.md): pairs location (relative to the model), offset, length, checksum (SHA1 of the
file, kept for ``checksums.py``, not computed here). A field that is one value has to be there once, where
protobuf would take the last. Initialisers of subgraphs and constants of nodes belong to the program, not to its
weights; they are not looked for.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from cachec.errors import CheckpointError
from cachec.weights.dtypes import SIZES
from cachec.weights.formats.base import CheckpointFile, Contents, Opener, Value, size_in_bytes, text_of
from cachec.weights.tensor import Tensor

#: TensorProto.DataType -> dtype.
DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
    11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16", 17: "float8_e4m3fn",
    18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz", 24: "float8_e8m0fnu",
}  # fmt: skip
_STRINGS = 8
_PACKED = {21: "UINT4", 22: "INT4", 23: "FLOAT4E2M1", 25: "UINT2", 26: "INT2", 27: "FLOAT6E2M3", 28: "FLOAT6E3M2"}

#: Number of a typed field -> (name, struct code of its fixed-size elements or "" for varints, dtypes that it holds).
_TYPED = {
    4: ("float_data", "f", {"float32", "complex64"}),
    10: ("double_data", "d", {"float64", "complex128"}),
    7: ("int64_data", "", {"int64"}),
    11: ("uint64_data", "", {"uint32", "uint64"}),
    5: ("int32_data", "", {dtype for dtype in DTYPES.values() if SIZES[dtype] <= 2} | {"int32"}),
}
_SIGNED = {"int8", "int16", "int32", "int64"}
_MAX_NAME = 1 << 16
_MAX_ENTRIES = 64
#: Bytes of values in typed varint fields, all initialisers together: they are for small constants.
_MAX_VALUES = 1 << 26
_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5
#: A StringStringEntryProto with the key ``location``, up to the length of its value.
_LOCATION = re.compile(rb"\x0a\x08location\x12")
#: Bytes of an initializer up to which all of it is searched.
_SEARCHED = 1 << 12


class _Field(NamedTuple):
    """One field of a message."""

    number: int
    wire: int
    #: Of a number; for bytes, where they begin.
    value: int
    #: Of the bytes.
    nbytes: int = 0


class _Initialisers:
    """What was read so far."""

    def __init__(self, opener: Opener) -> None:
        self.opener = opener
        self.file = opener.main
        self.tensors: dict[str, Tensor] = {}
        self.values: list[Value] = []
        self.checksums: dict[int, str] = {}
        self.nbytes = 0


class _Message:
    """The fields of one TensorProto that matter."""

    def __init__(self) -> None:
        self.name = ""
        self.dims: list[int] = []
        self.kind: int | None = None
        self.external: dict[str, str] = {}
        self.location: int | None = None
        self.raw: _Field | None = None
        self.typed: dict[int, list[_Field]] = {}


def read(path: str, opener: Opener) -> Contents:
    """The initialisers of the main graph. Raises CheckpointError."""
    initialisers = _Initialisers(opener)
    graph: _Field | None = None
    for field in _fields(initialisers.file, 0, initialisers.file.size, "the model"):
        if field.number == 7:
            if graph is not None:
                raise initialisers.file.error(f"expected one graph, found another at offset {field.value}")
            graph = _message(initialisers.file, field, "the graph")
    if graph is None:
        raise initialisers.file.error("expected an ONNX model with a graph, found none")
    for field in _fields(initialisers.file, graph.value, graph.value + graph.nbytes, "the graph"):
        if field.number == 5:
            _initializer(initialisers, _message(initialisers.file, field, "an initializer"))
        elif field.number == 15:
            raise initialisers.file.error(
                f"expected dense initializers, found a sparse one at offset {field.value}; save it dense"
            )
    return Contents(initialisers.tensors, values=tuple(initialisers.values), checksums=initialisers.checksums)


def external_files(path: str) -> tuple[str, ...]:
    """The files in which a model has values of its tensors, as it names them, sorted: those of nodes, functions and
    subgraphs too. None where it is no model. Raises OSError where it can't be read.
    """
    file = CheckpointFile(path, 0, lambda *_: False)
    try:
        return tuple(sorted(set(_external_files(file))))
    except CheckpointError:
        return ()
    finally:
        file.close()


def _external_files(file: CheckpointFile) -> Iterator[str]:
    for field in _fields(file, 0, file.size, "the model"):
        if field.number != 7:
            yield from _locations(file, field)
            continue
        for each in _fields(file, field.value, field.value + field.nbytes, "the graph"):
            if each.number == 5 and each.nbytes > _SEARCHED:  # its values, most likely
                for inner in _fields(file, each.value, each.value + each.nbytes, "an initializer"):
                    if inner.number == 13:
                        yield from _locations(file, inner)
            else:
                yield from _locations(file, each)


def _locations(file: CheckpointFile, field: _Field) -> Iterator[str]:
    """Wherever below a field one is stated."""
    if field.wire != _LEN:
        return
    data = file.at(field.value, field.nbytes, "the model")
    for found in _LOCATION.finditer(data):
        nbytes, at = _varint(file, field.value + found.end(), field.value + field.nbytes, "a location")
        name = file.at(at, min(nbytes, field.value + field.nbytes - at), "a location")
        if b"\0" not in name:
            yield os.fsdecode(name)


def _initializer(initialisers: _Initialisers, field: _Field) -> None:
    file = initialisers.file
    message = _tensor_proto(file, field)
    name = message.name
    if not name or name in initialisers.tensors:
        which = f"{name!r} twice" if name else "none"
        raise file.error(f"initializer at offset {field.value}: expected a name of its own, found {which}")
    if message.kind in _PACKED:
        raise file.bad(name, "a dtype of whole bytes", f"{_PACKED[message.kind]}, which packs elements below one byte")
    dtype = DTYPES.get(message.kind or 0)
    if dtype is None:
        expected = f"a data type of {sorted(DTYPES)}"
        raise file.bad(name, expected, f"{message.kind} (strings)" if message.kind == _STRINGS else message.kind)
    shape = tuple(message.dims)
    nbytes = size_in_bytes(file, name, dtype, shape)
    if message.location not in {None, 0, 1}:
        raise file.bad(name, "data_location 0 or 1", message.location)
    stores = [field for field in (message.raw, *message.typed.values()) if field is not None]
    if message.location == 1:
        if stores:
            raise file.bad(name, "external data alone", "values in the model too")
        initialisers.tensors[name] = _external(initialisers, message, dtype, shape, nbytes)
        return
    if len(stores) > 1:
        raise file.bad(name, "its values in one field", f"{len(stores)} fields")
    if message.raw is not None:
        if message.raw.nbytes != nbytes:
            raise file.bad(
                name,
                f"{nbytes} bytes for {dtype} of shape {list(shape)}",
                f"{message.raw.nbytes} at offset {field.value}",
            )
        initialisers.tensors[name] = Tensor(dtype, shape, nbytes, message.raw.value)
    else:
        initialisers.tensors[name] = _typed_tensor(initialisers, message, dtype, shape, nbytes)


def _external(
    initialisers: _Initialisers, message: _Message, dtype: str, shape: tuple[int, ...], nbytes: int
) -> Tensor:
    file, name, entries = initialisers.file, message.name, message.external
    location = entries.get("location", "")
    other = initialisers.opener.open_sibling(location, f"tensor {name!r}")
    offset = _natural(file, name, entries, "offset", 0)
    length = _natural(file, name, entries, "length", max(other.size - offset, 0))
    if length != nbytes:
        raise file.bad(
            name,
            f"{nbytes} bytes for {dtype} of shape {list(shape)}",
            f"{length} at offset {offset} of {location!r} ({other.size} bytes)",
        )
    if offset + nbytes > other.size:
        raise file.bad(
            name,
            f"its bytes within the {other.size} of {location!r}",
            f"{nbytes} at offset {offset}: that file is truncated",
        )
    if entries.get("checksum"):
        checksum = f"sha1:{entries['checksum']}"
        known = initialisers.checksums.setdefault(other.number, checksum)
        if known != checksum:
            raise file.bad(name, f"the checksum {known} of {location!r}", checksum)
    return Tensor(dtype, shape, nbytes, offset, other.number)


def _natural(file: CheckpointFile, name: str, entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise file.bad(name, f"an external {key} that is a number from 0", repr(text[:40]))
    return int(text)


def _typed_tensor(
    initialisers: _Initialisers, message: _Message, dtype: str, shape: tuple[int, ...], nbytes: int
) -> Tensor:
    """Values in a typed field: fixed-size ones in one run are used in place, others become values in memory."""
    file, name = initialisers.file, message.name
    if not message.typed:
        if nbytes:
            raise file.bad(name, f"{nbytes} bytes of values", "none")
        return Tensor(dtype, shape, 0, 0)
    number, runs = next(iter(message.typed.items()))
    label, code, holds = _TYPED[number]
    if dtype not in holds:
        raise file.bad(name, f"a field that holds {dtype}", label)
    if code and len(runs) == 1 and runs[0].wire == _LEN:
        if runs[0].nbytes != nbytes:
            raise file.bad(name, f"{nbytes} bytes in {label}", f"{runs[0].nbytes} at offset {runs[0].value}")
        return Tensor(dtype, shape, nbytes, runs[0].value)
    initialisers.nbytes += nbytes
    if initialisers.nbytes > _MAX_VALUES:
        raise file.bad(
            name, f"at most {_MAX_VALUES} bytes in typed fields", f"more in {label}; save it with raw_data instead"
        )
    data = bytearray()
    for run in runs:
        data += (
            _fixed_size_values(file, name, run, code) if code else _varints(file, name, run, dtype, nbytes - len(data))
        )
        if len(data) > nbytes:
            break
    if len(data) != nbytes:
        raise file.bad(name, f"{nbytes} bytes of values in {label}", "more" if len(data) > nbytes else len(data))
    initialisers.values.append(Value(bytes(data), nbytes, file.number))
    return Tensor(dtype, shape, nbytes, 0, -len(initialisers.values))


def _fixed_size_values(file: CheckpointFile, name: str, run: _Field, code: str) -> bytes:
    size = struct.calcsize(f"<{code}")
    if run.wire == _LEN:
        if run.nbytes % size:
            raise file.bad(name, f"a run of {size}-byte values", f"{run.nbytes} bytes")
        return file.at(run.value, run.nbytes, f"tensor {name!r}")
    if run.wire != (_I32 if size == 4 else _I64):
        raise file.bad(name, f"values of {size} bytes", f"wire type {run.wire}")
    return run.value.to_bytes(size, "little")


def _varints(file: CheckpointFile, name: str, run: _Field, dtype: str, max_bytes: int) -> bytes:
    """Integers of a typed field as little-endian elements; of fp16, bf16 and fp8 their bits."""
    size, signed = SIZES[dtype], dtype in _SIGNED
    if run.wire == _VARINT:
        numbers = [run.value]
    elif run.wire == _LEN:
        if run.nbytes > 10 * max(max_bytes, 1):
            raise file.bad(name, f"at most {max_bytes} bytes more of values", f"{run.nbytes} bytes of integers")
        numbers = []
        at, end = run.value, run.value + run.nbytes
        while at < end:
            value, at = _varint(file, at, end, f"tensor {name!r}")
            numbers.append(value)
    else:
        raise file.bad(name, "integers", f"wire type {run.wire}")
    out = bytearray()
    for number in numbers:
        value = number - (1 << 64) if signed and number >> 63 else number
        try:
            out += value.to_bytes(size, "little", signed=signed)
        except OverflowError as error:
            raise file.bad(name, f"values of {dtype}", value) from error
        if dtype == "bool" and value > 1:
            raise file.bad(name, "booleans of 0 or 1", value)
    return bytes(out)


def _tensor_proto(file: CheckpointFile, outer: _Field) -> _Message:
    what = f"the initializer at offset {outer.value}"
    message = _Message()
    visited: set[int] = set()
    for field in _fields(file, outer.value, outer.value + outer.nbytes, what):
        number = field.number
        if number in {2, 8, 9, 14}:
            if number in visited:
                raise file.error(f"{what}: expected field {number} once, found it again")
            visited.add(number)
        if number == 1:
            _dims(file, field, message.dims, what)
        elif number in {2, 14}:
            if field.wire != _VARINT:
                raise file.error(f"{what}: expected a number in field {number}, found wire type {field.wire}")
            if number == 2:
                message.kind = field.value
            else:
                message.location = field.value
        elif number == 8:
            message.name = _text(file, field, f"the name of {what}", _MAX_NAME)
        elif number == 9:
            message.raw = _message(file, field, what)
        elif number == 13:
            _entry(file, _message(file, field, what), message.external, what)
        elif number in _TYPED:
            message.typed.setdefault(number, []).append(field)
        elif number in {3, 6}:
            kind = "a segment of a larger tensor" if number == 3 else "strings"
            raise file.error(f"{what}: expected whole numeric values, found {kind}")
    return message


def _dims(file: CheckpointFile, field: _Field, dims: list[int], what: str) -> None:
    if field.wire == _VARINT:
        sizes = [field.value]
    else:
        sizes = []
        at, end = _message(file, field, what).value, field.value + field.nbytes
        while at < end and len(sizes) <= _MAX_ENTRIES:
            value, at = _varint(file, at, end, what)
            sizes.append(value)
    dims += sizes
    if len(dims) > _MAX_ENTRIES or any(dim >> 63 for dim in dims):
        raise file.error(f"{what}: expected at most {_MAX_ENTRIES} dimensions from 0, found {dims[:8]}")


def _entry(file: CheckpointFile, outer: _Field, entries: dict[str, str], what: str) -> None:
    pair = ["", ""]
    visited: set[int] = set()
    for field in _fields(file, outer.value, outer.value + outer.nbytes, what):
        if field.number in {1, 2}:
            if field.number in visited:
                raise file.error(f"{what}: expected key and value once in its external data, found one again")
            visited.add(field.number)
            pair[field.number - 1] = _text(file, field, f"external data of {what}", _MAX_NAME)
    if pair[0] in entries or len(entries) >= _MAX_ENTRIES:
        raise file.error(f"{what}: external data has {pair[0]!r} twice, or too many entries")
    entries[pair[0]] = pair[1]


def _text(file: CheckpointFile, field: _Field, what: str, limit: int) -> str:
    _message(file, field, what)
    if field.nbytes > limit:
        raise file.error(f"{what}: expected at most {limit} bytes, found {field.nbytes}")
    return text_of(file, file.at(field.value, field.nbytes, what), what)


def _message(file: CheckpointFile, field: _Field, what: str) -> _Field:
    if field.wire != _LEN:
        raise file.error(f"{what}: expected bytes in field {field.number}, found wire type {field.wire}")
    return field


def _fields(file: CheckpointFile, begin: int, end: int, what: str) -> Iterator[_Field]:
    """The fields of the message at ``[begin, end)``, in order. Raises CheckpointError."""
    at = begin
    while at < end:
        tag, at = _varint(file, at, end, what)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise file.error(f"{what}: expected a field number from 1 to 2**29 - 1, found {number} before offset {at}")
        if wire == _VARINT:
            value, at = _varint(file, at, end, what)
            yield _Field(number, wire, value)
        elif wire == _LEN:
            nbytes, at = _varint(file, at, end, what)
            if nbytes > end - at:
                raise file.error(
                    f"{what}: {nbytes} bytes of field {number} expected before offset {end}, found {end - at} at "
                    f"offset {at}: the file is truncated, or no ONNX model"
                )
            yield _Field(number, wire, at, nbytes)
            at += nbytes
        elif wire in {_I32, _I64}:
            size = 4 if wire == _I32 else 8
            if size > end - at:
                raise file.error(f"{what}: field {number} at offset {at} expected {size} bytes: the file is truncated")
            yield _Field(number, wire, int.from_bytes(file.at(at, size, what), "little"))
            at += size
        else:
            raise file.error(f"{what}: expected wire type 0, 1, 2 or 5 at offset {at}, found {wire}: no ONNX model")


def _varint(file: CheckpointFile, at: int, end: int, what: str) -> tuple[int, int]:
    """A number and the offset after it. Raises CheckpointError beyond 64 bits or ``end``."""
    raw = file.at(at, min(10, end - at), what)
    value = 0
    for count, byte in enumerate(raw):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            if value >> 64:
                break
            return value, at + count + 1
    raise file.error(
        f"{what}: expected a number of at most 64 bits at offset {at}, found {raw!r}: truncated, or no model"
    )
