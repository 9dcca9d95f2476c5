"""The tests that every engine of remotes inherits.

    class TestMine(RemoteEngineConformance):
        def make(self, place): return MyEngine(...)      # twice for one place: two machines with one remote
        is_conditional = True                            # whether ``put_row`` can tell that a row is there already
        is_by_content = False                            # whether a blob that is there stays, whatever is put for it

Run with pytest. The fixture ``place`` gives what ``make`` is to use, here a folder; another can be put in its place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from time import monotonic

import pytest

from cachec.base.hashing import digest_bytes
from cachec.errors import StoreFault
from cachec.model import RECORD_VERSION, ArtifactRef, Digest, Entry, Leaf, Read, Trace
from cachec.remote.engines.base import MAX_ROW, RemoteBlob, RemoteEngine
from cachec.remote.nodes import child_name, root_name
from cachec.remote.trie import LookupCost, Trie
from cachec.remote.trust import Trust
from cachec.store.store import Store


def blob_of(data: bytes) -> RemoteBlob:
    """What a remote calls these bytes."""
    return RemoteBlob(digest_bytes(data), len(data), sha256(data).hexdigest())


def _soon() -> float:
    return monotonic() + 60.0


#: What a run of the shared entry looked at, and what it is called.
_READ = Read("file", "project:table.txt", "", digest_bytes(b"one"))
_READ_NAME = (_READ.kind, _READ.where, _READ.name)
_KEY = digest_bytes(b"key")
_EVERYBODY = Trust(None, {}, is_written=True)


class _SharedEntry:
    """An entry that was put, by what a row and a blob can be attacked; and a store that has nothing of it.

    Its artifacts are one that lies in the row, and ``blob``, which is too random to.
    """

    def __init__(self, engine: RemoteEngine, folder: Path) -> None:
        self._engine = engine
        self.writer, self.reader = Store(folder / "writer"), Store(folder / "reader")
        self.writer.prepare()
        data = os.urandom(1 << 18)
        self.blob = blob_of(data)
        refs = (self.writer.objects.add_bytes(b"small"), self.writer.objects.add_bytes(data))
        self.root = root_name("main", _KEY)
        self.leaf = child_name(self.root, [_READ_NAME], [_READ.digest])
        self.entry = self._put(_KEY, refs)

    def _put(self, key: Digest, refs: tuple[ArtifactRef, ...]) -> Entry:
        parts = self.writer.objects.add_bytes(b"[]")
        trace = Trace(reads=(_READ,), value=Leaf("bytes", refs, {}), seconds=1.0, created=2.0)
        entry = Entry(version=RECORD_VERSION, key=key, stage="pkg.build", tags=(), parts=parts, traces=(trace,))
        Trie(self._engine, self.writer, "main", 60.0, _EVERYBODY).put(entry, trace, {})
        return entry

    def put_another(self) -> Digest:
        """Another entry; the name of its leaf."""
        key = digest_bytes(b"another key")
        self._put(key, (self.writer.objects.add_bytes(b"another"),))
        return child_name(root_name("main", key), [_READ_NAME], [_READ.digest])

    def get(self) -> Entry | None:
        """What another machine gets, where the read is the same. Raises StoreFault."""
        present = {_READ_NAME: _READ.digest}
        return Trie(self._engine, self.reader, "main", 60.0, _EVERYBODY).get(_KEY, present.get, LookupCost())

    def is_untouched(self) -> bool:
        """Whether the reader has no row, and nothing under the blob's name."""
        has = self.reader.objects.has(ArtifactRef(self.blob.digest, self.blob.size))
        return not has and not list(self.reader.index.keys())

    def close(self) -> None:
        self.writer.close()
        self.reader.close()


