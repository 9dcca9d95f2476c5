"""The lowest layer: raw files, hashing, logs, installed wheels."""

import sys
import time

TYPE_CHECKING = False  # importing typing would double the start of `cachec exec`
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType
    from typing import Any

#: The version of cachec: here, where every room can have it; ``cachec.__version__`` is this one.
__version__ = "0.1.0"

#: The names of the modules that were imported before cachec, and when cachec was, in seconds of Unix time as file
#: systems tell it (CLOCK_REALTIME_COARSE of linux/time.h): every other module was executed after that.
IMPORTED_BEFORE = frozenset(sys.modules)
IMPORTED_AT = time.clock_gettime(5)


class Importer:
    """A module that was being executed when cachec was imported: its globals, its ``__spec__`` then, and its code."""

    def __init__(self, namespace: "dict[str, Any]", spec: object, code: "CodeType") -> None:
        self.namespace = namespace
        self.spec = spec
        self.code = code


def _importers() -> "Iterator[Importer]":
    frame = sys._getframe(1).f_back  # from there on: not this file
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            yield Importer(frame.f_globals, frame.f_globals.get("__spec__"), frame.f_code)
        frame = frame.f_back


#: The modules in whose execution cachec was imported.
IMPORTERS = tuple(_importers())
