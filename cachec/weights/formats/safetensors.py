"""The header of a safetensors file, validated in full. No byte of the data is looked at.

The format (README of huggingface/safetensors), all integers little-endian:

    u64     n, the length of the header: at most 100,000,000
    n bytes a JSON object, first byte ``{``, padded with spaces: tensor name ->
            {"dtype": "F32", "shape": [d0, d1, ...], "data_offsets": [begin, end]}, offsets relative to the data;
            the key ``__metadata__`` is reserved for an object of string -> string
    data    the tensors, row-major, without holes or overlaps, up to the end of the file

The official reader (0.8) lets pass some things that are refused here: a key that occurs twice (it takes the last), a
tensor whose offset is no multiple of its item size, white space before the ``{``, and what no array of numpy can be:
over 64 dimensions, elements below one byte, an empty shape whose other dimensions make 2**63 bytes. Files of its
writers before 0.3 did not pad the header, so their data section starts anywhere; those are accepted, and what lands
misaligned in the file is read through a copy.
"""

from __future__ import annotations

import math
import operator
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, repeat
from typing import Annotated, Any, NamedTuple

import msgspec

from cachec.base import fsio
from cachec.base.display_text import argument_hint
from cachec.errors import CheckpointError, UsageError, WeightsChanged
from cachec.model import MALFORMED_JSON, from_json
from cachec.weights.dtypes import PACKED, SAFETENSORS, SIZES
from cachec.weights.formats.base import MAX_BYTES, MAX_DIMENSIONS, NO_TEXTS, Plan
from cachec.weights.tensor import Tensor
from cachec.weights.weight import Weight

_CODES = {dtype: code for code, (dtype, _) in SAFETENSORS.items()}
_MAX_HEADER = 100_000_000
_LENGTH = struct.Struct("<Q")
_METADATA = "__metadata__"
_FIELDS = ("dtype", "shape", "data_offsets")
#: Bytes of a file that are read at once: the headers of most shards are shorter.
START = 1 << 14
#: The number -0. In JSON a number follows one of these characters, so the -0 of a name is none of them.
_MINUS_ZERO = re.compile(rb"-0(?<=[\[:,\s]-0)")
#: Kinds of tensors that a process remembers.
_KINDS = 4096
_CODE = operator.attrgetter("dtype")
_SHAPE = operator.attrgetter("shape")
_OFFSETS = operator.attrgetter("data_offsets")
_NBYTES = operator.attrgetter("nbytes")
_ITEM = operator.attrgetter("item")


class _TensorGroup(NamedTuple):
    """What tensors of one dtype and shape have in common."""

    dtype: str
    shape: tuple[int, ...]
    #: Of each.
    nbytes: int
    #: Of an element.
    item: int


class HeaderTensors(Mapping[str, Tensor]):
    """The tensors of a header by name, in its order; kept as few sequences until they are asked for.

    offsets: from the start of the file, in bytes; where they are left out, each begins where the one before ends, the
    first at ``start``.
    """

    def __init__(
        self, names: Sequence[str], kinds: Sequence[_TensorGroup], start: int, offsets: Sequence[int] | None = None
    ) -> None:
        self._names = names
        self._kinds = kinds
        self._start = start
        self._offsets = offsets

    def in_file(self, number: int) -> dict[str, Tensor]:
        """The tensors as those of the file of this number within a source."""
        dtypes, shapes, sizes, _ = zip(*self._kinds, strict=True) if self._kinds else ((),) * 4
        offsets = accumulate(sizes, initial=self._start) if self._offsets is None else self._offsets
        tensors = map(Tensor, dtypes, shapes, sizes, offsets, repeat(number))
        return dict(zip(self._names, tensors, strict=True))

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        return self.in_file(0)

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Header(msgspec.Struct, frozen=True, eq=False):
    """A parsed header."""

    tensors: HeaderTensors
    metadata: Mapping[str, str]
    #: Of length and JSON together.
    nbytes: int


def header_bytes(path: str, fd: int, identity: fsio.Identity, start: bytes) -> bytes:
    """Length and JSON of the file's header.

    identity: the identity of the open file; start: its first ``START`` bytes. Raises CheckpointError for a length that
    can't be, WeightsChanged for a file that changes meanwhile.
    """
    if identity.size < _LENGTH.size:
        raise CheckpointError(f"{path}: expected at least 8 bytes (the header's length), found {identity.size}")
    if len(start) < min(identity.size, START):
        raise WeightsChanged(f"{path}: became shorter while it was opened")
    (length,) = _LENGTH.unpack_from(start)
    if length > _MAX_HEADER:
        raise CheckpointError(f"{path}: header length expected at most {_MAX_HEADER}, found {length}")
    end = _LENGTH.size + length
    if end > identity.size:
        raise CheckpointError(
            f"{path}: the header ends at byte {end}, but the file has {identity.size} bytes: "
            "it is truncated, or no safetensors file"
        )
    try:
        data = start[:end] if end <= len(start) else start + fsio.pread_exact(fd, len(start), end - len(start))
    except EOFError as error:
        raise WeightsChanged(f"{path}: became shorter while it was opened") from error
    if identity != fsio.identity_of(os.fstat(fd)):
        raise WeightsChanged(f"{path}: changed while it was opened")
    return data


