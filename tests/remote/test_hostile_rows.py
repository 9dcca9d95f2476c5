"""Rows and blobs that a remote has changed: none does anything here but be counted."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from cachec.base.hashing import digest_bytes
from cachec.errors import StoreFault
from cachec.model import ArtifactRef, Entry, Fault, Leaf, Read, Trace
from cachec.remote.engines.base import MAX_ROW
from cachec.remote.engines.folder import SharedFolder
from cachec.remote.nodes import child_name, root_name
from cachec.remote.trie import LookupCost, Trie
from cachec.remote.trust import Trust
from cachec.store.store import Store

KEY = digest_bytes(b"key")
READ = Read("file", "project:table.txt", "", digest_bytes(b"one"))
NAME = (READ.kind, READ.where, READ.name)
BEGIN = 50
EVERYBODY = Trust(None, {}, is_written=True)
LARGE = blake3(b"large").digest(length=1 << 18)  # which can't be packed


def written(rest: bytes) -> bytes:
    """A row as a writer would write it who means harm, of the length of a signature, that, and a node."""
    magic = b"cachec remote 2\n"
    return magic + bytes.fromhex(digest_bytes(magic + rest)) + rest


class Scene:
    """A remote with one entry, of a read and of a small and a large artifact, and a store that has nothing."""

    def __init__(self, folder: Path) -> None:
        self.remote = folder / "remote"
        self.remote.mkdir()
        self.engine = SharedFolder(str(self.remote))
        writer = Store(folder / "writer")
        writer.prepare()
        large = writer.objects.add_bytes(LARGE)
        refs = (writer.objects.add_bytes(b"small"), large)
        parts = writer.objects.add_bytes(b"[]")
        trace = Trace(reads=(READ,), value=Leaf("bytes", refs, {}), seconds=1.0, created=2.0)
        entry = Entry(version=4, key=KEY, stage="pkg.build", tags=(), parts=parts, traces=(trace,))
        self.entry = entry
        Trie(self.engine, writer, "main", 60.0, EVERYBODY).put(entry, trace, {})
        root = root_name("main", KEY)
        leaf = child_name(root, [NAME], [READ.digest])
        self.places = {name: self.remote / "r" / name[:2] / name for name in (root, leaf)}
        self.root, self.leaf = self.places.values()
        (self.blob,) = (path for path in (self.remote / "b").rglob("*") if path.is_file())
        self.reader = Store(folder / "reader")

    def get(self) -> Entry | None:
        present = {NAME: READ.digest}
        return Trie(self.engine, self.reader, "main", 60.0, EVERYBODY).get(KEY, present.get, LookupCost())

    def rows(self) -> list[str]:
        return list(self.reader.index.keys())


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_as_it_was_put_it_comes_back(scene: Scene) -> None:
    assert scene.get() == scene.entry
    for ref in scene.entry.traces[0].value.artifacts:  # type: ignore[union-attr]
        scene.reader.objects.check(ref)


def test_the_row_of_another_place_is_refused(scene: Scene) -> None:
    for one, other in ((scene.root, scene.leaf), (scene.leaf, scene.root)):
        kept = one.read_bytes()
        one.write_bytes(other.read_bytes())
        with pytest.raises(StoreFault):
            scene.get()
        one.write_bytes(kept)
    assert scene.get() == scene.entry


def test_no_changed_bit_is_taken(scene: Scene) -> None:
    """Of an unsigned row either: a small result lies in it."""
    for place in (scene.root, scene.leaf):
        row = place.read_bytes()
        for at in range(0, len(row), 3):
            place.write_bytes(row[:at] + bytes([row[at] ^ (1 << at % 7)]) + row[at + 1 :])
            with pytest.raises(StoreFault) as raised:
                scene.get()
            assert raised.value.fault is Fault.REMOTE_CORRUPT
        place.write_bytes(row)
    assert scene.rows() == []


def test_no_cut_row_is_taken(scene: Scene) -> None:
    for place in (scene.root, scene.leaf):
        row = place.read_bytes()
        for length in range(0, len(row), 7):
            place.write_bytes(row[:length])
            with pytest.raises(StoreFault) as raised:
                scene.get()
            assert raised.value.fault is Fault.REMOTE_CORRUPT
        place.write_bytes(row)
    assert scene.rows() == []


def changed(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda node: node.update(fields)


def in_entry(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda node: node["entry"].update(fields)


def in_read(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda node: node["entry"]["traces"][0]["reads"][0].update(fields)


def in_artifact(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda node: node["entry"]["traces"][0]["value"]["artifacts"][1].update(fields)


def in_inline(data: bytes) -> Callable[[dict[str, Any]], None]:
    packed = b64encode(data).decode()
    return lambda node: node.update(inline=dict.fromkeys(node["inline"], packed))


OTHER = digest_bytes(b"other")
LEAVES: dict[str, Callable[[dict[str, Any]], object]] = {
    "another version": changed(version=3),
    "another name": changed(name=OTHER),
    "a name that is a path": changed(name="../../x"),
    "another key": in_entry(key=OTHER),
    "another version of the entry": in_entry(version=3),
    "a stage without a name": in_entry(stage=""),
    "a stage that is a terminal's command": in_entry(stage="\x1b[2J"),
    "a stage that is a number": in_entry(stage=3),
    "no run": in_entry(traces=[]),
    "two runs": lambda node: node["entry"]["traces"].extend(node["entry"]["traces"]),
    "another digest of a read": in_read(digest=OTHER),
    "another place of a read": in_read(where="project:other.txt"),
    "a read of an unknown kind": in_read(kind="secret"),
    "a read with a NUL": in_read(where="a\0b"),
    "a digest that is a path": in_artifact(digest="../../../etc/passwd"),
    "a digest of other content": in_artifact(digest=OTHER),
    "a size below zero": in_artifact(size=-1),
    "a size that is too small": in_artifact(size=5),
    "a size that is too large": in_artifact(size=1 << 20),
    "a size that no disk has": in_artifact(size=1 << 62),
    "parts that are not there": in_entry(parts={"digest": OTHER, "size": 3}),
    "inline content that is another": in_inline(zlib.compress(b"other")),
    "inline content that is not packed": in_inline(b"small"),
    "inline content without an end": in_inline(zlib.compress(b"\0" * (1 << 26))),
    "inline content that is cut": in_inline(zlib.compress(b"small")[:-6]),
}
ROOTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a name that is a NUL": lambda node: node["look"].append(["file", "a\0", ""]),
    "an unknown kind": lambda node: node["look"].append(["secret", "a", ""]),
    "a look of two words": lambda node: node["look"].append(["file", "a"]),
    "one thing twice": lambda node: node["look"].extend(node["look"]),
    "too many things": lambda node: node["look"].extend(["file", str(number), ""] for number in range(10_001)),
}


@pytest.mark.parametrize(
    ("place", "change"),
    [*(("leaf", change) for change in LEAVES.values()), *(("root", change) for change in ROOTS.values())],
    ids=[*LEAVES, *ROOTS],
)
def test_a_changed_field_is_refused(scene: Scene, place: str, change: Callable[[dict[str, Any]], object]) -> None:
    file: Path = getattr(scene, place)
    row = file.read_bytes()
    node = json.loads(row[BEGIN:])
    before = json.dumps(node)
    change(node)
    assert json.dumps(node) != before
    file.write_bytes(written(b"\0\0" + json.dumps(node).encode()))
    with pytest.raises(StoreFault) as raised:
        scene.get()
    assert raised.value.fault in {Fault.REMOTE_CORRUPT, Fault.STORE_FULL}
    assert scene.rows() == []


ROWS = {
    "nothing": b"",
    "no row": b"<html>sign in</html>",
    "a later version": b"cachec remote 3\n" + written(b"\0\0{}")[16:],
    "an earlier version": b"cachec remote 1\n\0\0{}",
    "a digest without a node": written(b"")[:40],
    "no length of a signature": written(b"\0"),
    "a signature that is longer than the row": written(b"\xff\xff{}"),
    "a node that is nested without end": written(b"\0\0" + b'{"version":2,"entry":' + b"[" * 100_000),
    "a node that is a list": written(b"\0\0[]"),
    "a row that is too long": written(b"\0\0" + b" " * MAX_ROW + b"{}"),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_what_is_no_row_is_refused(scene: Scene, row: bytes) -> None:
    for place in (scene.root, scene.leaf):
        kept = place.read_bytes()
        place.write_bytes(row)
        with pytest.raises(StoreFault):
            scene.get()
        place.write_bytes(kept)


@pytest.mark.parametrize(
    "data",
    [b"", LARGE[:-1], LARGE + b"x", b"x" + LARGE[1:], b"\0" * (1 << 22)],
    ids=["none", "cut", "long", "other", "0"],
)
def test_a_changed_blob_is_refused(scene: Scene, data: bytes) -> None:
    whole = scene.blob.read_bytes()
    assert whole == LARGE
    scene.blob.write_bytes(data)
    with pytest.raises(StoreFault) as raised:
        scene.get()
    assert raised.value.fault is Fault.REMOTE_CORRUPT
    assert not scene.reader.objects.has(ArtifactRef(scene.blob.name, len(whole)))
    scene.blob.unlink()
    with pytest.raises(StoreFault):
        scene.get()
    assert scene.rows() == []
    scene.blob.write_bytes(whole)
    assert scene.get() == scene.entry


def test_a_trie_without_end_is_left(scene: Scene) -> None:
    """Each node says to look at nothing, and to go on."""
    name = root_name("main", KEY)
    for depth in range(20):
        place = scene.remote / "r" / name[:2] / name
        place.parent.mkdir(exist_ok=True)
        node = json.dumps({"version": 2, "name": name, "look": []}).encode()
        place.write_bytes(written(b"\0\0" + node))
        name = child_name(name, [], [])
    assert scene.get() is None


def test_more_than_a_store_may_have_is_not_fetched(scene: Scene) -> None:
    scene.reader.keep_bound(lambda *_: None, 10_000)
    with pytest.raises(StoreFault) as raised:
        scene.get()
    assert raised.value.fault is Fault.STORE_FULL
    assert list(scene.reader.objects.iterate()) == []
