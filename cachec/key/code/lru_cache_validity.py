"""Whether the results in a project function's ``functools.lru_cache`` were made by its present code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from cachec.base.display_text import module_of
from cachec.base.instances import attribute


class Memo(msgspec.Struct, frozen=True):
    """A function with a memo that a stage reaches, and the digest of the code key of the function that it wraps."""

    function: Any
    digest: str

    @property
    def name(self) -> str:
        """The function in words."""
        return memo_name(self.function)


def memo_name(function: Any) -> str:
    """A function with a memo in words."""
    return f"{attribute(function, '__module__')}.{attribute(function, '__qualname__')}"


class _FillState:
    """With what code a memo may have been filled, as far as looks at it tell."""

    def __init__(self, memo: Memo) -> None:
        self.function = memo.function
        self.digests: set[str] = set()
        self.last = memo.digest
        self.misses = 0


def is_memo(value: object) -> bool:
    """Whether ``functools.lru_cache`` or ``functools.cache`` made this."""
    kind = type(value)
    return module_of(kind) == "functools" and kind.__qualname__ == "_lru_cache_wrapper"


class Memos:
    """The memos that were met in this process. What filled one before it was first met is taken to be the code of then.

    A memo answers in place of code that changed meanwhile, so a result that it may have had a part in is not stored.
    """

    def __init__(self) -> None:
        self._known: dict[int, _FillState] = {}

    def note_state(self, memo: Memo) -> None:
        """Note the state of a memo now that its function has this digest."""
        filled = self._now(memo)
        if memo.function.cache_info().currsize and not filled.digests:
            filled.digests.add(filled.last)
        filled.last = memo.digest

    def note_fill(self, before: Iterable[Memo], now: Iterable[Memo]) -> None:
        """Let what was filled with code of then stand for that of now, which is no other."""
        digests = {id(memo.function): memo.digest for memo in now}
        for memo in before:
            known, digest = self._known.get(id(memo.function)), digests.get(id(memo.function))
            if known is not None and digest is not None:
                self._now(memo)
                known.digests = {digest if each == memo.digest else each for each in known.digests}
                known.last = digest if known.last == memo.digest else known.last

    def stale(self, memos: Iterable[Memo]) -> list[str]:
        """The names of those that may hold results of other code than that of their digest."""
        return [memo.name for memo in memos if self._now(memo).digests - {memo.digest}]

    def _now(self, memo: Memo) -> _FillState:
        filled = self._known.get(id(memo.function))
        info = memo.function.cache_info()
        if filled is None:
            filled = self._known[id(memo.function)] = _FillState(memo)
        elif not info.currsize or info.misses < filled.misses:
            filled.digests.clear()  # it was emptied
            filled.last = memo.digest
        elif info.misses > filled.misses:
            filled.digests.add(filled.last)
        filled.misses = info.misses
        return filled
