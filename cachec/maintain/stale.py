"""Which entries can't hit any more: what they recorded of tools and files, held against the present."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from cachec.base.distributions import Distributions
from cachec.base.hashing import FileDigests
from cachec.errors import UsageError
from cachec.key.tools.executables import which
from cachec.key.tools.toolchain import ToolKeys
from cachec.key.trace_validation import Dependencies
from cachec.maintain.catalogue import Item
from cachec.model import Digest, Part, PartKind, Read, Trace
from cachec.store.search_index import Facts, KeyedTool

#: Reads that tell by themselves what they would see now. ``env`` is left out: another shell has other variables.
_KINDS = frozenset({"file", "absent", "listing", "tool", "content", "names"})


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
        if item.terms is not None:
            name = item.terms.summary.facts
            if name not in self._of_facts:
                self._of_facts[name] = self._changed_tool(item.terms.facts)
            if self._of_facts[name]:
                return self._of_facts[name]
        reasons = [self._changed_read(trace) for trace in item.entry.traces]
        return reasons[0] if reasons and all(reasons) else ""

    def _changed_tool(self, facts: Facts) -> str:
        for tool in facts.tools:
            if tool.kind is PartKind.DISTRIBUTION:
                changed = self._distribution(tool)
            elif tool.kind is PartKind.REQUIREMENT:
                changed = self._requirement(tool)
            else:
                changed = self._executable(tool)
            if changed:
                return f"tool {tool.name} {tool.version}: {changed}"
        return ""

    def _distribution(self, tool: KeyedTool) -> str:
        """What has become of a distribution; empty where it is as recorded."""
        try:
            return _change(tool, self._tools.distribution(tool.name))
        except UsageError:
            return "not installed"

    def _requirement(self, tool: KeyedTool) -> str:
        """What has become of what a distribution requires; empty where it is as recorded."""
        found = self._distributions.find(tool.name)
        if found is None:
            return "not installed"
        return "" if found.version == tool.version else f"now {found.version}"

    def _executable(self, tool: KeyedTool) -> str:
        """What has become of an executable; empty where it is as recorded, or that can't be told."""
        if which(tool.name, os.environ) is None:
            return ""
        try:
            return _change(tool, self._tools.executable(tool.name))
        except (UsageError, OSError):
            return ""

    def _changed_read(self, trace: Trace) -> str:
        for read in trace.reads:
            if read.kind in _KINDS and self._present(read) != read.digest:
                return f"{read.kind} {read.where} is not as it was"
        return ""

    def _present(self, read: Read) -> Digest:
        named = (read.kind, read.where, read.name)
        if named not in self._of_reads:
            where = self._place(read.where)
            if not where or (read.kind != "tool" and not os.path.isabs(where)):
                return read.digest  # taken to be as it was
            self._of_reads[named] = self._dependencies.present(msgspec.structs.replace(read, where=where))
        return self._of_reads[named]


def _change(recorded: KeyedTool, present: Part) -> str:
    if present.digest == recorded.digest:
        return ""
    return f"now {present.version}" if present.version != recorded.version else f"now {present.detail}"
