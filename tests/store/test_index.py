"""The index: what it keeps, what it refuses, and what it survives."""

from __future__ import annotations

import os
import pickle
import random
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from diskcache import DEFAULT_SETTINGS
from diskcache.core import METADATA

from cachec.base.mounts import Mounts
from cachec.errors import StoreFault
from cachec.model import Fault
from cachec.store import sqlite_writer
from cachec.store.index import DiskcacheIndex
from cachec.store.locks import forking_to_exec
from tests.effort import sample


@pytest.fixture
def index(tmp_path: Path) -> DiskcacheIndex:
    return DiskcacheIndex(tmp_path / "index", busy_seconds=0.2)


def fault_of(call: Callable[[], object]) -> Fault:
    with pytest.raises(StoreFault) as raised:
        call()
    return raised.value.fault


def test_a_row_comes_back_and_can_be_replaced_and_deleted(index: DiskcacheIndex) -> None:
    assert index.read("a") is None
    index.write("a", b"\x00one\xff", "s")
    assert index.read("a") == b"\x00one\xff"
    index.write("a", b"", "s")
    assert index.read("a") == b""
    assert index.delete("a")
    assert not index.delete("a")
    assert index.read("a") is None


def test_a_version_tells_changes_of_others_and_another_file(index: DiskcacheIndex, tmp_path: Path) -> None:
    index.write("a", b"1", "s")
    seen = [index.version()]
    assert index.version() == seen[0]
    DiskcacheIndex(tmp_path / "index").write("a", b"2", "s")
    seen.append(index.version())
    for _ in range(2):
        index.close()
        seen.append(index.version())
    assert len(set(seen)) == 4


def test_reading_makes_nothing(tmp_path: Path, index: DiskcacheIndex) -> None:
    assert index.read("a") is None
    assert list(index.keys()) == []
    index.close()
    assert list(tmp_path.iterdir()) == []


def test_keys_come_in_order_by_tag_and_by_prefix(index: DiskcacheIndex) -> None:
    names = [f"entry:{number:04}" for number in range(1203)]
    index.atomically(lambda: [index.write(name, b"x", "even" if int(name[6:]) % 2 == 0 else "odd") for name in names])
    index.write("other:1", b"x", "even")
    assert list(index.keys()) == [*names, "other:1"]
    assert list(index.keys(prefix="entry:")) == names
    assert list(index.keys("odd")) == names[1::2]
    assert list(index.keys("even", prefix="other:")) == ["other:1"]


def test_rows_come_in_order_of_their_keys_with_their_values(tmp_path: Path, index: DiskcacheIndex) -> None:
    assert list(index.rows("entry:")) == []
    rows = [(f"entry:{number:04}", b"%d" % number) for number in range(2203)]
    index.atomically(lambda: [index.write(name, value, "t") for name, value in [*rows, ("other:1", b"x")]])
    assert list(index.rows("entry:")) == rows
    assert list(index.rows("")) == [*rows, ("other:1", b"x")]
    assert list(index.rows("entry:22")) == rows[2200:]
    with sqlite3.connect(tmp_path / "index" / "cache.db") as database:
        database.execute("UPDATE Cache SET mode = 4 WHERE key = ?", (index.row_name("entry:0001"),))
        database.execute("UPDATE Cache SET filename = 'x' WHERE key = ?", (index.row_name("entry:0003"),))
    database.close()
    assert [name for name, value in index.rows("entry:") if value is None] == ["entry:0001", "entry:0003"]


def test_a_key_that_is_no_text_ends_no_search(tmp_path: Path, index: DiskcacheIndex) -> None:
    index.write("a:1", b"x", "t")
    index.write("b:1", b"x", "t")
    with sqlite3.connect(tmp_path / "index" / "cache.db") as database:
        damaged = index.row_name("a:").encode() + b"\xff"
        database.execute("UPDATE Cache SET key = CAST(? AS TEXT) WHERE key = ?", (damaged, index.row_name("a:1")))
    database.close()
    assert list(index.keys()) == ["a:\ufffd", "b:1"]
    assert [name for name, _ in index.rows("")] == ["a:\ufffd", "b:1"]


