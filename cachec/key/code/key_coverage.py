"""Which code a key covers, so that code that ran beyond it is found."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType

from cachec.key.code.fingerprint import CodeKey
from cachec.key.code.module_sources import WHOLE, Place, SourceText, Span, TextVersion


class Coverage:
    """What a key holds of code, by spans of texts. Grows by the code keys of one cache key."""

    __slots__ = (
        "_codes",
        "_spans",
        "derived",
        "distributions",
        "has_decimals",
        "has_importer",
        "has_project_paths",
        "is_as_written",
        "is_charged",
        "stages",
    )

    def __init__(self) -> None:
        self._spans: dict[TextVersion, set[Span]] = {}
        self._codes: set[tuple[str, CodeType]] = set()
        self.distributions: set[str] = set()
        self.stages: list[object] = []
        self.has_importer = False
        self.has_decimals = False
        self.has_project_paths = False
        self.derived: set[tuple[str, str]] = set()
        self.is_as_written = True
        #: Whether the stage takes charge of what has no stable form (``version=``).
        self.is_charged = False

    def holds_stage(self, stage: object) -> bool:
        """Whether a stage is there, with all that it is declared to depend on."""
        return any(each is stage for each in self.stages)

    def add(self, key: CodeKey) -> None:
        """All that a code key holds."""
        for version, spans in key.spans.items():
            self._spans.setdefault(version, set()).update(spans)
        self._codes |= key.codes
        self.distributions |= key.distributions
        self.add_values(key)

    def add_values(self, key: CodeKey) -> None:
        """What is known of the values of a code key, and none of its code."""
        self.has_importer = self.has_importer or key.has_importer
        self.has_decimals = self.has_decimals or key.has_decimals
        self.has_project_paths = self.has_project_paths or key.has_project_paths
        self.derived |= key.derived
        self.is_as_written = self.is_as_written and key.is_as_written

    def modules(self) -> Iterator[tuple[str, str]]:
        """Name and file of each module of the project whose code is there, as far as they are imported."""
        files = {path for path, _ in self._spans} | {path for path, _ in self._codes}
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and file in files:
                yield name, file

    def holds_code(self, path: str, code: CodeType) -> bool:
        """Whether code that its source no longer says is there as it runs."""
        return (path, code) in self._codes

    def holds_place(self, source: SourceText, place: Place) -> bool:
        """Whether the statement at a place of this text is there with what it names."""
        return any(first <= place <= last for first, last in self._spans.get(source.version, ()))

    def holds_whole(self, source: SourceText) -> bool:
        """Whether all of this text is there."""
        return WHOLE in self._spans.get(source.version, ())

    def holds_some(self, source: SourceText) -> bool:
        """Whether names of this module were followed: what importing it does is there then."""
        return source.version in self._spans
