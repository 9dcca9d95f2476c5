"""What a run was observed to do, as bare facts: nothing here judges what of it a key covers already."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NamedTuple


class Ran(NamedTuple):
    """Code of the project that ran, and the globals that it ran in."""

    code: CodeType
    namespace: dict[str, Any]


@dataclass(slots=True)
class Observed:
    """What one run was observed to do. Filled from several threads; every step is one atomic dict operation.

    ran: by ``id`` of the code, which is held (equal code of two files is two things). imported: names of modules that
    project code imported, or looked for in vain. opened: absolute paths that were opened for reading; absent: those
    that were not there then; sources: files that the import system read; listed: folders. made: paths that the run
    itself wrote or made, files and folders. variables: names that project code looked up in the environment; fixed:
    those that the run had set before. unrepeatable: what can't be read again alike.
    """

    ran: dict[int, Ran] = field(default_factory=dict)
    imported: dict[str, None] = field(default_factory=dict)
    opened: dict[str, None] = field(default_factory=dict)
    absent: dict[str, None] = field(default_factory=dict)
    sources: dict[str, None] = field(default_factory=dict)
    made: dict[str, None] = field(default_factory=dict)
    listed: dict[str, None] = field(default_factory=dict)
    variables: dict[str, None] = field(default_factory=dict)
    fixed: dict[str, None] = field(default_factory=dict)
    unrepeatable: dict[str, None] = field(default_factory=dict)

    def own(self, path: str) -> bool:
        """Whether the run itself made ``path``, or a folder above it."""
        made = self.made
        while path not in made:
            above = path.rpartition("/")[0]
            if not above or above == path:
                return False
            path = above
        return True
