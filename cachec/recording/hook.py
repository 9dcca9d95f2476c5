"""The audit hook of this process (PEP 578). A hook can't be removed, so there is one for all who listen, and an event
costs a look-up for each of them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import FrameType
from typing import Any

#: Is told the event, its arguments and the frame that it is raised in.
Handler = Callable[[str, tuple[Any, ...], FrameType], None]


class AuditHook:
    """Tells those who listen of events."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: One item: those that listen now.
        self._listening: list[tuple[Mapping[str, Handler], ...]] = [()]
        sys.addaudithook(_hook(self._listening))

    def listen(self, handlers: Mapping[str, Handler]) -> None:
        """Have handlers told of their events from here on; the same ones are told once, however often they listen."""
        with self._lock:
            if not any(each is handlers for each in self._listening[0]):
                self._listening[0] = (*self._listening[0], handlers)

    def leave(self, handlers: Mapping[str, Handler]) -> None:
        """No more of that; those that do not listen are passed over."""
        with self._lock:
            self._listening[0] = tuple([each for each in self._listening[0] if each is not handlers])


def _hook(listening: list[tuple[Mapping[str, Handler], ...]]) -> Callable[[str, tuple[Any, ...]], None]:
    # A plain function: Python looks for an attribute of the hook with each event, which a method has not at once.
    def hook(event: str, args: tuple[Any, ...]) -> None:
        for handlers in listening[0]:
            handler = handlers.get(event)
            if handler is not None:
                handler(event, args, sys._getframe(1))

    return hook


@lru_cache(maxsize=1)
def audit_hook() -> AuditHook:
    """The one of this process."""
    return AuditHook()
