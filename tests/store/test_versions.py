"""Versions of the stored records lie side by side: each keeps its hits, and ``gc`` removes the old ones."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from cachec.errors import StoreFault
from cachec.launcher import direct
from cachec.maintain.maintainer import Maintainer
from cachec.model import RECORD_VERSION, Fault
from cachec.store.index import USED_SECONDS, DiskcacheIndex, used_file
from cachec.store.row_codec import pack
from cachec.store.store import Store
from cachec.store.store_size import ROW, Usage
from cachec.store.versions import OLD_SECONDS, old_versions
from tests.maintain.conftest import Yard, key_of

#: Calls of stages and of a command, and a foreign cache, by a cachec of the version in its first argument.
CALLS = """
import json, sys
import cachec.model
cachec.model.RECORD_VERSION = int(sys.argv[1])
import cachec
from cachec.launcher import execute
cache = cachec.Cache(log="off")
said = []
for number in range(8):
    def body(n=number): return "x" * 5000 + str(n)
    said.append(cache.stage(name=f"s{number}", version="1")(body).call()[1].reason.value)
foreign = cache.foreign("f")
said.append("hit" if foreign.get("key") else "miss")
foreign.put("key", b"data" * 1000)
assert execute.main(["--input=in", "--output=out", "--", "/bin/cp", "in", "out"]) == 0
said += [reason.value for reason, count in cache.events.counts.items() if reason.kind in {"bypass", "error"}]
said += sorted(fault.value for fault in cache.events.faults)
if len(sys.argv) > 2:
    from cachec.maintain.maintainer import Maintainer
    done = Maintainer(cache.store, clock=lambda: __import__("time").time() + 7200).collect(limit=0)
    said.append([done.entries, done.artifacts, done.old_versions])
