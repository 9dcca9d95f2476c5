"""The header of a safetensors file, validated in full. No byte of the data is looked at.

The format (README of huggingface/safetensors), all integers little-endian:

    u64     n, the length of the header: at most 100,000,000
    n bytes a JSON object, first byte ``{``, padded with spaces: tensor name ->
            {"dtype": "F32", "shape": [d0, d1, ...], "data_offsets": [begin, end]}, offsets relative to the data;
            the key ``__metadata__`` is reserved for an object of string -> string
    data    the tensors, row-major, without holes or overlaps, up to the end of the file

The official reader (0.8) lets pass two things that are refused here: a key that occurs twice (it takes the last), and
a tensor whose offset is no multiple of its item size. Files of its writers before 0.3 did not pad the header, so their
data section starts anywhere; those are accepted, and what lands misaligned in the file is read through a copy.
"""

from __future__ import annotations

import math
import os
import stat
import struct
from collections.abc import Mapping
from typing import Any

import msgspec

from cachec import fsio
from cachec.errors import CheckpointError, WeightsChanged
from cachec.hashing import digest_bytes
from cachec.weights.dtypes import PACKED, SAFETENSORS

MAX_HEADER = 100_000_000
_LENGTH = struct.Struct("<Q")
_METADATA = "__metadata__"
#: numpy's limit; more is refused here rather than when the weight is read.
_MAX_DIMENSIONS = 64
_MAX_BYTES = 2**63 - 1
_FIELDS = ("dtype", "shape", "data_offsets")


