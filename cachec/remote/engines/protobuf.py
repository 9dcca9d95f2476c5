"""The wire format of protocol buffers, as far as the messages of caches for Bazel need it.

A field is ``varint(number << 3 | type)`` and a varint (type 0), 8 bytes (1), a varint and so many bytes (2), or 4 bytes
(5): https://protobuf.dev/programming-guides/encoding. The package ``protobuf`` would take longer to import than all of
a look-up, and needs generated code.
"""

from __future__ import annotations

from collections.abc import Iterator

from cachec.errors import StoreFault
from cachec.model import Fault

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5

#: Fields of one message. More than any answer has; reading as many takes a fraction of a second.
MAX_FIELDS = 1 << 16

_MASK = (1 << 64) - 1


def varint(number: int) -> bytes:
    """A number of at least 0."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def text(number: int, data: bytes) -> bytes:
    """A field of bytes, text or a message; left out where it is empty."""
    return message(number, data) if data else b""


def message(number: int, data: bytes) -> bytes:
    """A field with a message, which is there though it is empty."""
    return varint(number << 3 | _BYTES) + varint(len(data)) + data


def count(number: int, value: int) -> bytes:
    """A field with a number, left out where it is 0."""
    return varint(number << 3 | _VARINT) + varint(value) if value else b""


def fields(data: bytes, what: str) -> Iterator[tuple[int, bytes | int]]:
    """Number and value of the fields that have bytes or a varint. Raises StoreFault."""
    for field, value in spans(data, what):
        yield field, data[value] if isinstance(value, slice) else value


def spans(data: bytes, what: str) -> Iterator[tuple[int, slice | int]]:
    """The same, with the place of bytes for them. A varint is taken as one of 64 bits with a sign.

    Raises StoreFault REMOTE_CORRUPT, which says ``what`` the message should be.
    """
    at = 0

    def number() -> int:
        nonlocal at
        value = 0
        for shift in range(0, 70, 7):
            if at >= len(data):
                break
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & _MASK
        raise _malformed_message(what)

    for _ in range(MAX_FIELDS):
        if at >= len(data):
            return
        tag = number()
        kind, field = tag & 7, tag >> 3
        length = {_FIXED_64: 8, _FIXED_32: 4}.get(kind, 0)
        if kind == _VARINT:
            value = number()
            yield field, value - (1 << 64) if value >> 63 else value
        elif kind == _BYTES:
            length = number()
        elif not length:
            raise _malformed_message(what)
        if not field:
            raise _malformed_message(what)
        if length > len(data) - at:
            raise StoreFault(Fault.REMOTE_CORRUPT, f"a cut {what}")
        if kind == _BYTES:
            yield field, slice(at, at + length)
        at += length
    if at < len(data):
        raise StoreFault(Fault.REMOTE_CORRUPT, f"a {what} of more than {MAX_FIELDS} fields")


def parts(data: bytes, number: int, what: str) -> list[bytes]:
    """What the fields of that number have, which are bytes. Raises StoreFault."""
    return [value for field, value in fields(data, what) if field == number and isinstance(value, bytes)]


def part(data: bytes, number: int, what: str) -> bytes:
    """Return the last of a field's values as bytes; empty for a missing field."""
    found = parts(data, number, what)
    return found[-1] if found else b""


def numbers(data: bytes, number: int, what: str) -> list[int]:
    """All numbers of a field that may have several, one by one or packed. Raises StoreFault."""
    found: list[int] = []
    for field, value in fields(data, what):
        if field == number:
            found += [value] if isinstance(value, int) else _unpack_varints(value, what)
    return found


def last(data: bytes, number: int, what: str) -> int:
    """Return the last of a field's numbers; 0 for a missing field. Raises StoreFault."""
    found = [value for field, value in fields(data, what) if field == number and isinstance(value, int)]
    return found[-1] if found else 0


def _unpack_varints(data: bytes, what: str) -> list[int]:
    found, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            found.append(value & _MASK)
            value = shift = 0
        elif shift > 63:
            raise _malformed_message(what)
    if shift:
        raise _malformed_message(what)
    return found


def _malformed_message(what: str) -> StoreFault:
    return StoreFault(Fault.REMOTE_CORRUPT, f"a malformed {what}")