cache.close()
print(json.dumps(said))
"""


def test_versions_take_turns_on_one_store(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("input\n")

    def run(*args: object) -> list[object]:
        environ = {**os.environ, "CACHEC_DIR": str(tmp_path / "store"), "CACHEC_SERVER": "off", "CACHEC_LOG": "off"}
        line = [sys.executable, "-c", CALLS, *map(str, args)]
        done = subprocess.run(line, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout))

    newer = RECORD_VERSION + 1
    for version in (RECORD_VERSION, newer):
        assert run(version) == ["miss:first-run"] * 8 + ["miss"]
    for version in (RECORD_VERSION, newer):  # gc of each leaves what the other needs
        assert run(version, "gc") == ["hit"] * 9 + [[0, 0, {}]]
    for version in (RECORD_VERSION, newer):
        assert run(version) == ["hit"] * 9


@pytest.fixture
def index(tmp_path: Path) -> DiskcacheIndex:
    return DiskcacheIndex(tmp_path / "index")


def test_rows_of_two_versions_do_not_meet(tmp_path: Path, index: DiskcacheIndex) -> None:
    others = {version: DiskcacheIndex(tmp_path / "index", version=version) for version in (1, 40, 44, 5000)}
    for version, other in others.items():
        other.write("entry:a", b"%d" % version, "t")
    index.write("entry:a", b"own", "t")
    index.write("store:all", b"shared", "t")
    assert index.versions() == sorted([*others, RECORD_VERSION])
    for version, other in others.items():
        assert other.read("entry:a") == index.read("entry:a", version=version) == b"%d" % version
        assert list(other.rows("")) == list(index.rows("", version=version)) == [("entry:a", b"%d" % version)]
        assert other.read("store:all") == b"shared"
        assert list(other.keys(prefix="store:")) == ["store:all"]
    assert index.clear(40) == 1
    assert index.delete_many(["entry:a"], version=44) == 1
    assert others[1].expire("entry:", 0.0, 1.0) == 1
    assert others[5000].delete("entry:a")
    assert index.versions() == [RECORD_VERSION]
    assert index.read("entry:a") == b"own"
    assert index.read("store:all") == b"shared"


def _write_plainly(tmp_path: Path, names: list[str]) -> None:
    """Rows as they were before versions lay side by side: by names without one."""
    with sqlite3.connect(tmp_path / "index" / "cache.db") as table:
        for name in names:
            row = f"{RECORD_VERSION}:{name}"
            table.execute("UPDATE Cache SET key = ? WHERE key = ?", (name, row))
    table.close()


def test_rows_from_before_versions(tmp_path: Path, index: DiskcacheIndex) -> None:
    names = ["entry:default:a", "near:default:b", "gc:", "usage:"]
    for name in [*names, "entry:default:c"]:
        index.write(name, b"x", "t")
    index.close()
    _write_plainly(tmp_path, names)
    assert index.versions() == [0, RECORD_VERSION]
    assert list(index.rows("entry:", version=0)) == [("entry:default:a", b"x")]
    assert time.time() - index.newest(0) < 60
    assert index.clear(0) == 4
    assert list(index.keys()) == ["entry:default:c"]


@pytest.fixture
def old(tmp_path: Path) -> Yard:
    """A store with an entry of this version, whose other two entries are of the version before, and old."""
    yard = Yard(tmp_path / "store", now=time.time())
    for number in range(3):
        yard.publish(key_of(number))
    yard.store.close()
    yard.store.release()
    with sqlite3.connect(yard.folder / "index" / "cache.db") as table:
        for number in (1, 2):
            for kind in ("entry", "summary"):
                name = f"{kind}:default:{key_of(number)}"
                theirs = (f"{RECORD_VERSION - 1}:{name}", yard.now - OLD_SECONDS - 60, f"{RECORD_VERSION}:{name}")
                table.execute("UPDATE Cache SET key = ?, store_time = ? WHERE key = ?", theirs)
    table.close()
    return yard


def _note_use(yard: Yard, version: int, ago: float) -> None:
    path = Path(used_file(str(yard.folder), version))
    path.touch()
    os.utime(path, (yard.now - ago,) * 2)


@pytest.mark.parametrize("marker", [None, OLD_SECONDS + 60])
def test_gc_removes_what_nobody_uses_any_more(old: Yard, marker: float | None) -> None:
    if marker is not None:
        _note_use(old, RECORD_VERSION - 1, marker)
    for path in (old.folder / "objects").glob("*/*"):
        os.utime(path, (old.now - 7200,) * 2)
    before = old.objects()
    planned = old.maintainer.collect(limit=0, dry_run=True)
    assert planned.old_versions == {RECORD_VERSION - 1: 2}
    assert old.store.index.versions() == [RECORD_VERSION - 1, RECORD_VERSION]
    done = old.maintainer.collect(limit=0)
    assert (done.old_versions, done.artifacts) == (planned.old_versions, planned.artifacts)
    assert done.artifacts > 0
    assert done.entries == 0
    assert old.store.index.versions() == [RECORD_VERSION]
    assert old.keys() == {key_of(0)}
    assert len(before) - len(old.objects()) == done.artifacts
    assert old.maintainer.collect(limit=0).old_versions == {}


@pytest.mark.parametrize("kept_by", ["a use", "a row"])
def test_gc_leaves_a_version_that_is_in_use(old: Yard, kept_by: str) -> None:
    if kept_by == "a use":
        _note_use(old, RECORD_VERSION - 1, OLD_SECONDS - 60)
    else:
        DiskcacheIndex(old.folder / "index", version=RECORD_VERSION - 1).write("digest:x", b"x", "digest")
    for path in (old.folder / "objects").glob("*/*"):
        os.utime(path, (old.now - 7200,) * 2)
    before = old.objects()
    assert old.maintainer.collect(limit=0).old_versions == {}
    assert old.objects() == before
    done = old.maintainer.collect(limit=1)
    assert (done.entries, done.is_within) == (1, True)
    assert old.store.index.versions() == [RECORD_VERSION - 1, RECORD_VERSION]
    assert old.maintainer.collect(limit=0).old_versions == {}


def test_every_other_version_grows_old(old: Yard) -> None:
    assert old_versions(old.store.index, str(old.folder), RECORD_VERSION, old.now) == [RECORD_VERSION - 1]
    assert old_versions(old.store.index, str(old.folder), RECORD_VERSION - 1, old.now) == []
    later = old.now + OLD_SECONDS + 60
    assert old_versions(old.store.index, str(old.folder), RECORD_VERSION - 1, later) == [RECORD_VERSION]


def _hand_over(yard: Yard, keys: Collection[str], version: int) -> set[str]:
    """Make these entries those of another version of the records; the names of their rows in the file."""
    yard.store.close()
    names = {f"{version}:{kind}:default:{key}" for kind in ("entry", "summary") for key in keys}
    with sqlite3.connect(yard.folder / "index" / "cache.db") as table:
        for name in names:
            own = f"{RECORD_VERSION}:{name.partition(':')[2]}"
            assert table.execute("UPDATE Cache SET key = ? WHERE key = ?", (name, own)).rowcount == 1
    table.close()
    return names


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 40))])
def test_gc_evicts_and_bounds_its_own_version_alone(tmp_path: Path, seed: int) -> None:
    """Entries of two versions, in random order and partly with equal artifacts, tags, pins and trees."""
    choose = random.Random(seed)
    version = RECORD_VERSION + choose.choice([-1, 1, 6])
    yard = Yard(tmp_path / "store", now=time.time())
    keys = [key_of(number) for number in range(12)]
    contents = [key.encode() * 200 for key in keys[:6]]
    made = {}
    for key in keys:
        tags = tuple(choose.sample(["kept", "rel"], choose.randrange(3)))
        made[key] = yard.publish(key, content=choose.choice(contents), tags=tags, ago=choose.uniform(0, 1e6))
    theirs = choose.sample(keys, 6)
    own = [key for key in keys if key not in theirs]
    if choose.random() < 0.5:
        yard.maintainer.pins.add("tag", "kept")
    rows = _hand_over(yard, theirs, version)
    trees = {key_of(number) for number in range(100, 103)}
    for tree in trees:  # whose entries are not known here
        (yard.folder / "trees" / tree).mkdir(parents=True)
        (yard.folder / "trees" / tree / "tool").write_bytes(bytes(choose.randrange(100_000)))
    yard.age(7200.0)
    needed = {made[key].digest for key in theirs}
    while True:
        before = yard.keys()
        limit = max(1, yard.maintainer.measure_usage().nbytes // 2)
        planned = yard.maintainer.collect(limit=limit, dry_run=True)
        done = yard.maintainer.collect(limit=limit)
        assert (planned.entries, planned.after) == (done.entries, done.after)
        assert (
            done.after
            == yard.maintainer.measure_usage().nbytes
            == (yard.store.usage() or Usage(version=1, nbytes=0)).nbytes
        )
        assert yard.objects() >= needed
        assert {f"{version}:{name}" for name, _ in yard.store.index.rows("", version=version)} >= rows
        assert {path.name for path in (yard.folder / "trees").iterdir()} == trees
        if yard.keys() == before:
            break
        assert before - yard.keys() <= set(own)
    assert done.is_within or done.kept_pinned == len(yard.keys())
    assert yard.keys() <= set(own)


@pytest.mark.long
def test_two_versions_under_one_bound(tmp_path: Path) -> None:
    """Each keeps hits within the bound, though the other's results fill the store; nothing goes on evicting."""
    program = """
import json, sys
import cachec.model
cachec.model.RECORD_VERSION = int(sys.argv[1])
import cachec
cache = cachec.Cache(log="off", max_size="100KiB")
said = []
for number in map(int, sys.argv[2:]):
    def body(n=number, version=sys.argv[1]): return version * 12000 + str(n)
    said.append(cache.stage(name=f"s{number}", version="1")(body).call()[1].reason.value)
cache.close()
print(json.dumps(said))
"""
    environ = {**os.environ, "CACHEC_DIR": str(tmp_path / "store"), "CACHEC_SERVER": "off", "CACHEC_LOG": "off"}

    def run(version: int, *numbers: int) -> list[str]:
        line = [sys.executable, "-c", program, str(version), *map(str, numbers)]
        done = subprocess.run(line, env=environ, capture_output=True, text=True, check=True)
        return list(json.loads(done.stdout))

    newer = RECORD_VERSION + 1
    for turn in range(0, 12, 6):
        for version in (RECORD_VERSION, newer):
            assert run(version, *range(turn, turn + 6)) == ["miss:first-run"] * 6
    for version in (RECORD_VERSION, newer):
        assert run(version, 11, 10) == ["hit", "hit"]


