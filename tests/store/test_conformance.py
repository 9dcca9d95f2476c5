"""The store's own index and objects, and two that live in memory, under the suites that everybody's inherit."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import pytest

from cachec.base.hashing import FileDigests, digest_bytes
from cachec.errors import StoreFault
from cachec.model import ArtifactRef, Fault
from cachec.store.artifacts import ObjectStore
from cachec.store.index import DiskcacheIndex
from cachec.store.leases import Leases
from cachec.store.objects import Objects
from cachec.store.trees import Trees
from cachec.testing.stores import IndexConformance, ObjectsConformance

T = TypeVar("T")


class TestDiskcacheIndex(IndexConformance):
    def make(self, folder: Path) -> DiskcacheIndex:
        return DiskcacheIndex(folder)


class TestObjects(ObjectsConformance):
    def make(self, folder: Path) -> Objects:
        return Objects(folder / "objects", folder / "tmp", FileDigests())

    def damage(self, objects: ObjectStore, ref: ArtifactRef) -> None:
        path = objects.path(ref)
        path.chmod(0o644)
        with path.open("r+b") as file:
            file.write(b"S")

    def lose(self, objects: ObjectStore, ref: ArtifactRef) -> None:
        objects.path(ref).unlink()


class MemoryIndex:
    """An index in a dict."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[bytes, str, float]] = {}
        self._lock = threading.RLock()

    def read(self, key: str, *, version: int | None = None) -> bytes | None:
        row = None if version else self._rows.get(key)
        return None if row is None else row[0]

    def write(self, key: str, value: bytes, tag: str) -> None:
        if type(value) is not bytes:
            raise StoreFault(Fault.ROW_REFUSED, f"row {key}: expected bytes, found {type(value).__name__}")
        self._rows[key] = value, tag, time.time()

    def delete(self, key: str) -> bool:
        return self._rows.pop(key, None) is not None

    def keys(self, tag: str | None = None, prefix: str = "") -> Iterator[str]:
        return iter(sorted(k for k, (_, of, _) in self._rows.items() if k.startswith(prefix) and tag in {None, of}))

    def rows(self, prefix: str, *, version: int | None = None) -> Iterator[tuple[str, bytes | None]]:
        assert version is None
        return ((key, self.read(key)) for key in self.keys(prefix=prefix))

    def delete_many(self, keys: Collection[str], *, version: int | None = None) -> int:
        assert version is None
        return sum(map(self.delete, keys))

    def expire(self, prefix: str, since: float, until: float) -> int:
        return self.delete_many([key for key in self.keys(prefix=prefix) if not since <= self._rows[key][2] <= until])

    def atomically(self, change: Callable[[], T]) -> T:
        with self._lock:
            before = dict(self._rows)
            try:
                return change()
            except BaseException:
                self._rows = before
                raise

    def row_name(self, key: str) -> str:
        return key

    def versions(self) -> list[int]:
        return []

    def newest(self, version: int) -> float:
        raise NotImplementedError(version)

    def clear(self, version: int) -> int:
        raise NotImplementedError(version)

    def recall(self, name: str) -> bytes | None:
        return self.read(name)

    def remember(self, name: str, value: bytes) -> None:
        self.write(name, value, "digest")

    def close(self) -> None: ...


class TestMemoryIndex(IndexConformance):
    @pytest.fixture(autouse=True)
    def fresh(self) -> None:
        self.one = MemoryIndex()

    def make(self, folder: Path) -> MemoryIndex:
        return self.one


class MemoryObjects:
    """Objects in a dict; who asks for a path gets a copy of one."""

    def __init__(self, contents: dict[str, bytes], folder: Path) -> None:
        self.contents = contents
        self._folder = folder

    def add_bytes(self, data: bytes | bytearray | memoryview) -> ArtifactRef:
        ref = ArtifactRef(digest_bytes(data), len(data))
        self.contents[ref.digest] = bytes(data)
        return ref

    def add_pieces(self, pieces: Iterable[memoryview]) -> ArtifactRef:
        return self.add_bytes(b"".join(pieces))

    def add_file(self, path: str | os.PathLike[str]) -> ArtifactRef:
        if os.path.isdir(path):
            raise ValueError(f"{os.fspath(path)} is no regular file")
        return self.add_bytes(Path(path).read_bytes())

    def has(self, ref: ArtifactRef) -> bool:
        data = self.contents.get(ref.digest)
        return data is not None and ref == ArtifactRef(digest_bytes(data), len(data))

    def content(self, digest: str) -> bytes | None:
        data = self.contents.get(digest)
        if data is not None and digest_bytes(data) != digest:
            del self.contents[digest]
            raise StoreFault(Fault.ARTIFACT_CORRUPT, digest)
        return data

    def read(self, ref: ArtifactRef) -> bytes:
        data = self.content(ref.digest)
        if data is None:
            raise StoreFault(Fault.ARTIFACT_MISSING, ref.digest)
        if len(data) != ref.size:
            raise StoreFault(Fault.ARTIFACT_CORRUPT, ref.digest)
        return data

    def path(self, ref: ArtifactRef) -> Path:
        data, path = self.read(ref), self._folder / ref.digest
        if not path.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o444)
        return path

    def tree(
        self,
        files: Mapping[str, tuple[ArtifactRef, bool]],
        links: Mapping[str, str] | None = None,
        folders: Collection[str] = (),
    ) -> Path:
        top = self._folder
        whole = lambda path, ref: FileDigests().of_path(path) == ref.digest  # noqa: E731
        leases = Leases(top / "leases")
        return Trees(top / "trees", top / "tmp", whole, self.path, leases, lambda _: None).tree(files, links, folders)

    def iterate(self) -> Iterator[tuple[ArtifactRef, float]]:
        return ((ArtifactRef(digest, len(data)), 0.0) for digest, data in sorted(self.contents.items()))

    def release(self) -> None: ...


class TestMemoryObjects(ObjectsConformance):
    @pytest.fixture(autouse=True)
    def fresh(self) -> None:
        self.contents: dict[str, bytes] = {}

    def make(self, folder: Path) -> MemoryObjects:
        return MemoryObjects(self.contents, folder)

    def damage(self, objects: ObjectStore, ref: ArtifactRef) -> None:
        self.contents[ref.digest] = b"S" + self.contents[ref.digest][1:]

    def lose(self, objects: ObjectStore, ref: ArtifactRef) -> None:
        del self.contents[ref.digest]
