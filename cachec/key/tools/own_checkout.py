"""cachec itself as a tool where it runs from a checkout, whose RECORD lists none of its files.

Each file of its packages counts, by content, as a RECORD has it: an edit of any of them makes another part.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

from cachec.base import fsio
from cachec.base.distributions import Distribution
from cachec.base.fsio import Identity
from cachec.base.hashing import FileDigests, Hasher
from cachec.key.tools.process_queries import process_start
from cachec.model import Part, PartKind


class Checkout:
    """The part of the one distribution that cachec runs from, looked at again at most every ``seconds``."""

    def __init__(self, digests: FileDigests, clock: Callable[[], float], seconds: float) -> None:
        self._digests = digests
        self._clock = clock
        self._seconds = seconds
        self._known: tuple[Distribution, float, Part] | None = None
        self._specs: list[object] = []

    def part(self, distribution: Distribution, *, fresh: bool = False) -> Part:
        """The part ``distribution/cachec``. fresh: look at every file now. Raises OSError where one can't be read.

        What this process has imported from a file that was edited since is not what the files say: such a part counts
        for this process alone, until another import of that module.
        """
        now = self._clock()
        known = self._known
        if known is not None and known[0] is distribution and not fresh and now - known[1] < self._seconds:
            return known[2]
        listed = {name: path for folder in distribution.packages for name, path in _files(folder)}
        states = {name: fsio.identity(listed[name]) for name in sorted(listed)}
        hasher = Hasher("tool-checkout")
        hasher.part("name", distribution.name.encode())
        hasher.part("version", distribution.version.encode())
        hasher.part("files", self._digests.of_all(states, listed).encode())
        detail = f"{distribution.name} {distribution.version}, editable, {len(listed)} files"
        edited = self._imported_before({listed[name]: state for name, state in states.items()})
        if edited:
            hasher.part("imported", repr((os.getpid(), process_start(), edited)).encode())
            detail += "; edited since they were imported: " + ", ".join(name for name, _ in edited)
        part = Part(PartKind.DISTRIBUTION, distribution.name, hasher.digest(), detail, version=distribution.version)
        self._known = (distribution, now, part)
        return part

    def _imported_before(self, states: dict[str, Identity]) -> list[tuple[str, int]]:
        """The modules that may run what their files said before, and which of their imports it was."""
        began = process_start()
        changed = {path for path, state in states.items() if state.changed_ns / 1e9 >= began - fsio.SETTLE_SECONDS}
        found = []
        for name, module in sorted(sys.modules.items()) if changed else ():
            spec = getattr(module, "__spec__", None)
            if getattr(spec, "origin", None) in changed:
                if not any(spec is one for one in self._specs):
                    self._specs.append(spec)  # held: no other has its id
                found.append((name, id(spec)))
        return found


def _files(folder: str) -> Iterator[tuple[str, str]]:
    """What is in a package, by name: all but what Python compiled of it."""
    above = len(os.path.dirname(folder)) + 1
    pending = [folder]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    if entry.name != "__pycache__":
                        pending.append(entry.path)
                elif not entry.name.endswith(".pyc"):
                    yield entry.path[above:], entry.path
