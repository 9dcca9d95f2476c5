"""The tests that every engine of remotes inherits.

    class TestMine(RemoteEngineConformance):
        def make(self, place): return MyEngine(...)      # twice for one place: two machines with one remote
        is_conditional = True                            # whether ``put_row`` can tell that a row is there already

Run with pytest. The fixture ``place`` gives what ``make`` is to use, here a folder; another can be put in its place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from cachec.base.hashing import digest_bytes
from cachec.errors import StoreFault
from cachec.remote.engines.base import MAX_ROW, Blob, RemoteEngine


def blob_of(data: bytes) -> Blob:
    """What a remote calls these bytes."""
    return Blob(digest_bytes(data), len(data), sha256(data).hexdigest())


def _soon() -> float:
    return monotonic() + 60.0


class RemoteEngineConformance:
    """What ``remote.engines.base.RemoteEngine`` promises."""

    is_conditional = True

    def make(self, place: Any) -> RemoteEngine:
        """An engine on the remote at a place."""
        raise NotImplementedError

    @pytest.fixture
    def place(self, tmp_path: Path) -> Any:
        """Where an empty remote is."""
        return tmp_path / "remote"

    @pytest.fixture
    def engine(self, place: Any) -> Iterator[RemoteEngine]:
        engine = self.make(place)
        yield engine
        engine.close()

    def _put(self, engine: RemoteEngine, folder: Path, data: bytes) -> Blob:
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

    def test_a_row_comes_back_and_goes(self, engine: RemoteEngine, place: Any) -> None:
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
