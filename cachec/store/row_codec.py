"""Records as values of the index: the bytes of a row, checked when they are read.

bytes 0-5     ``cachec``
byte  6       RECORD_VERSION, or STORE_VERSION of a row that all versions share; another version is a miss
bytes 7-38    BLAKE3-256 of the rest: SQLite has no checksums, so damage to a page could pass for another value
bytes 39-     the record, as JSON (RFC 8259)
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from blake3 import blake3

from cachec.errors import StoreFault
from cachec.model import MALFORMED_JSON, RECORD_VERSION, Fault

T = TypeVar("T")

_MAGIC = b"cachec"
_SUM = slice(len(_MAGIC) + 1, len(_MAGIC) + 33)
_HEADER = _SUM.stop


def pack(record: msgspec.Struct, version: int = RECORD_VERSION) -> bytes:
    """The row of a record."""
    body = msgspec.json.encode(record)
    return b"".join((_MAGIC, bytes((version,)), blake3(body).digest(), body))


def body(row: bytes, name: str, expected: int = RECORD_VERSION) -> memoryview:
    """The JSON in a row. Raises StoreFault ROW_CORRUPT or ROW_VERSION; name: of the row, for the message."""
    if not row.startswith(_MAGIC) or len(row) < _HEADER:
        raise StoreFault(Fault.ROW_CORRUPT, f"the row of {name} does not start like one of cachec's")
    version = row[len(_MAGIC)]
    if version != expected:
        raise StoreFault(Fault.ROW_VERSION, f"the row of {name} has version {version}; this is {expected}")
    data = memoryview(row)[_HEADER:]
    if blake3(data).digest() != row[_SUM]:
        raise StoreFault(Fault.ROW_CORRUPT, f"the row of {name} does not match its checksum")
    return data


def unpack(row: bytes, kind: type[T], name: str, expected: int = RECORD_VERSION) -> T:
    """The record in a row. Raises StoreFault ROW_CORRUPT or ROW_VERSION."""
    try:
        record = msgspec.json.decode(body(row, name, expected), type=kind)
    except MALFORMED_JSON as error:
        raise StoreFault(Fault.ROW_CORRUPT, f"the row of {name} is no {kind.__name__}: {error}") from error
    version = getattr(record, "version", expected)
    if version != expected:
        raise StoreFault(Fault.ROW_VERSION, f"the row of {name} has version {version}; this is {expected}")
    return record


def state(row: bytes) -> bytes:
    """What tells one value of a row from another: its checksum, unchecked (32 bytes, fewer in a damaged row)."""
    return row[_SUM]
