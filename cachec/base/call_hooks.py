"""Oversight: what runs stages for somebody else (``cachec warm``, the pytest plugin) hears of every call, and may say
in which mode calls answer, whatever the caches and stages themselves were told.

It holds for a context (``overseen``), or for the process (``oversee_process``): threads that were started without the
context of their starter have only the latter. A context's own wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the pytest plugin imports this module in every run of pytest
    from pathlib import Path

    from cachec.model import Mode, Outcome


class Oversight:
    """on_outcome: called with each outcome, in the thread of its call. mode: wins over every setting; None leaves them
    as they are, and so does a call in the store ``spared``. defer: is given what would count, log and tell the outcome,
    to be called later or never; None: now.
    """

    def __init__(
        self,
        on_outcome: Callable[[Outcome], None] | None = None,
        mode: Mode | None = None,
        defer: Callable[[Callable[[], None]], None] | None = None,
        spared: Path | None = None,
    ) -> None:
        self.on_outcome, self.mode, self.defer, self.spared = on_outcome, mode, defer, spared

    def mode_in(self, store: Path | None) -> Mode | None:
        """Return the mode for calls in a store (None for calls without one); None for the calls' own mode."""
        return None if store is not None and store == self.spared else self.mode


_NONE = Oversight()
_here: ContextVar[Oversight | None] = ContextVar("cachec_oversight", default=None)


class _ProcessOversight:
    """The oversight of this process, not bound to a context, as threads have none.

    listener: called for every call, under any oversight.
    """

    oversight: Oversight = _NONE
    listener: Callable[[Outcome], None] | None = None


def current() -> Oversight:
    """Return the current oversight."""
    return _here.get() or _ProcessOversight.oversight


def report_outcome(outcome: Outcome, emit: Callable[[], None]) -> None:
    """Let who oversees this call hear of how it ended. emit: counts, logs and tells it."""
    overseer = current()
    if overseer.defer is None:
        emit()
    else:
        overseer.defer(emit)
    if overseer.on_outcome is not None:
        overseer.on_outcome(outcome)
    if _ProcessOversight.listener is not None:
        _ProcessOversight.listener(outcome)


def listen(listener: Callable[[Outcome], None]) -> None:
    """Have a listener called with each outcome of this process from now on, in the thread of its call."""
    _ProcessOversight.listener = listener


@contextmanager
def overseen(oversight: Oversight) -> Iterator[Oversight]:
    """Put the calls of this context under ``oversight`` while the body runs."""
    token = _here.set(oversight)
    try:
        yield oversight
    finally:
        _here.reset(token)


@contextmanager
def oversee_process(oversight: Oversight) -> Iterator[Oversight]:
    """Put every call of this process that no context oversees under ``oversight`` while the body runs."""
    before, _ProcessOversight.oversight = _ProcessOversight.oversight, oversight
    try:
        yield oversight
    finally:
        _ProcessOversight.oversight = before
