"""Stores that somebody else made, filled, or shares: nothing outside of one is touched, and none is believed."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import cachec
from cachec.base.hashing import digest_bytes
from cachec.errors import ConfigError, StoreFault, WeightError
from cachec.events import EventLog, read_log
from cachec.launcher import execute
from cachec.maintain.maintainer import Maintainer
from cachec.maintain.sweep import Sweep
from cachec.model import Outcome, Reason
from cachec.store.leases import collecting
from cachec.store.store import FOLDERS, Store
from cachec.weights.library.stored_weights import WeightStore

from .conftest import ATTACKER, Run

#: A stage, called once in a store; what it printed says whether it ran.
CALL = (
    "import cachec, sys\n"
    "stage = cachec.Cache(sys.argv[1], log='off').stage(name='s', version='1')(lambda: print('ran') or 1)\n"
    "stage.__wrapped__.__module__ = 's'; print(stage.call()[1].reason.value)"
)


def _state(top: Path) -> dict[str, tuple[int, int, int]]:
    """Every file below, with mode, size and mtime."""
    paths = [top, *top.rglob("*")]
    return {str(p): (p.lstat().st_mode, p.lstat().st_size, p.lstat().st_mtime_ns) for p in paths}


def _filled(folder: Path) -> Path:
    """Files of a user, with names that the store uses too, all of them old."""
    folder.mkdir()
    digest = "ab" + "0" * 62
    for name in (f"{os.getpid()}-{'0' * 16}", f"999999-{'0' * 16}", f"stage-999999-{'0' * 16}", digest, "thesis.tex"):
        (folder / name).write_bytes(b"mine" * 8)
    (folder / "ab").mkdir()
    (folder / "ab" / digest).write_bytes(b"mine")
    (folder / ("c" * 32)).mkdir()
    (folder / ("c" * 32) / "part").write_bytes(b"mine")
    (folder / "corrupt-1").mkdir()
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (1e9, 1e9))
    return folder


def _gc(store: Store, *, whole: bool = True) -> None:
    """All that ``gc`` removes, past the check of who opens a store."""

    def note(_fault: object, _detail: str) -> None: ...

    with contextlib.suppress(StoreFault):
        Maintainer(store, max_size=1, on_fault=note).collect() if whole else None
    for leases in (store.leases.folder, store.folder / "no-leases"):
        with contextlib.suppress(StoreFault), collecting(leases) as held:
            held.drop_dead()
            Sweep(store, held, time.time() + 1e9, note, dry_run=False).run((), ())


@pytest.mark.parametrize("name", [*FOLDERS, "direct", "warm", "weights/fetched", "weights/records", "weights/names"])
def test_gc_follows_no_link(tmp_path: Path, name: str) -> None:
    mine = _filled(tmp_path / "mine")
    store = Store(tmp_path / "store")
    (store.folder / name).parent.mkdir(parents=True)
    (store.folder / name).symlink_to(mine)
    before = _state(mine)
    if name != "index":  # the database would be made there; the check below is what keeps it from that
        _gc(store, whole=name != "locks")  # nor the lock of gc itself
    assert _state(mine) == before
    if name in {*FOLDERS, "direct", "warm"}:
        for shared in ("auto", "no", "trusted"):
            with pytest.raises(ConfigError, match=re.escape(f"{store.folder / name} is no folder")):
                store.refuse_foreign(shared)
        with pytest.raises(ConfigError, match="is refused"):
            cachec.Cache(store.folder)


@pytest.mark.parametrize("name", ["objects", "locks", "direct"])
def test_gc_follows_no_link_one_below(tmp_path: Path, name: str) -> None:
    mine = _filled(tmp_path / "mine")
    store = Store(tmp_path / "store")
    (store.folder / name).mkdir(parents=True)
    (store.folder / name / "ab").symlink_to(mine / "ab")
    before = _state(mine)
    _gc(store)
    if name == "objects":  # nor is anything added, or its time changed
        data = next(b"%d" % n for n in range(100_000) if digest_bytes(b"%d" % n).startswith("ab"))
        (mine / "ab" / digest_bytes(data)).write_bytes(data)
        os.utime(mine / "ab" / digest_bytes(data), (1e9, 1e9))
        os.utime(mine / "ab", (1e9, 1e9))
        before = _state(mine)
        with pytest.raises(StoreFault):
            store.objects.add_bytes(data)
    assert _state(mine) == before


def test_nothing_is_written_through_a_link_one_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, store = tmp_path / "mine", Store(tmp_path / "store")
    mine.mkdir()
    store.prepare()
    for link in [f"{name}/{n:02x}" for name in ("direct", "locks") for n in range(256)] + [
        "weights/names",
        "weights/revisions",
    ]:
        (store.folder / link).parent.mkdir(exist_ok=True)
        (store.folder / link).symlink_to(mine)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CACHEC_DIR", str(store.folder))
    Path("in").write_bytes(b"input")
    for _ in range(3):  # the memo is written by a hit, at the latest
        Path("out").unlink(missing_ok=True)
        assert execute.main(["--input=in", "--output=out", "--", "/bin/cp", "in", "out"]) == 0
        assert Path("out").read_bytes() == b"input"
    assert {each.reason for each in read_log(store.folder)} == {Reason.STORE_UNAVAILABLE}  # by its locks
    with pytest.raises(StoreFault):
        store.locks.of("ab" * 32).try_acquire()
    with pytest.raises((StoreFault, OSError)):
        WeightStore(store).add(cachec.WeightSet.from_arrays({"a": np.ones(3)}), "base")
    assert list(mine.iterdir()) == []


def test_weights_whose_records_lie_behind_a_link(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    WeightStore(store).add(cachec.WeightSet.from_arrays({"a": np.ones(3)}), "base")
    records = store.folder / "weights" / "revisions"
    records.rename(tmp_path / "records")
    records.symlink_to(tmp_path / "records")
    with pytest.raises(WeightError, match="can't be"):
        WeightStore(store).open("base")


def test_no_lease_is_written_through_a_link(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    WeightStore(store).add(cachec.WeightSet.from_arrays({"a": np.ones(3)}), "base")
    store.release()
    (store.folder / "leases").rename(tmp_path / "mine")
    (store.folder / "leases").symlink_to(tmp_path / "mine")
    before = _state(tmp_path / "mine")
    given = WeightStore(Store(store.folder)).open("base")
    assert given["a"].read().tolist() == [1, 1, 1]
    assert _state(tmp_path / "mine") == before


def test_weights_whose_objects_are_in_no_folder(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    WeightStore(store).add(cachec.WeightSet.from_arrays({"a": np.ones(3)}), "base")
    given = WeightStore(store).open("base")
    (store.folder / "objects").rename(tmp_path / "objects")
    (store.folder / "objects").write_bytes(b"")
    with pytest.raises(WeightError, match="can't be reached"):
        given["a"].read()


def test_gc_takes_names_of_its_own_form_only(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.prepare()
    (store.folder / "direct").mkdir()
    (store.folder / "weights" / "fetched").mkdir()
    kept = []
    for name in (*FOLDERS, "direct", "weights/fetched"):
        for file in ("notes.txt", "corrupt-notes", "1-x"):
            path = store.folder / name / file
            path.write_text("mine")
            os.utime(path, (1e9, 1e9))
            kept.append(path)
    _gc(store)
    assert [path for path in kept if not path.exists()] == []


def test_a_tree_that_is_a_link(tmp_path: Path) -> None:
    """It is moved away as a link; what it leads to keeps its mode."""
    mine = _filled(tmp_path / "mine")
    mine.chmod(0o750)
    store = Store(tmp_path / "store")
    store.prepare()
    (store.folder / "trees" / ("ab" * 32)).symlink_to(mine)
    before = _state(mine)
    assert store.objects.trees.remove("ab" * 32)
    assert _state(mine) == before


def test_a_store_of_another_user_is_refused(run: Run, place: Path, uid: int | None, attacker: int) -> None:
    store = place / "store"
    assert run("-c", CALL, store).stdout == "ran\nmiss:first-run\n"
    for path in (store, store / "objects", store / "index", store / "leases"):
        owner = path.stat().st_uid
        os.chown(path, attacker, attacker)
        done = run("-c", CALL, store)
        assert "ran" not in done.stdout
        assert f"{path} belongs to user {attacker}" in done.stderr
        assert "CACHEC_SHARED=trusted" in done.stderr
        listed = run("-m", "cachec", "ls", environ={"CACHEC_DIR": str(store)})
        assert listed.returncode == 2, listed
        os.chown(path, owner, owner)
    assert run("-c", CALL, store).stdout == "hit\n"


@pytest.mark.parametrize("mode", [0o777, *(pytest.param(each, marks=pytest.mark.long) for each in (0o707, 0o1777))])
def test_a_store_that_others_can_write_is_refused(run: Run, place: Path, mode: int) -> None:
    store = place / "store"
    assert run("-c", CALL, store).stdout == "ran\nmiss:first-run\n"
    for path in (store, store / "objects"):
        path.chmod(mode)
        assert f"{path} is writable for everybody" in run("-c", CALL, store).stderr
        path.chmod(0o700)
    assert run("-c", CALL, store).stdout == "hit\n"


def test_a_store_in_a_folder_that_others_can_write(run: Run, place: Path) -> None:
    """They could put another one in its place; not where the sticky bit keeps them from it."""
    place.chmod(0o777)
    assert "is writable for everybody" in run("-c", CALL, place / "store").stderr
    place.chmod(0o1777)
    assert run("-c", CALL, place / "store").stdout == "ran\nmiss:first-run\n"
    assert run("-c", CALL, place / "store").stdout == "hit\n"


def test_a_memo_of_another_user_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cachec.base.file_ownership import read_regular

    memo = tmp_path / "memo"
    memo.write_bytes(b"x")
    assert read_regular(memo, 1, own=True) == b"x"
    memo.chmod(0o666)
    with pytest.raises(PermissionError, match="writable for everybody"):
        read_regular(memo, 1, own=True)
    if os.geteuid() == 0:
        memo.chmod(0o600)
        os.chown(memo, ATTACKER, 0)
        with pytest.raises(PermissionError, match="belongs to user"):
            read_regular(memo, 1, own=True)


def test_a_team_shares_a_store(tmp_path: Path, place: Path, run: Run, uid: int | None, attacker: int) -> None:
    """A setgid folder of a group: both users hit what the other has stored, clean up after one another, and read."""
    if uid is None:
        pytest.skip("needs two users beside root")
    store = place / "store"
    store.mkdir()
    os.chown(store, attacker, uid)  # the colleague's, of the group of the user
    store.chmod(0o2770)
    environ = {"CACHEC_SHARED": "trusted"}
    assert "CACHEC_SHARED=trusted" in run("-c", CALL, store).stderr
    assert run("-c", CALL, store, environ=environ).stdout == "ran\nmiss:first-run\n"
    for path in store.rglob("*"):
        found = path.stat()
        assert found.st_gid == uid, path
        if path.is_dir():
            assert found.st_mode & 0o7777 == 0o2770, path
        elif path.parent.parent.name != "objects" and path.parent.name != "shared":
            assert found.st_mode & 0o777 == 0o660, path
    for path in [*store.rglob("*")]:  # all of it a colleague's
        if path.is_dir() or path.is_file():
            os.chown(path, attacker, uid)
    assert run("-c", CALL, store, environ=environ).stdout == "hit\n"
    other = CALL.replace("'s'", "'t'")
    assert run("-c", other, store, environ=environ).stdout == "ran\nmiss:first-run\n"
    assert run("-m", "cachec", "gc", "--max-size", "1", environ={**environ, "CACHEC_DIR": str(store)}).returncode == 0
    assert run("-c", CALL, store, environ=environ).stdout == "ran\nmiss:entry-gone\n"
    read_only = {**environ, "CACHEC_MODE": "read-only"}
    assert run("-c", CALL, store, environ=read_only).stdout == "hit\n"


@pytest.mark.sampled
@pytest.mark.parametrize(
    "make", [pytest.param(os.mkfifo, id="fifo"), pytest.param(os.mkdir, id="folder", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("what", ["object", "index", "lease", "lock", "log", "wal", "journal"])
def test_no_regular_file_where_one_is_expected(
    run: Run, place: Path, uid: int | None, make: Callable[[Path], None], what: str
) -> None:
    """Nothing waits, nothing is lost: the stage runs, or hits what is left."""
    store = place / "store"
    assert run("-c", CALL, store).stdout == "ran\nmiss:first-run\n"
    where = {
        "object": [*(store / "objects").glob("*/*")],
        "index": [store / "index" / "cache.db"],
        "wal": [store / "index" / "cache.db-wal"],
        "journal": [store / "index" / "cache.db-journal"],
        "lease": [store / "leases" / f"999999-{'0' * 16}"],
        "lock": [store / "locks" / "gc" / "gc"],
        "log": [*(store / "log").iterdir()],
    }[what]
    for path in where:
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        make(path)
        if uid is not None:
            os.chown(path, uid, uid)
            os.chown(path.parent, uid, uid)
    done = run("-c", CALL, store)
    assert done.returncode == 0, done
    assert done.stdout in {"hit\n"} or done.stdout.startswith("ran\nmiss"), done
    done = run("-m", "cachec", "gc", environ={"CACHEC_DIR": str(store)})
    assert "Traceback" not in done.stderr, done
    done = run("-m", "cachec", "stats", environ={"CACHEC_DIR": str(store)})
    assert "Traceback" not in done.stderr, done


def test_the_log_of_a_shared_store_is_the_group_s(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    store.chmod(0o2770)
    EventLog(store, log="off").emit(Outcome(reason=Reason.FIRST_RUN, stage="s", key=""))
    [day] = (store / "log").iterdir()
    assert day.stat().st_mode & 0o777 == 0o660