class Tensor(msgspec.Struct, frozen=True, gc=False):
    """One tensor of a checkpoint: its type and where its bytes are.

    file: the number of its file within the opened source; below 0 for bytes that no file holds (see
    ``formats/base.py``). offset: from the start of that file, in bytes. layout: as in ``WeightSpec``.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int
    file: int = 0
    shard: tuple[int, int] | None = None
    layout: str = "row-major"


class Header(msgspec.Struct, frozen=True, eq=False):
    """A parsed header. tensors: by name, in the order of the header. nbytes, digest: of length and JSON together."""

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]
    nbytes: int
    digest: str


def read_header_bytes(path: str, fd: int) -> tuple[bytes, fsio.Identity]:
    """Length and JSON of the file's header, with the file's identity around the read.

    Raises CheckpointError for a length that can't be, WeightsChanged for a file that changes meanwhile.
    """
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path}: expected a regular file, found another kind")
    before = fsio.identity(fd)
    if before.size < _LENGTH.size:
        raise CheckpointError(f"{path}: expected at least 8 bytes (the header's length), found {before.size}")
    prefix = fsio.pread_exact(fd, 0, _LENGTH.size)
    (length,) = _LENGTH.unpack(prefix)
    if length > MAX_HEADER:
        raise CheckpointError(f"{path}: header length expected at most {MAX_HEADER}, found {length}")
    if length > before.size - _LENGTH.size:
        raise CheckpointError(
            f"{path}: the header ends at byte {_LENGTH.size + length}, but the file has {before.size} bytes: "
            "it is truncated, or no safetensors file"
        )
    try:
        data = prefix + fsio.pread_exact(fd, _LENGTH.size, length)
    except EOFError as error:
        raise WeightsChanged(f"{path}: became shorter while it was opened") from error
    if fsio.identity(fd) != before:
        raise WeightsChanged(f"{path}: changed while it was opened")
    return data, before


def parse_header(path: str, data: bytes, file_size: int) -> Header:
    """The header from its bytes (length and JSON). ``path`` is for messages only.

    Raises CheckpointError naming file, tensor, what was expected and what was found.
    """
    text = data[_LENGTH.size :]
    if not text.startswith(b"{"):
        raise CheckpointError(f"{path}: the header expected to begin with '{{', found {text[:1]!r}")
    decoded = decode_object(path, "header", text)
    strings = 1 if _METADATA in decoded else 0
    metadata = _metadata(path, decoded.pop(_METADATA, None))
    start = len(data)
    tensors: dict[str, Tensor] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in decoded.items():
        dtype, shape, begin, end = _entry(path, name, entry)
        tensors[name] = Tensor(dtype, shape, end - begin, start + begin)
        spans.append((begin, end, name))
    # Five strings a tensor: its name, three fields, the dtype.
    refuse_duplicates(path, "header", text, strings + 5 * len(tensors) + 2 * len(metadata))
    _check_cover(path, spans, file_size - start)
    return Header(tensors, metadata, start, digest_bytes(data))


def decode_object(path: str, what: str, text: bytes) -> dict[str, Any]:
    """A JSON object. Raises CheckpointError for anything else."""
    try:
        decoded = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path}: the {what} is not valid JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise CheckpointError(f"{path}: the {what} expected to be a JSON object, found {type(decoded).__name__}")
    return decoded


def refuse_duplicates(path: str, what: str, text: bytes, strings: int) -> None:
    """Refuse a JSON text in which an object repeats a key; ``strings`` are known to be in it.

    Without escapes every string takes exactly two quotes, and a repeated key adds some: an equal count proves that
    there is none. Everything else is parsed again by a reader that shows each pair, which costs twice the decoding.
    Raises CheckpointError naming the key.
    """
    if text.count(b'"') != 2 * strings or b"\\" in text or b"-0" in text:
        _check_every_pair(path, what, text)


def _check_every_pair(path: str, what: str, text: bytes) -> None:
    import json

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [key for key, _ in pairs]
            twice = next(key for key in names if names.count(key) > 1)
            raise CheckpointError(f"{path}: the {what} has the key {twice!r} twice")
        for key in found:
            key.encode()  # a lone surrogate is no Unicode text
        return found

    def integer(digits: str) -> int:
        if digits == "-0":  # msgspec takes it for 0, the official reader for a float
            raise ValueError("-0 is no integer")
        return int(digits)

    try:
        json.loads(text.decode(), object_pairs_hook=unique, parse_int=integer)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the {what} is not valid JSON: {error}") from error


def _metadata(path: str, found: object) -> dict[str, str]:
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: {_METADATA} expected an object, found {type(found).__name__}")
    for key, value in found.items():
        if not isinstance(value, str):
            raise CheckpointError(f"{path}: {_METADATA}[{key!r}] expected a string, found {type(value).__name__}")
    return found


def _entry(path: str, name: str, entry: object) -> tuple[str, tuple[int, ...], int, int]:
    if not isinstance(entry, dict):
        raise _bad(path, name, "an object", type(entry).__name__)
    for field in _FIELDS:
        if field not in entry:
            raise _bad(path, name, f"a field {field!r}", f"only {sorted(entry)}")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    known = SAFETENSORS.get(code) if type(code) is str else None
    if known is None:
        if code in PACKED:
            raise _bad(path, name, "a dtype of whole bytes", f"{code}, which packs elements below one byte")
        raise _bad(path, name, f"a dtype of {', '.join(SAFETENSORS)}", repr(code))
    dtype, size = known
    if type(shape) is not list or len(shape) > _MAX_DIMENSIONS:
        raise _bad(path, name, f"a shape of at most {_MAX_DIMENSIONS} dimensions", repr(shape)[:80])
    for dimension in shape:
        if type(dimension) is not int or dimension < 0:
            raise _bad(path, name, "a shape of integers from 0", repr(shape)[:80])
    if type(offsets) is not list or len(offsets) != 2:
        raise _bad(path, name, "data_offsets [begin, end]", repr(offsets)[:80])
    begin, end = offsets
    if type(begin) is not int or type(end) is not int or not 0 <= begin <= end:
        raise _bad(path, name, "data_offsets of integers with 0 <= begin <= end", repr(offsets)[:80])
    nbytes = math.prod(shape) * size
    # An empty tensor may hide a shape that no array can have: every dimension but the zeros counts.
    if nbytes > _MAX_BYTES or (nbytes == 0 and math.prod(d for d in shape if d) * size > _MAX_BYTES):
        raise _bad(path, name, "a size below 2**63 bytes", f"{dtype} of shape {shape}")
    if nbytes != end - begin:
        raise _bad(path, name, f"{nbytes} bytes for {dtype} of shape {shape}", f"{end - begin} in data_offsets")
    if begin % size:
        raise _bad(path, name, f"an offset that is a multiple of {size} ({dtype})", f"{begin}; save the file again")
    return dtype, tuple(shape), begin, end


def _check_cover(path: str, spans: list[tuple[int, int, str]], available: int) -> None:
    """The tensors, taken by offset, follow each other without hole or overlap and end where the file ends."""
    reached, before = 0, "the header"
    for begin, end, name in sorted(spans):
        if begin > reached:
            raise _bad(path, name, f"to begin at byte {reached} of the data, after {before!r}", f"{begin}: a hole")
        if begin < reached:
            raise _bad(path, name, f"to begin at byte {reached} of the data", f"{begin}: it overlaps {before!r}")
        if end > available:
            raise _bad(path, name, f"to end within the {available} bytes of data", f"{end}: the file is truncated")
        reached, before = end, name
    if reached != available:
        raise CheckpointError(f"{path}: expected {reached} bytes of data, found {available}: extra bytes at the end")


def _bad(path: str, name: str, expected: str, found: str) -> CheckpointError:
    return CheckpointError(f"{path}: tensor {name!r}: expected {expected}, found {found}")
