"""Copies the bytes of weights into files with bounded memory, and takes their digests on the way in a second thread.

A whole file is cloned where the file system can (ioctl ``FICLONE``). A range that lies on its pages as its target does
goes by ``copy_file_range``, which clones what it can by itself. Any other range (most: the data of a safetensors file
begins anywhere) is written from a map of the source, 16 MiB at a time: one copy by the kernel, none of which passes
through memory of ours, 0.31 s a GiB where ``copy_file_range`` took 0.40 s, and 0.26 s for what is page-aligned (ext4,
Linux 6.18). A buffer serves small ranges, and files that can't be mapped. A file that is cut while it is mapped makes a
``write`` fail, and no signal: the map is never looked at by the process itself.

A digest is true of the copy whatever happens to the source meanwhile: a range that the kernel can't share is hashed in
memory of ours on its way (``relaying``); of any other, what was *written* is hashed, read back from the page cache a
few chunks behind the copy. Private memory is two buffers of 512 KiB or 256 KiB, and one of 1 MiB where small tensors
are loaded.

A copy that ends early leaves nothing: who calls removes its partial file. One copy is never continued, for its bytes
would have to be read again to be trusted, and that costs as much as the copy; resuming is by whole tensors (``owned``)
or by units whose end was noted (``staging``).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from blake3 import blake3

from cachec.base import fsio, ranges
from cachec.base.hashing import EMPTY
from cachec.errors import WeightsChanged
from cachec.weights.io.copy_and_hash import Relay
from cachec.weights.sources import Extent, Ranges
from cachec.weights.weight import Weight

#: Called with the bytes done and the bytes in all, by the thread that copies.
Progress = Callable[[int, int], None]

#: The unit of progress for a cloned file, in bytes; the digest follows a queue of these.
_CHUNK = ranges.CHUNK
_QUEUED = 32
#: Larger ones leave the caches of a core, which costs more than it saves in calls.
_BUFFER = 1 << 18
#: Up to this size a digest is taken by the copying thread, as handing it over would take longer; and a source may be
#: looked at as a whole before it is copied.
SMALL = 1 << 20
#: ioctl_ficlone(2): _IOW(0x94, 9, int).
_FICLONE = 0x40049409

#: The bytes of a weight in any form that can be copied.
Copied = Extent | Ranges | memoryview


def source_of(weight: Weight) -> Copied:
    """The bytes of a weight in the form that is copied best. Counts as a read of all of them."""
    ways = weight.expose()
    return ways.extent() or ways.ranges() or ways.view()


def stored_form(weight: Weight) -> memoryview | Iterator[memoryview]:
    """All bytes of a weight: a view where one costs no memory, else in pieces that are good until the next one.

    Counts as a read of all of them, here. The pieces raise WeightsChanged.
    """
    if weight.ways().copies:
        copied = source_of(weight)
        return copied if isinstance(copied, memoryview) else pieces(copied)
    return weight.raw()


def pieces(source: Copied, size: int = _BUFFER, buffer: memoryview | None = None) -> Iterator[memoryview]:
    """The bytes of a source, ``size`` of them at a time, each piece good until the next one. Raises WeightsChanged.

    buffer: memory of ``size`` bytes for what has to be read; some of its own by default.
    """
    if isinstance(source, memoryview):
        yield from (source[begin : begin + size] for begin in range(0, source.nbytes, size))
        return
    if buffer is None:
        buffer = memoryview(bytearray(min(source.nbytes, size)))
    try:
        for begin in range(0, source.nbytes, size):
            piece = buffer[: source.nbytes - begin]
            if isinstance(source, Ranges):
                source.read(begin, piece)
            else:
                fsio.pread_into(source.fd, source.offset + begin, piece)
            yield piece
    except EOFError as error:
        raise _shorter(source) from error
    if isinstance(source, Extent):
        source.check()


@contextlib.contextmanager
def naming_full_disk(path: str | os.PathLike[str], otherwise: str) -> Iterator[None]:
    """Let an error of the body that says that there is no room name ``path``, and say what to do: ``otherwise``."""
    try:
        yield
    except OSError as error:
        if not fsio.is_full(error) or error.filename is not None:
            raise
        raise OSError(error.errno, f"{error.strerror}; {otherwise}", os.fspath(path)) from error


class Copier:
    """Copies ranges one after the other. A context manager, as it owns a thread; to be used by one thread.

    progress: called for every chunk. total: bytes that will be copied or skipped, in all.
    """

    def __init__(self, progress: Progress | None = None, total: int = 0) -> None:
        self._progress = progress
        self._total = total
        self._done = 0
        self._follower: _Follower | None = None
        self._buffer: memoryview | None = None
        self._loaded: memoryview | None = None

    def copy(self, source: Copied, fd: int, offset: int = 0, *, digest: bool = True) -> Digest | None:
        """Copy all of ``source`` to ``offset`` of the open file ``fd`` (readable and writable; its position is unused).

        Gives the digest of what was written, perhaps still being taken: ask it before ``fd`` is closed. Raises OSError
        (``ENOSPC`` and the like) and WeightsChanged; the digest thread is then done with ``fd``.
        """
        is_large = digest and source.nbytes > SMALL
        if is_large and isinstance(source, Extent) and not ranges.on_pages(source.offset, offset):
            return self._relay(source, fd, offset)
        follow = self._following(fd, offset) if is_large else None
        try:
            self._copy(source, fd, offset, follow)
            if isinstance(source, Extent):
                source.check()
        except BaseException:
            if follow is not None:
                follow.abandon()
            raise
        if follow is not None:
            follow.end()
            return follow.digest
        return self._hash_range(fd, offset, source.nbytes) if digest else None

    def _relay(self, source: Extent, fd: int, offset: int) -> Digest:
        try:
            value = Relay(source.fd, source.offset, source.nbytes, fd, offset).run(self._advance)
        except EOFError as error:
            raise _shorter(source) from error
        source.check()
        digest = Digest()
        digest.set(value)
        return digest

    def _copy(self, source: Copied, fd: int, offset: int, follow: _Follow | None) -> None:
        if isinstance(source, memoryview):
            steps = _from_memory(source, fd, offset)
        elif isinstance(source, Ranges):
            steps = self._from_ranges(source, fd, offset)
        elif offset == 0 and _clone(source, fd):
            steps = (min(_CHUNK, source.nbytes - done) for done in range(0, source.nbytes, _CHUNK))
        else:
            steps = self._from_file(source, fd, offset)
        for step in steps:
            if follow is not None:
                follow.advance(step)
            self._advance(step)

    def _from_file(self, source: Extent, fd: int, offset: int) -> Iterator[int]:
        """Copy in steps, by the best way that these files allow; each yields its bytes."""
        done = 0
        for step in ranges.shared_or_mapped(source.fd, source.offset, source.nbytes, fd, offset, least=_BUFFER):
            done += step
            yield step
        while done < source.nbytes:
            # Small ones, and what could not be copied better; the end of a file is believed only of a plain read.
            buffer = self._borrow_buffer()
            count = os.preadv(source.fd, [buffer[: source.nbytes - done]], source.offset + done)
            if count == 0:
                raise _shorter(source)
            step = os.pwrite(fd, buffer[:count], offset + done)
            done += step
            yield step

    def _from_ranges(self, source: Ranges, fd: int, offset: int) -> Iterator[int]:
        """Copy what is put together on the way."""
        for piece in pieces(source, buffer=self._borrow_buffer()):
            yield from _from_memory(piece, fd, offset)
            offset += piece.nbytes

    def hash(self, source: Copied) -> str:
        """The digest of a source, without copying it. Raises WeightsChanged."""
        hasher = blake3()
        for piece in pieces(source, buffer=self._borrow_buffer()):
            hasher.update(piece)
        return hasher.hexdigest()

    def load(self, source: Copied) -> memoryview | None:
        """All bytes of a source of at most ``SMALL`` bytes, in memory that the next call uses again; None for a larger.

        No other process can change them there, so their digest is that of the written bytes. Raises WeightsChanged.
        """
        if source.nbytes > SMALL:
            return None
        if self._loaded is None:
            self._loaded = memoryview(bytearray(SMALL))
        if isinstance(source, memoryview):
            self._loaded[: source.nbytes] = source
        else:
            deque(pieces(source, SMALL, self._loaded), maxlen=0)
        return self._loaded[: source.nbytes]

    def skip(self, nbytes: int) -> None:
        """Count bytes that need no copy."""
        self._advance(nbytes)

    def _hash_range(self, fd: int, offset: int, nbytes: int) -> Digest:
        hasher = blake3()
        _update(hasher, fd, offset, nbytes, self._borrow_buffer())
        digest = Digest()
        digest.set(hasher.hexdigest())
        return digest

    def _borrow_buffer(self) -> memoryview:
        if self._buffer is None:
            self._buffer = memoryview(bytearray(_BUFFER))
        return self._buffer

    def _following(self, fd: int, offset: int) -> _Follow:
        if self._follower is None:
            self._follower = _Follower()
            self._follower.start()
        return _Follow(self._follower, fd, offset)

    def _advance(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is not None:
            self._progress(self._done, self._total)

    def __enter__(self) -> Copier:
        return self

    def __exit__(self, *_: object) -> None:
        if self._follower is not None:
            self._follower.stop()
            self._follower = None


class Digest:
    """A digest that another thread is taking."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._value = EMPTY
        self._error: BaseException | None = None

    def result(self) -> str:
        """64 hexadecimal characters, once they are there. Raises what the reading of the file raised."""
        self._ready.wait()
        if self._error is not None:
            raise self._error
        return self._value

    def set(self, value: str) -> None:
        self._value = value
        self._ready.set()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._ready.set()


