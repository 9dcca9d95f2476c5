"""A server of Redis, or of what speaks its protocol: Valkey, KeyDB, Dragonfly.

    cachec:r:<node>    a row        cachec:b:<blake3>, cachec:b:<blake3>:1, ...    a blob, in values of ``PIECE`` bytes

A blob in many values stops no other client for long, and neither side ever holds more of it than one. The server may
evict any of them: a blob counts as there while all its bytes are. The package ``redis`` is imported by the first
question, as that takes 200 ms.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING, Any

from cachec.errors import ConfigError, StoreFault
from cachec.model import Digest, Fault
from cachec.remote.engines.base import MAX_ROW, STALL_SECONDS, LostLink, RemoteBlob

if TYPE_CHECKING:
    from cachec.remote.engines.redis_link import Link
    from cachec.remote.urls import Address

PIECE = 1 << 20

#: Bytes of a blob: as much as one string of Redis may have.
MAX_BLOB = 1 << 29

#: The limit for short answers, and for the part of an answer around its value, in bytes.
_SHORT = 1 << 16

#: Of the server's memory, what one blob may take: more would push out all that others have there.
_SHARE = 0.5


class RedisServer:
    """The engine on a server of Redis."""

    def __init__(self, address: Address) -> None:
        """Raises ConfigError without the package."""
        if find_spec("redis") is None:
            raise ConfigError(f"{address.shown} needs a package: pip install 'cachec[redis]'")
        self._address = address
        self._idle: list[Link] = []
        self._pid = os.getpid()

    def get_row(self, name: Digest, until: float) -> bytes | None:
        """See RemoteEngine."""
        return self._bytes(f"cachec:r:{name}", MAX_ROW, until)

    def put_row(self, name: Digest, row: bytes, blobs: Sequence[RemoteBlob], until: float, *, replace: bool) -> bool:
        """See RemoteEngine."""
        del blobs
        words = ("SET", f"cachec:r:{name}", row)
        (reply,) = self._send_commands(until, words if replace else (*words, "NX"))
        return reply is not None

    def delete_row(self, name: Digest, until: float) -> bool:
        """See RemoteEngine."""
        return self._send_commands(until, ("DEL", f"cachec:r:{name}")) == [1]

    def has_blob(self, blob: RemoteBlob, until: float) -> bool:
        """See RemoteEngine."""
        first, *others = _keys(blob)
        there = self._send_commands(until, ("EXISTS", first), *(("STRLEN", key) for key in (first, *others)))
        return there[0] == 1 and there[1:] == _sizes(blob)

    def get_blob(self, blob: RemoteBlob, until: float) -> Iterator[bytes] | None:
        """See RemoteEngine."""
        keys = _keys(blob)
        first = self._bytes(keys[0], PIECE, _soon(until))
        return None if first is None else self._pieces(first, keys[1:], until)

    def _pieces(self, first: bytes, keys: list[str], until: float) -> Iterator[bytes]:
        """All pieces; the server gets each ready while the one before is dealt with."""
        if not keys:
            yield first
            return
        piece, is_done, link = first, False, self._link(until)
        try:
            for key in keys:
                link.send((("GET", key),), _soon(until))
                yield piece
                (reply,) = link.replies(1, _soon(until), PIECE + _SHORT)
                piece = self._value(reply) or b""
                if not piece:
                    raise self._fault(Fault.REMOTE_CORRUPT, "has evicted a part of a blob")
            is_done = True
            yield piece
        except LostLink as lost:
            raise self._fault(Fault.REMOTE_UNREACHABLE, str(lost)) from lost
        finally:
            if is_done:
                self._idle.append(link)
            else:
                link.close()

    def put_blob(self, blob: RemoteBlob, path: str, until: float) -> None:
        """See RemoteEngine."""
        keys = _keys(blob)
        if len(keys) > 1 and blob.size > (most := self._blob_limit(until)):
            raise self._fault(Fault.REMOTE_SKIPPED, f"is not for a blob of {blob.size} bytes; at most {most:.0f}")
        with open(path, "rb") as file:
            try:
                for key in keys:
                    self._send_commands(until, ("SET", key, file.read(PIECE)))
            except StoreFault:
                with contextlib.suppress(StoreFault):
                    self._send_commands(until, ("UNLINK", *keys))  # an incomplete value is useless
                raise

    def close(self) -> None:
        """See RemoteEngine."""
        idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    def _blob_limit(self, until: float) -> float:
        """Bytes of the largest blob that is sent."""
        try:
            (text,) = self._send_commands(until, ("INFO", "memory"))
        except StoreFault as fault:
            if fault.fault is not Fault.REMOTE_REFUSED:
                raise
            return MAX_BLOB  # without permission to ask; the write reports it
        bound = re.search(rb"^maxmemory:([0-9]{1,18})\r?$", text if isinstance(text, bytes) else b"", re.MULTILINE)
        memory = int(bound[1]) if bound else 0
        return min(MAX_BLOB, memory * _SHARE) if memory else MAX_BLOB

    def _bytes(self, key: str, most: int, until: float) -> bytes | None:
        (reply,) = self._send_commands(until, ("GET", key), most=most)
        return self._value(reply)

    def _value(self, reply: Any) -> bytes | None:
        if isinstance(reply, StoreFault):
            raise reply
        if reply is None or isinstance(reply, bytes):
            return reply
        raise self._fault(Fault.REMOTE_CORRUPT, f"answers GET with {type(reply).__name__}")

    def _send_commands(self, until: float, *commands: Sequence[str | bytes], most: int = 0) -> list[Any]:
        """Send commands together, and return their replies of at most ``most`` bytes. Raises StoreFault."""
        if monotonic() >= until:
            raise self._fault(Fault.REMOTE_TIMEOUT, "was not asked in time")
        while True:
            is_reused = bool(self._idle) and self._pid == os.getpid()
            link = self._link(until)
            try:
                replies = link.asked(commands, until, most + _SHORT)
            except LostLink as lost:
                if is_reused:
                    continue  # the server closed the reused connection
                raise self._fault(Fault.REMOTE_UNREACHABLE, str(lost)) from lost
            self._idle.append(link)
            for reply in replies:
                if isinstance(reply, StoreFault):
                    raise reply
            return replies

    def _link(self, until: float) -> Link:
        """Return an unused connection, an open one if possible."""
        from cachec.remote.engines.redis_link import Link

        if self._pid != os.getpid():  # the connections are the parent's
            self._idle, self._pid = [], os.getpid()
        with contextlib.suppress(IndexError):  # another thread took the last
            return self._idle.pop()
        return Link(self._address, until)

    def _fault(self, fault: Fault, words: str) -> StoreFault:
        return StoreFault(fault, f"{self._address.shown} {words}")


def _keys(blob: RemoteBlob) -> list[str]:
    count = max(1, -(-blob.size // PIECE))
    return [f"cachec:b:{blob.digest}", *(f"cachec:b:{blob.digest}:{number}" for number in range(1, count))]


def _sizes(blob: RemoteBlob) -> list[int]:
    full, rest = divmod(blob.size, PIECE)
    return [PIECE] * full + [rest] * (rest > 0 or not full)


def _soon(until: float) -> float:
    return min(until, monotonic() + STALL_SECONDS)
