"""What ``functools.lru_cache`` holds for functions of the project, as far as it can be changed in place.

It answers in place of code, so it counts in the key by content; but not what a run put there and is as it was then,
for without it a run would make the same.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from cachec.base.bounded_dict import BoundedDict
from cachec.base.cached_properties import excluded_properties, note
from cachec.key.code.lru_cache_validity import Memo

if TYPE_CHECKING:
    from cachec.key.code.fingerprint import CodeKey

_SCALARS = frozenset({type(None), bool, int, float, complex, str, bytes, type(Ellipsis), object})

#: More entries than this are not held against what they were.
_MOST = 10_000

#: Entries of which the digest is remembered.
_MAX_CACHED = 1024


class MemoEntry(msgspec.Struct, frozen=True):
    """What a memo was called with, and what it keeps of that; ``digest`` of both."""

    given: object
    result: object
    digest: str


#: What memos held, by the ``id`` of their function: those entries that can be changed.
MemoEntries = dict[int, list[MemoEntry]]


class LruCacheContents:
    """Entries that runs made in memos. of_value: see ``CodeKeys``."""

    def __init__(self, of_value: Callable[[object], tuple[CodeKey, Callable[[], bool]] | None]) -> None:
        self._of_value = of_value
        self._made: MemoEntries = {}
        self._first: dict[int, dict[tuple[int, int], MemoEntry]] = {}
        self._known: BoundedDict[tuple[object, object, CodeKey, Callable[[], bool]]] = BoundedDict(_MAX_CACHED)

    def snapshot(self, memos: Iterable[Memo]) -> MemoEntries:
        """What these memos hold that can be changed, and has a stable form."""
        return {id(memo.function): found for memo in memos if (found := list(self._entries(memo.function)))}

    def digests(self, contents: MemoEntries) -> dict[int, list[str]]:
        """The digests of what counts: all that no run made, or that is another by now."""
        counted: dict[int, list[str]] = {}
        for function, entries in contents.items():
            made = {(id(each.given), id(each.result), each.digest) for each in self._made.get(function, ())}
            found = [each.digest for each in entries if (id(each.given), id(each.result), each.digest) not in made]
            if found:
                counted[function] = sorted(found)
        return counted

    def changed_functions(self, contents: MemoEntries) -> set[int]:
        """The functions that answer for an object which they know by identity, and which changed since that was first
        seen: whether a call is of that object or of an equal one shows in no content."""
        changed: set[int] = set()
        for function, entries in contents.items():
            first = self._first.get(function, {})
            now = {(id(each.given), id(each.result)): each for each in entries}
            self._first[function] = {place: first.get(place, each) for place, each in now.items()}
            if any(
                self._first[function][place].digest != each.digest and _by_identity(each.given)
                for place, each in now.items()
            ):
                changed.add(function)
        return changed

    def note_run(self, before: MemoEntries, now: MemoEntries) -> None:
        """Note what a run put into memos, which held nothing that counts before."""
        for function, entries in now.items():
            there = {(id(each.given), id(each.result)) for each in before.get(function, ())}
            known = {(id(each.given), id(each.result)): each for each in self._made.get(function, ())}
            self._made[function] = [
                known.get(place, each) if place in there else each
                for each in entries
                if (place := (id(each.given), id(each.result))) not in there or place in known
            ]

    def _entries(self, function: Any) -> Iterator[MemoEntry]:
        if not function.cache_info().currsize:
            return
        pairs = _pairs(function)
        if all(_SCALARS.issuperset(map(type, each)) for each in zip(*pairs, strict=True)):
            return  # most are of these, and there may be many
        for given, result in pairs:
            if not (_is_fixed(given) and _is_fixed(result)):
                digest = self._digest(given, result)
                if digest is not None:
                    yield MemoEntry(given, result, digest)

    def _digest(self, given: object, result: object) -> str | None:
        place = (id(given), id(result))
        known = None if excluded_properties() else self._known.get(place)
        if known is not None and known[0] is given and known[1] is result and known[3]():
            note(known[2].unfilled)
            return known[2].digest
        found = self._of_value([_plain(given), result])
        if found is None:
            return None
        key, holds = found
        note(key.unfilled)
        if not excluded_properties():
            self._known.put(place, (given, result, key, holds))
        return key.digest


def _pairs(function: Any) -> list[tuple[object, object]]:
    """Keys and results of a memo, as the collector of garbage is told of them."""
    info = function.cache_info()
    if not 0 < info.currsize <= _MOST:
        return []
    # After its type: of a bounded one a key, its result and the type of what ties them, entry by entry; the table.
    referents = gc.get_referents(function)[1:]
    if info.maxsize is None:
        return list(referents[0].items())
    links = referents[: 3 * info.currsize]
    return list(zip(links[::3], links[1::3], strict=True))


def _is_fixed(value: object) -> bool:
    """Whether nothing in a value can be changed in place, or counts elsewhere: code."""
    if type(value) in (tuple, frozenset):
        return all(map(_is_fixed, value))  # type: ignore[call-overload]
    return type(value) in _SCALARS or isinstance(value, FunctionType | type | ModuleType)


def _by_identity(given: object) -> bool:
    """Whether an argument among these is equal to none but itself."""
    if type(given) is tuple:
        return any(map(_by_identity, given))
    return not _is_fixed(given) and type(given).__hash__ is object.__hash__


def _plain(given: object) -> object:
    """The key of a call without the mark between arguments by position and by name."""
    if isinstance(given, tuple):
        return ["by name" if type(each) is object else each for each in given]
    return given
