"""Parts that a user adds to every key: the setting ``key_parts`` names functions, and each returns a text.

A function takes no argument and returns a text, such as the version of a driver. It is asked for each key, of stages in
process, of isolated stages and of commands, because nothing reports when its answer changes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from functools import cache

from cachec.base.unseen import unseen
from cachec.errors import PluginError
from cachec.key.options import text_part
from cachec.model import Part, PartKind

#: Characters of a text that are shown.
_SHOWN = 120


class ExtraParts:
    """The functions that a cache asks for each of its keys. False where there are none."""

    def __init__(self, targets: Iterable[str]) -> None:
        """targets: each ``module:function``. A module is imported for the first key."""
        self._targets = tuple(targets)
        self._function = cache(_function)

    def __bool__(self) -> bool:
        return bool(self._targets)

    def parts(self) -> list[Part]:
        """One part for each function. Raises PluginError where one can't be imported, fails, or returns no text."""
        return [self._part(target) for target in self._targets]

    def _part(self, target: str) -> Part:
        try:
            with unseen():  # every key has this part, so what its function reads is no input of the stage around it
                text = self._function(target)()
        except Exception as error:
            raise PluginError(
                f"key_parts: {target} fails: {type(error).__name__}: {error}; without it there is no key. Repair it, "
                f"or remove it from the setting key_parts; this Python is {sys.executable}"
            ) from error
        if not isinstance(text, str) or not text.isascii():
            raise PluginError(f"key_parts: {target} returned {text!r:.80}, expected a str of ASCII characters")
        return text_part(PartKind.AMBIENT, target, text, text[:_SHOWN])


def _function(target: str) -> Callable[[], object]:
    module, _, name = target.partition(":")
    function: Callable[[], object] = getattr(importlib.import_module(module), name)
    return function