def test_a_look_notes_a_use_once_a_day(tmp_path: Path) -> None:
    yard = Yard(tmp_path / "store", now=time.time())
    assert yard.store.lookup(key_of(1)) is None
    assert not yard.folder.exists()  # a look into what is not there makes nothing
    yard.publish(key_of(1))
    marker = Path(used_file(str(yard.folder), RECORD_VERSION))
    for ago, is_touched in ((USED_SECONDS / 2, False), (USED_SECONDS * 2, True)):
        marker.touch()
        os.utime(marker, (time.time() - ago,) * 2)
        assert Store(yard.folder).lookup(key_of(1)) is not None
        assert (time.time() - marker.stat().st_mtime < 60) is is_touched


def test_a_process_that_runs_for_months_notes_its_use_each_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yard = Yard(tmp_path / "store", now=time.time())
    yard.publish(key_of(1))
    marker = Path(used_file(str(yard.folder), RECORD_VERSION))
    start, real = time.time(), time.time
    for day in range(1, 40):
        monkeypatch.setattr(time, "time", lambda day=day: real() + day * (USED_SECONDS + 1))
        os.utime(marker, (start - 2 * USED_SECONDS,) * 2)
        assert yard.store.lookup(key_of(1)) is not None
        assert marker.stat().st_mtime >= start - 1, day


