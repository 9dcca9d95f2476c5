"""gc: what goes first, what never goes, and that the store is left whole."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import cachec
from cachec.base.hashing import digest_bytes
from cachec.maintain.maintainer import Maintainer
from cachec.maintain.mark import QUARANTINE_SECONDS
from cachec.maintain.sweep import GRACE_SECONDS, LONG_SECONDS
from cachec.model import RECORD_VERSION, ArtifactRef, Part
from cachec.store import nearest_keys
from cachec.store.index import DiskcacheIndex, used_file
from cachec.store.leases import collecting
from cachec.store.objects import REFRESH_SECONDS
from cachec.store.row_codec import pack
from cachec.store.store import QuarantinedRow, references
from tests.parts import part, quarantined, tool

from .conftest import DAY, Yard, key_of

KEYS = [key_of(number) for number in range(8)]

#: Bytes on disk of an entry of ``fill``: its artifact, and its parts.
EACH = 8192


def fill(yard: Yard, count: int = 8) -> None:
    """Entries of equal size; each costs twice what the one before it did."""
    for number, key in enumerate(KEYS[:count]):
        yard.publish(key, seconds=2.0**number)
    yard.age()


def assert_whole(yard: Yard) -> None:
    """Every artifact that an entry needs is there, nothing else is, and the size is known."""
    needed = {ref.digest for entry in yard.store.entries() for ref in references(entry)}
    assert yard.objects() == needed
    assert yard.store.usage().nbytes == yard.maintainer.measure().nbytes  # type: ignore[union-attr]


def test_what_is_worth_least_goes_first(yard: Yard) -> None:
    fill(yard)
    done = yard.maintainer.collect(limit=5 * EACH)
    assert yard.keys() == set(KEYS[3:])
    assert (done.before, done.after, done.entries, done.seconds) == (8 * EACH, 5 * EACH, 3, 7.0)
    assert (done.artifacts, done.freed, done.is_within) == (6, 3 * EACH, True)
    assert_whole(yard)
    assert yard.maintainer.collect(limit=5 * EACH).entries == 0
    names = list(yard.store.index.keys())
    assert not [name for name in names if name.startswith("condemned:")]
    assert len([name for name in names if name.startswith("summary:")]) == 5


def test_uses_count_and_so_does_their_time(yard: Yard) -> None:
    fill(yard)
    yard.used(KEYS[0], ago=DAY, times=200)
    yard.maintainer.collect(limit=5 * EACH)
    assert yard.keys() == {KEYS[0], *KEYS[4:]}
    # The level has risen to the worth of KEYS[3], 8 seconds: what is used from now on stands above what is not.
    yard.now += 10
    new = key_of(50)
    yard.publish(new, seconds=9.0, ago=1)
    yard.age()
    yard.maintainer.collect(limit=5 * EACH)
    assert yard.keys() == {KEYS[0], new, *KEYS[5:]}


def test_nothing_goes_within_the_limit_or_without_one(yard: Yard) -> None:
    fill(yard)
    assert yard.maintainer.collect(limit=8 * EACH).entries == 0
    assert yard.maintainer.collect(limit=0).limit is None
    assert yard.keys() == set(KEYS)


def test_nothing_goes_because_a_damaged_file_is_large(yard: Yard) -> None:
    fill(yard)
    ref = next(references(next(iter(yard.store.entries()))))
    place = yard.store.objects.place(ref.digest)
    os.chmod(place, 0o600)
    os.truncate(place, 1 << 40)
    assert yard.maintainer.collect(limit=8 * EACH).entries == 0
    assert yard.keys() == set(KEYS)


def test_what_was_not_used_for_long_goes_by_age(yard: Yard) -> None:
    yard.publish(KEYS[0], ago=40 * DAY)
    yard.publish(KEYS[1], ago=40 * DAY)
    yard.publish(KEYS[2], ago=5 * DAY)
    yard.used(KEYS[1], ago=2 * DAY)
    yard.age()
    assert yard.maintainer.collect(limit=0, older_than=30 * DAY).entries == 1
    assert yard.keys() == {KEYS[1], KEYS[2]}
    with pytest.raises(cachec.UsageError, match="older_than"):
        yard.maintainer.collect(older_than=-1)


def test_a_dry_run_says_the_same_and_changes_nothing(yard: Yard) -> None:
    fill(yard)
    before = {path: path.stat().st_mtime_ns for path in yard.folder.rglob("*") if path.is_file()}
    said = yard.maintainer.collect(limit=5 * EACH, dry_run=True)
    assert yard.keys() == set(KEYS)
    after = {path: path.stat().st_mtime_ns for path in yard.folder.rglob("*") if path.is_file()}
    assert {path for path in before if "index" not in path.parts} <= set(after)
    done = yard.maintainer.collect(limit=5 * EACH)
    assert (said.entries, said.artifacts, said.freed, said.after, said.seconds) == (
        done.entries,
        done.artifacts,
        done.freed,
        done.after,
        done.seconds,
    )


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    yard = Yard(tmp_path / "none")
    done = yard.maintainer.collect(limit=1)
    assert (done.before, done.after, done.is_within) == (0, 0, True)
    assert not yard.folder.exists()


# --- what never goes


def test_pinned_entries_stay(yard: Yard) -> None:
    fill(yard)
    yard.publish(key_of(20), tags=("release",), seconds=0.0)
    yard.age()
    yard.maintainer.pins.add("tag", "release")
    yard.maintainer.pins.add("key", KEYS[0])
    done = yard.maintainer.collect(limit=1)
    assert yard.keys() == {key_of(20), KEYS[0]}
    assert done.kept_pinned == 2
    assert not done.is_within
    yard.maintainer.pins.remove("key", KEYS[0])
    yard.maintainer.collect(limit=1)
    assert yard.keys() == {key_of(20)}


def test_what_a_living_process_was_handed_stays(yard: Yard) -> None:
    fill(yard)
    user = Yard(yard.folder)
    entry = user.store.lookup(KEYS[0])
    assert entry is not None
    path = user.store.objects.path(entry.traces[0].value.artifacts[0])  # type: ignore[union-attr]
    done = yard.maintainer.collect(limit=1)
    assert yard.keys() == {KEYS[0]}
    assert done.kept_in_use == 1
    assert path.stat().st_size == 4096
    user.store.release()
    yard.maintainer.collect(limit=1)
    assert yard.keys() == set()
    assert yard.objects() == set()


def test_an_artifact_in_use_stays_although_its_entry_was_invalidated(yard: Yard) -> None:
    fill(yard, 1)
    user = Yard(yard.folder)
    ref = user.store.lookup(KEYS[0]).traces[0].value.artifacts[0]  # type: ignore[union-attr]
    path = user.store.objects.path(ref)
    yard.store.invalidate(KEYS[0])
    assert yard.maintainer.collect(limit=1).freed == 4096  # its parts
    assert path.exists()
    user.store.release()
    yard.maintainer.collect(limit=1)
    assert not path.exists()


def test_what_is_being_published_stays(yard: Yard) -> None:
    """However long it takes until its row comes, and whatever the clock says."""
    publisher = Yard(yard.folder)
    ref = publisher.store.objects.add_bytes(b"being published")
    path = publisher.store.objects.path(ref)
    os.utime(path, (0, 0))
    yard.maintainer.collect(limit=1)
    assert path.exists()


def test_an_artifact_that_two_entries_share_stays_with_the_second(yard: Yard) -> None:
    shared = yard.publish(KEYS[0], content=b"shared" * 1000, seconds=1.0)
    yard.publish(KEYS[1], content=b"shared" * 1000, seconds=9.0)
    yard.age()
    done = yard.maintainer.collect(limit=8192 + 4096)
    assert yard.keys() == {KEYS[1]}
    assert done.freed == 4096
    assert yard.store.objects.path(shared).exists()


def test_what_why_shows_stays_with_its_entry(yard: Yard) -> None:
    """The IR and the manifests that parts name are needed, though no trace refers to them."""
    ir, manifest = (yard.store.objects.add_bytes(data) for data in (b"module {}", b"[]"))
    parts = (
        part("program/p", "jax:stablehlo", refs=(ir.digest,)),
        part("weights/w", "0 weights", refs=(manifest.digest,)),
    )
    yard.publish(KEYS[0], parts=parts)
    loose = yard.store.objects.add_bytes(b"loose")
    yard.age()
    for gone in ((), ("summary:default:" + KEYS[0],)):  # with its summary, and without
        yard.store.index.delete_many(gone)
        yard.maintainer.collect(limit=0)
        assert {ir.digest, manifest.digest} <= yard.objects()
    assert loose.digest not in yard.objects()
    assert yard.store.index.read("summary:default:" + KEYS[0]) is not None  # written again
    yard.maintainer.collect(limit=1)
    assert yard.objects() == set()


def test_a_digest_in_the_words_of_a_part_keeps_nothing(yard: Yard) -> None:
    """Only ``refs`` do, wherever the digest stands: in a detail, a value, a version, a name; of whatever kind it is."""
    mentioned = yard.store.objects.add_bytes(b"mentioned")
    referred = yard.store.objects.add_bytes(b"referred")
    words = f"ir {mentioned.digest}, manifest {mentioned.digest}"
    parts = (
        part("program/p", words, version=words, value=words),
        part("weights/w", words),
        part(f"arg/{mentioned.digest}", words, value=words),
        part("file/f", "", refs=(referred.digest,)),
    )
    yard.publish(KEYS[0], parts=parts)
    yard.age()
    for gone in ((), ("summary:default:" + KEYS[0],)):
        yard.store.index.delete_many(gone)
        yard.maintainer.collect(limit=0)
        assert referred.digest in yard.objects()
        assert mentioned.digest not in yard.objects()


def test_entries_of_other_namespaces_count_and_go_too(yard: Yard) -> None:
    fill(yard, 4)
    other = Yard(yard.folder, "other")
    other.publish(key_of(30), seconds=0.1)
    yard.age()
    other.store.release()
    yard.maintainer.collect(limit=4 * EACH)
    assert other.keys() == set()
    assert yard.keys() == set(KEYS[:4])


# --- orphans, damaged rows, what killed processes left


def test_orphans_go_after_the_grace_period(yard: Yard) -> None:
    assert GRACE_SECONDS > REFRESH_SECONDS
    ref = yard.store.objects.add_bytes(b"orphan")
    yard.store.prepare()
    yard.age(GRACE_SECONDS - 5)
    yard.maintainer.collect(limit=0)
    assert yard.objects() == {ref.digest}
    yard.now += 10
    assert yard.maintainer.collect(limit=0).artifacts == 1
    assert yard.objects() == set()


def test_a_clock_that_jumped_back_removes_nothing_early(yard: Yard) -> None:
    fill(yard, 3)
    orphan = yard.store.objects.add_bytes(b"orphan")
    (yard.folder / "tmp" / f"stage-999999999-{'0' * 16}").touch()
    yard.age()
    yard.now -= 100 * DAY
    done = yard.maintainer.collect(limit=0, older_than=30 * DAY)
    assert done.entries == 0
    assert yard.objects() >= {orphan.digest}
    assert list((yard.folder / "tmp").iterdir()) != []
    yard.maintainer.collect(limit=2 * EACH)  # the bound holds whatever the clock says
    assert yard.keys() == set(KEYS[1:3]) or yard.keys() == {KEYS[2]}


def test_damaged_rows_go_and_those_of_another_version_stay(yard: Yard) -> None:
    fill(yard, 4)
    index = yard.store.index
    foreign = index.read(f"entry:default:{KEYS[3]}")
    index.write(f"entry:default:{KEYS[0]}", b"garbage", "x")
    index.write(f"entry:default:{KEYS[1]}", foreign or b"", "x")
    newer = bytearray(index.read(f"entry:default:{KEYS[2]}") or b"")
    newer[6] = RECORD_VERSION + 1
    index.delete(f"entry:default:{KEYS[2]}")
    theirs = DiskcacheIndex(yard.folder / "index", version=RECORD_VERSION + 1)
    theirs.write(f"entry:default:{KEYS[2]}", bytes(newer), "x")
    marker = Path(used_file(str(yard.folder), RECORD_VERSION + 1))
    marker.touch()
    os.utime(marker, (yard.now, yard.now))  # else nobody has used it for years, by the clock of these tests
    done = yard.maintainer.collect(limit=0)
    assert done.swept["damaged rows"] == 2
    assert set(index.keys(prefix="entry:")) == {f"entry:default:{KEYS[3]}"}
    assert set(theirs.keys(prefix="entry:")) == {f"entry:default:{KEYS[2]}"}
    assert len(yard.objects()) == 4  # those of another version keep their artifacts
    yard.maintainer.collect(limit=EACH)
    assert set(index.keys(prefix="entry:")) == {f"entry:default:{KEYS[3]}"}
    yard.maintainer.collect(limit=1)
    assert set(index.keys(prefix="entry:")) == set()
    assert set(theirs.keys(prefix="entry:")) == {f"entry:default:{KEYS[2]}"}


def test_quarantined_entries_stay_a_week(yard: Yard) -> None:
    fill(yard, 2)
    for number, age in enumerate((QUARANTINE_SECONDS - 5, QUARANTINE_SECONDS + 5)):
        row = yard.store.index.read(f"entry:default:{KEYS[number]}") or b""
        put_away = QuarantinedRow(
            version=RECORD_VERSION, key=KEYS[number], stage="s", reason="differs", time=yard.now - age, row=row
        )
        yard.store.index.write(f"quarantine:default:{KEYS[number]}", pack(put_away), "s")
        yard.store.invalidate(KEYS[number])
    yard.maintainer.collect(limit=0)
    assert [each.key for each in quarantined(yard.store)] == [KEYS[0]]
    assert len(yard.objects()) == 2


def test_what_killed_processes_left_goes(yard: Yard) -> None:
    fill(yard, 1)
    store, folder = yard.store, yard.folder
    dead = folder / "tmp" / f"stage-999999999-{'0' * 16}"
    alive = folder / "tmp" / f"stage-{os.getpid()}-{'0' * 16}"
    tree = folder / "tmp" / f"tree-999999999-{'0' * 16}"
    foreign = folder / "tmp" / "notes.txt"
    corrupt, repaired = folder / "index" / "corrupt-1", folder / "index.new-corrupt-1"
    download = folder / "weights" / "fetched" / ("0" * 32)
    for path in (dead, alive, foreign, tree / "a", corrupt / "cache.db", repaired / "x", download / "part"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    tree.chmod(0o555)
    lock, held = folder / "locks" / "aa" / ("a" * 64), store.lock("b" * 64)
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert held.try_acquire()

    def age(seconds: float) -> None:
        yard.age(seconds)
        for top in (tree, corrupt, repaired, download):
            if top.exists():
                os.utime(top, (yard.now - seconds,) * 2)

    age(GRACE_SECONDS - 5)
    assert yard.maintainer.collect(limit=0).swept == {}
    age(GRACE_SECONDS + 5)
    said = yard.maintainer.collect(limit=0, dry_run=True).swept
    assert said == {"unfinished files": 2, "lock files": 2}
    assert dead.exists()
    assert yard.maintainer.collect(limit=0).swept == {"unfinished files": 2, "lock files": 1}
    assert [path.exists() for path in (dead, tree, alive, foreign, lock)] == [False, False, True, True, False]
    assert held.path.exists()
    age(LONG_SECONDS + 5)
    swept = yard.maintainer.collect(limit=0).swept
    assert (swept["damaged databases"], swept["unfinished downloads"]) == (2, 1)
    assert not corrupt.exists()
    assert not repaired.exists()
    assert not download.exists()
    held.release()
    assert yard.keys() == {KEYS[0]}


def test_weights_without_a_name_go(yard: Yard, weights_file: Path) -> None:
    from cachec.store.store import Store
    from cachec.weights.library.stored_weights import WeightStore

    weights = WeightStore(Store(yard.folder))
    weights.add(cachec.open_weights(weights_file), "base")
    (yard.folder / "weights" / "names" / "base.json").unlink()  # as a process killed while it removed
    yard.store.prepare()
    done = yard.maintainer.collect(limit=0)
    assert (done.swept["revisions"], done.artifacts) == (1, 3)
    assert yard.objects() == set()


def test_trees_go_with_their_entries(cache: cachec.Cache, tmp_path: Path) -> None:
    @cache.stage
    def make(text: str) -> cachec.Dir:
        with cachec.scratch() as folder:
            (folder / "tool").write_text(text * 2000)
            (folder / "tool").chmod(0o755)
            (folder / "notes").write_text(text)
            return cachec.Dir(folder)

    first, second = (Path(make(text)) for text in ("a", "b"))
    cache.store.release()
    later = time.time() + 2 * GRACE_SECONDS
    maintainer = Maintainer(cache.store, clock=lambda: later)
    assert (first / "tool").exists()
    assert make("b").path == second  # and holds it again
    done = maintainer.collect(limit=1)
    assert done.swept["trees"] == 1
    assert not first.exists()
    assert (second / "tool").read_text() == "b" * 2000
    assert [entry.stage.rpartition(".")[2] for entry in cache.store.entries()] == ["make"]
    assert make("a").path == first


def test_a_folder_that_is_stored_malformed_is_told_and_stops_nothing(yard: Yard) -> None:
    from cachec.model import Fault, Leaf, Trace

    fill(yard, 2)
    for number, meta in enumerate(({"files": 1}, {"name": "x", "files": {"../a": False}})):
        artifacts = () if number == 0 else (yard.store.objects.add_bytes(b"x"),)
        trace = Trace(reads=(), value=Leaf("dir", artifacts, meta), seconds=0.0, created=yard.now)
        yard.store.publish(key_of(40 + number), "s", (), yard.store.objects.add_bytes(b"[]"), trace)
    yard.age()
    assert yard.maintainer.collect(limit=2 * EACH).entries == 2
    assert {*yard.faults} == {Fault.ROW_CORRUPT}
    assert yard.keys() == set(KEYS[:2])


def test_facts_that_nothing_needs_go(yard: Yard) -> None:
    yard.publish(KEYS[0], parts=(tool("a", "1"),))
    yard.publish(KEYS[1], parts=(tool("a", "2"),))
    assert len(list(yard.store.index.keys(prefix="facts:"))) == 2
    yard.store.invalidate(KEYS[0])
    yard.maintainer.collect(limit=0)
    assert len(list(yard.store.index.keys(prefix="facts:"))) == 1


def test_the_remembered_digests_of_removed_files_go(yard: Yard, seconds_later: Callable[[float], None]) -> None:
    fill(yard, 1)
    seconds_later(2.1)  # before, no digest of a file is remembered
    entry = yard.store.lookup(KEYS[0])
    assert entry is not None
    yard.store.objects.path(entry.traces[0].value.artifacts[0])  # type: ignore[union-attr]
    yard.store.close()
    if not list(yard.store.index.keys(prefix="digest:")):
        pytest.skip("this file system's digests are not remembered")
    yard.store.release()
    yard.maintainer.collect(limit=1)
    assert list(yard.store.index.keys(prefix="digest:")) == []


# --- beside others


def test_a_second_gc_does_nothing(yard: Yard) -> None:
    fill(yard)
    lock = yard.store.locks.of("gc")
    assert lock.try_acquire()
    done = Yard(yard.folder).maintainer.collect(limit=1)
    assert done.postponed_by == os.getpid()
    assert yard.keys() == set(KEYS)
    lock.release()
    assert Yard(yard.folder).maintainer.collect(limit=1).postponed_by == 0


def during(monkeypatch: pytest.MonkeyPatch, what: Callable[[], object]) -> None:
    """Run ``what`` between gc's look at the store and its first change."""
    from cachec.maintain.collect import Collector

    tidy = Collector._tidy_rows

    def late(self: Collector, found: object) -> None:
        what()
        tidy(self, found)  # type: ignore[arg-type]

    monkeypatch.setattr(Collector, "_tidy_rows", late)