def parse_header(path: str, data: bytes, file_size: int) -> Header:
    """The header from its bytes (length and JSON). ``path`` is for messages only.

    Raises CheckpointError naming file, tensor, what was expected and what was found.
    """
    available = file_size - len(data)
    return _parse_at_once(data, available) or _parse(path, data, available)


_Natural = Annotated[int, msgspec.Meta(ge=0)]


class _Entry(msgspec.Struct, gc=False):
    """A tensor as the header has it. A field that is left out gets a value that no tensor can have."""

    dtype: str = ""
    shape: tuple[_Natural, ...] = (0,)
    data_offsets: tuple[_Natural, _Natural] = (1, 0)


class _Metadata(msgspec.Struct):
    """What a header says beside its tensors, where it does."""

    values: dict[str, str] = msgspec.field(name=_METADATA)


_ENTRIES = msgspec.json.Decoder(dict[str, _Entry])


def _parse_at_once(data: bytes, available: int) -> Header | None:
    """The header by checks of all tensors together, which are those of ``_parse``; a fifth of its time.

    None for what does not pass them, and for what is rare (escapes, empty tensors): ``_parse`` decides on those.
    """
    at = _LENGTH.size
    if not data.startswith(b"{", at) or data.find(b"\\", at) >= 0:
        return None
    if data.find(b"-", at) >= 0 and _MINUS_ZERO.search(data, at):
        return None
    text = memoryview(data)[at:]
    try:
        entries = _ENTRIES.decode(text)
        has_metadata = entries.pop(_METADATA, None) is not None
        metadata = msgspec.json.decode(text, type=_Metadata).values if has_metadata else NO_TEXTS
    except MALFORMED_JSON:
        return None
    # With this many strings there is no key twice, none that is not known, and none that is missing.
    if not entries or data.count(b'"', at) != 2 * (5 * len(entries) + has_metadata + 2 * len(metadata)):
        return None
    values = entries.values()
    codes = list(map(_CODE, values))
    try:
        kinds = list(map(_kind, codes, map(_SHAPE, values)))
    except LookupError:
        return None
    begins, ends = zip(*map(_OFFSETS, values), strict=True)
    # Each begins where the one before ends, and has the bytes of its kind; the last ends where the file does.
    follow = tuple(accumulate(map(_NBYTES, kinds), initial=0))
    is_in_order = begins == follow[:-1] and ends == follow[1:]
    if not is_in_order:  # then so it has to be where they are taken by offset
        first, last = sorted(begins), sorted(ends)
        sizes = map(operator.sub, ends, begins)
        if any(map(operator.ne, sizes, map(_NBYTES, kinds))) or first != [0, *last[:-1]]:
            return None
    if max(ends) != available:
        return None
    # Where all are of one dtype, what begins where another ends is a multiple of it.
    if len(set(codes)) > 1 and any(map(operator.mod, begins, map(_ITEM, kinds))):
        return None
    offsets = None if is_in_order else list(map(len(data).__add__, begins))
    return Header(HeaderTensors(list(entries), kinds, len(data), offsets), metadata, len(data))


@lru_cache(_KINDS)
def _kind(code: str, shape: tuple[int, ...]) -> _TensorGroup:
    """The kind of a tensor that a header has. A model has few, and all tensors of it share its numbers.

    Raises LookupError for what no array can be, and for an empty tensor, which may hide such a shape.
    """
    if len(shape) > MAX_DIMENSIONS:
        raise LookupError(shape)
    dtype, item = SAFETENSORS[code]
    nbytes = math.prod(shape) * item
    if nbytes == 0:
        raise LookupError(shape)
    return _TensorGroup(dtype, shape, nbytes, item)


def _parse(path: str, data: bytes, available: int) -> Header:
    """The header, one tensor after the other, so that an error can say what is wrong."""
    text, start = data[_LENGTH.size :], len(data)
    if not text.startswith(b"{"):
        raise CheckpointError(f"{path}: the header expected to begin with '{{', found {text[:1]!r}")
    header = decode_object(path, "header", text)
    strings = 1 if _METADATA in header else 0
    metadata = _metadata(path, header.pop(_METADATA, None))
    entries = [_entry(path, name, entry) for name, entry in header.items()]
    spans = [(begin, end, name) for name, (_, _, begin, end) in zip(header, entries, strict=True)]
    # Five strings a tensor: its name, three fields, the dtype.
    refuse_duplicates(path, "header", text, strings + 5 * len(entries) + 2 * len(metadata))
    _check_cover(path, spans, available)
    kinds = [_TensorGroup(dtype, shape, end - begin, SIZES[dtype]) for dtype, shape, begin, end in entries]
    offsets = [start + begin for _, _, begin, _ in entries]
    return Header(HeaderTensors(list(header), kinds, start, offsets), metadata, start)


