"""Which text a module was executed from: its file may have been edited since."""

from __future__ import annotations

import os
from functools import cache
from types import ModuleType

import msgspec

from cachec.base import IMPORTED_AT, IMPORTED_BEFORE, IMPORTERS
from cachec.base.fsio import Identity, identity_if_there
from cachec.key.code.module_sources import SourceText
from cachec.key.tools.process_queries import process_start


class SourceRun(msgspec.Struct, frozen=True):
    """One execution of a module: the spec that it ran with (a reload makes another), and its source; None where that
    can't be told."""

    spec: object
    source: SourceText | None
    #: Text that no other execution has.
    token: str


class ExecutedSources:
    """What is known of the modules of this process. Safe to be asked by several threads: each answer is worked out from
    what is there."""

    def __init__(self) -> None:
        self._started = process_start()
        self._awaited: dict[tuple[str, str], Identity | None] = {}
        self._runs: dict[str, SourceRun] = {}
        self._count = 0

    def mark_pending(self, name: str, path: str) -> None:
        """Note that this file is not executed yet as it is now: the module is not imported, or is to be again."""
        self._awaited[name, path] = identity_if_there(path)

    def source(self, module: ModuleType, name: str, present: SourceText) -> SourceText | None:
        """What an imported module was executed from; ``present`` itself where its file is the same since."""
        spec = getattr(module, "__spec__", None)
        run = self._runs.get(name)
        if run is None or run.spec is not spec:
            self._count += 1
            token = f"{os.getpid()} {self._started} {self._count}"
            run = SourceRun(spec, present if self._is_unedited(module, name, present) else None, token)
            self._runs[name] = run
        if run.source is not present:
            if run.source is not None and run.source.text == present.text:
                run = self._runs[name] = SourceRun(run.spec, present, run.token)
            else:
                self.mark_pending(name, present.path)
        return run.source

    def token(self, name: str) -> bytes:
        """Text that stands for the present execution of a module, and for no other; after ``source`` was asked."""
        return self._runs[name].token.encode()

    def _is_unedited(self, module: ModuleType, name: str, present: SourceText) -> bool:
        """Whether a file is as it was when its module was executed, which happened after the last look at it."""
        path = present.path
        now = identity_if_there(path)
        if now is None:
            return False
        if self._awaited.get((name, path)) == now:
            return True
        # Never seen before it was imported: then it is known for what was changed last before this process began, or
        # before cachec was imported where the module came later. The kernel tells the former in steps of 10 ms alone.
        changed = os.stat(path).st_ctime
        if changed < self._started or (name not in IMPORTED_BEFORE and changed < IMPORTED_AT):
            return True
        # The code of a module that imports cachec itself is known: it tells whatever the clock says.
        spec = getattr(module, "__spec__", None)
        codes = [each.code for each in IMPORTERS if each.namespace is vars(module) and each.spec is spec]
        return any(present.place_of(code) is not None for code in codes)


@cache
def executed_sources() -> ExecutedSources:
    """The one of this process: what one cache saw before an import, another may need after it."""
    return ExecutedSources()
