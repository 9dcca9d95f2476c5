"""What a run was seen to run and to read, as reads of its trace: all that its key does not cover already."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

from cachec.base.anchors import Anchors
from cachec.base.hashing import EMPTY
from cachec.key.code.fingerprint import CodeKeys, Coverage
from cachec.key.code.graph import module_name
from cachec.model import Read, Reason
from cachec.recording.observed import Observed, Ran

#: In place of a file, for code that was typed in: it is looked up by name in the process that looks.
LIVE = "live"


class Seen(NamedTuple):
    """What was made of the observations. kept_out: why the result can't be stored, None where it can."""

    reads: tuple[Read, ...]
    kept_out: tuple[Reason, str] | None


class RanKeys:
    """Turns observations into reads, and tells what such a read would be now. One an opened cache."""

    def __init__(self, code: CodeKeys) -> None:
        self._code = code

    # --- of a run that has ended

    def seen(self, observed: Observed, coverage: Coverage, anchors: Anchors) -> Seen:
        """The reads that a run adds: code, modules, distributions, files, folders and variables.

        coverage: what the key holds already. A run of code that its source no longer says, or that can't be found
        again, is kept out.
        """
        reads: dict[tuple[str, str, str], Read] = {}
        for ran in list(observed.ran.values()):
            try:
                found = self._of_code(ran, coverage, anchors)
            except _Lost as lost:
                return Seen((), (Reason.UNNAMED_CODE, str(lost)))
            for read in found:
                reads[read.kind, read.where, read.name] = read
        for name in observed.imported:
            for read in self._of_import(name, coverage):
                reads[read.kind, read.where, read.name] = read
        return Seen(tuple(reads.values()), None)

    def _of_code(self, ran: Ran, coverage: Coverage, anchors: Anchors) -> Iterator[Read]:
        code, path = ran.code, ran.code.co_filename
        module = module_name(ran.namespace)
        who = f"{module}.{code.co_qualname}"
        if not os.path.isabs(path) and not path.startswith("<"):
            path = os.path.abspath(path)
        if coverage.covers(path, code):
            return
        typed = not os.path.isfile(path)
        source = self._code.source(path)
        if source is None:
            if typed and not _is_typed(path):
                return  # made by a program that ran: what made it is recorded, or in the key
            raise _Lost(f"{who} ran, and its source {os.path.basename(path)} can't be read")
        names = source.names_at(code)
        if code.co_name == "<module>":
            names = ("",)
        elif source.match(code) is None and not source.is_inline(code):
            raise _Lost(f"{who} ran as it was before {os.path.basename(path)} changed; start a new process")
        for name in names or ("",):
            where = LIVE if typed else anchors.keep(path)
            digest = self.code(LIVE if typed else path, f"{module}:{name}")
            if digest is None:
                raise _Lost(f"{who} ran, and nothing is called {name} in {module} now")
            yield Read("code", where, f"{module}:{name}", digest)
            for distribution in self._code.distributions_of(path, f"{module}:{name}") if not typed else ():
                if distribution not in coverage.distributions:
                    yield Read("distribution", distribution, "", self._distribution(distribution))
