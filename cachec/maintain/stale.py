"""Which entries can't hit any more: what they recorded of tools and files, held against the present."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import msgspec

from cachec.base.distributions import Distributions
from cachec.base.hashing import FileDigests
from cachec.errors import UsageError
from cachec.key.dependencies import Dependencies
from cachec.key.tools.executables import which
from cachec.key.tools.tools import ToolKeys
from cachec.maintain.catalogue import Item
from cachec.maintain.selector import version_of
from cachec.model import Digest, Read, Trace
from cachec.store.summaries import Facts

#: Reads that tell by themselves what they would see now. ``env`` is left out: another shell has other variables.
_KINDS = frozenset({"file", "absent", "listing", "tool"})

#: What stands for the content of an executable in the detail of its part.
_CONTENT = re.compile(r"[0-9a-f]{12}")


class Staleness:
    """Compares with the present, each tool and each file once.

    A tool is compared where it can be told what it is now: a distribution by its name, an executable where PATH finds
    one of that name. An executable that was given by a path which is recorded nowhere is taken to be as it was; so is
    a file below a ``base_dir`` while none is set.
    """

    def __init__(self, digests: FileDigests, place: Callable[[str], str]) -> None:
        """place: the absolute path of what a read names, empty where that can't be told."""
        self._place = place
        self._distributions = Distributions()
        self._tools = ToolKeys(digests, self._distributions)
        self._dependencies = Dependencies(self._tools, digests)
        self._of_facts: dict[Digest, str] = {}
        self._of_reads: dict[tuple[str, str, str], Digest] = {}

    def reason(self, item: Item) -> str:
        """Why the entry can't hit any more, in words; empty where it may."""
        if item.told is not None:
            name = item.told.summary.facts
            if name not in self._of_facts:
                self._of_facts[name] = self._changed_tool(item.told.facts)
            if self._of_facts[name]:
                return self._of_facts[name]
        reasons = [self._changed_read(trace) for trace in item.entry.traces]
        return reasons[0] if reasons and all(reasons) else ""

    def _changed_tool(self, facts: Facts) -> str:
        for name, digest, detail in facts.tools:
            changed = self._executable(name, digest)
            if changed is not None and not _is_executable(name, detail):
                changed = self._distribution(name, digest)  # the one may have the name of the other
            if changed:
                return f"tool {name} {version_of(detail)}: {changed}"
        return ""

    def _distribution(self, name: str, digest: Digest) -> str:
        """What has become of a distribution; empty where it is as recorded."""
        try:
            part = self._tools.distribution(name)
        except UsageError:
            return "not installed"
        if part.digest == digest:
            return ""
        return f"now {version_of(part.detail)}" + (part.detail.partition(";")[2] or "")

    def _executable(self, name: str, digest: Digest) -> str | None:
        """What has become of an executable; empty where that can't be told, None where it is as recorded."""
        if which(name, os.environ) is None:
            return ""
        try:
            part = self._tools.executable(name)
        except (UsageError, OSError):
            return ""
        return None if part.digest == digest else f"now {version_of(part.detail)}"

    def _changed_read(self, trace: Trace) -> str:
        for read in trace.reads:
            if read.kind in _KINDS and self._present(read) != read.digest:
                return f"{read.kind} {read.where} is not as it was"
        return ""

    def _present(self, read: Read) -> Digest:
        named = (read.kind, read.where, read.name)
        if named not in self._of_reads:
            where = self._place(read.where)
            if not where:
                return read.digest  # taken to be as it was
            self._of_reads[named] = self._dependencies.present(msgspec.structs.replace(read, where=where))
        return self._of_reads[named]


def _is_executable(name: str, detail: str) -> bool:
    """Whether a tool part is of an executable: ``label content, ...``, or the distribution of a script."""
    return (
        "," in detail.partition(";")[0]
        or detail.partition(" ")[0] != name
        or _CONTENT.fullmatch(version_of(detail)) is not None
    )
