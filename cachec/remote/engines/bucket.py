"""A bucket of an object store: S3 and what speaks its protocol, Google's and Azure's.

    <prefix>/r/ab/<node>    a row        <prefix>/b/ab/<blake3>    a blob

A row is written by a conditional put. Servers that ignore the condition replace the row, which costs at most a hit, and
those that refuse it are asked without. Who asks is told by the environment, as for any client (``AWS_...``,
``GOOGLE_...``, ``AZURE_...``). The client (bucket_client.py) is imported by the first question.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from cachec.errors import ConfigError, StoreFault
from cachec.model import Digest, Fault
from cachec.remote.engines.base import MAX_ROW, STALL_SECONDS, RemoteBlob, run_with_deadline

if TYPE_CHECKING:
    from cachec.remote.engines.bucket_client import Client
    from cachec.remote.urls import Address

T = TypeVar("T")


class Bucket:
    """The engine on a bucket."""

    def __init__(self, address: Address) -> None:
        """Raises ConfigError without the package."""
        if find_spec("obstore") is None:
            raise ConfigError(f"{address.shown} needs a package: pip install 'cachec[s3]'")
        self._address = address
        self._client: Client | None = None

    def get_row(self, name: Digest, until: float) -> bytes | None:
        """See RemoteEngine."""

        def row(client: Client) -> bytes | None:
            found = client.get(_row(name))
            if found is None:
                return None
            if found.size > MAX_ROW:
                raise self._fault(Fault.REMOTE_CORRUPT, f"has a row of {found.size} bytes")
            return found.whole()

        return self._query(row, until)

    def put_row(self, name: Digest, row: bytes, blobs: Sequence[RemoteBlob], until: float, *, replace: bool) -> bool:
        """See RemoteEngine."""
        del blobs
        return self._query(lambda client: client.put(_row(name), row, replace=replace), until)

    def delete_row(self, name: Digest, until: float) -> bool:
        """See RemoteEngine. S3 does not tell whether there was one."""
        return self._query(lambda client: client.delete(_row(name)), until)

    def has_blob(self, blob: RemoteBlob, until: float) -> bool:
        """See RemoteEngine."""
        return self._query(lambda client: client.size(_blob(blob)), until) == blob.size

    def get_blob(self, blob: RemoteBlob, until: float) -> Iterator[bytes] | None:
        """See RemoteEngine."""
        found = self._query(lambda client: client.get(_blob(blob)), until)
        if found is None:
            return None
        if found.size != blob.size:
            raise self._fault(Fault.REMOTE_CORRUPT, f"says {found.size} bytes of a blob of {blob.size}")
        return self._pieces(found.pieces(), until)

    def _pieces(self, pieces: Iterator[bytes], until: float) -> Iterator[bytes]:
        while (piece := self._run_bounded(lambda: next(pieces, None), until)) is not None:
            yield piece

    def put_blob(self, blob: RemoteBlob, path: str, until: float) -> None:
        """See RemoteEngine."""
        with open(path, "rb") as file:
            self._query(lambda client: client.put(_blob(blob), file, replace=True), until, stalls=False)

    def close(self) -> None:
        """See RemoteEngine."""
        self._client = None

    def _query(self, question: Callable[[Client], T], until: float, *, stalls: bool = True) -> T:
        """The answer of the client, in time. stalls: whether none for seconds is as good as never."""
        return self._run_bounded(lambda: question(self._open_client()), until, stalls=stalls)

    def _run_bounded(self, call: Callable[[], T], until: float, *, stalls: bool = True) -> T:
        # In a thread: the client heeds no interrupt, and its own time-outs are those of a connection.
        return run_with_deadline(
            call, min(until, monotonic() + STALL_SECONDS) if stalls else until, self._address.shown
        )

    def _open_client(self) -> Client:
        from cachec.remote.engines.bucket_client import Client, asked_by

        if os.getpid() != asked_by():
            # Its threads are the parent's, and so are its sockets: a question would hang here, and there later on.
            words = "can't be asked by a process that was forked after the first question"
            raise self._fault(Fault.REMOTE_SKIPPED, words)
        if self._client is None:
            self._client = Client(self._address)
        return self._client

    def _fault(self, fault: Fault, words: str) -> StoreFault:
        return StoreFault(fault, f"{self._address.shown} {words}")


def _row(name: Digest) -> str:
    return f"r/{name[:2]}/{name}"


def _blob(blob: RemoteBlob) -> str:
    return f"b/{blob.digest[:2]}/{blob.digest}"