def test_an_entry_that_is_used_pinned_or_made_anew_meanwhile_stays(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(yard)
    user = Yard(yard.folder)

    def meanwhile() -> None:
        used = user.store.lookup(KEYS[0])
        assert used is not None
        user.store.objects.path(used.traces[0].value.artifacts[0])  # type: ignore[union-attr]
        yard.maintainer.pins.add("key", KEYS[1])
        user.publish(KEYS[2], seconds=77.0)

    during(monkeypatch, meanwhile)
    yard.maintainer.collect(limit=1)
    assert yard.keys() == set(KEYS[:3])
    for entry in yard.store.entries():
        assert all(yard.store.objects.read(ref) is not None for ref in references(entry))


def test_an_orphan_that_is_published_meanwhile_by_a_process_that_ends_stays(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, in_child: Callable[[Callable[[], object]], int]
) -> None:
    fill(yard, 1)
    orphan = yard.store.objects.add_bytes(b"orphan" * 1000)
    yard.age()

    def publish() -> None:
        child = Yard(yard.folder)
        child.publish(KEYS[1], content=b"orphan" * 1000)
        os.utime(child.store.objects.path(orphan), (0, 0))  # as if its clock were behind
        child.store.release()

    during(monkeypatch, lambda: in_child(publish))
    yard.maintainer.collect(limit=0)
    assert yard.keys() == {KEYS[0], KEYS[1]}
    assert yard.store.objects.read(ArtifactRef(orphan.digest, 6000)) == b"orphan" * 1000


def test_an_artifact_that_is_handed_out_while_it_is_removed_is_missing_or_stays(yard: Yard) -> None:
    """Whoever asks for it while gc has its folder locked waits, and is then told that it is gone."""
    ref = yard.publish(KEYS[0])
    yard.age()
    user = Yard(yard.folder)
    with collecting(yard.folder / "leases") as held:
        held.drop_dead()
        assert [digest for digest, _ in yard.store.objects.remove_unleased([ref.digest], held)] == [ref.digest]
    with pytest.raises(cachec.errors.StoreFault, match="artifact-missing"):  # type: ignore[attr-defined]
        user.store.objects.path(ref)
    assert digest_bytes(KEYS[0].encode() * 64) == ref.digest


@pytest.mark.long
def test_many_artifacts_are_removed_but_for_those_that_somebody_holds(yard: Yard) -> None:
    for number in range(300):
        yard.publish(key_of(number))
    yard.age()
    other = Yard(yard.folder)
    held = set()
    for number in range(0, 300, 50):
        entry = other.store.lookup(key_of(number))
        assert entry is not None
        held.add(next(refs := references(entry)).digest)
        for ref in (entry.parts, *refs):
            other.store.objects.path(ref)
            held.add(ref.digest)
    done = yard.maintainer.collect(limit=1)
    assert (done.entries, done.kept_in_use, done.artifacts) == (294, 6, 588)
    assert yard.objects() == held
    assert yard.faults == []
    assert done.after == yard.maintainer.measure_usage().nbytes


def test_what_a_miss_is_compared_with_does_not_outgrow_the_entries(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows() -> int:
        return sum(1 for _ in yard.store.index.keys(prefix="near:"))

    def known(number: int) -> tuple[str, ...]:
        found = yard.store.neighbours("pkg.build", parts(number))
        return tuple(near.key for near in found.nearest)

    def parts(number: int) -> tuple[Part, ...]:
        return (part("file/source", f"{number}", subject=f"{number}.c"),)

    for number in range(8):
        yard.publish(KEYS[number], parts=parts(number), seconds=2.0**number)
    yard.store.release()
    yard.maintainer.collect(limit=3 * EACH)
    assert rows() == 16
    assert known(0) == (KEYS[0],)  # it is known that it was there
    for bound in ("_ROWS", "_SPARE_ROWS"):
        monkeypatch.setattr(nearest_keys, bound, 0)
    yard.maintainer.collect(limit=3 * EACH)
    left = [number for number in range(8) if known(number)]
    assert left == [number for number in range(8) if yard.store.lookup(KEYS[number]) is not None]
    assert 0 < rows() < 16
