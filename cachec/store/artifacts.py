"""What a store of artifacts promises: where they go, where they come from, and both in one."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from cachec.model import ArtifactRef


class ArtifactSink(Protocol):
    """Where artifacts go. Every method raises StoreFault where the store fails, and nothing else but what it says."""

    def add_bytes(self, data: bytes | bytearray | memoryview) -> ArtifactRef:
        """Store these bytes."""

    def add_pieces(self, pieces: Iterable[memoryview]) -> ArtifactRef:
        """Store these bytes one after another, none kept after the next was asked for."""

    def add_file(self, path: str | os.PathLike[str]) -> ArtifactRef:
        """Store the content of a regular file. Raises OSError where it can't be read, ValueError where it is none."""


class ArtifactSource(Protocol):
    """Where artifacts come from; faults as of ``ArtifactSink``."""

    def path(self, ref: ArtifactRef) -> Path:
        """A file with the content, read-only; it stays. A fault ARTIFACT_MISSING, or ARTIFACT_CORRUPT that heals."""

    def tree(
        self,
        files: Mapping[str, tuple[ArtifactRef, bool]],
        links: Mapping[str, str] | None = None,
        folders: Collection[str] = (),
    ) -> Path:
        """The immutable folder of these files (relative path -> content, executable), links and folders, checked. A
        fault ROW_CORRUPT for names and targets that would lead out of it.
        """


class ObjectStore(ArtifactSink, ArtifactSource, Protocol):
    """Bytes by content."""

    def has(self, ref: ArtifactRef) -> bool:
        """Whether the object is there, whole; it stays then."""

    def read(self, ref: ArtifactRef) -> bytes:
        """The content, checked; raises as ``path``."""

    def content(self, digest: str) -> bytes | None:
        """The content of the object of that digest, checked; None where there is none, or it is no digest."""

    def iterate(self) -> Iterator[tuple[ArtifactRef, float]]:
        """All objects in the order of their digests, unchecked, each with the Unix time since when it is there."""

    def release(self) -> None:
        """What was handed out may vanish from now on."""