class RemoteEngineConformance:
    """What ``remote.engines.base.RemoteEngine`` promises."""

    is_conditional = True
    is_by_content = False

    def make(self, place: object) -> RemoteEngine:
        """An engine on the remote at a place."""
        raise NotImplementedError

    @pytest.fixture
    def place(self, tmp_path: Path) -> object:
        """Where an empty remote is."""
        return tmp_path / "remote"

    @pytest.fixture
    def engine(self, place: object) -> Iterator[RemoteEngine]:
        engine = self.make(place)
        yield engine
        engine.close()

    def _put(self, engine: RemoteEngine, folder: Path, data: bytes) -> RemoteBlob:
        blob = blob_of(data)
        (folder / "content").write_bytes(data)
        engine.put_blob(blob, os.fspath(folder / "content"), _soon())
        return blob

    def test_nothing_is_there(self, engine: RemoteEngine) -> None:
        name = digest_bytes(b"name")
        assert engine.get_row(name, _soon()) is None
        assert engine.get_blob(blob_of(b"x"), _soon()) is None
        assert not engine.has_blob(blob_of(b"x"), _soon())
        engine.delete_row(name, _soon())  # whatever it says of that

    def test_a_row_comes_back_and_goes(self, engine: RemoteEngine, place: object) -> None:
        other = self.make(place)
        for name, row in ((digest_bytes(b"1"), b"\0row\xff\r\n\r\n"), (digest_bytes(b"2"), os.urandom(MAX_ROW - 4096))):
            assert engine.get_row(name, _soon()) is None
            assert engine.put_row(name, row, (), _soon(), replace=False)
            assert other.get_row(name, _soon()) == engine.get_row(name, _soon()) == row
            engine.delete_row(name, _soon())
            assert other.get_row(name, _soon()) is None
        other.close()

    def test_the_first_row_stays_unless_it_is_replaced(self, engine: RemoteEngine) -> None:
        name = digest_bytes(b"name")
        assert engine.put_row(name, b"one", (), _soon(), replace=False)
        assert engine.put_row(name, b"two", (), _soon(), replace=False) is not self.is_conditional
        assert engine.get_row(name, _soon()) == (b"one" if self.is_conditional else b"two")
        assert engine.put_row(name, b"three", (), _soon(), replace=True)
        assert engine.get_row(name, _soon()) == b"three"

    def test_blobs_come_back_whole(self, engine: RemoteEngine, tmp_path: Path) -> None:
        for data in (b"", b"x", os.urandom(3 << 20)):
            blob = self._put(engine, tmp_path, data)
            assert engine.has_blob(blob, _soon())
            pieces = engine.get_blob(blob, _soon())
            assert pieces is not None
            assert b"".join(pieces) == data
        again = self._put(engine, tmp_path, data)
        assert engine.put_row(digest_bytes(b"row"), b"row", (again,), _soon(), replace=False)
        assert engine.get_row(digest_bytes(b"row"), _soon()) == b"row"

    def test_a_blob_that_is_not_read_to_its_end_costs_nothing_later(self, engine: RemoteEngine, tmp_path: Path) -> None:
        blob = self._put(engine, tmp_path, os.urandom(3 << 20))
        pieces = engine.get_blob(blob, _soon())
        assert pieces is not None
        assert next(iter(pieces))
        del pieces
        assert engine.get_row(digest_bytes(b"none"), _soon()) is None
        assert engine.has_blob(blob, _soon())

    def test_no_time_is_a_fault(self, engine: RemoteEngine, tmp_path: Path) -> None:
        (tmp_path / "content").write_bytes(b"x")
        past, name, blob = monotonic() - 1.0, digest_bytes(b"name"), blob_of(b"x")
        for call in (
            lambda: engine.get_row(name, past),
            lambda: engine.put_row(name, b"row", (), past, replace=False),
            lambda: engine.has_blob(blob, past),
            lambda: engine.put_blob(blob, os.fspath(tmp_path / "content"), past),
        ):
            with pytest.raises(StoreFault) as raised:
                call()
            assert raised.value.fault.is_remote
        assert engine.get_row(digest_bytes(b"other"), _soon()) is None

    # --- attacks: who can write the remote writes anything

    @pytest.fixture
    def shared(self, engine: RemoteEngine, tmp_path: Path) -> Iterator[_SharedEntry]:
        shared = _SharedEntry(engine, tmp_path)
        yield shared
        shared.close()

    def test_an_entry_comes_back(self, shared: _SharedEntry) -> None:
        assert shared.get() == shared.entry
        for ref in shared.entry.traces[0].value.artifacts:  # type: ignore[union-attr]
            shared.reader.objects.check(ref)

    @pytest.mark.parametrize("data", [b"", b"x", bytes(1 << 18), bytes(3 << 20)], ids=["none", "x", "same", "large"])
    def test_a_blob_of_other_bytes_is_refused(
        self, engine: RemoteEngine, shared: _SharedEntry, tmp_path: Path, data: bytes
    ) -> None:
        (tmp_path / "lie").write_bytes(data)
        lie = RemoteBlob(shared.blob.digest, len(data), shared.blob.sha256)
        try:
            engine.put_blob(lie, os.fspath(tmp_path / "lie"), _soon())
        except StoreFault:
            return  # a server that checks what it is given
        if self.is_by_content:
            assert shared.get() == shared.entry
            shared.reader.objects.check(ArtifactRef(shared.blob.digest, shared.blob.size))
            return
        with pytest.raises(StoreFault) as raised:
            shared.get()
        assert raised.value.fault.is_remote
        assert shared.is_untouched()

    def test_a_row_of_other_bytes_is_refused(self, engine: RemoteEngine, shared: _SharedEntry) -> None:
        row = engine.get_row(shared.leaf, _soon())
        assert row is not None
        for lie in (b"x", row[:-1], row + b"}", row[: len(row) // 2], bytes(len(row))):
            assert lie != row
            engine.put_row(shared.leaf, lie, (), _soon(), replace=True)
            with pytest.raises(StoreFault) as raised:
                shared.get()
            assert raised.value.fault.is_remote
            assert shared.is_untouched()

    def test_a_row_of_another_place_is_refused(self, engine: RemoteEngine, shared: _SharedEntry) -> None:
        other = shared.put_another()
        for at, of in ((shared.leaf, shared.root), (shared.leaf, other), (shared.root, shared.leaf)):
            stored, replayed = engine.get_row(at, _soon()), engine.get_row(of, _soon())
            assert stored is not None
            assert replayed is not None
            engine.put_row(at, replayed, (), _soon(), replace=True)
            with pytest.raises(StoreFault) as raised:
                shared.get()
            assert raised.value.fault.is_remote
            assert shared.is_untouched()
            engine.put_row(at, stored, (), _soon(), replace=True)
        assert shared.get() == shared.entry

    def test_no_more_of_a_row_is_taken_than_one_has(self, engine: RemoteEngine, shared: _SharedEntry) -> None:
        try:
            engine.put_row(shared.leaf, bytes(4 * MAX_ROW), (), _soon(), replace=True)
        except StoreFault:
            return  # a server that takes none of that size
        with pytest.raises(StoreFault) as raised:
            engine.get_row(shared.leaf, _soon())
        assert raised.value.fault.is_remote
        assert engine.get_row(shared.root, _soon()) is not None