def test_many_rows_are_deleted_at_once(index: DiskcacheIndex) -> None:
    index.atomically(lambda: [index.write(f"a{number}", b"x", "t") for number in range(5)])
    assert index.delete_many(["a1", "a3", "a9"]) == 2
    assert list(index.keys()) == ["a0", "a2", "a4"]
    assert index.delete_many([]) == 0


def test_a_large_value_stays_in_the_row(tmp_path: Path, index: DiskcacheIndex) -> None:
    value = os.urandom(3 << 20)
    index.write("a", value, "s")
    assert index.read("a") == value
    assert {path.name for path in (tmp_path / "index").iterdir()} <= {"cache.db", "cache.db-wal", "cache.db-shm"}


def test_a_new_process_reads_without_diskcache(index: DiskcacheIndex) -> None:
    index.write("a", b"one", "s")
    program = (
        "import sys; from cachec.store.index import DiskcacheIndex; print(DiskcacheIndex(sys.argv[1]).read('a'));"
        "print([name for name in ('diskcache', 'pickle', 'numpy', 'logging') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program, index.folder], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "b'one'"
    assert "diskcache" not in done.stdout.split("\n")[1]


class Bomb:
    """A pickle of it touches a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("mode", [0, 2, 3, 4, 5, -1, None, "raw"])
def test_a_row_of_another_mode_is_refused_and_nothing_of_it_runs(
    tmp_path: Path, index: DiskcacheIndex, rows: Any, mode: object
) -> None:
    index.write("a", b"one", "s")
    pickle.loads(pickle.dumps(Bomb(tmp_path / "armed")))  # noqa: S301 - shows that the bomb works
    assert (tmp_path / "armed").is_dir()
    rows.run("UPDATE Cache SET mode = ?, value = ?", (mode, pickle.dumps(Bomb(tmp_path / "boom"))))
    assert fault_of(lambda: index.read("a")) is Fault.ROW_REFUSED
    index.write("a", b"two", "s")  # it heals
    assert index.read("a") == b"two"
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize("mode", [1, 2, 3, 4])
def test_a_row_that_names_a_file_is_refused_and_the_file_stays(
    tmp_path: Path, index: DiskcacheIndex, rows: Any, mode: int
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(pickle.dumps(Bomb(tmp_path / "boom")))
    for change in (lambda: index.write("a", b"two", "s"), lambda: index.delete("a")):
        index.write("a", b"one", "s")
        rows.run("UPDATE Cache SET mode = ?, filename = '../victim'", (mode,))
        assert fault_of(lambda: index.read("a")) is Fault.ROW_REFUSED
        change()
        assert victim.exists()  # diskcache would remove the old row's file
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize("value", ["text", 5, 2.5, None])
def test_a_value_that_is_no_blob_is_refused(index: DiskcacheIndex, rows: Any, value: object) -> None:
    index.write("a", b"one", "s")
    rows.run("UPDATE Cache SET value = ?", (value,))
    assert fault_of(lambda: index.read("a")) is Fault.ROW_REFUSED


def test_text_that_is_not_utf8_is_refused_too(index: DiskcacheIndex, rows: Any) -> None:
    index.write("a", b"one", "s")
    rows.run("UPDATE Cache SET value = CAST(x'ff00fe' AS TEXT)")
    assert fault_of(lambda: index.read("a")) is Fault.ROW_REFUSED


@pytest.mark.parametrize("value", ["text", 5, None, bytearray(b"x"), object()])
def test_only_bytes_can_be_written(tmp_path: Path, index: DiskcacheIndex, value: Any) -> None:
    assert fault_of(lambda: index.write("a", value, "s")) is Fault.ROW_REFUSED
    assert index.read("a") is None


def test_only_text_can_be_a_key(index: DiskcacheIndex) -> None:
    key: Any = (1, 2)
    assert fault_of(lambda: index.write(key, b"x", "s")) is Fault.ROW_REFUSED


def test_settings_that_diskcache_does_not_know_are_not_followed(index: DiskcacheIndex, rows: Any) -> None:
    """diskcache makes an attribute of every setting: this one would replace a method."""
    index.write("a", b"one", "s")
    index.close()
    rows.run("INSERT INTO Settings VALUES ('set', 1)")
    fresh = DiskcacheIndex(index.folder)
    fresh.write("b", b"two", "s")
    assert fresh.read("b") == b"two"
    assert len(list(index.folder.glob("corrupt-*"))) == 1


def test_a_transaction_is_whole_or_not_at_all(index: DiskcacheIndex) -> None:
    def change() -> None:
        index.write("a", b"one", "s")
        index.write("b", b"two", "s")
        raise KeyError("b")

    with pytest.raises(KeyError):
        index.atomically(change)
    assert list(index.keys()) == []
    index.write("a", b"one", "s")  # and the next one works
    assert index.read("a") == b"one"


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o277])
def test_modes_do_not_depend_on_the_umask(tmp_path: Path, mask: int) -> None:
    old = os.umask(mask)
    try:
        index = DiskcacheIndex(tmp_path / "store" / "index")
        index.write("a", b"one", "s")
        assert index.read("a") == b"one"
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "store" / "index").iterdir()}
        assert modes == {"cache.db": 0o600, "cache.db-wal": 0o600, "cache.db-shm": 0o600}
        for folder in (tmp_path / "store", tmp_path / "store" / "index"):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        os.umask(old)


# --- deleted, replaced, shared


def test_a_deleted_index_is_made_again(tmp_path: Path, index: DiskcacheIndex) -> None:
    index.write("a", b"one", "s")
    shutil.rmtree(tmp_path / "index")
    assert index.read("a") in {b"one", None}  # the open file lives on
    assert index.read("no such row") is None  # has the file looked at
    assert index.read("a") is None
    index.write("b", b"two", "s")
    assert list(index.keys()) == ["b"]
    assert list(DiskcacheIndex(tmp_path / "index").keys()) == ["b"]


def test_a_replaced_index_is_found_by_refresh_and_by_a_write(tmp_path: Path, index: DiskcacheIndex) -> None:
    other = DiskcacheIndex(tmp_path / "other")
    other.write("a", b"other", "s")
    other.close()
    index.write("a", b"one", "s")
    assert index.read("a") == b"one"
    shutil.rmtree(tmp_path / "index")
    shutil.copytree(tmp_path / "other", tmp_path / "index")
    assert index.read("no such row") is None  # has the file looked at
    assert index.read("a") == b"other"
    shutil.rmtree(tmp_path / "index")
    shutil.copytree(tmp_path / "other", tmp_path / "index")
    index.write("b", b"two", "s")
    assert list(DiskcacheIndex(tmp_path / "index").keys()) == ["a", "b"]


def test_an_empty_file_is_an_empty_index(tmp_path: Path, index: DiskcacheIndex) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "cache.db").touch()
    assert index.read("a") is None
    index.write("a", b"one", "s")
    assert index.read("a") == b"one"
    assert not list(index.folder.glob("corrupt-*"))


def test_a_row_of_another_process_is_seen_at_once(
    index: DiskcacheIndex, in_child: Callable[[Callable[[], object]], int]
) -> None:
    index.write("a", b"one", "s")
    assert index.read("b") is None
    assert in_child(lambda: DiskcacheIndex(index.folder).write("b", b"two", "s")) == 0
    assert index.read("b") == b"two"


def test_it_can_be_used_on_both_sides_of_a_fork(
    index: DiskcacheIndex, in_child: Callable[[Callable[[], object]], int]
) -> None:
    index.write("parent", b"1", "s")
    assert index.read("parent") == b"1"

    def child() -> None:
        assert not [path for path in open_files() if "cache.db" in path]  # nothing of SQLite was inherited
        assert index.read("parent") == b"1"
        index.write("child", b"2", "s")
        assert index.read("child") == b"2"
        index.close()

    assert in_child(child) == 0
    assert index.read("child") == b"2"
    index.write("parent", b"3", "s")
    assert rows_of(index) == {"parent": b"3", "child": b"2"}
    assert index.repair() is None  # whole


def test_a_child_that_becomes_another_program_has_nothing_of_it_and_what_was_read_stays_known(
    index: DiskcacheIndex,
) -> None:
    index.write("parent", b"1", "s")
    assert index.read("parent") == b"1"
    before = index.version()
    with forking_to_exec():
        line = ["ls", "-l", "/proc/self/fd"]
        done = subprocess.run(line, check=True, capture_output=True, text=True, preexec_fn=os.getpid)
    assert "cache.db" not in done.stdout
    assert index.version() == before
    subprocess.run(line, check=True, capture_output=True, preexec_fn=os.getpid)  # told of as every fork
    assert not [path for path in open_files() if "cache.db" in path]


def test_who_opens_it_to_write_and_writes_nothing_changes_nothing(index: DiskcacheIndex) -> None:
    index.write("row", b"1", "s")
    index.close()
    assert index.read("row") == b"1"
    before = index.version()
    index.atomically(lambda: None)
    DiskcacheIndex(index.folder).atomically(lambda: None)
    assert index.version() == before
    DiskcacheIndex(index.folder).write("row", b"2", "s")
    assert index.version() != before


def test_threads_share_it(index: DiskcacheIndex) -> None:
    errors: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for number in range(30):
                index.write(f"{name}:{number}", name.encode(), name)
                assert index.read(f"{name}:{number}") == name.encode()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(rows_of(index)) == 120


# --- damage


def filled(folder: Path) -> dict[str, bytes]:
    """An index of some pages, all in one file."""
    index = DiskcacheIndex(folder)
    expected = {f"entry:{number:03}": os.urandom(number * 40) for number in range(120)}
    index.atomically(lambda: [index.write(name, value, "s") for name, value in expected.items()])
    index.close()
    assert [path.name for path in folder.iterdir()] == ["cache.db"]
    return expected


@pytest.mark.long
def test_a_database_cut_at_any_length_is_noticed_and_repaired(tmp_path: Path) -> None:
    expected = filled(tmp_path / "whole")
    whole = (tmp_path / "whole" / "cache.db").read_bytes()
    lengths = [1, 15, 16, 17, 18, 99, 100, 101, 511, 512, *range(1000, len(whole), 9973), len(whole) - 1]
    lengths += list(range(4096, len(whole), 5 * 4096))
    for length in lengths:
        folder = tmp_path / f"cut-{length}"
        folder.mkdir(mode=0o700)
        (folder / "cache.db").write_bytes(whole[:length])
        index = DiskcacheIndex(folder)
        whole_pages_lost = length <= len(whole) - 4096
        if length >= 100 and whole_pages_lost:  # a shorter file has no header: SQLite may take it for an empty one
            assert fault_of(lambda: index.read("entry:001")) is Fault.INDEX_CORRUPT, length
        index.write("new", b"new", "s")
        assert index.read("new") == b"new"
        assert len(list(folder.glob("corrupt-*"))) == 1 or length < 100 or not whole_pages_lost
    assert rows_of(DiskcacheIndex(tmp_path / "whole")) == expected


def test_a_database_cut_while_it_is_open(tmp_path: Path) -> None:
    expected = filled(tmp_path / "index")
    index = DiskcacheIndex(tmp_path / "index")
    assert index.read("entry:100") == expected["entry:100"]
    os.truncate(tmp_path / "index" / "cache.db", 5000)
    assert fault_of(lambda: index.read("entry:101")) is Fault.INDEX_CORRUPT
    index.write("new", b"new", "s")
    assert index.read("new") == b"new"


@pytest.mark.parametrize("garbage", [b"garbage" * 5000, b"\0" * 8192, b"SQLite format 3\0" + b"\xff" * 8192])
def test_garbage_is_no_database(tmp_path: Path, garbage: bytes) -> None:
    folder = tmp_path / "index"
    folder.mkdir()
    (folder / "cache.db").write_bytes(garbage)
    index = DiskcacheIndex(folder)
    assert fault_of(lambda: index.read("a")) is Fault.INDEX_CORRUPT
    assert fault_of(lambda: list(index.keys())) is Fault.INDEX_CORRUPT
    aside = index.repair()
    assert aside is not None
    assert aside.parent == folder
    assert aside.name.startswith("corrupt-")
    assert (aside / "cache.db").read_bytes() == garbage
    assert index.read("a") is None
    index.write("a", b"one", "s")
    assert index.read("a") == b"one"
    assert index.repair() is None
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_repairs_pile_up_side_by_side(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    index = DiskcacheIndex(folder)
    for _ in range(3):
        index.write("a", b"one", "s")
        index.close()
        (folder / "cache.db").write_bytes(b"garbage" * 1000)
        index.write("a", b"two", "s")
        assert index.read("a") == b"two"
    assert len(list(folder.glob("corrupt-*"))) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index"]


@pytest.mark.fuzz
def test_altered_pages_give_the_bytes_of_some_row_or_a_fault_and_never_another_error(tmp_path: Path) -> None:
    """The bytes themselves are checked by the store: SQLite has no checksums."""
    expected = filled(tmp_path / "whole")
    whole = (tmp_path / "whole" / "cache.db").read_bytes()
    random_ = random.Random(7)
    faults = 0
    for number in sample(range(150)):
        damaged = bytearray(whole)
        page = random_.randrange(len(whole) // 4096) if number % 3 else 0
        for _ in range(random_.choice([1, 8, 64])):
            damaged[page * 4096 + random_.randrange(4096)] ^= 1 << random_.randrange(8)
        folder = tmp_path / f"altered-{number}"
        folder.mkdir()
        (folder / "cache.db").write_bytes(damaged)
        index = DiskcacheIndex(folder, busy_seconds=0.2)
        for name in list(expected)[::10]:
            try:
                value = index.read(name)
                assert value is None or type(value) is bytes
            except StoreFault:
                faults += 1
        try:
            index.write("new", b"new", "s")
            assert index.read("new") == b"new"
        except StoreFault:
            faults += 1
        index.close()
    assert faults


@pytest.mark.parametrize(
    ("part", "damaged"),
    [
        (b" tag BLOB", b" tbg BLOB"),
        (b"CREATE TABLE Cache", b"CREATE TXBLE Cache"),
        (b"SET value = value + 1", b"SET vblue = value + 1"),
        (b"evict", b"ev\xffct"),
    ],
)
def test_a_damaged_schema_is_moved_aside_too(tmp_path: Path, part: bytes, damaged: bytes) -> None:
    """The pages are whole, so SQLite's own check may find nothing wrong."""
    filled(tmp_path / "index")
    file = tmp_path / "index" / "cache.db"
    whole = file.read_bytes()
    assert part in whole
    file.write_bytes(whole.replace(part, damaged))
    index = DiskcacheIndex(tmp_path / "index")
    index.write("new", b"new", "s")
    assert rows_of(index) == {"new": b"new"}
    assert len(list(index.folder.glob("corrupt-*"))) == 1


def test_keys_that_are_not_ours_are_left_out(index: DiskcacheIndex, rows: Any) -> None:
    index.write("a", b"one", "s")
    for key in ("x'ff'", "5", "NULL", "2.5", "CAST(x'ff' AS TEXT)"):
        rows.run(f"INSERT INTO Cache (key, raw, mode, value) VALUES ({key}, 1, 4, x'00')")
    rows.run("INSERT INTO Cache (key, raw, mode, value) VALUES ('b', 0, 4, x'00')")  # a pickled key
    assert list(index.keys()) == ["a"]
    assert index.read("b") is None


# --- busy, read-only, network


def test_a_lock_that_another_process_keeps_is_a_bounded_wait(index: DiskcacheIndex) -> None:
    index.write("a", b"one", "s")
    keeper = sqlite3.connect(index.folder / "cache.db", isolation_level=None)
    keeper.execute("BEGIN IMMEDIATE")
    try:
        assert fault_of(lambda: index.write("b", b"two", "s")) is Fault.INDEX_BUSY
        assert index.read("a") == b"one"  # readers do not wait
        # A process that opens it now would wait a minute in diskcache.
        assert (
            fault_of(lambda: DiskcacheIndex(index.folder, busy_seconds=0.1).write("b", b"2", "s")) is Fault.INDEX_BUSY
        )
    finally:
        keeper.close()
    index.write("b", b"two", "s")
    assert index.read("b") == b"two"


def test_a_read_only_index_is_read_without_locks(small_file_system: Any) -> None:
    index = DiskcacheIndex(small_file_system.path / "index")
    index.write("a", b"one", "s")
    index.close()
    small_file_system.set_read_only()
    for reader in (index, DiskcacheIndex(index.folder)):
        assert reader.read("a") == b"one"
        assert reader.read("b") is None
        assert list(reader.keys()) == ["a"]
        assert fault_of(lambda: reader.write("b", b"two", "s")) is Fault.STORE_UNWRITABLE
        assert reader.read("a") == b"one"
        reader.close()


def test_a_read_only_index_remembers_nothing_and_says_nothing(small_file_system: Any) -> None:
    folder = small_file_system.path / "index"
    writer = DiskcacheIndex(folder)
    writer.write("a", b"one", "s")
    writer.close()
    small_file_system.set_read_only()
    told: list[tuple[Fault, str]] = []
    reader = DiskcacheIndex(folder, on_fault=lambda *fault: told.append(fault))
    for number in range(1000):
        reader.remember(f"digest:{number}", b"value")
    reader.close()
    assert not told
    assert reader.recall("a") == b"one"


def test_a_read_only_index_with_a_log_says_what_to_do(
    small_file_system: Any, in_child: Callable[[Callable[[], object]], int]
) -> None:
    folder = small_file_system.path / "index"

    def die_without_closing() -> None:
        DiskcacheIndex(folder).write("z", b"0", "s")
        reader = DiskcacheIndex(folder)
        reader.read("z")  # an open reader keeps the log
        DiskcacheIndex(folder).write("a", b"one", "s")
        os._exit(0)

    in_child(die_without_closing)
    assert (folder / "cache.db-wal").stat().st_size
    (folder / "cache.db-shm").unlink()
    small_file_system.set_read_only()
    with pytest.raises(StoreFault, match="open it once where it can be written"):
        DiskcacheIndex(folder).read("a")


def test_a_frozen_index_that_changes_all_the_same_is_opened_again(tmp_path: Path, monkeypatch: Any) -> None:
    """Read-only here, written elsewhere (a bind mount): faked by os.access."""
    writer = DiskcacheIndex(tmp_path / "index")
    writer.write("a", b"one", "s")
    writer.close()
    reader = DiskcacheIndex(tmp_path / "index")
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_args, **_more: False)
        assert reader.read("a") == b"one"
        writer.write("a", b"two", "s")
        writer.close()
        assert reader.read("a") == b"two"
        os.utime(tmp_path / "index" / "cache.db", ns=(1, 1))
        assert reader.read("a") == b"two"


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "lustre"])
def test_a_network_mount_is_refused_with_the_way_out(tmp_path: Path, kind: str) -> None:
    class Faked(Mounts):
        def kind(self, path: str | os.PathLike[str]) -> str:
            return kind

    index = DiskcacheIndex(tmp_path / "index", mounts=Faked())
    for call in (lambda: index.read("a"), lambda: index.write("a", b"one", "s")):
        with pytest.raises(StoreFault, match=f"{kind}.*CACHEC_DIR to a folder on a local disk") as raised:
            call()
        assert raised.value.fault is Fault.NETWORK_MOUNT
    assert list(tmp_path.iterdir()) == []


