"""Files and folders as values of a stage: what a stage returns, and what it gets back from the cache."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from cachec.base.hashing import FileDigests
from cachec.weights.manifest import Manifest


class _Stored:
    """What may lie in a store."""

    def holding(self, store: object) -> Self:
        """The same, which keeps ``store`` open as long as it lives: ``gc`` leaves alone what an open store gave out."""
        object.__setattr__(self, "_store", store)
        return self

    @property
    def digests(self) -> FileDigests | None:
        """Where the store that this lies in remembers digests of files; None outside of one."""
        return getattr(self.__dict__.get("_store"), "digests", None)

    def __getstate__(self) -> dict[str, object]:
        """What a copy is made of, in this process or another: its fields alone."""
        return {name: value for name, value in self.__dict__.items() if name != "_store"}


@dataclass(frozen=True)
class File(_Stored):
    """One file. As an argument it is keyed by content; as a result it is copied into the store.

    path: where it is; for a stored file an immutable object, mode 0444. kind: what it is, as ``plugin:format``
    (``iree:vmfb``), or empty; it says which plugin links it. manifest: what it is to be linked with; results of a stage
    inherit it from the stage's programs. name: the base name that it was made under.
    """

    path: Path
    kind: str = ""
    manifest: Manifest | None = field(default=None, compare=False)
    name: str = ""

    def __init__(
        self, path: str | os.PathLike[str], kind: str = "", manifest: Manifest | None = None, name: str = ""
    ) -> None:
        object.__setattr__(self, "path", Path(path))
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "manifest", manifest)
        object.__setattr__(self, "name", name or self.path.name)

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def read_bytes(self) -> bytes:
        """The content. Raises OSError where the file is not there."""
        return self.path.read_bytes()


@dataclass(frozen=True)
class Dir(_Stored):
    """A folder with everything in it: regular files, their executable bit, sub-folders, relative symbolic links.

    Keyed by content like File. A stored folder comes back as an immutable tree.
    """

    path: Path
    kind: str = ""
    manifest: Manifest | None = field(default=None, compare=False)
    name: str = ""

    __init__ = File.__init__

    def __fspath__(self) -> str:
        return os.fspath(self.path)
