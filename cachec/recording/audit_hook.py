"""The audit hook of this process (PEP 578). A hook cannot be removed, so all listeners share one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import FrameType
from typing import Any

#: Gets the event, its arguments and the frame that raised it.
Handler = Callable[[str, tuple[Any, ...], FrameType], None]


#: Event -> its handlers.
_Handlers = dict[str, tuple[Handler, ...]]

#: The number of combinations of listeners with a cached table.
_GROUPS = 16


class AuditHook:
    """Tells those who listen of events."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listening: tuple[Mapping[str, Handler], ...] = ()
        #: Of those who listened together before, by their ids: to begin and to end is all that most runs do here.
        self._known: dict[tuple[int, ...], tuple[tuple[Mapping[str, Handler], ...], _Handlers]] = {}
        #: One item: the current handlers.
        self._handlers: list[_Handlers] = [{}]
        sys.addaudithook(_hook(self._handlers))

    def listen(self, handlers: Mapping[str, Handler]) -> None:
        """Call handlers for their events from now on. A handler that listens repeatedly is called only once."""
        with self._lock:
            if not any(each is handlers for each in self._listening):
                self._tell((*self._listening, handlers))

    def leave(self, handlers: Mapping[str, Handler]) -> None:
        """No more of that; those that do not listen are passed over."""
        with self._lock:
            self._tell(tuple([each for each in self._listening if each is not handlers]))

    def _tell(self, listening: tuple[Mapping[str, Handler], ...]) -> None:
        group = tuple(map(id, listening))
        known = self._known.get(group)
        if known is None:
            handlers: _Handlers = {}
            for each in listening:
                for event, handler in each.items():
                    handlers[event] = (*handlers.get(event, ()), handler)
            if len(self._known) >= _GROUPS:
                self._known.clear()
            known = self._known[group] = (listening, handlers)  # holds them, so that no other gets their ids
        self._listening, self._handlers[0] = known


def _hook(now: list[_Handlers]) -> Callable[[str, tuple[Any, ...]], None]:
    # A plain function: Python reads an attribute of the hook at each event, which is slower on a method.
    def hook(event: str, args: tuple[Any, ...]) -> None:
        handlers = now[0].get(event)
        if handlers is not None:
            frame = sys._getframe(1)
            for handler in handlers:
                handler(event, args, frame)

    return hook


@lru_cache(maxsize=1)
def audit_hook() -> AuditHook:
    """The one of this process."""
    return AuditHook()
