"""What cachec looks up for itself is no input of a run: in a traced process it asks the tracer to look away.

A thread asks by looking up a path that does not exist: ``/proc/cachec-tracing/0/hide``, and ``.../show`` at the end
(see ``tracing.nested``).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Final

#: A folder that is not there. Traced processes speak to their tracer by paths below it.
REQUESTS = "/proc/cachec-tracing"

#: The last part of what a thread looks up to hide what it does, and to show it again.
HIDE, SHOW = "hide", "show"

#: Only processes of isolated stages import it.
_WORKER = "cachec.worker.child"

_depth: ContextVar[int] = ContextVar("cachec_unseen", default=0)

_NOTHING: Final = contextlib.nullcontext()


def is_unseen() -> bool:
    """Whether this context works for cachec itself."""
    return _depth.get() > 0


def unseen() -> AbstractContextManager[None]:
    """What this thread looks up in the body is not recorded. Costs nothing where no stage is traced: each hit asks."""
    return _hide_lookups() if is_worker() else _NOTHING


def is_worker() -> bool:
    """Whether this process runs a stage under the tracer."""
    return _WORKER in sys.modules


@contextlib.contextmanager
def _hide_lookups() -> Iterator[None]:
    token = _depth.set(_depth.get() + 1)
    is_outermost = _depth.get() == 1
    if is_outermost:
        _ask(HIDE)
    try:
        yield
    finally:
        if is_outermost:
            _ask(SHOW)
        _depth.reset(token)


def _ask(verb: str) -> None:
    with contextlib.suppress(OSError):  # it is answered by being looked up
        os.stat(f"{REQUESTS}/0/{verb}")
