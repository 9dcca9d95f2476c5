"""Parsing of source texts where other threads parse too.

Older Pythons (3.11.7) have one counter for all threads of how deep a tree is (gh-106905): where one is interrupted
while its tree is made, by a callback of the garbage collector such as JAX installs, and another parses meanwhile, the
first ends with a SystemError, of which the text is no cause. So one thread of ours parses at a time, and again where a
thread of somebody else's came between.
"""

from __future__ import annotations

import ast
import os
import threading
from typing import Any

_TRIES = 20

#: Nobody waits for the others longer than this: what the collector runs meanwhile may wait for anything.
_SECONDS = 5.0


class _Turn:
    """Whose turn it is. A thread may parse while it parses: the collector may run code that calls stages."""

    lock = threading.RLock()

    @classmethod
    def renew(cls) -> None:
        """A new process: the thread that had the turn may not be in it."""
        cls.lock = threading.RLock()


os.register_at_fork(after_in_child=_Turn.renew)


def parsed(text: str | bytes, path: str = "<unknown>", *, mode: str = "exec") -> Any:
    """The tree of a text, as ``ast.parse`` makes it, which raises SyntaxError and ValueError."""
    for _ in range(_TRIES - 1):
        try:
            return _parsed(text, path, mode)
        except SystemError:
            continue
    return _parsed(text, path, mode)


def _parsed(text: str | bytes, path: str, mode: str) -> Any:
    lock = _Turn.lock
    has_turn = lock.acquire(timeout=_SECONDS)
    try:
        return ast.parse(text, path, mode)
    finally:
        if has_turn:
            lock.release()
