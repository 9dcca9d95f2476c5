"""What was concluded from content, remembered between processes: a table of a fixed number of rows for each kind.

    conclusion:<kind>:<slot>    slot: from 0 to ``SLOTS`` - 1, by what the answer is about

A row holds the digest of all that it is about, when it was last of use, and the answer, in the form of packing.py. Two
of one slot: the newer one stays. ``gc`` forgets what was of no use for ``FORGOTTEN_SECONDS``. Whoever asks names
everything that the answer follows from, itself (its version) among it: nothing else makes an answer old.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import msgspec

from cachec.base.hashing import DigestMemory, Hasher
from cachec.errors import StoreFault
from cachec.model import MALFORMED_JSON, Digest
from cachec.store.index import Index
from cachec.store.row_codec import pack, unpack

T = TypeVar("T")

_PREFIX = "conclusion:"
SLOTS = 1024
#: Bytes of the longest row.
MOST = 1 << 17
FORGOTTEN_SECONDS = 30 * 86400.0
#: How old the time in a row may be before one that is of use is written anew.
_RENEWED_SECONDS = 86400.0


class _Row(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    about: Digest
    time: float
    answer: msgspec.Raw


class Conclusions(Generic[T]):
    """Answers of one kind. Without a memory nothing is remembered."""

    def __init__(
        self, memory: DigestMemory | None, kind: str, form: type[T], *, clock: Callable[[], float] = time.time
    ) -> None:
        """kind: names the table. form: of an answer, as msgspec validates it."""
        self._memory = memory
        self._kind = kind
        self._form = form
        self._clock = clock

    def recall(self, *about: str) -> T | None:
        """The answer, valid by its form; None where there is none, or what is there is damaged."""
        if self._memory is None:
            return None
        digest = _digest(about)
        row = self._memory.recall(self._name(digest))
        if row is None:
            return None
        try:
            stored = unpack(row, _Row, self._kind)
            answer = msgspec.json.decode(stored.answer, type=self._form) if stored.about == digest else None
        except (StoreFault, *MALFORMED_JSON):
            return None  # it only costs the time to find out again
        if answer is not None and not 0 <= self._clock() - stored.time < _RENEWED_SECONDS:
            self._remember(digest, stored.answer)
        return answer

    def keep(self, answer: T, *about: str) -> None:
        """Remember an answer; one that is too long is not."""
        if self._memory is not None:
            self._remember(_digest(about), msgspec.Raw(msgspec.json.encode(answer)))

    def _remember(self, digest: Digest, answer: msgspec.Raw) -> None:
        assert self._memory is not None
        row = pack(_Row(digest, self._clock(), answer))
        if len(row) <= MOST:
            self._memory.remember(self._name(digest), row)

    def _name(self, digest: Digest) -> str:
        return f"{_PREFIX}{self._kind}:{int(digest[:8], 16) % SLOTS}"


def _digest(about: tuple[str, ...]) -> Digest:
    hasher = Hasher("conclusion")
    for each in about:
        hasher.part("about", each.encode("utf-8", "surrogatepass"))
    return hasher.digest()


def forgotten(index: Index, now: float) -> Iterator[str]:
    """The names of rows that were of no use for long, or are damaged. now: Unix time. Raises StoreFault."""
    for name, row in index.rows(_PREFIX):
        try:
            if row is not None and abs(now - unpack(row, _Row, name).time) < FORGOTTEN_SECONDS:
                continue
        except StoreFault:
            pass  # nobody can use it
        yield name
