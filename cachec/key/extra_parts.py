"""Parts that a user adds to every key: the setting ``key_parts`` names functions, and each returns a text.

A function takes no argument, and returns the version of a driver, for example. It is called for each key, of stages in
process, of isolated stages and of commands, because nothing reports when its answer changes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable

from cachec.base.tracer_hiding import unseen
from cachec.errors import PluginError
from cachec.key.stage_options import text_part
from cachec.model import Part, PartKind

#: Characters of a text that are shown.
_SHOWN = 120


def extra_parts(targets: Iterable[str]) -> list[Part]:
    """One part for each ``module:function``.

    Raises PluginError where one can't be imported, fails, or returns no text.
    """
    return [_part(target) for target in targets]


def _part(target: str) -> Part:
    module, _, name = target.partition(":")
    try:
        with unseen():  # every key has this part, so what its function reads is no input of the stage around it
            text = getattr(importlib.import_module(module), name)()
    except Exception as error:
        raise PluginError(
            f"key_parts: {target} fails: {type(error).__name__}: {error}; without it there is no key. Repair it, "
            f"or remove it from the setting key_parts; this Python is {sys.executable}"
        ) from error
    if not isinstance(text, str) or not text.isascii():
        raise PluginError(f"key_parts: {target} returned {text!r:.80}, expected a str of ASCII characters")
    return text_part(PartKind.AMBIENT, target, text, text[:_SHOWN])
