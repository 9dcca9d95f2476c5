"""Which code a key holds, so that what ran beyond it can be told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType

from cachec.key.code.fingerprint import CodeKey
from cachec.key.code.modules import SourceText, TextVersion


class Coverage:
    """What a key holds of code, by lines of texts. Grows by the code keys of one request."""

    __slots__ = ("_codes", "_lines", "distributions", "stages")

    def __init__(self) -> None:
        self._lines: dict[TextVersion, set[tuple[int, int]]] = {}
        self._codes: set[tuple[str, CodeType]] = set()
        self.distributions: set[str] = set()
        self.stages: list[object] = []

    def holds_stage(self, stage: object) -> bool:
        """Whether a stage is there, with all that it is declared to depend on."""
        return any(each is stage for each in self.stages)

    def add(self, key: CodeKey) -> None:
        """All that a code key holds."""
        for version, lines in key.lines.items():
            self._lines.setdefault(version, set()).update(lines)
        self._codes |= key.codes
        self.distributions |= key.distributions

    def modules(self) -> Iterator[tuple[str, str]]:
        """Name and file of each module of the project whose code is there, as far as they are imported."""
        files = {path for path, _ in self._lines} | {path for path, _ in self._codes}
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and file in files:
                yield name, file

    def holds_code(self, path: str, code: CodeType) -> bool:
        """Whether code that its source no longer says is there as it runs."""
        return (path, code) in self._codes

    def holds_line(self, source: SourceText, line: int) -> bool:
        """Whether the statement at a line of this text is there with what it names."""
        return any(first <= line <= last for first, last in self._lines.get(source.version, ()))

    def holds_whole(self, source: SourceText) -> bool:
        """Whether all of this text is there."""
        return any(last == sys.maxsize for _, last in self._lines.get(source.version, ()))

    def holds_some(self, source: SourceText) -> bool:
        """Whether names of this module were followed: what importing it does is there then."""
        return source.version in self._lines
