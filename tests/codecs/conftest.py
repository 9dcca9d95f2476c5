"""A store of artifacts in a folder, which notes what it is asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cachec import codecs
from cachec.base.hashing import digest_bytes
from cachec.codecs.encoder import encode
from cachec.errors import PluginError, StoreFault
from cachec.model import ArtifactRef, Fault, Node
from cachec.programs.plugin import Plugin
from cachec.weights import WeightSet


class FolderStore:
    """Sink and Source in one. ``asked`` lists the digests whose path was asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[str] = []
        self.trees = 0

    def add_bytes(self, data: bytes | memoryview) -> ArtifactRef:
        data = bytes(data)
        ref = ArtifactRef(digest_bytes(data), len(data))
        path = self.root / ref.digest
        if not path.exists():
            path.write_bytes(data)
            path.chmod(0o444)
        return ref

    def add_pieces(self, pieces: Iterable[memoryview]) -> ArtifactRef:
        return self.add_bytes(b"".join(pieces))

    def add_file(self, path: str | os.PathLike[str]) -> ArtifactRef:
        return self.add_bytes(Path(path).read_bytes())

    def path(self, ref: ArtifactRef) -> Path:
        self.asked.append(ref.digest)
        path = self.root / ref.digest
        if not path.exists():
            raise StoreFault(Fault.ARTIFACT_MISSING, ref.digest)
        return path

    def tree(
        self,
        files: Mapping[str, tuple[ArtifactRef, bool]],
        links: Mapping[str, str] | None = None,
        folders: Collection[str] = (),
    ) -> Path:
        self.trees += 1
        top = self.root / f"tree{self.trees}"
        top.mkdir()
        for name in folders:
            (top / name).mkdir()
        for name, (ref, executable) in files.items():
            (top / name).write_bytes(self.path(ref).read_bytes())
            (top / name).chmod(0o555 if executable else 0o444)
        for name, target in (links or {}).items():
            (top / name).symlink_to(target)
        return top


class Bench:
    """Encodes and decodes through a row, as the store does."""

    def __init__(self, store: FolderStore) -> None:
        self.store = store
        self.plugins: dict[str, Plugin] = {}
        self.callers: dict[str, WeightSet] = {}
        self.manifest: ArtifactRef | None = None

    def plugin_for(self, cls: type) -> Plugin | None:
        names = {f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__}
        return next((plugin for plugin in self.plugins.values() if not names.isdisjoint(plugin.types)), None)

    def plugin_named(self, name: str) -> Plugin:
        if name not in self.plugins:
            raise PluginError(f"no plugin is named {name!r}")
        return self.plugins[name]

    def encode(self, value: object) -> Node:
        node = encode(value, self.store, self.plugin_for)
        row: Node = msgspec.json.decode(msgspec.json.encode(node), type=Node)
        assert row == node, "a row gives back what was stored"
        return row

    def decode(self, node: Node, **more: Any) -> Any:
        caller: Callable[[str], WeightSet] = self.callers.__getitem__
        return codecs.decode(node, self.store, self.plugin_named, caller, self.manifest, **more)

    def round_trip(self, value: object) -> Any:
        return self.decode(self.encode(value))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    root = tmp_path / "store"
    root.mkdir()
    return Bench(FolderStore(root))
