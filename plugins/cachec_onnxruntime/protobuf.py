"""The part of protobuf's wire format that ONNX uses (protobuf.dev/programming-guides/encoding), without onnx."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cachec.errors import PluginError

VARINT, I64, LEN, I32 = 0, 1, 2, 5


class WireField(NamedTuple):
    """One field of a message."""

    number: int
    #: The value of a number; 0 for bytes.
    value: int
    #: The bytes of a LEN field; empty for numbers.
    data: memoryview
    #: The field as it is in its message, with its tag.
    whole: memoryview


def fields(message: memoryview) -> Iterator[WireField]:
    """Return the fields of a message, in order. Raises PluginError for other bytes."""
    at, end = 0, len(message)
    while at < end:
        begin = at
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        value, data = 0, message[:0]
        if wire == VARINT:
            value, at = _varint(message, at)
        elif wire in {LEN, I32, I64}:
            nbytes, at = _varint(message, at) if wire == LEN else (4 if wire == I32 else 8, at)
            if nbytes > end - at:
                raise PluginError(
                    f"no ONNX model, or a truncated one: field {number} has {nbytes} bytes, {end - at} left"
                )
            data, at = message[at : at + nbytes], at + nbytes
        else:
            raise PluginError(f"no ONNX model: wire type {wire}")
        yield WireField(number, value, data, message[begin:at])


def numbers(field: WireField) -> list[int]:
    """Return the numbers of a repeated field: one number, or many packed ones."""
    if not field.data:
        return [field.value]
    found, at = [], 0
    while at < len(field.data):
        value, at = _varint(field.data, at)
        found.append(value)
    return found


def text(field: WireField) -> str:
    """Return a field as text. Raises PluginError."""
    try:
        return bytes(field.data).decode()
    except UnicodeDecodeError as error:
        raise PluginError(f"no ONNX model: a name is no UTF-8: {error}") from error


def number_field(number: int, value: int) -> bytes:
    """Encode a field with a number."""
    return _encode_varint(number << 3 | VARINT) + _encode_varint(value)


def bytes_field(number: int, data: bytes | memoryview | str) -> bytes:
    """Encode a field with bytes, a text or a message."""
    raw = data.encode() if isinstance(data, str) else data
    return b"".join((_encode_varint(number << 3 | LEN), _encode_varint(len(raw)), raw))


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    if at < len(message) and message[at] < 0x80:  # nearly all
        return message[at], at + 1
    value = 0
    for count, byte in enumerate(message[at : at + 10]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, at + count + 1
    raise PluginError("no ONNX model, or a truncated one")
