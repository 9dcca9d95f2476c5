"""The audit hook of this process (PEP 578). A hook can't be removed, so there is one for all who listen, and what
nobody listens to costs a look-up.
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
        self._handlers: dict[str, tuple[Handler, ...]] = {}
        sys.addaudithook(_hook(self._handlers))

    def listen(self, handlers: Mapping[str, Handler]) -> None:
        """Have handlers told of their events from here on, each once."""
        with self._lock:
            for event, handler in handlers.items():
                told = self._handlers.get(event, ())
                if handler not in told:
                    self._handlers[event] = (*told, handler)

    def leave(self, handlers: Mapping[str, Handler]) -> None:
        """No more of that; those that were told of nothing are passed over."""
        with self._lock:
            for event, handler in handlers.items():
                others = tuple([each for each in self._handlers.get(event, ()) if each != handler])
                if others:
                    self._handlers[event] = others
                else:
                    self._handlers.pop(event, None)


def _hook(handlers: Mapping[str, tuple[Handler, ...]]) -> Callable[[str, tuple[Any, ...]], None]:
    # A plain function: Python looks for an attribute of the hook with each event, which a method has not at once.
    def hook(event: str, args: tuple[Any, ...]) -> None:
        told = handlers.get(event)
        if told is not None:
            frame = sys._getframe(1)
            for handler in told:
                handler(event, args, frame)

    return hook


@lru_cache(maxsize=1)
def audit_hook() -> AuditHook:
    """The one of this process."""
    return AuditHook()
