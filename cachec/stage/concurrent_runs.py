"""Runs that overlap in this process. A memo or cached property that one run filled may answer in another, whose reads
are then incomplete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, lru_cache
from types import CodeType, FunctionType
from typing import Any
from weakref import ref

from cachec.base.cached_properties import UnfilledProperties
from cachec.key.code.lru_cache_validity import Memo
from cachec.key.code.mutation_analysis import may_change
from cachec.recording import ReadRecorder


class ConcurrentRuns:
    """What the other runs do from the construction of this on.

    memos, unfilled: what keeps results, as the key of the run has it. A run around this one, and those in it, are no
    others: what happens in a run is seen by those around it, too.
    """

    def __init__(self, recorder: ReadRecorder, memos: Iterable[Memo], unfilled: Iterable[UnfilledProperties]) -> None:
        self._recorder = recorder
        self._unfilled = list(unfilled)
        self._is_alone = True
        #: By ``id``, code that ran in others.
        self._elsewhere: dict[int, CodeType] = {}
        #: Of the instances whose cached properties may be filled, those that others have too, by ``id``.
        self._shared: set[int] = set()
        going, place = _going(), id(self)
        going[place] = ref(self, lambda _: going.pop(place, None))
        # Only now: what another one fills from here on is not taken for older.
        self._before = {id(memo.function): memo.function.cache_info() for memo in memos}

    def is_alone(self) -> bool:
        """Whether no other run went on at the same time."""
        self._executed_code()
        return self._is_alone

    def end(self) -> None:
        """The run is over."""
        for other in _others():
            other._add(self)
            self._add(other)
        _going().pop(id(self), None)  # last: who does not find it any more was told

    def shared_memos(self, memos: Iterable[Memo], is_project: Callable[[str], bool]) -> Iterator[str]:
        """The names of memos that may have given this run what another one filled them with. memos: those that are
        reached, also of modules that were imported meanwhile."""
        executed = self._executed_code()
        for memo in memos:
            if self._was_filled(memo.function) and self._has_answered(memo.function):
                code = getattr(memo.function.__wrapped__, "__code__", None)
                if not self._is_own(code, executed, is_project):
                    yield memo.name

    def shared_properties(self, is_project: Callable[[str], bool]) -> Iterator[str]:
        """The same of cached properties."""
        executed = self._executed_code()
        for each in self._unfilled:
            for name in sorted(each.filled_names()):
                is_shared = id(each.value) in self._shared
                code = _code_of(type(each.value), name)
                # One that nobody else has may have been assigned by the run itself.
                if not self._is_own(code, executed, is_project, is_shared=is_shared) and (
                    is_shared or name not in may_change(executed.values())
                ):
                    yield f"{type(each.value).__qualname__}.{name}"

    def _executed_code(self) -> dict[int, CodeType]:
        """The code that ran in this run; what that of others is now is told, too."""
        for other in _others():
            self._add(other)
        return _codes(self._recorder)

    def _was_filled(self, function: Any) -> bool:
        """Whether anything was put into a memo since; only what was there before can have answered where not."""
        before = self._before.get(id(function))
        return before is None or function.cache_info().misses != before.misses

    def _has_answered(self, function: Any) -> bool:
        now, before = function.cache_info(), self._before.get(id(function))
        is_as_before = before is not None and before.hits <= now.hits and before.misses <= now.misses
        return bool(now.hits > (before.hits if is_as_before and before is not None else 0))

    def _is_own(
        self, code: object, executed: dict[int, CodeType], is_project: Callable[[str], bool], *, is_shared: bool = True
    ) -> bool:
        """Whether all that was filled meanwhile was filled by this run. code: of what fills; where that is not the
        project's, nobody is told where it runs."""
        if not isinstance(code, CodeType) or not is_project(code.co_filename) or self._recorder.net is None:
            return self._is_alone or not is_shared
        return id(code) in executed and not (is_shared and id(code) in self._elsewhere)

    def _add(self, other: ConcurrentRuns) -> None:
        if other is self or _is_around(self._recorder, other._recorder) or _is_around(other._recorder, self._recorder):
            return
        self._is_alone = False
        self._elsewhere.update(_codes(other._recorder))
        others = {id(each.value) for each in other._unfilled}
        self._shared.update(id(each.value) for each in self._unfilled if id(each.value) in others)


@lru_cache(maxsize=1)
def _going() -> dict[int, ref[ConcurrentRuns]]:
    """Those that go on, by ``id``. No lock: what the collector runs, and a new process, may begin runs at any time."""
    return {}


def _others() -> list[ConcurrentRuns]:
    return [each for known in list(_going().values()) if (each := known()) is not None]


def _codes(recorder: ReadRecorder) -> dict[int, CodeType]:
    return (
        {}
        if recorder.net is None
        else {key: each.code for key, each in list(recorder.net.observed.executed_code.items())}
    )


def _is_around(outer: ReadRecorder, inner: ReadRecorder) -> bool:
    above = inner.parent
    while above is not None and above is not outer:
        above = above.parent
    return above is outer


def _code_of(cls: type, name: str) -> CodeType | None:
    """What fills a cached property."""
    for base in cls.__mro__:
        if name in vars(base):
            found = vars(base)[name]
            function = found.func if isinstance(found, cached_property) else None
            return function.__code__ if isinstance(function, FunctionType) else None
    return None
