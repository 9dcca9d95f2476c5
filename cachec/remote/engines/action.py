"""An ActionResult of the Remote Execution API (version 2) with a row in it: the few fields, by hand.

    message ActionResult { repeated OutputFile output_files = 2; bytes stdout_raw = 5; }
    message OutputFile { string path = 1; Digest digest = 2; }
    message Digest { string hash = 1; int64 size_bytes = 2; }

The wire format is that of protocol buffers: ``varint(field << 3 | type)``, then a varint or (type 2) length and bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cachec.errors import StoreFault
from cachec.model import Fault
from cachec.remote.engines.base import Blob

_BYTES, _VARINT = 2, 0


def packed(row: bytes, blobs: Sequence[Blob]) -> bytes:
    """The message."""
    files = b"".join(
        _field(2, _field(1, blob.digest.encode()) + _field(2, _field(1, blob.sha256.encode()) + _size(blob.size)))
        for blob in blobs
    )
    return files + _field(5, row)


def unpacked(message: bytes) -> bytes:
    """The row in a message. Raises StoreFault REMOTE_CORRUPT where there is none."""
    rows = [data for field, data in _fields(message) if field == 5]
    if len(rows) != 1:
        raise StoreFault(Fault.REMOTE_CORRUPT, "an ActionResult without a row")
    return rows[0]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def _size(nbytes: int) -> bytes:
    return _varint(2 << 3 | _VARINT) + _varint(nbytes) if nbytes else b""


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and content of the fields that have bytes. Raises StoreFault."""
    at = 0

    def varint() -> int:
        nonlocal at
        number = 0
        for shift in range(0, 70, 7):
            if at >= len(message):
                break
            byte = message[at]
            at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise StoreFault(Fault.REMOTE_CORRUPT, "a malformed ActionResult")

    while at < len(message):
        tag = varint()
        kind = tag & 7
        length = {1: 8, 5: 4}.get(kind, 0)
        if kind == _VARINT:
            varint()
        elif kind == _BYTES:
            length = varint()
        elif not length:
            raise StoreFault(Fault.REMOTE_CORRUPT, "a malformed ActionResult")
        if length > len(message) - at:
            raise StoreFault(Fault.REMOTE_CORRUPT, "a cut ActionResult")
        if kind == _BYTES:
            yield tag >> 3, message[at : at + length]
        at += length