class _Follow:
    """One copy with a hash of the bytes as they are written."""

    def __init__(self, follower: _Follower, fd: int, offset: int) -> None:
        self.digest = Digest()
        self.hasher = blake3()
        self.abandoned = False
        self._follower = follower
        self._fd = fd
        self._offset = offset

    def advance(self, nbytes: int) -> None:
        """The next ``nbytes`` bytes have been written."""
        self._follower.put(_CopyTask(self, self._fd, self._offset, nbytes))
        self._offset += nbytes

    def end(self) -> None:
        """All bytes have been written."""
        self._follower.put(_CopyTask(self, self._fd, self._offset, 0))

    def abandon(self) -> None:
        """The copy failed: wait until the other thread uses its file no more."""
        self.abandoned = True
        self._follower.settle()


class _CopyTask(NamedTuple):
    """A range to hash; the last of its copy where it is empty."""

    follow: _Follow
    fd: int
    offset: int
    nbytes: int


class _Follower(threading.Thread):
    """Hashes ranges in the order in which they come."""

    def __init__(self) -> None:
        super().__init__(name="cachec-digest", daemon=True)
        self._tasks: queue.Queue[_CopyTask | None] = queue.Queue(_QUEUED)

    def put(self, task: _CopyTask) -> None:
        """Hash this; waits while the queue is full."""
        self._tasks.put(task)

    def settle(self) -> None:
        """Wait until nothing is left to do."""
        self._tasks.join()

    def stop(self) -> None:
        self._tasks.put(None)
        self.join()

    def run(self) -> None:
        buffer = memoryview(bytearray(_BUFFER))
        while (task := self._tasks.get()) is not None:
            follow = task.follow
            try:
                if follow.abandoned:
                    continue
                if task.nbytes == 0:
                    follow.digest.set(follow.hasher.hexdigest())
                else:
                    _update(follow.hasher, task.fd, task.offset, task.nbytes, buffer)
            except (OSError, EOFError) as error:
                follow.abandoned = True
                follow.digest.fail(error)
            finally:
                self._tasks.task_done()


