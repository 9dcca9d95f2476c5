"""Two threads that copy and hash in turn: the digest is of what was written, and an end of one is the end of both."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cachec.base import fsio
from cachec.base.hashing import digest_bytes
from cachec.weights.io.copy_and_hash import PIECE, Relay

SIZE = 9 * PIECE + 123


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Source and target, open; the target is empty."""
    (tmp_path / "source").write_bytes(os.urandom(SIZE))
    fds = os.open(tmp_path / "source", os.O_RDWR), os.open(tmp_path / "target", os.O_RDWR | os.O_CREAT)
    yield fds
    for fd in fds:
        os.close(fd)


def content(fd: int, begin: int = 0) -> bytes:
    return fsio.pread_exact(fd, begin, os.fstat(fd).st_size - begin)


def is_helper() -> bool:
    return threading.current_thread().name == "cachec-relay"


def helpers() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "cachec-relay"]


@pytest.mark.parametrize("begin", [0, 7])
@pytest.mark.parametrize("offset", [0, 1, PIECE - 1, PIECE + 5])
@pytest.mark.parametrize("nbytes", [1, PIECE - 1, PIECE, PIECE + 1, SIZE - 7])
def test_a_range_is_copied_and_told(files: tuple[int, int], begin: int, offset: int, nbytes: int) -> None:
    source, target = files
    told: list[int] = []
    digest = Relay(source, begin, nbytes, target, offset).run(told.append)
    wanted = content(source)[begin : begin + nbytes]
    assert content(target, offset) == wanted
    assert digest == digest_bytes(wanted)
    assert sum(told) == nbytes
    assert min(told) >= 0


def test_reads_and_writes_that_do_less_than_they_were_asked(
    files: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = files
    preadv, pwrite = os.preadv, os.pwrite
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: preadv(fd, [buffers[0][: 1 + at % 99_991]], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[: 1 + at % 77_773], at))
    digest = Relay(source, 5, SIZE - 5, target, 3).run(lambda _: None)
    assert content(target, 3) == content(source)[5:]
    assert digest == digest_bytes(content(target, 3))


@pytest.mark.parametrize("by_helper", [True, False])
@pytest.mark.parametrize("call", ["preadv", "pwrite"])
def test_an_error_of_either_thread_ends_both(
    files: tuple[int, int], monkeypatch: pytest.MonkeyPatch, by_helper: bool, call: str
) -> None:
    source, target = files
    real, both, mine = getattr(os, call), threading.Barrier(2), threading.local()

    def failing(*args: Any) -> int:
        if not hasattr(mine, "met"):
            mine.met = True
            both.wait()  # or one thread might have done it all before the other began
        if is_helper() is by_helper:
            raise OSError(errno.ENOSPC, "no space")
        return int(real(*args))

    monkeypatch.setattr(os, call, failing)
    with pytest.raises(OSError, match="no space"):
        Relay(source, 1, SIZE - 1, target, 0).run(lambda _: None)
    assert helpers() == []


def test_a_caller_that_stops_ends_the_helper(files: tuple[int, int]) -> None:
    source, target = files

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Relay(source, 1, SIZE - 1, target, 0).run(stop)
    assert helpers() == []


def test_a_source_that_ends_before(files: tuple[int, int]) -> None:
    source, target = files
    with pytest.raises(EOFError):
        Relay(source, 1, SIZE, target, 0).run(lambda _: None)
    os.ftruncate(source, PIECE)
    with pytest.raises(EOFError):
        Relay(source, 1, SIZE - 1, target, 0).run(lambda _: None)
    assert helpers() == []


@pytest.mark.parametrize("call", ["preadv", "pwrite"])
def test_the_digest_is_of_what_was_written(files: tuple[int, int], monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """A source that is written to before or after any piece of it is read: the digest must fit the copy."""
    source, target = files
    before = content(source)
    real, pwrite = getattr(os, call), os.pwrite

    def scribbling(fd: int, data: Any, at: int) -> int:
        pwrite(source, os.urandom(64), at % (SIZE - 64))
        done = int(real(fd, data, at))
        pwrite(source, os.urandom(64), at % (SIZE - 64))
        return done

    monkeypatch.setattr(os, call, scribbling)
    digest = Relay(source, 1, SIZE - 1, target, 0).run(lambda _: None)
    assert digest == digest_bytes(content(target))
    assert content(source) != before
