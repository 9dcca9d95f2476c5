"""The messages that a cache of the Remote Execution API (version 2) is asked by, and their answers.

After build/bazel/remote/execution/v2/remote_execution.proto of github.com/bazelbuild/remote-apis and
google/bytestream/bytestream.proto of github.com/googleapis/googleapis: numbers of fields stand beside the names here.
Every function that reads raises StoreFault REMOTE_CORRUPT for what is no such message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cachec.model import Digest
from cachec.remote.engines.action import Sum
from cachec.remote.engines.protobuf import count, last, message, numbers, part, parts, spans, text

_SERVICES = "/build.bazel.remote.execution.v2."
GET_CAPABILITIES = _SERVICES + "Capabilities/GetCapabilities"
GET_ACTION_RESULT = _SERVICES + "ActionCache/GetActionResult"
UPDATE_ACTION_RESULT = _SERVICES + "ActionCache/UpdateActionResult"
FIND_MISSING_BLOBS = _SERVICES + "ContentAddressableStorage/FindMissingBlobs"
BATCH_UPDATE_BLOBS = _SERVICES + "ContentAddressableStorage/BatchUpdateBlobs"
READ = "/google.bytestream.ByteStream/Read"
WRITE = "/google.bytestream.ByteStream/Write"

_SHA256 = 1

#: Bytes that are handed on at once.
PIECE = 1 << 20

#: Command { arguments = 1 }, which is never run.
COMMAND = text(1, b"cachec")


class Capabilities(NamedTuple):
    """What a server says of itself."""

    knows_sha256: bool = True
    is_written: bool = True
    batch: int = 0
    #: With ``batch``: bytes of a blob, and of those of one batch; 0 for any.
    most: int = 0


def action(row: Digest) -> bytes:
    """Return the Action with the row of that name as its result; the server stores the row under its SHA-256.

    Action { command_digest = 1, input_root_digest = 2, salt = 9 }
    """
    command, root = Sum.of(COMMAND).encoded, Sum.of(b"").encoded
    return message(1, command) + message(2, root) + text(9, b"cachec row " + row.encode())


def asked_capabilities(instance: bytes) -> bytes:
    """GetCapabilitiesRequest { instance_name = 1 }"""
    return text(1, instance)


def capabilities(answer: bytes) -> Capabilities:
    """ServerCapabilities { cache_capabilities = 1 }, of which CacheCapabilities { digest_functions = 1,
    action_cache_update_capabilities = 2 { update_enabled = 1 }, max_batch_total_size_bytes = 4,
    max_cas_blob_size_bytes = 8 }
    """
    what = "ServerCapabilities"
    cache = part(answer, 1, what)
    functions = numbers(cache, 1, what)
    return Capabilities(
        knows_sha256=not functions or _SHA256 in functions,
        is_written=bool(last(part(cache, 2, what), 1, what)),
        batch=max(0, last(cache, 4, what)),
        most=max(0, last(cache, 8, what)),
    )


def asked_result(instance: bytes, action_sum: Sum) -> bytes:
    """GetActionResultRequest { instance_name = 1, action_digest = 2, inline_stdout = 3 }"""
    return text(1, instance) + message(2, action_sum.encoded) + count(3, 1)


def updated_result(instance: bytes, action_sum: Sum, result: bytes) -> bytes:
    """UpdateActionResultRequest { instance_name = 1, action_digest = 2, action_result = 3 }"""
    return text(1, instance) + message(2, action_sum.encoded) + message(3, result)


def asked_missing(instance: bytes, wanted: Sum) -> bytes:
    """FindMissingBlobsRequest { instance_name = 1, blob_digests = 2 }"""
    return text(1, instance) + message(2, wanted.encoded)


def missing(answer: bytes) -> list[Sum]:
    """FindMissingBlobsResponse { missing_blob_digests = 2 }"""
    return [Sum.read(each) for each in parts(answer, 2, "FindMissingBlobsResponse")]


def batch_update(instance: bytes, contents: Sequence[bytes], sums: Sequence[Sum]) -> bytes:
    """BatchUpdateBlobsRequest { instance_name = 1, requests = 2 { digest = 1, data = 2 } }"""
    requests = [message(1, each.encoded) + text(2, data) for each, data in zip(sums, contents, strict=True)]
    return text(1, instance) + b"".join(message(2, request) for request in requests)


def decode_update_codes(answer: bytes) -> dict[Sum, int]:
    """The codes of BatchUpdateBlobsResponse { responses = 1 { digest = 1, status = 2 { code = 1 } } }"""
    what = "BatchUpdateBlobsResponse"
    return {Sum.read(part(each, 1, what)): last(part(each, 2, what), 1, what) for each in parts(answer, 1, what)}


def read_name(instance: str, blob: Sum) -> str:
    """The resource of a blob that is read."""
    return "/".join(filter(None, (instance, "blobs", blob.sha256, str(blob.size))))


def write_name(instance: str, blob: Sum, upload: str) -> str:
    """The resource of a blob that is written. upload: a UUID."""
    return "/".join(filter(None, (instance, "uploads", upload, "blobs", blob.sha256, str(blob.size))))


def asked_bytes(name: str) -> bytes:
    """ReadRequest { resource_name = 1 }"""
    return text(1, name.encode())


def read_pieces(answer: bytes) -> Iterator[bytes]:
    """ReadResponse { data = 10 }, a piece at a time: some may wait to be written, and a message may have 4 MiB."""
    for field, place in spans(answer, "ReadResponse"):
        if field == 10 and isinstance(place, slice):
            for at in range(place.start, place.stop, PIECE):
                yield answer[at : min(at + PIECE, place.stop)]


def written_bytes(name: str, offset: int, data: bytes, *, is_last: bool) -> bytes:
    """WriteRequest { resource_name = 1, write_offset = 2, finish_write = 3, data = 10 }; only the first request has the
    name."""
    return text(1, b"" if offset else name.encode()) + count(2, offset) + count(3, is_last) + text(10, data)


def decode_committed_size(answer: bytes) -> int:
    """WriteResponse { committed_size = 1 }"""
    return last(answer, 1, "WriteResponse")
