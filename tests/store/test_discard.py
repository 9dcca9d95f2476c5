"""What was stored for a result that is not kept after all goes again, and nothing else does."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

import cachec
from cachec.base.hashing import FileDigests
from cachec.model import ArtifactRef
from cachec.store.objects import Objects


def _objects(folder: Path) -> Objects:
    return Objects(folder / "objects", folder / "tmp", FileDigests())


def _names(folder: Path) -> set[str]:
    return {each.name for each in (folder / "objects").rglob("*") if each.is_file()}


def test_what_was_made_for_it_goes_and_is_not_counted(tmp_path: Path) -> None:
    objects = _objects(tmp_path)
    (tmp_path / "file").write_bytes(b"c" * 5000)
    refs = [objects.add_bytes(b"a"), objects.add_pieces([memoryview(b"b")]), objects.add_file(tmp_path / "file")]
    objects.discard([*refs, ArtifactRef("0" * 64, 1)])
    assert _names(tmp_path) == set()
    assert objects.take_written_bytes() == 0
    assert [objects.has(ref) for ref in refs] == [False] * 3
    assert objects.read(objects.add_bytes(b"a")) == b"a"


def test_what_was_there_before_or_was_asked_for_stays(tmp_path: Path) -> None:
    earlier = _objects(tmp_path).add_bytes(b"earlier")
    objects = _objects(tmp_path)
    refs = [objects.add_bytes(each) for each in (b"earlier", b"twice", b"looked at", b"handed out", b"goes")]
    assert refs[0] == earlier
    objects.add_bytes(b"twice")
    objects.has(refs[2])
    objects.path(refs[3])
    objects.discard(refs)
    assert _names(tmp_path) == {ref.digest for ref in refs[:4]}


def test_what_another_cache_holds_stays(tmp_path: Path) -> None:
    objects, other = _objects(tmp_path), _objects(tmp_path)
    refs = [objects.add_bytes(each) for each in (b"one", b"two")]
    assert other.has(refs[0])
    objects.discard(refs)
    assert _names(tmp_path) == {refs[0].digest}
    other.release()
    objects.discard(refs)
    assert _names(tmp_path) == set()


@pytest.mark.parametrize("kept_out", [True, False])
def test_a_run_that_is_kept_out_leaves_nothing(tmp_path: Path, kept_out: bool) -> None:
    watched = tmp_path / "watched"
    watched.write_text("1")
    with closing(cachec.Cache(tmp_path / "store", log="off")) as cache:

        @cache.stage
        def stage(size: int) -> bytes:
            text = watched.read_text()
            if kept_out:
                watched.write_text(text + "1")
            return os.urandom(size)

        value, outcome = cache.call(stage, 100_000)
        assert len(value) == 100_000
        assert outcome.stored is not kept_out
        assert bool(_names(tmp_path / "store")) is not kept_out
        if not kept_out:
            assert cache.call(stage, 100_000)[0] == value
