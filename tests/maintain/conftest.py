"""What the tests of maintenance share: a store, entries with chosen cost and size, a clock that is set by hand."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from cachec.base.hashing import digest_bytes
from cachec.events import EventLog
from cachec.maintain.maintainer import Maintainer
from cachec.model import ArtifactRef, Fault, Leaf, Outcome, Part, Read, Reason, Trace
from cachec.store.store import Store
from tests.parts import part

#: Unix time of the clock of these tests, far from that of the files they make.
NOW = 2_000_000_000.0

DAY = 86400.0


def key_of(number: int) -> str:
    """A key, spread over the whole range."""
    return digest_bytes(f"key {number}".encode())


class Yard:
    """A store in a folder, its maintainer, and what was told of faults."""

    def __init__(self, folder: Path, namespace: str = "default", now: float = NOW) -> None:
        self.folder = folder
        self.now = now
        self.faults: list[Fault] = []
        self.store = Store(folder, namespace)
        self.maintainer = Maintainer(
            self.store, on_fault=lambda fault, _detail: self.faults.append(fault), clock=lambda: self.now
        )
        self.log = EventLog(folder, log="off")

    def publish(
        self,
        key: str,
        *,
        stage: str = "pkg.build",
        tags: tuple[str, ...] = (),
        parts: Sequence[Part] = (),
        reads: tuple[Read, ...] = (),
        content: bytes | None = None,
        size: int = 4096,
        seconds: float = 1.0,
        ago: float = DAY,
        manifest: bytes | None = None,
    ) -> ArtifactRef:
        """Store an entry with one artifact, by default of its own; the artifact."""
        objects = self.store.objects
        ref = objects.add_bytes(key.encode() * (size // 64) if content is None else content)
        trace = Trace(
            reads=reads,
            value=Leaf("bytes", (ref,), {}),
            seconds=seconds,
            created=self.now - ago,
            manifest=None if manifest is None else objects.add_bytes(manifest),
        )
        kept = objects.add_bytes(msgspec.json.encode(parts or (part("arg/key", key),)))
        self.store.publish(key, stage, tags, kept, trace)
        return ref

    def used(self, key: str, *, ago: float, times: int = 1) -> None:
        """Record hits of a key."""
        for _ in range(times):
            self.log.emit(Outcome(reason=Reason.HIT, stage="pkg.build", key=key, time=self.now - ago))

    def age(self, seconds: float = DAY) -> None:
        """Make every file of the store so much older than the clock of the tests, and give up this process's leases."""
        self.store.release()
        for folder, _, files in os.walk(self.folder):
            for name in files:
                os.utime(os.path.join(folder, name), (self.now - seconds,) * 2)

    def keys(self) -> set[str]:
        """The keys of the entries that are there."""
        return {entry.key for entry in self.store.entries()}

    def objects(self) -> set[str]:
        """The digests of the artifacts that are there."""
        return {ref.digest for ref, _ in self.store.objects.iterate()}


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path / "store")


@pytest.fixture
def in_child() -> Callable[[Callable[[], object]], int]:
    """Runs a function in a forked child; 0 where it returned, 1 where it raised, minus the signal that killed it."""

    def run(body: Callable[[], object]) -> int:
        pid = start(body)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    return run


def start(body: Callable[[], object]) -> int:
    """Fork a child that runs a function, and ends with 0 where it returned, 1 where it raised; its process id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            body()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:  # whatever happens, it must not go on as a second run of the tests
            os._exit(code)
    return pid
