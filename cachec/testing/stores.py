"""The tests that every index, and every store of objects, inherits.

    class TestMine(IndexConformance):
        def make(self, folder): return MyIndex(folder)

    class TestMyObjects(ObjectsConformance):
        def make(self, folder): return MyObjects(folder)
        def damage(self, objects, ref): ...     # change what is stored, as a failing disk does
        def lose(self, objects, ref): ...       # remove it, as somebody who clears a folder does

Run with pytest. Everything happens below ``tmp_path``. A hook that is left out fails its tests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cachec.base.hashing import digest_bytes
from cachec.errors import StoreFault
from cachec.model import ArtifactRef, Fault
from cachec.store.artifacts import ObjectStore
from cachec.store.index import Index

_CONTENT = b"some content\n" * 20_000


def _fault(call: Callable[[], object]) -> Fault:
    with pytest.raises(StoreFault) as raised:
        call()
    return raised.value.fault


class IndexConformance:
    """What ``store.index.Index`` promises."""

    def make(self, folder: Path) -> Index:
        """The index in a folder that need not be there: called twice with one folder, two views of one index."""
        raise NotImplementedError

    @pytest.fixture
    def index(self, tmp_path: Path) -> Index:
        return self.make(tmp_path / "index")

    def test_what_is_not_there(self, index: Index) -> None:
        assert index.read("a") is None
        assert list(index.keys()) == []
        assert list(index.rows("")) == []
        assert not index.delete("a")
        assert index.delete_many(["a", "b"]) == 0
        assert index.recall("a") is None

    def test_a_row_comes_back_and_can_be_replaced_and_deleted(self, index: Index) -> None:
        for value in (b"\0one\xff", b"", b"x" * (3 << 20)):
            index.write("a", value, "tag")
            assert index.read("a") == value
        assert index.delete("a")
        assert not index.delete("a")
        assert index.read("a") is None

    def test_keys_and_rows_come_in_order_by_tag_and_by_prefix(self, index: Index) -> None:
        names = [f"entry:{number:04}" for number in range(1203)]

        def write() -> None:
            for name in reversed(names):
                index.write(name, name.encode(), "even" if int(name[6:]) % 2 == 0 else "odd")

        index.atomically(write)
        index.write("other:1", b"x", "even")
        assert list(index.keys()) == [*names, "other:1"]
        assert list(index.keys(prefix="entry:")) == names
        assert list(index.keys("odd")) == names[1::2]
        assert list(index.keys("even", prefix="other:")) == ["other:1"]
        assert list(index.rows("entry:12")) == [(name, name.encode()) for name in names[1200:]]
        assert index.delete_many([*names[:1000], "none"]) == 1000
        assert list(index.keys(prefix="entry:")) == names[1000:]

    def test_rows_expire_by_when_they_were_written(self, index: Index) -> None:
        began = time.time()
        for name in ("a:1", "a:2", "b:1"):
            index.write(name, b"x", "t")
        index.remember("a:3", b"y")
        assert index.expire("a:", began - 60, began + 60) == 0
        assert index.expire("a:", began + 60, began + 120) == 3
        index.write("a:4", b"x", "t")
        assert index.expire("a:", began - 120, began - 60) == 1
        assert list(index.keys()) == ["b:1"]

    def test_rows_may_be_deleted_while_they_are_listed(self, index: Index) -> None:
        for number in range(10):
            index.write(f"a{number}", b"x", "t")
        for name, _ in index.rows("a"):
            assert index.delete(name)
        assert list(index.keys()) == []

    def test_a_transaction_is_whole_or_not_at_all(self, index: Index) -> None:
        def change() -> int:
            index.write("a", b"1", "t")
            index.delete("b")
            return 7

        def fail() -> None:
            change()
            raise KeyError("on purpose")

        index.write("b", b"2", "t")
        with pytest.raises(KeyError, match="on purpose"):
            index.atomically(fail)
        assert dict(index.rows("")) == {"b": b"2"}
        assert index.atomically(change) == 7
        assert dict(index.rows("")) == {"a": b"1"}

    def test_threads_lose_no_row(self, index: Index) -> None:
        def count() -> None:
            for _ in range(20):
                index.atomically(lambda: index.write("n", b"%d" % (int(index.read("n") or b"0") + 1), "t"))

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert index.read("n") == b"80"

    def test_another_view_sees_what_was_written(self, index: Index, tmp_path: Path) -> None:
        other = self.make(tmp_path / "index")
        assert other.read("a") is None
        index.write("a", b"1", "t")
        assert other.read("a") == b"1"

    @pytest.mark.parametrize("value", ["text", 5, None, object()])
    def test_only_bytes_are_written(self, index: Index, value: Any) -> None:
        assert _fault(lambda: index.write("a", value, "t")) is Fault.ROW_REFUSED
        assert index.read("a") is None

    def test_what_is_remembered_is_there_after_closing(self, index: Index, tmp_path: Path) -> None:
        index.remember("digest:1", b"one")
        assert index.recall("digest:1") == b"one"
        index.close()
        assert self.make(tmp_path / "index").recall("digest:1") == b"one"
        index.write("a", b"1", "t")  # it opens again
        assert index.read("a") == b"1"


class ObjectsConformance:
    """What ``store.artifacts.ObjectStore`` promises."""

    def make(self, folder: Path) -> ObjectStore:
        """The objects in a folder that need not be there: called twice with one folder, two views of one store."""
        raise NotImplementedError

    def damage(self, objects: ObjectStore, ref: ArtifactRef) -> None:
        """Change a byte of what is stored, and leave its size."""
        raise NotImplementedError

    def lose(self, objects: ObjectStore, ref: ArtifactRef) -> None:
        """Remove what is stored."""
        raise NotImplementedError

    @pytest.fixture
    def objects(self, tmp_path: Path) -> ObjectStore:
        return self.make(tmp_path / "store")

    @pytest.mark.parametrize("content", [b"", b"x", _CONTENT], ids=len)
    def test_every_way_in_gives_the_same_object(self, objects: ObjectStore, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "source").write_bytes(content)
        ref = ArtifactRef(digest_bytes(content), len(content))
        assert not objects.has(ref)
        for _ in range(2):
            assert objects.add_bytes(content) == ref
            assert objects.add_bytes(memoryview(bytearray(content))) == ref
            assert objects.add_pieces(memoryview(content)[at : at + 999] for at in range(0, len(content), 999)) == ref
            assert objects.add_file(tmp_path / "source") == ref
        assert objects.has(ref)
        assert objects.path(ref).read_bytes() == content
        assert objects.read(ref) == objects.content(ref.digest) == content
        assert [stored for stored, _ in objects.iterate()] == [ref], "what is equal is there once"

    def test_what_changes_after_it_was_stored_stays_as_it_was(self, objects: ObjectStore, tmp_path: Path) -> None:
        (tmp_path / "source").write_bytes(_CONTENT)
        mutable = bytearray(_CONTENT + b"2")
        refs = objects.add_file(tmp_path / "source"), objects.add_bytes(mutable)
        (tmp_path / "source").write_bytes(b"other")
        mutable[:5] = b"other"
        assert [objects.read(ref) for ref in refs] == [_CONTENT, _CONTENT + b"2"]

    def test_returned_files_are_read_only(self, objects: ObjectStore) -> None:
        assert objects.path(objects.add_bytes(_CONTENT)).stat().st_mode & 0o222 == 0

    def test_files_that_can_not_be_read_are_the_callers_error(self, objects: ObjectStore, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            objects.add_file(tmp_path / "none")
        with pytest.raises(ValueError, match="regular file"):
            objects.add_file(tmp_path)
        assert list(objects.iterate()) == []

    def test_pieces_that_end_in_an_error_leave_nothing(self, objects: ObjectStore) -> None:
        def pieces() -> Any:
            yield memoryview(_CONTENT)
            raise KeyError("on purpose")

        with pytest.raises(KeyError, match="on purpose"):
            objects.add_pieces(pieces())
        assert list(objects.iterate()) == []

    def test_another_view_finds_it(self, objects: ObjectStore, tmp_path: Path) -> None:
        ref = objects.add_bytes(_CONTENT)
        other = self.make(tmp_path / "store")
        assert other.has(ref)
        assert other.path(ref).read_bytes() == _CONTENT

    @pytest.mark.parametrize("is_new", [False, True], ids=["same view", "new view"])
    def test_what_is_damaged_is_a_fault_and_heals(self, objects: ObjectStore, tmp_path: Path, is_new: bool) -> None:
        asks: tuple[Callable[[ObjectStore, ArtifactRef], object], ...] = (
            lambda view, ref: view.path(ref),
            lambda view, ref: view.read(ref),
            lambda view, ref: view.content(ref.digest),
        )
        for ask in asks:
            ref = objects.add_bytes(_CONTENT)
            objects.path(ref)
            self.damage(objects, ref)
            view = self.make(tmp_path / "store") if is_new else objects
            assert _fault(partial(ask, view, ref)) is Fault.ARTIFACT_CORRUPT
            assert not objects.has(ref)
            assert objects.add_bytes(_CONTENT) == ref
            assert objects.read(ref) == _CONTENT

    def test_what_is_damaged_is_not_reused(self, objects: ObjectStore) -> None:
        ref = objects.add_bytes(_CONTENT)
        self.damage(objects, ref)
        assert not objects.has(ref)
        assert objects.add_bytes(_CONTENT) == ref
        assert objects.path(ref).read_bytes() == _CONTENT

    def test_what_is_lost_is_a_fault_and_heals(self, objects: ObjectStore) -> None:
        ref = objects.add_bytes(_CONTENT)
        objects.path(ref)
        self.lose(objects, ref)
        assert not objects.has(ref)
        assert _fault(lambda: objects.path(ref)) is Fault.ARTIFACT_MISSING
        assert _fault(lambda: objects.read(ref)) is Fault.ARTIFACT_MISSING
        assert objects.content(ref.digest) is None
        assert objects.content("../../etc/passwd") is None
        assert objects.add_bytes(_CONTENT) == ref
        assert objects.path(ref).read_bytes() == _CONTENT

    def test_a_reference_of_another_size_is_refused_and_the_object_stays(self, objects: ObjectStore) -> None:
        ref = objects.add_bytes(_CONTENT)
        for ask in (objects.path, objects.read):
            assert _fault(partial(ask, ArtifactRef(ref.digest, ref.size + 1))) is Fault.ARTIFACT_CORRUPT
            assert objects.read(ref) == _CONTENT

    def test_a_tree_has_what_it_was_described_with(self, objects: ObjectStore) -> None:
        ref = objects.add_bytes(_CONTENT)
        tree = objects.tree({"bin/tool": (ref, True), "notes": (ref, False)}, {"link": "bin/tool"}, ["empty"])
        assert (tree / "link").read_bytes() == (tree / "notes").read_bytes() == _CONTENT
        assert (tree / "bin" / "tool").stat().st_mode & 0o333 == 0o111
        assert (tree / "notes").stat().st_mode & 0o333 == 0
        assert (tree / "empty").is_dir()
        assert objects.tree({"bin/tool": (ref, True), "notes": (ref, False)}, {"link": "bin/tool"}, ["empty"]) == tree
        assert _fault(lambda: objects.tree({"../a": (ref, False)})) is Fault.ROW_CORRUPT
        assert _fault(lambda: objects.tree({"a": (ref, False)}, {"b": "../../c"})) is Fault.ROW_CORRUPT

    def test_a_release_returns_every_object_anew(self, objects: ObjectStore) -> None:
        ref = objects.add_bytes(_CONTENT)
        objects.path(ref)
        objects.release()
        assert objects.path(ref).read_bytes() == _CONTENT
