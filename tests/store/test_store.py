"""The store as one unit: entries, their traces, the recent keys, and what is refused."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from blake3 import blake3

from cachec.errors import StoreFault
from cachec.model import (
    MAX_TRACES,
    RECORD_VERSION,
    ArtifactRef,
    CallerSet,
    CallerWeight,
    Entry,
    Fault,
    Inline,
    Leaf,
    OwnedWeight,
    Read,
    Record,
    Sequence,
    Trace,
    Weights,
    WeightSpec,
)
from cachec.store.index import DiskcacheIndex
from cachec.store.nearest_keys import MAX_KEYS
from cachec.store.store import FOLDERS, Store, references
from tests.parts import quarantined

K = "0123456789abcdef" * 4
OTHER = "f" * 64


@pytest.fixture
def faults() -> list[Fault]:
    return []


@pytest.fixture
def store(tmp_path: Path, faults: list[Fault]) -> Store:
    return Store(tmp_path, on_fault=lambda fault, _detail: faults.append(fault))


def fault_of(call: Callable[[], object]) -> Fault:
    with pytest.raises(StoreFault) as raised:
        call()
    return raised.value.fault


@pytest.mark.parametrize("fsync", [True, False])
def test_what_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, publisher: Any, fsync: bool) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: flushed.append(os.readlink(f"/proc/self/fd/{fd}")))
    store = Store(tmp_path, fsync=fsync)
    publisher.publish(store, K)
    assert any(path.startswith(str(tmp_path / "objects")) for path in flushed) == fsync
    assert isinstance(store.index, DiskcacheIndex)
    assert store.index._diskcache is not None
    assert store.index._diskcache.sqlite_synchronous == (2 if fsync else 1)  # FULL, NORMAL
    levels, real = [], DiskcacheIndex._set

    def written(self: DiskcacheIndex, *args: Any) -> None:
        assert self._diskcache is not None
        levels.append(int(self._diskcache._sql("PRAGMA synchronous").fetchone()[0]))
        real(self, *args)

    publisher.publish(Store(tmp_path, fsync=False), "c" * 64)  # its settings are those of new connections
    monkeypatch.setattr(DiskcacheIndex, "_set", written)
    publisher.publish(store, "b" * 64)
    assert set(levels) == {2 if fsync else 1}


def test_a_fault_of_the_index_is_told(store: Store, faults: list[Fault], tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "cache.db").write_bytes(b"garbage" * 1000)
    assert store.index.recall("digest:1") is None
    assert faults == [Fault.INDEX_CORRUPT]


def test_an_entry_comes_back_here_and_in_a_new_process(store: Store, tmp_path: Path, publisher: Any) -> None:
    assert store.lookup(K) is None
    publisher.publish(store, K)
    publisher.assert_right(store, K)
    publisher.assert_right(Store(tmp_path), K)
    assert store.lookup(OTHER) is None
    assert store.recent(publisher.stage).keys == (K,)
    assert store.recent("another").keys == ()


def test_opening_and_looking_up_make_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    assert store.lookup(K) is None
    assert store.recent("s").keys == ()
    assert list(store.entries()) == []
    assert store.content(K) is None
    store.close()
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_layout_and_modes(tmp_path: Path, publisher: Any, mask: int) -> None:
    old = os.umask(mask)
    try:
        publisher.publish(Store(tmp_path / "store"), K)
    finally:
        os.umask(old)
    assert {path.name for path in (tmp_path / "store").iterdir()} == set(FOLDERS)
    for path in (tmp_path / "store").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        expected = 0o700 if path.is_dir() else 0o444 if path.parent.parent.name == "objects" else 0o600
        assert mode == expected, path
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o700


def test_a_repeated_lookup_reads_the_index_and_decodes_once(store: Store, tmp_path: Path, publisher: Any) -> None:
    publisher.publish(store, K)
    first = store.lookup(K)
    assert store.lookup(K) is first
    Store(tmp_path).invalidate(K)
    assert store.lookup(K) is None
    publisher.publish(Store(tmp_path), K, read="/x")
    second = store.lookup(K)
    assert second is not None
    assert second != first


def test_traces_are_newest_first_and_equal_reads_give_way(store: Store, publisher: Any) -> None:
    for read in ("/a", "/b", "/a", "/c"):
        publisher.publish(store, K, read)
    entry = store.lookup(K)
    assert entry is not None
    assert [trace.reads[0].where for trace in entry.traces] == ["/c", "/a", "/b"]
    for number in range(MAX_TRACES + 5):
        publisher.publish(store, K, f"/{number}")
    entry = store.lookup(K)
    assert entry is not None
    newest = [f"/{number}" for number in reversed(range(MAX_TRACES + 5))][:MAX_TRACES]
    assert [trace.reads[0].where for trace in entry.traces] == newest


def test_recent_keys_are_newest_first_without_repeats(
    store: Store, inline: Callable[[str], Trace], no_parts: ArtifactRef, key: Callable[[int], str]
) -> None:
    for number in [*range(MAX_KEYS + 6), 10, 11]:
        store.publish(key(number), "s", (), no_parts, inline("x"))
    store.publish(key(1000), "t", (), no_parts, inline("x"))
    recent = store.recent("s").keys
    assert recent[:3] == (key(11), key(10), key(MAX_KEYS + 5))
    assert len(recent) == len(set(recent)) == MAX_KEYS
    assert store.recent("t").keys == (key(1000),)


def test_namespaces_do_not_meet(tmp_path: Path, publisher: Any, inline: Any, no_parts: ArtifactRef) -> None:
    stores = [Store(tmp_path, name) for name in ("a", "a:b", "a%3Ab", "")]
    publisher.publish(stores[0], K)
    assert [store.lookup(K) is not None for store in stores] == [True, False, False, False]
    stores[0].publish(OTHER, "b:s", (), no_parts, inline("x"))
    assert stores[0].recent("b:s").keys == (OTHER,)
    assert stores[1].recent("s").keys == ()
    publisher.publish(stores[1], K)
    assert stores[0].invalidate(K)
    publisher.assert_right(stores[1], K)
    assert [entry.key for entry in stores[1].entries()] == [K]
    assert [entry.key for entry in stores[0].entries()] == [OTHER]


def test_invalidate_forgets_an_entry_and_no_other(store: Store, publisher: Any) -> None:
    publisher.publish(store, K)
    publisher.publish(store, OTHER)
    assert store.invalidate(K)
    assert not store.invalidate(K)
    assert store.lookup(K) is None
    publisher.assert_right(store, OTHER)
    publisher.publish(store, K)
    publisher.assert_right(store, K)


def test_quarantine_puts_an_entry_away_for_good(store: Store, tmp_path: Path, publisher: Any) -> None:
    publisher.publish(store, K)
    entry = store.lookup(K)
    assert store.quarantine(K, "differs in byte 3")
    assert not store.quarantine(K, "again")
    for reader in (store, Store(tmp_path)):
        assert reader.lookup(K) is None
        assert list(reader.entries()) == []
        (put_away,) = quarantined(reader)
        assert (put_away.key, put_away.stage, put_away.reason) == (K, publisher.stage, "differs in byte 3")
        assert msgspec.json.decode(put_away.row[39:], type=Entry) == entry
    publisher.publish(store, K)  # a new run may publish again
    publisher.assert_right(store, K)
    assert len(quarantined(store)) == 1


def test_find_artifact_names_the_entries_that_refer_to_it(store: Store, publisher: Any) -> None:
    publisher.publish(store, K)
    publisher.publish(store, OTHER)
    entry = store.lookup(K)
    assert entry is not None
    assert store.find_artifact(blake3(publisher.content(K)).hexdigest()) == [(K, publisher.stage)]
    assert store.find_artifact(entry.parts.digest) == [(K, publisher.stage)]
    assert store.find_artifact("0" * 64) == []


def test_references_are_all_artifacts_of_an_entry() -> None:
    refs = [ArtifactRef(f"{number:064x}", number) for number in range(6)]
    spec = WeightSpec(name="w", dtype="int8", shape=(4,), nbytes=4)
    value = Sequence(
        "tuple",
        (
            Leaf("bytes", (refs[1], refs[2])),
            Record("", ("a", "b"), (Leaf("x", (refs[3],)), Inline("none", ""))),
            Weights(("w", "v"), (OwnedWeight(spec, refs[4]), CallerWeight("arg/0", "v"))),
            CallerSet("arg/0"),
        ),
    )
    trace = Trace(reads=(), value=value, seconds=0, created=0, manifest=refs[5])
    entry = Entry(version=RECORD_VERSION, key=K, stage="s", tags=(), parts=refs[0], traces=(trace,))
    assert sorted(references(entry), key=lambda ref: ref.size) == refs


def test_the_digest_of_a_file_that_was_read_is_no_reference(store: Store, publisher: Any) -> None:
    digest = blake3(b"input").hexdigest()
    reads = (Read("file", "/x", "", digest),)
    trace = Trace(reads=reads, value=Inline("str", digest), seconds=0, created=0)
    store.publish(K, "s", (), store.objects.add_bytes(publisher.parts(K)), trace)
    assert store.find_artifact(digest) == []


def test_digests_of_files_are_remembered_in_the_index(
    store: Store, tmp_path: Path, publisher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachec.base.fsio.SETTLE_SECONDS", -1.0)
    (tmp_path / "file").write_bytes(b"content")
    digest = store.digests.of_path(tmp_path / "file")
    publisher.publish(store, K)
    monkeypatch.setattr("cachec.base.hashing.digest_extent", lambda *_args: pytest.fail("hashed again"))
    assert Store(tmp_path).digests.of_path(tmp_path / "file") == digest


# --- rows that are not what they should be


def pack(body: bytes, version: int = RECORD_VERSION) -> bytes:
    """A row as the specification in ``store`` says."""
    return b"cachec" + bytes([version]) + blake3(body).digest() + body


def entry_body(**change: object) -> bytes:
    """The JSON of an entry without artifacts, with some fields other than they should be."""
    trace = {
        "reads": [],
        "value": {"type": "inline", "kind": "str", "value": "x"},
        "seconds": 0,
        "created": 0,
        "manifest": None,
    }
    parts = {"digest": OTHER, "size": 1}
    entry = {"version": RECORD_VERSION, "key": K, "stage": "s", "tags": [], "parts": parts, "traces": [trace]}
    return msgspec.json.encode(entry | change)


def test_the_row_format_is_the_one_that_is_specified(store: Store, inline: Any, no_parts: ArtifactRef) -> None:
    store.index.write(f"entry:default:{K}", pack(entry_body()), "s")
    entry = store.lookup(K)
    assert entry is not None
    assert entry.traces[0].value == Inline("str", "x")
    store.publish(OTHER, "s", (), no_parts, inline("x"))
    row = store.index.read(f"entry:default:{OTHER}")
    assert row is not None
    assert row == pack(row[39:])


GOOD = pack(entry_body())
BAD_ROWS: dict[str, tuple[bytes, Fault]] = {
    "another key": (pack(entry_body(key=OTHER)), Fault.ROW_FOREIGN),
    "a later version": (pack(entry_body(), RECORD_VERSION + 1), Fault.ROW_VERSION),
    "a later version of another shape": (pack(b"\xff", RECORD_VERSION + 1), Fault.ROW_VERSION),
    "a later version inside": (pack(entry_body(version=RECORD_VERSION + 1)), Fault.ROW_VERSION),
    "nothing": (b"", Fault.ROW_CORRUPT),
    "garbage": (os.urandom(500), Fault.ROW_CORRUPT),
    "no JSON": (pack(b"garbage"), Fault.ROW_CORRUPT),
    "not UTF-8": (pack(b'{"key":"\xff\xfe"}'), Fault.ROW_CORRUPT),
    "a missing field": (pack(b'{"version":1}'), Fault.ROW_CORRUPT),
    "a wrong type": (pack(entry_body(stage=5)), Fault.ROW_CORRUPT),
    "a digest that is a path": (pack(entry_body(parts={"digest": "../" * 21 + "x", "size": 1})), Fault.ROW_CORRUPT),
    "a digest in capitals": (pack(entry_body(parts={"digest": "F" * 64, "size": 1})), Fault.ROW_CORRUPT),
    "a negative size": (pack(entry_body(parts={"digest": OTHER, "size": -1})), Fault.ROW_CORRUPT),
    "endless nesting": (pack(b"[" * 100_000), Fault.ROW_CORRUPT),
    "a wrong checksum": (GOOD[:10] + bytes([GOOD[10] ^ 1]) + GOOD[11:], Fault.ROW_CORRUPT),
    "a changed value": (GOOD.replace(b'"value":"x"', b'"value":"y"'), Fault.ROW_CORRUPT),
}


@pytest.mark.parametrize("bad", BAD_ROWS)
def test_a_bad_row_is_refused_counted_and_replaced(store: Store, faults: list[Fault], publisher: Any, bad: str) -> None:
    row, expected = BAD_ROWS[bad]
    publisher.publish(store, K)
    publisher.publish(store, OTHER)
    publisher.assert_right(store, K)
    store.index.write(f"entry:default:{K}", row, "s")
    assert fault_of(lambda: store.lookup(K)) is expected
    assert fault_of(lambda: store.lookup(K)) is expected
    assert [entry.key for entry in store.entries()] == [OTHER]
    assert faults == [expected]
    publisher.publish(store, K)
    assert faults == [expected, expected]
    publisher.assert_right(store, K)
    publisher.assert_right(store, OTHER)


@pytest.mark.parametrize("length", [*range(0, 60), *range(60, len(GOOD), 7), len(GOOD) - 1])
def test_a_row_cut_at_any_length_is_refused(store: Store, length: int) -> None:
    store.index.write(f"entry:default:{K}", GOOD[:length], "s")
    assert fault_of(lambda: store.lookup(K)) is Fault.ROW_CORRUPT


def test_a_row_with_any_bit_flipped_is_refused(store: Store) -> None:
    for place in range(len(GOOD)):
        flipped = GOOD[:place] + bytes([GOOD[place] ^ (1 << place % 8)]) + GOOD[place + 1 :]
        store.index.write(f"entry:default:{K}", flipped, "s")
        assert fault_of(lambda: store.lookup(K)) in {Fault.ROW_CORRUPT, Fault.ROW_VERSION}


@pytest.mark.parametrize(("mode", "filename"), [(4, None), (2, None), (1, "../victim"), (4, "../victim")])
def test_a_row_that_diskcache_would_run_or_follow_is_refused_counted_and_replaced(
    store: Store, faults: list[Fault], publisher: Any, rows: Any, mode: int, filename: str | None
) -> None:
    publisher.publish(store, K)
    rows.run("UPDATE Cache SET mode = ?, filename = ?", (mode, filename))
    assert fault_of(lambda: store.lookup(K)) is Fault.ROW_REFUSED
    assert fault_of(lambda: store.recent(publisher.stage)) is Fault.ROW_REFUSED
    assert list(store.entries()) == []
    publisher.publish(store, K)
    assert faults == [Fault.ROW_REFUSED] * 4  # entries(), and the rows of publish()
    publisher.assert_right(store, K)
    assert store.recent(publisher.stage).keys == (K,)


def test_a_bad_row_can_be_put_away(store: Store, publisher: Any, rows: Any) -> None:
    publisher.publish(store, K)
    rows.run("UPDATE Cache SET mode = 4")
    assert store.quarantine(K, "pickle")
    assert store.lookup(K) is None
    store.index.write(f"entry:default:{OTHER}", b"garbage", "s")
    assert store.quarantine(OTHER, "garbage")
    assert sorted((put_away.reason, put_away.row) for put_away in quarantined(store)) == [
        ("garbage", b"garbage"),
        ("pickle", b""),
    ]


def test_a_bad_recent_row_is_replaced(store: Store, faults: list[Fault], publisher: Any) -> None:
    publisher.publish(store, K)
    store.index.write(f"recent:default:{publisher.stage}", b"garbage", "s")
    assert fault_of(lambda: store.recent(publisher.stage)) is Fault.ROW_CORRUPT
    publisher.publish(store, OTHER)
    assert store.recent(publisher.stage).keys == (OTHER,)
    assert faults == [Fault.ROW_CORRUPT]
    row = store.index.read(f"recent:default:{publisher.stage}")
    assert row is not None
    store.index.write("recent:default:another", row, "s")
    assert fault_of(lambda: store.recent("another")) is Fault.ROW_FOREIGN


def test_parts_that_are_no_parts_are_a_fault(store: Store, inline: Any) -> None:
    store.publish(K, "s", (), store.objects.add_bytes(b'[{"name": 5}]'), inline("x"))
    entry = store.lookup(K)
    assert entry is not None
    assert fault_of(lambda: store.parts(entry)) is Fault.ARTIFACT_CORRUPT
    store.objects.path(entry.parts).unlink()
    assert fault_of(lambda: store.parts(entry)) is Fault.ARTIFACT_MISSING


def test_a_store_deleted_in_mid_use(store: Store, tmp_path: Path, publisher: Any) -> None:
    publisher.publish(store, K)
    publisher.assert_right(store, K)
    for path in tmp_path.iterdir():
        shutil.rmtree(path)
    assert store.lookup(OTHER) is None  # a miss looks at the disk again
    assert store.lookup(K) is None
    publisher.publish(store, K)
    publisher.assert_right(store, K)
    publisher.assert_right(Store(tmp_path), K)
    lock = store.lock(K)
    assert lock.try_acquire()
    for path in tmp_path.iterdir():
        shutil.rmtree(path)
    lock.release()
    publisher.publish(store, OTHER)
    publisher.assert_right(store, OTHER)


def test_a_bad_row_of_neighbours_is_replaced_and_read_as_nobody_elses(
    store: Store, faults: list[Fault], publisher: Any
) -> None:
    publisher.publish(store, K)
    [name] = store.index.keys(prefix="near:default:")
    parts = store.parts_of(store.objects.add_bytes(publisher.parts(K)))
    assert [near.key for near in store.neighbours(publisher.stage, parts).nearest] == [K]
    row = store.index.read(name)
    assert row is not None
    for bad, fault in ((b"garbage", Fault.ROW_CORRUPT), (row[:-1], Fault.ROW_CORRUPT)):
        store.index.write(name, bad, "s")
        assert fault_of(lambda: store.neighbours(publisher.stage, parts)) is fault
        publisher.publish(store, K)
        assert [near.key for near in store.neighbours(publisher.stage, parts).nearest] == [K]
        publisher.assert_right(store, K)
    assert faults == [Fault.ROW_CORRUPT] * 2
    other = f"near:default:{'0' * 32}"
    store.index.write(other, row, "s")
    assert fault_of(lambda: store.recent(publisher.stage, "0" * 32)) is Fault.ROW_FOREIGN
    assert store.index.delete(name)
    assert [near.key for near in store.neighbours(publisher.stage, parts).nearest] == [K]  # by the row of the stage
