"""The rows of an index as SQLite has them: one reading connection, and what SQLite's errors mean.

Nothing here writes and nothing here knows diskcache. A connection must not be carried across a fork ("How to corrupt an
SQLite database file", section 2.6): ``disconnect`` closes it before one, and the next read opens another.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading
from pathlib import Path
from time import monotonic  # at once: who calls us may have put a clock of its own there
from typing import Any

from cachec.base import fsio
from cachec.base.fsio import Identity
from cachec.base.mounts import Mounts, is_network
from cachec.errors import StoreFault
from cachec.model import Fault

MODE_RAW = 1  # diskcache's: the value column is the value

#: Primary result codes of a read that found no room, or no leave, to make SQLite's other files.
_DISK_ERRORS = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN})

#: What SQLite says where diskcache's tables are not there. Any other name comes from a damaged schema.
_NO_TABLES = frozenset(f"no such table: {where}{table}" for where in ("", "main.") for table in ("Cache", "Settings"))

#: SQLite's result codes (sqlite.org/rescode.html), extended ones first. A quota or a file-size limit shows as a failed
#: write only; SQLITE_PROTOCOL is a lost race for a WAL lock.
_FAULTS = {
    sqlite3.SQLITE_IOERR_WRITE: Fault.STORE_FULL,
    sqlite3.SQLITE_IOERR_SHMSIZE: Fault.STORE_FULL,
    sqlite3.SQLITE_IOERR_SHORT_READ: Fault.INDEX_CORRUPT,
    sqlite3.SQLITE_READONLY_DBMOVED: Fault.STORE_MISSING,
    sqlite3.SQLITE_IOERR_DELETE_NOENT: Fault.STORE_MISSING,  # its other files went with their folder: repaired
    sqlite3.SQLITE_FULL: Fault.STORE_FULL,
    sqlite3.SQLITE_BUSY: Fault.INDEX_BUSY,
    sqlite3.SQLITE_LOCKED: Fault.INDEX_BUSY,
    sqlite3.SQLITE_PROTOCOL: Fault.INDEX_BUSY,
    sqlite3.SQLITE_CORRUPT: Fault.INDEX_CORRUPT,
    sqlite3.SQLITE_NOTADB: Fault.INDEX_CORRUPT,
    sqlite3.SQLITE_FORMAT: Fault.INDEX_CORRUPT,
    sqlite3.SQLITE_READONLY: Fault.STORE_UNWRITABLE,
    sqlite3.SQLITE_PERM: Fault.STORE_UNWRITABLE,
    sqlite3.SQLITE_AUTH: Fault.STORE_UNWRITABLE,
}


_VERSION = "PRAGMA data_version"

#: Seconds of waiting for a lock after which all connections are closed, and opened again, before it is waited on.
#: An unlock that the system refuses is nothing that SQLite tells: the lock stays with this process for as long as it
#: has any connection to the file, and every new one would wait for it, in vain.
BUSY_STEP = 0.5


class Reader:
    """Reads one database file, from any thread, as long as it is there."""

    def __init__(self, file: str, mounts: Mounts, busy_seconds: float) -> None:
        self.file = file
        self.folder = Path(file).parent
        self._mounts = mounts
        self._busy_seconds = busy_seconds
        self._mount_checked = False
        self.lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._connected_to: tuple[int, int] | None = None  # device and inode
        self._connections = 0
        self._frozen: Identity | None = None  # of the file, where it is read with immutable=1
        self._pid = os.getpid()
        self._inherited: list[sqlite3.Connection] = []

    def select(self, statement: str, values: tuple[str | bytes, ...]) -> list[Any]:
        """All rows of a statement; none where there is no database, or none with tables. TEXT comes as bytearray.

        Raises StoreFault.
        """
        until = monotonic() + self._busy_seconds
        is_doubted = False
        with self.lock:
            while True:
                try:
                    return self._select(statement, values)
                except OSError as error:
                    raise fsio.fault(error, "reading the index") from error
                except StoreFault as fault:
                    # SQLite says damage where the system refuses one read (EIO): only what it says twice is believed.
                    is_doubted = fault.fault is Fault.INDEX_CORRUPT and not is_doubted
                    if not is_doubted and (not is_busy(fault.__cause__) or monotonic() >= until):
                        raise

    def version(self) -> tuple[int, int] | None:
        """Another value after each transaction, whoever's it was; None where that can't be told. Raises StoreFault."""
        with self.lock:
            if self._connection is not None and self._frozen is None and self._pid == os.getpid():
                try:
                    return self._connections, self._connection.execute(_VERSION).fetchone()[0]
                except sqlite3.Error:
                    pass  # the usual way meets it again, and takes care of it
            rows = self.select(_VERSION, ())
            return None if self._frozen is not None else (self._connections, rows[0][0] if rows else -1)

    def refresh(self) -> bool:
        """Close the connection if the file that it reads was deleted or replaced; the next read opens the new one.

        Returns whether it was.
        """
        with self.lock:
            if self._connection is None or self.place() == self._connected_to:
                return False
            self.disconnect()
            return True

    def _select(self, statement: str, values: tuple[str | bytes, ...]) -> list[Any]:
        """All rows, with the read lock held."""
        connection = self._connection
        if connection is None or self._pid != os.getpid() or self._frozen is not None:
            connection = self._connect()
            if connection is None:
                return []
        try:
            rows = connection.execute(statement, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            # A connection that failed once is not used again: another process may have repaired the file meanwhile.
            frozen = self._frozen is not None
            self.disconnect()
            if is_uninitialised(error):
                return []
            if frozen or code_of(error) & 0xFF not in _DISK_ERRORS:
                raise self.fault(error, "reading the index") from error
            rows = self._select_frozen(statement, values, error)
        if self._frozen is not None and self._frozen_state() != self._frozen:
            self.disconnect()
            raise StoreFault(Fault.INDEX_BUSY, f"{self.file} changed while it was read without locks")
        return rows

    def _select_frozen(self, statement: str, values: tuple[str | bytes, ...], error: Exception) -> list[Any]:
        """All rows although there is no room for the shared-memory file: a full disk still serves hits."""
        try:
            connection = self._connect(writable=False)
            if connection is not None and self._frozen is not None:
                return connection.execute(statement, values).fetchall()
        except sqlite3.Error as again:
            error = again
        self.disconnect()
        raise self.fault(error, "reading the index") from error

    def _connect(self, *, writable: bool = True) -> sqlite3.Connection | None:
        """The reading connection; None where there is no database yet.

        In a folder that can't be written SQLite can't make the shared-memory file that WAL needs. There the file is
        opened with ``immutable=1``: no locks, and the log is ignored, so only where there is no log with content; the
        file is looked at again after each read. Where there is a log, ``mode=ro`` reads it, if its ``-shm`` is there.
        """
        if self._pid != os.getpid():
            if self._connection is not None:
                self._inherited.append(self._connection)
            self._connection, self._frozen, self._pid = None, None, os.getpid()
        if self._connection is not None:
            if self._frozen_state() == self._frozen:
                return self._connection
            self.disconnect()
        self.check_mount()
        place = self.place()
        if place is None:
            return None
        self.check_journal()
        frozen: Identity | None = None
        how = "mode=rw"
        if not writable or not os.access(self.folder, os.W_OK, effective_ids=True):
            frozen = self._frozen_state()
            how = "mode=ro" if frozen is None else "immutable=1"
        quoted = self.file.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        try:
            connection = sqlite3.connect(
                f"file:{quoted}?{how}",
                uri=True,
                timeout=min(BUSY_STEP, self._busy_seconds),
                isolation_level=None,
                check_same_thread=False,
            )
        except sqlite3.Error as error:
            if self.place() is None:
                return None
            raise self.fault(error, "opening the index") from error
        # TEXT comes as bytearray, so that it can't be taken for a BLOB and need not be valid UTF-8.
        connection.text_factory = bytearray
        try:
            connection.execute("PRAGMA query_only = 1")
            connection.execute("PRAGMA trusted_schema = 0")
            connection.execute("PRAGMA cell_size_check = 1")
        except sqlite3.Error as error:
            connection.close()
            raise self.fault(error, "opening the index") from error
        self._connection, self._connected_to, self._frozen = connection, place, frozen
        self._connections += 1
        return connection

    def disconnect(self) -> None:
        """Close the connection, before a fork for one thing; the next read opens another."""
        with self.lock:
            if self._connection is not None:
                self._connection.close()
            self._connection, self._connected_to, self._frozen = None, None, None

    def place(self) -> tuple[int, int] | None:
        """Device and inode of the database file; None where it is not there."""
        try:
            status = os.stat(self.file)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise fsio.fault(error, "opening the index") from error
        return status.st_dev, status.st_ino

    def _frozen_state(self) -> Identity | None:
        """The state of a database without a log; None where there is a log with content, or no database."""
        try:
            if os.stat(self.file + "-wal").st_size:
                return None
        except FileNotFoundError:
            pass  # the usual state: no log
        try:
            return fsio.identity(self.file)
        except FileNotFoundError:
            return None

    def check_journal(self) -> None:
        """Raise INDEX_CORRUPT for a rollback journal that is no file: SQLite would wait for the writer of a FIFO."""
        with contextlib.suppress(OSError):
            if not stat.S_ISREG(os.stat(self.file + "-journal").st_mode):
                raise StoreFault(Fault.INDEX_CORRUPT, f"{self.file}-journal is no regular file")

    def check_mount(self) -> None:
        """Raise NETWORK_MOUNT where the folder, or the one it will be made in, is on a network file system."""
        if self._mount_checked:
            return
        folder = self.folder
        while not folder.exists() and folder.parent != folder:
            folder = folder.parent
        kind = self._mounts.kind(folder)
        if is_network(kind):
            raise StoreFault(
                Fault.NETWORK_MOUNT,
                f"{self.folder} is on {kind}, where SQLite's write-ahead log does not work; "
                "set CACHEC_DIR to a folder on a local disk",
            )
        self._mount_checked = folder == self.folder

    def fault(self, error: BaseException, what: str) -> StoreFault:
        """The fault behind an error of SQLite or diskcache.

        diskcache says Timeout for every failure to begin, and its ROLLBACK fails once more where SQLite has rolled back
        already: the cause is then the error before.
        """
        before = error.__context__
        if isinstance(before, sqlite3.Error) and (not isinstance(error, sqlite3.Error) or code_of(error) == 1):
            error = before
        kind = self._kind(error)
        name = f" ({error.sqlite_errorname})" if isinstance(error, sqlite3.Error) and code_of(error) >= 0 else ""
        way_out = ""
        if kind is Fault.STORE_UNWRITABLE and os.path.exists(self.file + "-wal"):
            way_out = "; its log needs a writer: open it once where it can be written, then copy or mount it again"
        return StoreFault(kind, f"{what} {self.file}: {error}{name}{way_out}")

    def _kind(self, error: BaseException) -> Fault:
        if isinstance(error, UnicodeDecodeError):
            return Fault.INDEX_CORRUPT  # a message of SQLite quotes a damaged schema
        code = code_of(error)
        if code == sqlite3.SQLITE_READONLY and all(
            os.access(each, os.W_OK, effective_ids=True) for each in (self.file, self.folder)
        ):
            # SQLite opens a file for reading where the system refuses it for writing, be it only once.
            return Fault.INDEX_CORRUPT if self._says_read_only() else Fault.IO_ERROR
        kind = _FAULTS.get(code) or _FAULTS.get(code & 0xFF)
        if kind is not None:
            return kind
        if is_uninitialised(error):
            return Fault.STORE_MISSING
        if code == sqlite3.SQLITE_ERROR or str(error).startswith("Could not decode to UTF-8"):
            return Fault.INDEX_CORRUPT  # our statements are right: the schema, or a setting, is damaged
        if code & 0xFF == sqlite3.SQLITE_CANTOPEN:
            if not os.path.exists(self.file):
                return Fault.STORE_MISSING
            if not os.access(self.folder, os.W_OK, effective_ids=True):
                return Fault.STORE_UNWRITABLE
        if code < 0 and not isinstance(error, sqlite3.Error):
            return Fault.INDEX_BUSY  # diskcache.Timeout without a cause
        return Fault.IO_ERROR

    def _says_read_only(self) -> bool:
        """Whether the header of the database forbids to write: a write version above 2 (sqlite.org/fileformat.html)."""
        try:
            with open(fsio.open_read(self.file), "rb") as file:
                return file.read(19)[18:] > b"\2"
        except OSError:
            return False

    def __del__(self) -> None:
        """Close the connection now: sqlite3 leaves it to the garbage collector, and a fork may come first."""
        if self._connection is not None and self._pid == os.getpid():
            self.disconnect()


def code_of(error: BaseException) -> int:
    """SQLite's extended result code, -1 where the error has none."""
    return int(getattr(error, "sqlite_errorcode", -1))


def is_busy(error: BaseException | None) -> bool:
    """Whether SQLite has waited for a lock in vain."""
    return isinstance(error, sqlite3.Error) and code_of(error) & 0xFF == sqlite3.SQLITE_BUSY


def is_uninitialised(error: BaseException) -> bool:
    """Whether the database has no tables yet: made, and not yet filled, by a process that may have died."""
    return code_of(error) == sqlite3.SQLITE_ERROR and str(error) in _NO_TABLES
