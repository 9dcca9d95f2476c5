"""The context managers that plugins put around a run."""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from types import TracebackType
from typing import Any


class Bracket:
    """Context managers of plugins, to be entered together, and again."""

    def __init__(self, around: Sequence[AbstractContextManager[Any]]) -> None:
        """around: entered in this order. Each can be entered again once it was left."""
        self._around = around
        self._entered = ExitStack()

    @property
    def is_empty(self) -> bool:
        """Whether no plugin puts anything around the run."""
        return not self._around

    def __enter__(self) -> None:
        with ExitStack() as entered:
            for each in self._around:
                entered.enter_context(each)
            self._entered = entered.pop_all()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._entered.__exit__(kind, error, tb)

    def steps(self, coroutine: Coroutine[Any, Any, Any]) -> Steps:
        """``coroutine``, to be awaited, each of its steps inside: what others do while it waits is outside."""
        return Steps(self, coroutine)


class Steps:
    """A coroutine that runs in a bracket. What a library keeps for a thread would else be seen by its other tasks."""

    def __init__(self, bracket: Bracket, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._bracket = bracket
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        """As the coroutine's own."""
        step = partial(self._coroutine.send, None)
        while True:
            try:
                with self._bracket:
                    waited_for = step()
            except StopIteration as stop:
                return stop.value
            try:
                step = partial(self._coroutine.send, (yield waited_for))
            except BaseException as error:  # noqa: BLE001 - thrown in by the loop, and meant for the coroutine
                step = partial(self._coroutine.throw, error)
