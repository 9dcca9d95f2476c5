"""Which code objects a source file compiles to, cached between processes.

Kept are digests of code objects with their places. Code whose digest is among those of the very text that its file has
now is what that compiles to. All other code is compared with the text compiled anew, so what is lost, damaged, or of
another text costs the time of that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import cached_property
from types import CodeType

from cachec.base.hashing import DigestMemory, Hasher
from cachec.key.code.code_objects import placed_digest

_DIGEST_BYTES = 32


class CompileCache:
    """What is kept of one file with this text, in a row of its own: a checksum with the text, and the digests."""

    def __init__(self, path: str, text: bytes, memory: DigestMemory) -> None:
        self._text = text
        self._memory = memory
        hasher = Hasher("compiled file")
        hasher.part("python", f"{sys.version} {sys.flags.optimize}".encode())
        hasher.part("path", os.fsencode(path))
        self._row = f"digest:code:{hasher.digest()}"

    def holds(self, code: CodeType) -> bool:
        """Whether the text compiles to this code, at the same place."""
        return placed_digest(code) in self._stored_digests

    def keep(self, codes: Iterable[CodeType]) -> None:
        """Remember what the text compiles to: all of its code objects."""
        found = frozenset(map(placed_digest, codes))
        if found != self._stored_digests:
            body = b"".join(sorted(found))
            self._memory.remember(self._row, self._checksum(body) + body)

    @cached_property
    def _stored_digests(self) -> frozenset[bytes]:
        row = self._memory.recall(self._row) or b""
        body = row[_DIGEST_BYTES:]
        if len(body) % _DIGEST_BYTES or row[:_DIGEST_BYTES] != self._checksum(body):
            return frozenset()
        return frozenset(body[at : at + _DIGEST_BYTES] for at in range(0, len(body), _DIGEST_BYTES))

    def _checksum(self, body: bytes) -> bytes:
        hasher = Hasher("code of a text")
        hasher.part("row", self._row.encode())
        hasher.part("text", self._text)
        hasher.part("codes", body)
        return bytes.fromhex(hasher.digest())
