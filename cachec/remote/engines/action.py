"""An ActionResult of the Remote Execution API (version 2) with a row in it: the few fields, by hand.

    message ActionResult { repeated OutputFile output_files = 2; bytes stdout_raw = 5; Digest stdout_digest = 6; }
    message OutputFile { string path = 1; Digest digest = 2; }
    message Digest { string hash = 1; int64 size_bytes = 2; }

The format is that of build/bazel/remote/execution/v2/remote_execution.proto in github.com/bazelbuild/remote-apis.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from cachec.errors import StoreFault
from cachec.model import Fault
from cachec.remote.engines import protobuf
from cachec.remote.engines.base import RemoteBlob

_WHAT = "ActionResult"


class Sum(NamedTuple):
    """A Digest of the API: SHA-256 in hexadecimal, and bytes."""

    sha256: str
    size: int

    @staticmethod
    def of(content: bytes) -> Sum:
        """That of some bytes."""
        return Sum(sha256(content).hexdigest(), len(content))

    @staticmethod
    def read(data: bytes) -> Sum:
        """That of a message. Raises StoreFault REMOTE_CORRUPT."""
        name, size = protobuf.part(data, 1, "Digest"), protobuf.last(data, 2, "Digest")
        if re.fullmatch(rb"[0-9a-f]{64}", name) is None or size < 0:
            raise StoreFault(Fault.REMOTE_CORRUPT, "a Digest that is no SHA-256 and size")
        return Sum(name.decode(), size)

    @property
    def encoded(self) -> bytes:
        """The message."""
        return protobuf.text(1, self.sha256.encode()) + protobuf.count(2, self.size)


def encode_result(row: bytes, blobs: Sequence[RemoteBlob]) -> bytes:
    """The message."""
    files = b"".join(
        protobuf.message(
            2, protobuf.text(1, blob.digest.encode()) + protobuf.message(2, Sum(blob.sha256, blob.size).encoded)
        )
        for blob in blobs
    )
    return files + protobuf.message(5, row)


def decode_row(message: bytes) -> bytes:
    """Return the row in a message. Raises StoreFault REMOTE_CORRUPT for a message without one."""
    rows = protobuf.parts(message, 5, _WHAT)
    if len(rows) != 1:
        raise StoreFault(Fault.REMOTE_CORRUPT, "an ActionResult without a row")
    return rows[0]


def find_external_row(message: bytes) -> Sum | None:
    """Where a row is that the server took out of the message, as it may; None where it did not. Raises StoreFault."""
    if protobuf.parts(message, 5, _WHAT):
        return None
    there = protobuf.part(message, 6, _WHAT)
    return Sum.read(there) if there else None
