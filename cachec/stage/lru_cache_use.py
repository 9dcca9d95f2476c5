"""Which functions with ``lru_cache`` answered a run with earlier results: the run does not observe those reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import CodeType, ModuleType
from typing import Any

import msgspec

from cachec.base.instances import attribute
from cachec.key.code.lru_cache_validity import Memo, is_memo, memo_name
from cachec.key.stage_options import StageLike
from cachec.model import Read


class RecordedFill(msgspec.Struct, frozen=True):
    """How stored runs filled a memo, where nothing else did."""

    #: The function with the memo.
    function: Any
    #: Its count when the last of these runs ended.
    misses: int
    #: The stages of the runs.
    stages: tuple[StageLike, ...] = ()
    #: The live state of libraries in the keys of the runs.
    ambient: Mapping[str, str] = {}
    #: Everything that the runs read.
    reads: frozenset[Read] = frozenset()


class MemoUse:
    """The memos that one run of a stage may take results from.

    A memo that was filled before the run answers in place of code that reads files, variables and the like, so the run
    does not see these reads. The run may count them only where recorded runs alone filled the memo. known: the fills
    of earlier runs, by the ``id`` of the function. ambient: as in ``RecordedFill``.
    """

    def __init__(self, memos: Iterable[Memo], known: dict[int, RecordedFill], ambient: Mapping[str, str]) -> None:
        self._known = known
        self._ambient = ambient
        self._before = {id(memo.function): (memo.function, memo.function.cache_info()) for memo in memos}
        self._fills = {id(function): self._fill_of(function, info) for function, info in self._before.values()}

    def _fill_of(self, function: Any, info: Any) -> RecordedFill | None:
        """How a memo was filled until now; None where that was not by recorded runs alone."""
        if not info.currsize:
            return RecordedFill(function, info.misses)
        fill = self._known.get(id(function))
        is_whole = fill is not None and fill.function is function and fill.misses == info.misses
        return fill if is_whole else None

    def earlier_results(self) -> tuple[list[str], list[RecordedFill]]:
        """The memos that answered from before the run: the names of those for which nothing was recorded, and the
        fills of the others."""
        names, fills = [], []
        for function, before in self._before.values():
            now = function.cache_info()
            if not before.currsize or (now.hits == before.hits and now.misses >= before.misses):
                continue
            fill = self._fills[id(function)]  # a memo that was emptied meanwhile may have answered before that
            is_counted = fill is not None and now.hits > before.hits and fill.ambient.items() <= self._ambient.items()
            if fill is not None and is_counted:
                fills.append(fill)
            else:
                names.append(memo_name(function))
        return names, fills

    def record(self, stage: StageLike, reads: Iterable[Read], now: Iterable[Memo], imported: Collection[str]) -> None:
        """Note that the run, which is stored, filled memos. now: also of modules that were imported meanwhile.
        imported: the names of the modules that were imported before."""
        counted = frozenset(reads)
        for function in (memo.function for memo in now):
            info = function.cache_info()
            before = self._before.get(id(function))
            if before is not None:
                fill = self._fills[id(function)]
            else:
                fill = None if attribute(function, "__module__") in imported else RecordedFill(function, 0)
            if fill is None or (before is not None and before[1].misses == info.misses):
                continue
            stages = (*[each for each in fill.stages if each is not stage], stage)
            self._known[id(function)] = RecordedFill(
                function, info.misses, stages, {**fill.ambient, **self._ambient}, fill.reads | counted
            )


def memos_named(
    executed: Iterable[tuple[CodeType, Mapping[str, Any]]], is_project: Callable[[str], bool]
) -> Iterator[tuple[str, Any]]:
    """The functions with a memo, and their names, that code names which ran: also what a module holds that it names."""
    for code, namespace in executed:
        values = [namespace.get(name) for name in code.co_names]
        spaces = [attribute(each, "__dict__") for each in values if type(each) is ModuleType]
        for value in (*values, *(space.get(name) for space in spaces for name in code.co_names)):
            if is_memo(value):
                wrapped = attribute(attribute(value, "__wrapped__"), "__code__")
                if isinstance(wrapped, CodeType) and is_project(wrapped.co_filename):
                    yield memo_name(value), value
