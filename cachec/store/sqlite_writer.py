"""The table of the index as diskcache writes it: bytes in a row, under a text key, and nothing else.

This module imports diskcache, which a hit does not need: the first write imports it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from diskcache import DEFAULT_SETTINGS, Cache, Disk
from diskcache.core import DBNAME, METADATA

from cachec.errors import StoreFault
from cachec.model import Fault
from cachec.store.rows import MODE_RAW, is_busy, is_uninitialised

#: diskcache writes all of its settings whenever it is opened, two transactions each. What is there already is not
#: written: it would only tell every reader that the table changed.
_UNLESS_EQUAL = {
    "INSERT OR REPLACE INTO Settings VALUES (?, ?)": (
        "INSERT OR REPLACE INTO Settings SELECT ?1, ?2"
        " WHERE NOT EXISTS (SELECT 1 FROM Settings WHERE key = ?1 AND value IS ?2)"
    ),
    "UPDATE Settings SET value = ? WHERE key = ?": (
        "UPDATE Settings SET value = ?1 WHERE key = ?2 AND value IS NOT ?1"
    ),
}

#: What diskcache makes in a database before it uses it, where there is nothing of that name yet.
_SCHEMA = frozenset(
    {
        *("Settings", "Cache", "Cache_key_raw", "Cache_expire_time", "Settings_count_insert", "Settings_count_delete"),
        *("Settings_size_insert", "Settings_size_update", "Settings_size_delete"),
    }
)

#: What it drops, as no row is looked for by its tag.
_DROPPED = "Cache_tag_rowid"


class SqliteTable(Cache):  # type: ignore[misc]  # diskcache has no types
    """A diskcache.Cache that waits for a lock as long as SQLite does, and does not repeat that for 60 s.

    It has one connection, where diskcache's has one a thread: who uses it lets in one thread at a time.
    """

    def __init__(self, folder: str, **how: object) -> None:
        self._local = SimpleNamespace()
        try:
            super().__init__(folder, **how)
        except BaseException:
            self.close()  # its connection would be there for as long as the traceback
            raise
        self._local = SimpleNamespace(con=self._con, pid=os.getpid())

    @classmethod
    def ready(cls, folder: str, *, timeout: float, disk: type[Disk], **settings: object) -> SqliteTable | None:
        """The same for a database in which opening it so would change nothing; None for any other.

        diskcache asks for each of its settings, tables and triggers in turn, some sixty statements by two connections,
        before the first write. This asks for all of them at once, by the connection that writes. Raises what sqlite3
        raises, and UnicodeDecodeError.
        """
        connection = _connect(folder, timeout)
        try:
            found = dict(connection.execute("SELECT key, value FROM Settings"))
            names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            wanted = {**DEFAULT_SETTINGS, **settings}
            is_ready = (
                found.keys() == {*wanted, *METADATA}
                and all(found[name] == value for name, value in wanted.items())
                and names >= _SCHEMA
                and _DROPPED not in names
            )
            if not is_ready:
                connection.close()
                return None
            table = cls.__new__(cls)
            table._directory, table._timeout, table._txn_id = folder, timeout, None
            table._local = SimpleNamespace(con=connection, pid=os.getpid())
            table._disk = disk(folder, **{name[5:]: value for name, value in found.items() if name.startswith("disk_")})
            for name, value in found.items():
                if name.startswith("sqlite_"):
                    table.reset(name, value, update=False)
                else:
                    setattr(table, name, value)
        except BaseException:
            connection.close()
            raise
        return table

    @property
    def is_inherited(self) -> bool:
        """Whether its connection was opened by the process that this one was forked from, and is not to be used."""
        return getattr(self._local, "con", None) is not None and bool(self._local.pid != os.getpid())

    @property
    def _con(self) -> sqlite3.Connection:
        """As diskcache's, but for one that fails at once: it is not used, as SQLite may take 10 s to say so."""
        connection: sqlite3.Connection | None = getattr(self._local, "con", None)
        if connection is not None:
            return connection
        connection = _connect(self.directory, self.timeout)
        self._local.con, self._local.pid = connection, os.getpid()
        try:
            settings = connection.execute("SELECT key, value FROM Settings").fetchall()
        except sqlite3.OperationalError as error:
            if not is_uninitialised(error):
                self.close()
                raise
        else:
            for name, value in settings:
                if name.startswith("sqlite_"):
                    self.reset(name, value, update=False)
        return connection

    def __del__(self) -> None:
        """Close the connection now: sqlite3 leaves it to the garbage collector, and a fork may come first."""
        if not self.is_inherited:
            self.close()

    @property
    def _sql(self) -> Callable[..., Any]:
        execute = self._con.execute

        def once(statement: str, *values: Any) -> Any:
            try:
                return execute(_UNLESS_EQUAL.get(statement, statement), *values)
            except sqlite3.OperationalError as error:
                if is_busy(error):
                    error.args = (f"{error} by another connection",)  # its own words are what diskcache goes by
                raise

        return once


def _connect(folder: str, timeout: float) -> sqlite3.Connection:
    file = os.path.join(folder, DBNAME)
    return sqlite3.connect(file, timeout=timeout, isolation_level=None, check_same_thread=False)


class RowDisk(Disk):  # type: ignore[misc]  # diskcache has no types
    """A diskcache.Disk that keeps bytes in the row under a text key, and refuses all else in both directions."""

    def store(self, value: object, read: bool, key: object = None) -> tuple[int, int, None, object]:
        if read or type(value) is not bytes:
            raise _invalid_row(f"a value of type {type(value).__name__}")
        return 0, MODE_RAW, None, sqlite3.Binary(value)

    def fetch(self, mode: int, filename: str | None, value: object, read: bool) -> bytes:
        if read or mode != MODE_RAW or filename is not None or type(value) is not bytes:
            raise _invalid_row(f"a row of mode {mode!r} with file {filename!r}")
        return value

    def put(self, key: object) -> tuple[str, bool]:
        if type(key) is not str:
            raise _invalid_row(f"a key of type {type(key).__name__}")
        return key, True

    def get(self, key: object, raw: bool) -> str:
        if not raw or type(key) is not str:
            raise _invalid_row(f"a key of type {type(key).__name__}")
        return key

    def filename(self, key: object = None, value: object = None) -> tuple[str, str]:
        raise _invalid_row("a value in a file")

    def remove(self, file_path: str) -> None:
        """Nothing: the file that a foreign row names is not ours."""


def _invalid_row(what: str) -> StoreFault:
    return StoreFault(Fault.ROW_REFUSED, f"{what}; only bytes in the row, under a text key, are stored")
