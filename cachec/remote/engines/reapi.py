"""A cache that speaks the Remote Execution API of Bazel (version 2) by gRPC: its ActionCache, CAS and ByteStream.

A row is an ActionResult with the row as its ``stdout_raw`` and the blobs as its ``output_files``, so that the server
keeps both together. It is the result of an Action that says the row's name and is never run. A blob goes by its
SHA-256: it comes in a stream, which for one blob takes no longer than BatchReadBlobs, and goes in one unless it is
small. The API has no way to remove a result: it is replaced by
one that says so. The package ``grpcio`` is imported by the first question, as that takes 100 ms.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING

from cachec.errors import ConfigError, StoreFault
from cachec.model import Digest, Fault
from cachec.remote.engines import action, reapi_messages
from cachec.remote.engines.action import Sum
from cachec.remote.engines.base import CHUNK, MAX_ROW, STALL_SECONDS, RemoteBlob

if TYPE_CHECKING:
    from cachec.remote.engines.reapi_link import GrpcChannel
    from cachec.remote.urls import Address

#: Bytes of a blob that is sent in a message, where the server states no smaller number.
SMALL = 1 << 20

#: The row for a removed one.
_GONE = b"cachec: this row was removed\n"


class ReapiServer:
    """The engine on a server of the Remote Execution API."""

    def __init__(self, address: Address) -> None:
        """Raises ConfigError without the package."""
        if find_spec("grpc") is None:
            raise ConfigError(f"{address.shown} needs a package: pip install 'cachec[reapi]'")
        self._address = address
        self._instance = address.path.strip("/")
        self._channel: GrpcChannel | None = None
        self._stated: reapi_messages.Capabilities | None = None

    # --- rows

    def get_row(self, name: Digest, until: float) -> bytes | None:
        """See RemoteEngine."""
        row = self._row(name, until)
        return None if row == _GONE else row

    def _row(self, name: Digest, until: float) -> bytes | None:
        request = reapi_messages.asked_result(self._name, Sum.of(reapi_messages.action(name)))
        result = self._call(reapi_messages.GET_ACTION_RESULT, request, until)
        if result is None:
            return None
        elsewhere = action.find_external_row(result)
        if elsewhere is None:
            row = action.decode_row(result)
        elif elsewhere.size > MAX_ROW:
            raise self._fault(Fault.REMOTE_CORRUPT, f"has a row of {elsewhere.size} bytes")
        else:
            row = b"".join(self._content(elsewhere, until) or ())
        if len(row) > MAX_ROW:
            raise self._fault(Fault.REMOTE_CORRUPT, f"has a row of {len(row)} bytes")
        return row

    def put_row(self, name: Digest, row: bytes, blobs: Sequence[RemoteBlob], until: float, *, replace: bool) -> bool:
        """See RemoteEngine. The API has no condition: the second of two stays."""
        del replace
        self._refuse_unless_written(until)
        what = reapi_messages.action(name)
        self._batch_update((what, reapi_messages.COMMAND), until)  # the API wants both before the result
        result = action.encode_result(row, blobs)
        request = reapi_messages.updated_result(self._name, Sum.of(what), result)
        self._call_for_answer(reapi_messages.UPDATE_ACTION_RESULT, request, until)
        return True

    def delete_row(self, name: Digest, until: float) -> bool:
        """See RemoteEngine."""
        if self.get_row(name, until) is None:
            return False
        return self.put_row(name, _GONE, (), until, replace=True)

    # --- blobs

    def has_blob(self, blob: RemoteBlob, until: float) -> bool:
        """See RemoteEngine."""
        wanted = _sum(blob)
        if not wanted.size:
            return True  # so the API says
        request = reapi_messages.asked_missing(self._name, wanted)
        missing = reapi_messages.missing(self._call_for_answer(reapi_messages.FIND_MISSING_BLOBS, request, until))
        if set(missing) - {wanted}:
            raise self._fault(Fault.REMOTE_CORRUPT, "misses a blob that it was not asked for")
        return not missing

    def get_blob(self, blob: RemoteBlob, until: float) -> Iterator[bytes] | None:
        """See RemoteEngine."""
        return self._content(_sum(blob), until)

    def _content(self, wanted: Sum, until: float) -> Iterator[bytes] | None:
        if not wanted.size:
            return iter(())
        request = reapi_messages.asked_bytes(reapi_messages.read_name(self._instance, wanted))
        with self._open_channel() as channel:
            answers = channel.read(reapi_messages.READ, request, until)
        if answers is None:
            return None
        return self._exactly(wanted.size, chain.from_iterable(map(reapi_messages.read_pieces, answers)))

    def _exactly(self, size: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
        remaining = size
        for piece in pieces:
            remaining -= len(piece)
            if remaining < 0:
                break
            yield piece
        if remaining:
            more = "more" if remaining < 0 else "fewer"
            raise self._fault(Fault.REMOTE_CORRUPT, f"gives {more} bytes of a blob than its {size}")

    def put_blob(self, blob: RemoteBlob, path: str, until: float) -> None:
        """See RemoteEngine."""
        wanted = _sum(blob)
        if not wanted.size:
            return
        stated = self._refuse_unless_written(until)
        if stated.most and blob.size > stated.most:
            raise self._fault(Fault.REMOTE_SKIPPED, f"takes no blob of {blob.size} bytes; at most {stated.most}")
        with open(path, "rb") as file:
            if wanted.size <= min(SMALL, stated.batch or SMALL):
                self._batch_update((file.read(SMALL + 1),), until, (wanted,))
                return
            name = reapi_messages.write_name(self._instance, wanted, str(uuid.uuid4()))

            def requests() -> Iterator[bytes]:
                offset, is_last = 0, False
                while not is_last:
                    data = file.read(CHUNK)
                    is_last = not data or offset + len(data) >= wanted.size
                    yield reapi_messages.written_bytes(name, offset, data, is_last=is_last)
                    offset += len(data)

            with self._open_channel() as channel:
                answer = channel.write(reapi_messages.WRITE, requests(), until)
        if (taken := reapi_messages.decode_committed_size(answer)) != wanted.size:
            raise self._fault(Fault.REMOTE_CORRUPT, f"took {taken} bytes of a blob of {wanted.size}")

    def _batch_update(self, contents: Sequence[bytes], until: float, sums: Sequence[Sum] = ()) -> None:
        from cachec.remote.engines.reapi_link import fault_of

        sums = sums or [Sum.of(content) for content in contents]
        request = reapi_messages.batch_update(self._name, contents, sums)
        codes = reapi_messages.decode_update_codes(
            self._call_for_answer(reapi_messages.BATCH_UPDATE_BLOBS, request, until)
        )
        if codes.keys() != set(sums):
            raise self._fault(Fault.REMOTE_CORRUPT, "does not say whether it took a blob")
        for code in codes.values():
            if code:
                fault, name = fault_of(code)
                raise self._fault(fault, f"answers BatchUpdateBlobs with {name}")

    def close(self) -> None:
        """See RemoteEngine."""
        channel, self._channel, self._stated = self._channel, None, None
        if channel is not None:
            channel.close()

    # --- the server

    @property
    def _name(self) -> bytes:
        return self._instance.encode()

    def _refuse_unless_written(self, until: float) -> reapi_messages.Capabilities:
        """What the server says of itself, asked once a connection. Raises StoreFault REMOTE_REFUSED."""
        if self._stated is None:
            request = reapi_messages.asked_capabilities(self._name)
            answer = self._call(reapi_messages.GET_CAPABILITIES, request, until, none="UNIMPLEMENTED")
            stated = reapi_messages.Capabilities() if answer is None else reapi_messages.capabilities(answer)
            self._stated = stated
        if not self._stated.knows_sha256:
            raise self._fault(Fault.REMOTE_REFUSED, "does not go by SHA-256")
        if not self._stated.is_written:
            raise self._fault(Fault.REMOTE_REFUSED, "is only read: it says that results are not to be updated")
        return self._stated

    def _call(self, method: str, request: bytes, until: float, *, none: str = "NOT_FOUND") -> bytes | None:
        with self._open_channel() as channel:
            return channel.asked(method, request, min(until, monotonic() + STALL_SECONDS), none=none)

    def _call_for_answer(self, method: str, request: bytes, until: float) -> bytes:
        answer = self._call(method, request, until)
        if answer is None:
            raise self._fault(Fault.REMOTE_REFUSED, f"answers {method.rpartition('/')[2]} with NOT_FOUND")
        return answer

    @contextmanager
    def _open_channel(self) -> Iterator[GrpcChannel]:
        from cachec.remote.engines.reapi_link import GrpcChannel, asked_by

        if os.getpid() != asked_by():
            # The package's threads are the parent's: a question would hang here, or end the process.
            words = "can't be asked by a process that was forked after the first question"
            raise self._fault(Fault.REMOTE_SKIPPED, words)
        channel = self._channel
        if channel is None:
            channel = self._channel = GrpcChannel(self._address)
        try:
            yield channel
        except StoreFault as fault:
            if fault.fault is Fault.REMOTE_TIMEOUT and self._channel is channel:
                self._channel = None  # a dead connection may stay silent for minutes
            raise

    def _fault(self, fault: Fault, words: str) -> StoreFault:
        return StoreFault(fault, f"{self._address.shown} {words}")


def _sum(blob: RemoteBlob) -> Sum:
    return Sum(blob.sha256, blob.size)