# --- the memory of digests


def test_digests_are_remembered_for_the_next_process_and_a_hit_writes_nothing(tmp_path: Path) -> None:
    index = DiskcacheIndex(tmp_path / "index")
    index.remember("digest:1", b"one")
    assert index.recall("digest:1") == b"one"
    assert not (tmp_path / "index").exists()
    index.write("a", b"one", "s")
    assert DiskcacheIndex(tmp_path / "index").recall("digest:1") == b"one"
    index.remember("digest:2", b"two")
    index.close()
    assert DiskcacheIndex(tmp_path / "index").recall("digest:2") == b"two"
    assert DiskcacheIndex(tmp_path / "index").recall("digest:3") is None


def test_many_digests_are_written_without_being_asked(tmp_path: Path) -> None:
    index = DiskcacheIndex(tmp_path / "index")
    for number in range(300):
        index.remember(f"digest:{number}", b"x")
    assert len(list(DiskcacheIndex(tmp_path / "index").keys())) == 256


def test_a_memory_that_fails_is_counted_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "cache.db").write_bytes(b"garbage" * 1000)
    told: list[Fault] = []
    index = DiskcacheIndex(tmp_path / "index", on_fault=lambda fault, _detail: told.append(fault))
    assert index.recall("digest:1") is None
    assert told == [Fault.INDEX_CORRUPT]
    (tmp_path / "file").touch()
    nowhere = DiskcacheIndex(tmp_path / "file" / "index", on_fault=lambda fault, _detail: told.append(fault))
    nowhere.remember("digest:1", b"one")
    nowhere.close()
    assert len(told) == 2


