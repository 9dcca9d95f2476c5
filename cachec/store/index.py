"""The index: a table of byte strings by name, in SQLite, written through diskcache and read without it.

Each name begins, in the file, with the version of the record and a colon: two versions of cachec share a store, and
neither reads, replaces or removes the other's rows but on purpose (``version=``). Names that begin with ``store:`` are
of all versions. Version 0 are rows from before that.

On disk (``index/cache.db``, diskcache 5.6 table ``Cache``): a row of ours has a text ``key`` with ``raw`` = 1, ``mode``
= 1 (raw), no ``filename``, and a BLOB ``value``. Every other row is refused, both ways: diskcache itself would unpickle
a row of mode 4 and open any file that a row names (CVE-2025-69872).

diskcache is imported by the first write. Reads use one connection of ``sqlite3``, writes another; both stay open, as to
open one for writing takes eight times as long as a publication's rows. No connection may be carried across a fork ("How
to corrupt", section 2.6): they are closed before one, and opened again where they are needed. A child of a C library
that forks without running Python's hooks opens its own and never closes the inherited ones.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from time import monotonic  # at once: who calls us may have put a clock of its own there
from typing import Any, Protocol, TypeVar

from cachec.base import fsio
from cachec.base.mounts import Mounts
from cachec.errors import StoreFault
from cachec.model import RECORD_VERSION, Fault
from cachec.store.locks import follow_forks
from cachec.store.rows import BUSY_STEP, MODE_RAW, Reader, is_busy, is_uninitialised

T = TypeVar("T")

#: Seconds that a statement waits for another process's transaction before it is INDEX_BUSY.
BUSY_SECONDS = 5.0

_FILE = "cache.db"  # the name that diskcache gives it
_SELECT = "SELECT mode, filename, value FROM Cache WHERE key = ? AND raw = 1"
_DELETE = "DELETE FROM Cache WHERE key = ? AND raw = 1"
_EXPIRE = "DELETE FROM Cache WHERE raw = 1 AND key > CAST(? AS TEXT) AND key < ? AND store_time NOT BETWEEN ? AND ?"
_AFTER = "FROM Cache WHERE raw = 1 AND key > CAST(? AS TEXT) AND key < ?"
_ROWS = f"SELECT key, mode, filename, value {_AFTER} ORDER BY key LIMIT 1000"
_KEYS = f"SELECT key {_AFTER} ORDER BY key LIMIT 500"
_FIRST = "SELECT key FROM Cache WHERE raw = 1 AND key >= CAST(? AS TEXT) AND typeof(key) = 'text' ORDER BY key LIMIT 1"
_FROM = "FROM Cache WHERE raw = 1 AND key >= CAST(? AS TEXT) AND key < ?"
_NEWEST = f"SELECT max(store_time) {_FROM}"
_CLEAR = f"DELETE FROM Cache WHERE rowid IN (SELECT rowid {_FROM} LIMIT 5000)"
_TAGGED_KEYS = f"SELECT key {_AFTER} AND tag = ? ORDER BY key LIMIT 500"
#: Sorts after every text that starts with a given prefix and before every BLOB.
_LAST = "\U0010ffff"
#: Begins the name of a row that all versions share.
_OF_ALL = "store:"
#: Digests kept in memory before they are written in one transaction of their own.
_PENDING_MAX = 256
_DIGEST_TAG = "digest"

#: diskcache's settings that are not left to its defaults. Nothing is evicted, nothing is a file, nothing is mapped (a
#: map of a database that somebody truncates kills the process).
_SETTINGS: dict[str, object] = {
    "eviction_policy": "none",
    "cull_limit": 0,
    "disk_min_file_size": 1 << 62,
    "sqlite_journal_mode": "wal",
    "sqlite_mmap_size": 0,
}


#: Seconds after which a use of a version is noted again (versions.py).
USED_SECONDS = 86400.0


def used_file(store: str, version: int) -> str:
    """Return the path of the file whose time is that of the last use of a version."""
    return os.path.join(store, "index", f"used-{version}")


#: Whether this context may not leave anything in an index.
_only_looking: ContextVar[bool] = ContextVar("cachec_only_looking", default=False)


@contextmanager
def only_looking() -> Iterator[None]:
    """What this context learns of files while the body runs is not remembered: a question writes nothing."""
    token = _only_looking.set(True)
    try:
        yield
    finally:
        _only_looking.reset(token)


def is_only_looking() -> bool:
    """Whether this context may write nothing."""
    return _only_looking.get()


class Index(Protocol):
    """Byte strings by name. Every method raises StoreFault and nothing else where the index itself fails."""

    def read(self, key: str, *, version: int | None = None) -> bytes | None:
        """The value under ``key``, or None. A row that is not plain bytes is a fault ROW_REFUSED.

        version: of the records of another cachec, here and below; None for those of this one.
        """

    def write(self, key: str, value: bytes, tag: str) -> None:
        """Put ``value`` under ``key``."""

    def delete(self, key: str) -> bool:
        """Remove a row; whether there was one."""

    def keys(self, tag: str | None = None, prefix: str = "") -> Iterator[str]:
        """The keys in order, those of one tag or with one prefix only if asked."""

    def rows(self, prefix: str, *, version: int | None = None) -> Iterator[tuple[str, bytes | None]]:
        """Key and value of the rows with a prefix, in the order of their keys; None for a row that is refused."""

    def delete_many(self, keys: Collection[str], *, version: int | None = None) -> int:
        """Remove rows in one transaction; how many there were."""

    def row_name(self, key: str) -> str:
        """The name that the row under ``key`` has where it is stored."""

    def versions(self) -> list[int]:
        """The versions whose records are here, in order."""

    def newest(self, version: int) -> float:
        """When the newest row of a version was written (Unix time), 0 without any."""

    def clear(self, version: int) -> int:
        """Remove all rows of a version, in several transactions; how many there were."""

    def expire(self, prefix: str, since: float, until: float) -> int:
        """Remove the rows with a prefix that were not written between two times (Unix, seconds); how many."""

    def atomically(self, change: Callable[[], T]) -> T:
        """Run ``change``, which reads, writes and deletes rows, as one transaction; it may be run three times."""

    def version(self) -> object:
        """Another value after each change, whoever's it was; None where that can't be told."""

    def recall(self, name: str) -> bytes | None:
        """``hashing.Memory``: the bytes under ``name``, or None; a fault is counted, not raised."""

    def remember(self, name: str, value: bytes) -> None:
        """``hashing.Memory``: keep a digest row; written with the next transaction or by ``close``."""

    def close(self) -> None:
        """Write what is still to be remembered, and let go of the files."""


class DiskcacheIndex:
    """The Index in a folder. Safe to share among threads and to carry across a fork."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        fsync: bool = False,
        mounts: Mounts | None = None,
        on_fault: Callable[[Fault, str], None] | None = None,
        busy_seconds: float = BUSY_SECONDS,
        version: int = RECORD_VERSION,
    ) -> None:
        """fsync: flush at each transaction. on_fault: told of the faults that ``recall`` and ``remember`` swallow.
        version: of the records that are read and written."""
        self.folder = Path(folder)
        self._file = os.path.join(folder, _FILE)
        self._fsync = fsync
        self._own = f"{version}:"
        self._on_fault = on_fault or (lambda _fault, _detail: None)
        self._busy_seconds = busy_seconds
        self._reader = Reader(self._file, mounts or Mounts(), busy_seconds)
        self.version = self._reader.version
        # Beside the reader's own lock, so that a hit does not wait for a publication. This one is taken first.
        self._write_lock = threading.RLock()
        self._forking = False
        self._diskcache: Any = None  # a SqliteTable; diskcache has no types
        self._table_of: tuple[int, int] | None = None
        self._inherited: list[Any] = []
        self._tried: tuple[int, int] | None = None  # the file that the last transaction was about
        self._damaged: tuple[int, int] | None = None  # the file that a read found to be corrupt
        self._writing = False
        self._pending: dict[str, bytes] = {}
        follow_forks(self)

    # --- reading

    def row_name(self, key: str) -> str:
        """The name that the row under ``key`` has in the file."""
        if type(key) is not str:
            return key  # which is refused where it is written
        return key if key.startswith(_OF_ALL) else self._own + key

    def _begin(self, version: int | None) -> str:
        """What the names of a version's rows begin with."""
        return self._own if version is None else f"{version}:" if version else ""

    def read(self, key: str, *, version: int | None = None) -> bytes | None:
        """The value under ``key``, or None where there is no such row or no index yet."""
        name = self.row_name(key) if version is None else self._begin(version) + key
        try:
            rows = self._reader.select(_SELECT, (name,))
        except StoreFault as fault:
            if fault.fault is Fault.INDEX_CORRUPT and not self._writing:
                self._damaged = self._reader.place()
            raise
        if not rows and self._reader.refresh():  # deleted or repaired beside us since it was opened
            rows = self._reader.select(_SELECT, (name,))
        if not rows:
            return None
        mode, filename, value = rows[0]
        if mode != MODE_RAW or filename is not None or type(value) is not bytes:
            raise StoreFault(
                Fault.ROW_REFUSED, f"row {key}: mode {mode!r}, file {filename!r}; only plain bytes are read"
            )
        return value

    def keys(self, tag: str | None = None, prefix: str = "") -> Iterator[str]:
        """The keys in order, read 500 at a time, so that no read transaction stays open."""
        pages = self._pages(_KEYS, prefix) if tag is None else self._pages(_TAGGED_KEYS, prefix, tag)
        yield from (name for name, *_ in pages)

    def rows(self, prefix: str, *, version: int | None = None) -> Iterator[tuple[str, bytes | None]]:
        """Key and value of the rows with a prefix, read 1,000 at a time, so that no read transaction stays open."""
        for name, mode, filename, value in self._pages(_ROWS, prefix, version=version):
            plain = mode == MODE_RAW and filename is None and type(value) is bytes
            yield name, value if plain else None

    def _pages(
        self, statement: str, prefix: str, *values: str, version: int | None = None
    ) -> Iterator[tuple[Any, ...]]:
        """The rows of a statement with a limit, one page after the other, their keys as text."""
        begin = self._begin(version) if version is not None or not prefix.startswith(_OF_ALL) else ""
        skipped = len(begin)
        last, end = (begin + prefix).encode(), begin + prefix + _LAST
        while rows := self._reader.select(statement, (last, end, *values)):
            for key, *rest in rows:
                last = bytes(key)  # as it is: what a damaged one is shown as may sort before it
                yield (last[skipped:].decode(errors="replace"), *rest)

    def versions(self) -> list[int]:
        """The versions whose records are here, in order; 0 for rows from before versions lay side by side."""
        found = {int(each) if each.isdecimal() else 0 for each in self._firsts()}
        return sorted(found)

    def newest(self, version: int) -> float:
        """When the newest row of a version was written (Unix time), 0 without any."""
        newest = 0.0
        for begin in self._begins(version):
            for (written,) in self._reader.select(_NEWEST, (begin.encode(), begin + _LAST)):
                newest = max(newest, written or 0.0)
        return newest

    def clear(self, version: int) -> int:
        """Remove all rows of a version, in several transactions; how many there were."""
        removed = 0
        for begin in self._begins(version):
            clear = partial(self._clear, begin)
            while count := self.atomically(clear):
                removed += count
        return removed

    def _clear(self, begin: str) -> int:
        return int(self._diskcache._con.execute(_CLEAR, (begin.encode(), begin + _LAST)).rowcount)

    def _begins(self, version: int) -> list[str]:
        """What the names of a version's rows begin with; of version 0 each kind of row has its own."""
        if version:
            return [f"{version}:"]
        return [f"{each}:" for each in self._firsts() if not each.isdecimal()]

    def _firsts(self) -> list[str]:
        """The first pieces of all names, but of those that all versions share: one look into the table for each."""
        found: list[str] = []
        after = b""
        while rows := self._reader.select(_FIRST, (after,)):
            first, colon, _ = bytes(rows[0][0]).partition(b":")
            after = first + (b";" if colon else b"\0")  # the next character: what follows has another first piece
            if colon and first + colon != _OF_ALL.encode():
                found.append(first.decode(errors="replace"))
        return found

    # --- writing

    def write(self, key: str, value: bytes, tag: str) -> None:
        """Put ``value`` under ``key``, in the transaction that is running or in one of its own."""
        self.atomically(lambda: self._set(key, value, tag))

    def _set(self, key: str, value: bytes, tag: str) -> None:
        try:
            self._diskcache.set(self.row_name(key), value, tag=tag)
        except ValueError as error:  # two rows under one key, where the unique index is damaged
            raise StoreFault(Fault.INDEX_CORRUPT, f"writing row {key}: {error}") from error

    def delete(self, key: str) -> bool:
        """Remove the row; whether there was one."""
        return self.atomically(lambda: bool(self._diskcache.delete(self.row_name(key))))

    def delete_many(self, keys: Collection[str], *, version: int | None = None) -> int:
        """Remove rows in one transaction; how many there were."""
        if version is not None:
            begin = self._begin(version)
            return self.atomically(lambda: self._remove([begin + key for key in keys]))
        return self.atomically(lambda: self._remove([self.row_name(key) for key in keys]))

    def _remove(self, keys: Collection[str]) -> int:
        """Past diskcache, which asks for each row first whether it has expired, and for its file: ours do neither."""
        removed = self._diskcache._con.executemany(_DELETE, ((key,) for key in keys))
        return int(max(removed.rowcount, 0))

    def expire(self, prefix: str, since: float, until: float) -> int:
        """Remove the rows with a prefix that were not written between two times (Unix, seconds); how many."""
        begin = self.row_name(prefix)
        values = begin.encode(), begin + _LAST, since, until
        return self.atomically(lambda: int(self._diskcache._con.execute(_EXPIRE, values).rowcount))

    def atomically(self, change: Callable[[], T]) -> T:
        """Run ``change`` as one transaction, in which nobody else writes.

        Where the database turns out to be corrupt it is moved aside (``repair``), where it is gone it is made again;
        ``change`` is then run again. An exception of ``change`` undoes its rows and passes through. ``change`` must
        not fork.
        """
        with self._write_lock:
            if self._writing:
                return change()
            if self._damaged is not None:
                # The row may lie where no write meets the damage, and would then never be read.
                self.repair(self._damaged)
                self._damaged = None
            for is_doubted in (True, False):
                try:
                    return self._transaction(change)
                except StoreFault as error:
                    if error.fault not in {Fault.INDEX_CORRUPT, Fault.STORE_MISSING}:
                        raise
                    # SQLite says damage where the system refuses one read (EIO): only what it says twice is believed.
                    if error.fault is Fault.INDEX_CORRUPT and not is_doubted:
                        self.repair(self._tried)
                self._disconnect()
            return self._transaction(change)

    def _transaction(self, change: Callable[[], T]) -> T:
        from diskcache import Timeout

        what, is_done = "writing the index", False
        pending = dict(self._pending)
        try:
            self._open_table()
            self._writing = True
            with ExitStack() as stack:
                try:
                    self._patiently(lambda: stack.enter_context(self._diskcache.transact()))
                except AttributeError as error:  # a setting without a name, which diskcache takes for text
                    raise StoreFault(Fault.INDEX_CORRUPT, f"{what} {self._file}: {error}") from error
                result = change()
                for name, value in pending.items():
                    self._set(name, value, _DIGEST_TAG)
            is_done = True
        except (sqlite3.Error, UnicodeDecodeError, Timeout) as error:
            raise self._reader.fault(error, what) from error
        except OSError as error:
            raise fsio.fault(error, what) from error
        finally:
            self._writing = False
            if self._diskcache is not None and not is_done:
                self._diskcache.close()  # only its connection: one that failed once is not used again
        for name, value in pending.items():
            if self._pending.get(name) == value:
                del self._pending[name]
        return result

    def _patiently(self, attempt: Callable[[], T]) -> T:
        """What ``attempt`` gives. Where another has the lock: tried again, by new connections (``rows.BUSY_STEP``)."""
        from diskcache import Timeout

        until = monotonic() + self._busy_seconds
        while True:
            try:
                return attempt()
            except (sqlite3.Error, Timeout) as error:  # Timeout: diskcache's word for every failure to begin
                cause = error.__context__ if isinstance(error, Timeout) else error
                if not is_busy(cause) or monotonic() >= until:
                    raise
            if self._diskcache is not None:
                self._diskcache.close()
            self._reader.disconnect()

    def _open_table(self) -> None:
        """Have the diskcache.Cache of the file that is there now, made with mode 0600 where there is none."""
        from cachec.store.sqlite_writer import RowDisk, SqliteTable

        self._reader.check_mount()
        self._reader.refresh()
        place = self._tried = self._reader.place()
        if place is not None:
            self._reader.check_journal()
        if (
            self._diskcache is not None
            and place is not None
            and place == self._table_of
            and not self._diskcache.is_inherited
        ):
            if self._fsync:
                self._diskcache.reset("sqlite_synchronous", 2, update=False)
            return
        self._drop_table()
        fsio.make_dir(self.folder)
        if place is None:
            os.close(fsio.open_own(self._file, os.O_RDWR))  # SQLite gives its other files the mode of this one
            place = self._reader.place()
        self._tried = place
        # NORMAL keeps the database whole after a power cut, and may lose the last transactions; FULL loses none.
        synchronous = 2 if self._fsync else 1
        how = {
            "timeout": min(BUSY_STEP, self._busy_seconds),
            "disk": RowDisk,
            "sqlite_synchronous": synchronous,
            **_SETTINGS,
        }
        # The reading connection stays, and with it what was read: a process's first publication reads nothing twice.
        try:
            table = self._patiently(lambda: self._ready(how))
            if table is None:
                self._patiently(self._inspect)
                table = self._patiently(lambda: SqliteTable(str(self.folder), **how))
        except (ValueError, TypeError) as error:  # settings that diskcache can't take
            raise StoreFault(Fault.INDEX_CORRUPT, f"{self._file}: {error}") from error
        self._diskcache, self._table_of = table, place

    def _ready(self, how: dict[str, Any]) -> Any:
        """The table of a database that is as we leave one; None for any other, such as a new one."""
        from cachec.store.sqlite_writer import SqliteTable

        try:
            return SqliteTable.ready(str(self.folder), **how)
        except sqlite3.Error as error:
            if is_uninitialised(error):
                return None
            raise

    def _inspect(self) -> None:
        """Look at a database before diskcache does: it waits 60 s for a lock, and it makes attributes of settings."""
        from diskcache import DEFAULT_SETTINGS
        from diskcache.core import METADATA

        connection = sqlite3.connect(self._file, timeout=min(BUSY_STEP, self._busy_seconds), isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
            names = [name for (name,) in connection.execute("SELECT key FROM Settings")]
        except sqlite3.Error as error:
            if is_uninitialised(error):
                return
            raise
        finally:
            connection.close()
        unknown = [name for name in names if name not in DEFAULT_SETTINGS and name not in METADATA]
        if unknown:
            raise StoreFault(Fault.INDEX_CORRUPT, f"{self._file}: unknown settings {unknown[:5]!r}")

    def repair(self, found: tuple[int, int] | None = None) -> Path | None:
        """Move a corrupt database to ``index/corrupt-<time>/``; an empty one takes its place at the next write.

        found: device and inode of a file that is known to be corrupt; without it the database is checked. Returns where
        it went, None where the database is whole or another file by now (another process repaired it). The database,
        its log and its shared memory move together with their folder: a new database must never meet an old log.
        """
        with self._write_lock, self._reader.lock:
            self._disconnect()
            name = f"corrupt-{time.time_ns()}"
            fresh = self.folder.with_name(f"{self.folder.name}.new-{name}")
            with (
                fsio.faults(f"repairing {self.folder}"),
                fsio.folder_locked(os.path.realpath(self.folder.parent), exclusive=True, seconds=self._busy_seconds),
            ):
                if self._reader.place() != found if found is not None else not self._is_corrupt():
                    return None
                fsio.make_dir(fresh)
                self.folder.rename(fresh / name)
                for older in (fresh / name).glob("corrupt-*"):
                    older.rename(fresh / older.name)
                try:
                    fresh.rename(self.folder)
                except OSError as error:
                    if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                        raise
                    for each in list(fresh.iterdir()):  # somebody who writes has made a folder meanwhile
                        each.rename(self.folder / each.name)
                    fresh.rmdir()
            return self.folder / name

    def damage(self) -> str:
        """What is wrong with the database, in words; empty where nothing is, or there is none. Reads all of it.

        What was found is moved aside (``repair``) by the next write. Raises StoreFault where it can't be read.
        """
        try:
            messages = [
                bytes(row).decode(errors="replace") for (row,) in self._reader.select("PRAGMA quick_check(1)", ())
            ]
            self._reader.select(_SELECT, ("",))  # the table itself
        except StoreFault as fault:
            if fault.fault is not Fault.INDEX_CORRUPT:
                raise
            messages = [fault.detail]
        if messages in ([], ["ok"]):
            return ""
        self._damaged = self._reader.place()
        return messages[0]

    def _is_corrupt(self) -> bool:
        if self._reader.place() is None:
            return False
        try:
            self._inspect()
            connection = sqlite3.connect(self._file, timeout=self._busy_seconds, isolation_level=None)
            try:
                return bool(connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)])
            finally:
                connection.close()
        except StoreFault as error:
            return error.fault is Fault.INDEX_CORRUPT
        except (sqlite3.Error, UnicodeDecodeError) as error:
            fault = self._reader.fault(error, "checking the index")
            if fault.fault is Fault.INDEX_CORRUPT:
                return True
            raise fault from error

    # --- the memory of file digests

    def recall(self, name: str) -> bytes | None:
        """The bytes last put under ``name``, or None; a fault is counted and None."""
        pending = self._pending.get(name)
        if pending is not None:
            return pending
        try:
            return self.read(name)
        except StoreFault as error:
            self._on_fault(error.fault, error.detail)
            return None

    def remember(self, name: str, value: bytes) -> None:
        """Keep ``value`` under ``name``.

        It is written with the next transaction, by ``close``, or when many have gathered: a hit writes nothing. In
        ``only_looking`` it is forgotten.
        """
        if _only_looking.get():
            return
        self._pending[name] = value
        if len(self._pending) >= _PENDING_MAX:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        try:
            self.atomically(lambda: None)
        except StoreFault as error:
            self._pending.clear()  # forgetting is no error, growing without a bound would be one
            if error.fault is not Fault.STORE_UNWRITABLE:  # a store that is only read: who publishes reports it
                self._on_fault(error.fault, error.detail)

    def close(self) -> None:
        """Write what is still to be remembered, and let go of the files. A later call opens them again."""
        with self._write_lock, self._reader.lock:
            self._flush()
            self._disconnect()

    def _disconnect(self) -> None:
        self._reader.disconnect()
        self._drop_table()

    def _drop_table(self) -> None:
        table, self._diskcache = self._diskcache, None
        if table is not None and table.is_inherited:
            self._inherited.append(table)
        elif table is not None:
            table.close()

    def before_fork(self) -> None:
        """Let the writer finish and close the connections, so that the child inherits none."""
        self._write_lock.acquire()
        self._reader.lock.acquire()
        self._disconnect()
        self._forking = True

    def after_fork(self, *, child: bool) -> None:
        """In the parent and in the child: go on."""
        del child
        if not self._forking:
            return  # made by another thread while the fork was on its way
        self._forking = False
        self._reader.lock.release()
        self._write_lock.release()
