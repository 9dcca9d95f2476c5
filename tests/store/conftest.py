"""What the tests of the store share: entries to publish, raw rows to tamper with, small file systems."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachec.model import ArtifactRef, Inline, Leaf, Read, Trace
from cachec.store.store import Store

#: diskcache's modes, as numbers on purpose: they are what a row holds.
RAW, BINARY, TEXT, PICKLE = 1, 2, 3, 4


class Rows:
    """The table of an index, with nothing in between."""

    def __init__(self, store: Path) -> None:
        self.file = store / "index" / "cache.db"

    def run(self, statement: str, values: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        connection = sqlite3.connect(self.file, isolation_level=None)
        try:
            return connection.execute(statement, values).fetchall()
        finally:
            connection.close()

    def settle(self) -> None:
        """Fold the log into the database, so that the one file holds everything."""
        self.run("PRAGMA wal_checkpoint(TRUNCATE)")


class Publisher:
    """Publishes entries that say by themselves whether they are right: the artifact is the text of the key."""

    stage = "pkg.build"

    def content(self, key: str) -> bytes:
        return f"artifact of {key}\n".encode() * 300

    def parts(self, key: str) -> bytes:
        return b'[{"kind":"arg","name":"key","digest":"%s","detail":"it"}]' % key.encode()

    def trace(self, store: Store, key: str, read: str = "") -> Trace:
        ref = store.objects.add_bytes(self.content(key))
        reads = (Read("file", read, "", "0" * 64),) if read else ()
        return Trace(reads=reads, value=Leaf("bytes", (ref,), {"key": key}), seconds=1.5, created=2.5)

    def publish(self, store: Store, key: str, read: str = "") -> None:
        trace = self.trace(store, key, read)
        store.publish(key, self.stage, ("a",), store.objects.add_bytes(self.parts(key)), trace)

    def assert_right(self, store: Store, key: str) -> None:
        """The entry is there, and everything that it leads to is right."""
        entry = store.lookup(key)
        assert entry is not None
        assert (entry.key, entry.stage, entry.tags) == (key, self.stage, ("a",))
        assert [part.digest for part in store.parts(entry)] == [key]
        for trace in entry.traces:
            assert isinstance(trace.value, Leaf)
            assert trace.value.meta == {"key": key}
            assert store.objects.path(trace.value.artifacts[0]).read_bytes() == self.content(key)


@pytest.fixture
def publisher() -> Publisher:
    return Publisher()


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return Rows(tmp_path)


@pytest.fixture
def key() -> Callable[[int], str]:
    return lambda number: f"{number:064x}"


@pytest.fixture
def inline() -> Callable[[str], Trace]:
    """A trace without artifacts."""
    return lambda value: Trace(reads=(), value=Inline("str", value), seconds=0.0, created=0.0)


@pytest.fixture
def no_parts() -> ArtifactRef:
    return ArtifactRef("0" * 64, 0)


@pytest.fixture
def in_child() -> Callable[[Callable[[], object]], int]:
    """Runs a function in a forked child; 0 where it returned, 1 where it raised, minus the signal that killed it."""

    def run(body: Callable[[], object]) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                body()
            except BaseException:
                try:
                    traceback.print_exc()
                finally:  # whatever happens, it must not go on as a second run of the tests
                    os._exit(1)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    return run


class SmallFileSystem:
    """A tmpfs of its own; it can be made read-only."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def set_read_only(self) -> None:
        subprocess.run(["mount", "-o", "remount,ro", self.path], check=True)


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[SmallFileSystem]:
    """A tmpfs of 512 KiB. Skips where this user may not mount one."""
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command here")
    if done.returncode:
        pytest.skip(f"a tmpfs can't be mounted here: {done.stderr.strip()}")
    try:
        yield SmallFileSystem(path)
    finally:
        subprocess.run(["umount", "-l", path], check=True)