def test_damage_that_is_said_once_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may refuse one read."""
    index = DiskcacheIndex(tmp_path / "index")
    index.write("a", b"one", "s")
    real, said = index._transaction, [StoreFault(Fault.INDEX_CORRUPT, "said once")]

    def transaction(change: Any) -> Any:
        if said:
            raise said.pop()
        return real(change)

    monkeypatch.setattr(index, "_transaction", transaction)
    index.write("b", b"two", "s")
    assert rows_of(index) == {"a": b"one", "b": b"two"}


def test_no_page_of_the_database_is_mapped_and_none_evicted(tmp_path: Path) -> None:
    index = DiskcacheIndex(tmp_path / "index")
    index.write("a", b"x", "s")
    index._diskcache.reset("size_limit", 1)
    index = DiskcacheIndex(tmp_path / "index")
    names = {f"b{number}" for number in range(30)}
    for name in names:
        index.write(name, bytes(40_000), "s")
        assert index.read(name) == bytes(40_000)
    assert set(rows_of(index)) == {"a", *names}
    maps = Path("/proc/self/maps").read_text()
    assert str(tmp_path / "index" / "cache.db-shm") in maps
    assert not re.search(rf"{re.escape(str(tmp_path))}/index/cache\.db$", maps, re.MULTILINE)


def _opened_as(database: Any) -> dict[str, object]:
    """How a table of diskcache was opened: its settings, and those of its connection."""
    names = [name for name in (*DEFAULT_SETTINGS, *METADATA) if name not in METADATA]
    pragmas = ("cache_size", "journal_mode", "mmap_size", "synchronous", "auto_vacuum")
    asked = {name: database._con.execute(f"PRAGMA {name}").fetchone() for name in pragmas}
    return {**{name: getattr(database, name) for name in names}, **asked}


def test_what_is_as_we_leave_it_is_opened_by_one_connection_and_as_diskcache_would(
    index: DiskcacheIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.write("a", b"1", "s")
    opened: list[Any] = []
    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite_writer.sqlite3, "connect", lambda *given, **more: opened.append(given) or connect(*given, **more)
    )
    after = DiskcacheIndex(index.folder)
    after.write("a", b"2", "s")
    assert len(opened) == 1
    assert _opened_as(after._diskcache) == _opened_as(index._diskcache)
    assert (after.read("a"), len(after._diskcache)) == (b"2", 1)


def test_the_connection_that_writes_stays_until_it_fails_or_the_file_is_another(
    index: DiskcacheIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite_writer.sqlite3, "connect", lambda *given, **more: opened.append(given) or connect(*given, **more)
    )

    def count() -> int:
        index.write("a", b"1", "s")
        found = len([place for (place,) in opened if not place.startswith("file:")])
        opened.clear()
        return found

    def fails() -> None:
        index.write("b", b"2", "s")
        raise LookupError("of the change")

    index.write("a", b"0", "s")
    opened.clear()
    assert [count(), count()] == [0, 0]
    thread = threading.Thread(target=index.write, args=("a", b"2", "s"))
    thread.start()
    thread.join()
    assert count() == 0
    with pytest.raises(LookupError, match="of the change"):
        index.atomically(fails)
    assert [count(), count()] == [1, 0]
    shutil.rmtree(index.folder)
    assert count() > 0
    assert (count(), rows_of(index)) == (0, {"a": b"1"})
    index.close()
    assert not [path for path in open_files() if str(index.folder) in path]
    assert count() == 1


@pytest.mark.parametrize("closes", [True, False])
def test_a_child_of_a_fork_that_is_told_to_nobody_opens_its_own(
    index: DiskcacheIndex, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    index.write("a", b"1", "s")
    assert index.read("a") == b"1"
    inherited, pid = index._diskcache._con, os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: pid + 1)
        if closes:
            index.close()
        index.write("a", b"2", "s")
        assert index._diskcache._con is not inherited
        assert index.read("a") == b"2"
    assert inherited.execute("SELECT COUNT(*) FROM Cache").fetchone() == (1,)  # never closed


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM Settings WHERE key = 'cull_limit'",
        "DELETE FROM Settings WHERE key = 'count'",
        "UPDATE Settings SET value = 'least-recently-used' WHERE key = 'eviction_policy'",
        "UPDATE Settings SET value = 1 WHERE key = 'sqlite_mmap_size'",
        "DROP TRIGGER Settings_size_update",
        "DROP INDEX Cache_key_raw",
        "CREATE INDEX Cache_tag_rowid ON Cache(tag, rowid)",
    ],
)
def test_what_is_not_as_we_leave_it_is_mended_by_the_next_write(index: DiskcacheIndex, change: str) -> None:
    def rows(statement: str) -> list[Any]:
        connection = sqlite3.connect(index.folder / "cache.db", isolation_level=None)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()

    def state() -> object:
        settings = "SELECT key, value FROM Settings WHERE key != 'size' AND NOT (key = 'count' AND value = 0)"
        return {*rows(settings)} - {("count", 1)}, {*rows("SELECT type, name FROM sqlite_master")}

    index.write("a", b"1", "s")
    before = state()
    rows(change)
    DiskcacheIndex(index.folder).write("a", b"2", "s")
    assert state() == before
    assert rows("SELECT COUNT(*) FROM Settings WHERE key = 'count'") == [(1,)]
    assert index.read("a") == b"2"


def rows_of(index: DiskcacheIndex) -> dict[str, bytes | None]:
    return {name: index.read(name) for name in list(index.keys())}


def open_files() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    return found
