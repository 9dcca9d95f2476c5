"""Records as values of the index: the bytes of a row, checked when they are read.

bytes 0-5     ``cachec``
byte  6       RECORD_VERSION; a row of another version is a miss
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


def pack(record: msgspec.Struct) -> bytes:
    """The row of a record."""
    body = msgspec.json.encode(record)
    return b"".join((_MAGIC, bytes((RECORD_VERSION,)), blake3(body).digest(), body))


def body(row: bytes, name: str) -> memoryview:
    """The JSON in a row. Raises StoreFault ROW_CORRUPT or ROW_VERSION; name: of the row, for the message."""
    if not row.startswith(_MAGIC) or len(row) < _HEADER:
        raise StoreFault(Fault.ROW_CORRUPT, f"the row of {name} does not start like one of cachec's")
    version = row[len(_MAGIC)]
    if version != RECORD_VERSION:
        raise StoreFault(Fault.ROW_VERSION, f"the row of {name} has version {version}; this is {RECORD_VERSION}")
    data = memoryview(row)[_HEADER:]
    if blake3(data).digest() != row[_SUM]:
        raise StoreFault(Fault.ROW_CORRUPT, f"the row of {name} does not match its checksum")
    return data


def unpack(row: bytes, kind: type[T], name: str) -> T:
    """The record in a row. Raises StoreFault ROW_CORRUPT or ROW_VERSION."""
    try:
        record = msgspec.json.decode(body(row, name), type=kind)
    except MALFORMED_JSON as error:
        raise StoreFault(Fault.ROW_CORRUPT, f"the row of {name} is no {kind.__name__}: {error}") from error
    version = getattr(record, "version", RECORD_VERSION)
    if version != RECORD_VERSION:
        raise StoreFault(Fault.ROW_VERSION, f"the row of {name} has version {version}; this is {RECORD_VERSION}")
    return record


def state(row: bytes) -> bytes:
    """What tells one value of a row from another: its checksum, unchecked (32 bytes, fewer in a damaged row)."""
    return row[_SUM]
