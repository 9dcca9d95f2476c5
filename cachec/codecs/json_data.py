"""Scalars and JSON-like data: inline in the row where short, else one artifact.

Data is nested dicts (string keys), lists, tuples and scalars of the exact built-in types. It is stored as JSON (RFC
8259) that gives back what was stored, ints as ints and floats as floats. What JSON lacks is written, where ``tagged``
is true, as an object with one reserved key:

    {"!t": [...]}     a tuple                  {"!i": "-0x1f..."}   an int beyond 64 bits
    {"!f": "inf"}     a float that is not finite; a NaN of other bits than Python's own is ``nan:`` and these

and a key of the data that begins with ``!`` gets one more ``!`` in front.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from cachec.codecs.base import MAX_DEPTH, corrupt, meta_of, read, unstorable
from cachec.model import Inline, Leaf
from cachec.store.artifacts import ArtifactSink, ArtifactSource

#: Strings, bytes and JSON up to this many bytes stay in the row.
INLINE_LIMIT: Final = 1024

_NESTED: Final = (list, tuple, dict)


class _DataMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    json: str | None = None
    tagged: bool = False


class _NoMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


# --- scalars


def int_text(value: int) -> str:
    """The stored form of an int: decimal up to 64 bits, else hexadecimal (linear in its length, and without limit)."""
    return str(value) if -(1 << 63) <= value < 1 << 63 else hex(value)


def _int(text: str) -> int:
    value = int(text, 16) if "x" in text else int(text[:21])
    if int_text(value) != text:
        raise ValueError(f"{text[:40]!r} is not the form of an int")
    return value


_NAN: Final = struct.pack(">d", math.nan).hex()


def _float_text(value: float) -> str:
    bits = struct.pack(">d", value).hex() if math.isnan(value) else _NAN
    return repr(value) if bits == _NAN else f"nan:{bits}"


def _float(text: str) -> float:
    nan = text.removeprefix("nan:")
    value: float = float(text) if nan == text else struct.unpack(">d", bytes.fromhex(nan)[:8].ljust(8))[0]
    if _float_text(value) != text:
        raise ValueError(f"{text[:40]!r} is not the form of a float")
    return value


def _complex(text: str) -> complex:
    real, imaginary = text.split(" ")
    return complex(_float(real), _float(imaginary))


def _none(text: str) -> None:
    if text:
        raise ValueError("None has no text")


_BOOLS: Final = {"true": True, "false": False}

_INLINE: Final[Mapping[str, Callable[[str], Any]]] = {
    "none": _none,
    "bool": _BOOLS.__getitem__,
    "int": _int,
    "float": _float,
    "complex": _complex,
    "str": str,
    "bytes": bytes.fromhex,
}


def encode_scalar(value: Any, sink: ArtifactSink) -> Inline | Leaf:
    """A value of one of the exact types of ``SCALARS``."""
    cls = type(value)
    if cls is str:
        return _encode_text(value, sink)
    if cls is bytes:
        if len(value) <= INLINE_LIMIT // 2:
            return Inline("bytes", value.hex())
        return Leaf("bytes", (sink.add_bytes(value),))
    if value is None:
        return Inline("none", "")
    if cls is bool:
        return Inline("bool", "true" if value else "false")
    if cls is int:
        return Inline("int", int_text(value))
    if cls is float:
        return Inline("float", _float_text(value))
    return Inline("complex", f"{_float_text(value.real)} {_float_text(value.imag)}")


#: The exact types that ``encode_scalar`` takes.
SCALARS: Final = frozenset({type(None), bool, int, float, complex, str, bytes})


def _encode_text(value: str, sink: ArtifactSink) -> Inline | Leaf:
    try:
        data = value.encode()
        if len(data) <= INLINE_LIMIT:
            return Inline("str", value)
    except UnicodeEncodeError:  # what os.fsdecode makes of a file name that is no UTF-8; it comes back as it was
        data = value.encode("utf-8", "surrogatepass")
    return Leaf("text", (sink.add_bytes(data),))


def decode_inline(node: Inline) -> Any:
    """The scalar back. Raises StoreFault (row-corrupt) for an unknown kind or a text that is not its form."""
    decode = _INLINE.get(node.kind)
    if decode is None:
        raise corrupt(f"unknown kind of inline value {node.kind!r}")
    try:
        return decode(node.value)
    except (ValueError, KeyError) as error:
        raise corrupt(f"inline {node.kind}: {error}") from error


def decode_bytes(leaf: Leaf, source: ArtifactSource) -> bytes:
    """The bytes of a ``bytes`` leaf."""
    meta_of(leaf, _NoMeta)
    return read(source, leaf.artifacts[0])


def decode_text(leaf: Leaf, source: ArtifactSource) -> str:
    """The string of a ``text`` leaf."""
    meta_of(leaf, _NoMeta)
    try:
        return read(source, leaf.artifacts[0]).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise corrupt(f"a stored text is no UTF-8: {error}") from error


# --- nested data


class _NotDataError(Exception):
    """Something in the value is not data, and goes to other codecs item by item."""


class _Tagging:
    """Turns data into what JSON can say, and notes whether a tag was needed."""

    def __init__(self) -> None:
        self.tagged = False

    def jsonable(self, value: Any, path: str, depth: int) -> Any:
        cls = type(value)
        if cls is str or cls is bool or value is None:
            return value
        if cls is int:
            return value if -(1 << 63) <= value < 1 << 63 else self._tag("!i", int_text(value))
        if cls is float:
            return value if math.isfinite(value) else self._tag("!f", _float_text(value))
        if cls not in _NESTED:
            raise _NotDataError
        if depth == 0:
            raise unstorable(
                value,
                path,
                "return a flatter value",
                f"a {cls.__name__} that contains itself or is over {MAX_DEPTH} deep",
            )
        if cls is dict:
            return {self._key(key): self.jsonable(item, path, depth - 1) for key, item in value.items()}
        items = [self.jsonable(item, path, depth - 1) for item in value]
        return items if cls is list else self._tag("!t", items)

    def _tag(self, tag: str, content: object) -> dict[str, object]:
        self.tagged = True
        return {tag: content}

    def _key(self, key: Any) -> str:
        if type(key) is not str:
            raise _NotDataError
        if key.startswith("!"):
            self.tagged = True
            return f"!{key}"
        return key


def encode_data(value: Any, sink: ArtifactSink, path: str) -> Leaf | None:
    """A list, tuple or dict as one JSON leaf; None where something in it is not data.

    Raises UnstorableResult where it is nested too deep or contains itself.
    """
    tagging = _Tagging()
    try:
        data = msgspec.json.encode(tagging.jsonable(value, path, MAX_DEPTH))
    except (_NotDataError, UnicodeEncodeError):  # a lone surrogate has no place in JSON
        return None
    meta: dict[str, Any] = {"tagged": True} if tagging.tagged else {}
    if len(data) <= INLINE_LIMIT:
        return Leaf("data", (), {"json": data.decode(), **meta})
    return Leaf("data", (sink.add_bytes(data),), meta)


def decode_data(leaf: Leaf, source: ArtifactSource) -> Any:
    """Return a new copy of the data at each call. Raises StoreFault (row-corrupt)."""
    meta = meta_of(leaf, _DataMeta, artifacts=None)
    if len(leaf.artifacts) != (1 if meta.json is None else 0):
        raise corrupt("codec 'data' needs either inline JSON or one artifact")
    text = read(source, leaf.artifacts[0]) if meta.json is None else meta.json
    try:
        decoded = msgspec.json.decode(text)
        return _decode_tagged(decoded) if meta.tagged else decoded
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise corrupt(f"stored data: {error}") from error


def _decode_tagged(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode_tagged(item) for item in value]
    if not isinstance(value, dict):
        return value
    reserved = next((key for key in value if key.startswith("!") and not key.startswith("!!")), None)
    if reserved is None:
        return {key[1:] if key.startswith("!") else key: _decode_tagged(item) for key, item in value.items()}
    content = value[reserved]
    if len(value) == 1:
        if reserved == "!t" and isinstance(content, list):
            return tuple(_decode_tagged(item) for item in content)
        if reserved == "!i" and isinstance(content, str):
            return _int(content)
        if reserved == "!f" and isinstance(content, str):
            return _float(content)
    raise ValueError(f"a reserved key {reserved[:20]!r} with no such meaning")
