"""Files and folders as values of a stage: what a stage returns, and what it gets back from the cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn, Self

from cachec.base.audit_events import tell_read
from cachec.base.hashing import FileDigests
from cachec.weights.manifest import Manifest


class _StorableArtifact:
    """An artifact that can be in a store. Not a dataclass, as making one takes a millisecond in each new process."""

    path: Path
    kind: str
    manifest: Manifest | None
    name: str

    def __init__(
        self, path: str | os.PathLike[str], kind: str = "", manifest: Manifest | None = None, name: str = ""
    ) -> None:
        place = Path(path)
        self.__dict__.update(path=place, kind=kind, manifest=manifest, name=name or place.name)

    def __setattr__(self, name: str, value: object = None) -> NoReturn:
        raise AttributeError(f"{name!r} of a {type(self).__name__} can't be changed: make another one")

    __delattr__ = __setattr__

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return (self.path, self.kind, self.name) == (other.path, other.kind, other.name)

    def __hash__(self) -> int:
        return hash((self.path, self.kind, self.name))

    def __repr__(self) -> str:
        fields = f"path={self.path!r}, kind={self.kind!r}, manifest={self.manifest!r}, name={self.name!r}"
        return f"{type(self).__name__}({fields})"

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def holding(self, store: object) -> Self:
        """The same, which keeps ``store`` open as long as it lives: ``gc`` leaves alone what an open store gave out."""
        self.__dict__["_store"] = store
        return self

    def linked_as(self, manifest: Manifest | None) -> Self:
        """The same, to be linked with another manifest."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, manifest=manifest)
        return made

    @property
    def digests(self) -> FileDigests | None:
        """The cache of file digests of this artifact's store; None outside of a store."""
        return getattr(self.__dict__.get("_store"), "digests", None)

    def __getstate__(self) -> dict[str, object]:
        """What a copy is made of, in this process or another: its fields alone."""
        return {name: value for name, value in self.__dict__.items() if name != "_store"}


class File(_StorableArtifact):
    """One file. As an argument it is keyed by content; as a result it is copied into the store.

    path: where it is; for a stored file an immutable object, mode 0444. kind: what it is, as ``plugin:format``
    (``iree:vmfb``), or empty; it says which plugin links it. manifest: what it is to be linked with; results of a stage
    inherit it from the stage's programs. name: the base name that it was made under.
    """

    def read_bytes(self) -> bytes:
        """The content. Raises OSError where the file is not there."""
        tell_read([self.path], like=self.path)
        return self.path.read_bytes()


class Dir(_StorableArtifact):
    """A folder with everything in it: regular files, their executable bit, sub-folders, relative symbolic links.

    Keyed by content like File. A stored folder comes back as an immutable tree.
    """