def decode_object(path: str, what: str, text: bytes) -> dict[str, Any]:
    """A JSON object. Raises CheckpointError for anything else."""
    value: Any = from_json(text, object, CheckpointError, f"{path}: the {what} is not valid JSON")
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: the {what} expected to be a JSON object, found {type(value).__name__}")
    return value


def refuse_duplicates(path: str, what: str, text: bytes, strings: int, numbers: bytes | None = None) -> None:
    """Refuse a JSON text in which an object repeats a key; ``strings`` are known to be in it. numbers: the part outside
    of which there are but strings, if those are all; by default all of it.

    Without escapes every string takes exactly two quotes, and a repeated key adds some: an equal count proves that
    there is none. Everything else is parsed again by a reader that shows each pair, which costs twice the decoding.
    Raises CheckpointError naming the key.
    """
    part = text if numbers is None else numbers
    if text.count(b'"') != 2 * strings or b"\\" in text or _MINUS_ZERO.search(part):
        _check_every_pair(path, what, text)


def _check_every_pair(path: str, what: str, text: bytes) -> None:
    import json

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        by_key = dict(pairs)
        if len(by_key) != len(pairs):
            names = [key for key, _ in pairs]
            twice = next(key for key in names if names.count(key) > 1)
            raise CheckpointError(f"{path}: the {what} has the key {twice!r} twice")
        return by_key

    def integer(digits: str) -> int:
        if digits == "-0":  # msgspec takes it for 0, the official reader for a float
            raise ValueError("-0 is no integer")
        return int(digits)

    try:
        json.loads(text.decode(), object_pairs_hook=unique, parse_int=integer)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the {what} is not valid JSON: {error}") from error


def _metadata(path: str, metadata: object) -> dict[str, str]:
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise CheckpointError(f"{path}: {_METADATA} expected an object, found {type(metadata).__name__}")
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise CheckpointError(f"{path}: {_METADATA}[{key!r}] expected a string, found {type(value).__name__}")
    return metadata


def _entry(path: str, name: str, entry: object) -> tuple[str, tuple[int, ...], int, int]:
    if not isinstance(entry, dict):
        raise _bad(path, name, "an object", type(entry).__name__)
    for field in _FIELDS:
        if field not in entry:
            raise _bad(path, name, f"a field {field!r}", f"only {sorted(entry)}")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    known = SAFETENSORS.get(code) if type(code) is str else None
    if known is None:
        if type(code) is str and code in PACKED:
            raise _bad(path, name, "a dtype of whole bytes", f"{code}, which packs elements below one byte")
        raise _bad(path, name, f"a dtype of {', '.join(SAFETENSORS)}", repr(code)[:80])
    dtype, size = known
    if type(shape) is not list or len(shape) > MAX_DIMENSIONS:
        raise _bad(path, name, f"a shape of at most {MAX_DIMENSIONS} dimensions", repr(shape)[:80])
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
    if nbytes > MAX_BYTES or (nbytes == 0 and math.prod(d for d in shape if d) * size > MAX_BYTES):
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


def plan(path: str, weights: Sequence[Weight], metadata: Mapping[str, str]) -> Plan:
    """A file with the tensors by item size, the largest first, then by name, as the official writer orders them; so
    each offset is a multiple of its item size without holes. JSON without spaces, padded with spaces to 8.

    Raises UsageError for types, names and sizes that the format has no place for.
    """
    for weight in weights:
        if weight.dtype not in _CODES:
            raise UsageError(f"save: weight {weight.name!r}: safetensors has no {weight.dtype}; {_irpa()}")
        if weight.tensor.layout != "row-major":
            raise UsageError(
                f"save: weight {weight.name!r}: safetensors has no {weight.tensor.layout} blocks; {_irpa()}, "
                "which has no types, or values that are no blocks"
            )
        if weight.name == "__metadata__":
            raise UsageError("save: safetensors reserves the name '__metadata__'; rename that weight")
    header: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    places: list[tuple[Weight, int]] = []
    end = 0
    for weight in sorted(weights, key=lambda weight: (-SIZES[weight.dtype], weight.name)):
        begin, end = end, end + weight.nbytes
        shape = list(weight.shape)
        header[weight.name] = {"dtype": _CODES[weight.dtype], "shape": shape, "data_offsets": [begin, end]}
        places.append((weight, begin))
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    if len(text) > _MAX_HEADER:
        raise UsageError(f"save: {path}: the header may have {_MAX_HEADER} bytes, found {len(text)}; use shard_size=")
    head = _LENGTH.pack(len(text)) + text
    start = len(head)
    return Plan(path, head, tuple((weight, start + begin) for weight, begin in places), start + end)


def _irpa() -> str:
    return argument_hint("use format='irpa'", "use --format irpa")