def _from_memory(source: memoryview, fd: int, offset: int) -> Iterator[int]:
    done = 0
    while done < source.nbytes:
        step = os.pwrite(fd, source[done : done + ranges.WRITE], offset + done)
        done += step
        yield step


def _update(hasher: blake3, fd: int, offset: int, nbytes: int, buffer: memoryview) -> None:
    """Hash a range of a file through ``buffer``. Raises EOFError where the file ends before."""
    while nbytes:
        count = os.preadv(fd, [buffer[:nbytes]], offset)
        if count == 0:
            raise EOFError(f"file ends at byte {offset}, {nbytes} bytes early")
        hasher.update(buffer[:count])
        offset += count
        nbytes -= count


def _clone(source: Extent, fd: int) -> bool:
    """Make the file ``fd`` share all bytes of the source's file, if the source is all of it and that can be done."""
    if source.nbytes == 0 or source.offset or fsio.identity(source.fd).size != source.nbytes:
        return False
    try:
        fcntl.ioctl(fd, _FICLONE, source.fd)
    except OSError as error:
        if error.errno in ranges.NO_KERNEL_COPY:
            return False
        raise
    return True


def _shorter(source: Extent | Ranges) -> WeightsChanged:
    path = source.file.path if isinstance(source, Extent) else "a file of the weights"
    return WeightsChanged(f"{path}: became shorter while it was read; open the weights again")