def test_a_memo_of_a_command_notes_a_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEC_DIR", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").write_text("input\n")
    from cachec.launcher import execute

    args = ["--input=in", "--output=out", "--", "/bin/cp", "in", "out"]
    for _ in range(2):
        assert execute.main(args) == 0
    memo = Path(direct.memo_path(args, os.environ, os.getcwd())).read_bytes()
    assert b"\0%d:entry:" % RECORD_VERSION in memo
    marker = Path(used_file(str(tmp_path / "store"), RECORD_VERSION))
    os.utime(marker, (time.time() - 2 * USED_SECONDS,) * 2)
    assert direct.answer(args)
    assert time.time() - marker.stat().st_mtime < 60


def test_what_is_the_store_s_own_is_read_by_every_version(tmp_path: Path) -> None:
    yard = Yard(tmp_path / "store", now=time.time())
    yard.maintainer.pins.add("tag", "kept")
    yard.publish(key_of(1))
    theirs = Store(yard.folder, index=DiskcacheIndex(yard.folder / "index", version=RECORD_VERSION + 1))
    assert Maintainer(theirs).pins.read().holds(f"default:{key_of(2)}", ("kept",))
    assert theirs.lookup(key_of(1)) is None


@pytest.mark.parametrize("change", [lambda row: row[:6] + b"\x09" + row[7:], lambda row: b"garbage" + row])
def test_a_row_of_the_store_is_checked(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    store = Store(tmp_path / "store")
    store.index.write(ROW, change(pack(Usage(version=RECORD_VERSION, nbytes=1))), "usage")
    with pytest.raises(StoreFault) as raised:
        store.usage()
    assert raised.value.fault in {Fault.ROW_VERSION, Fault.ROW_CORRUPT}
