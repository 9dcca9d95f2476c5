"""Messages between a caller and its worker: Python objects, over a pair of sockets.

A message is a file in memory (memfd_create(2)), of which the descriptor is passed (unix(7), SCM_RIGHTS). It holds the
sizes of its parts, a pickle (protocol 5, PEP 574), and the buffers that the pickle refers to: arrays are written to it
once and mapped by the receiver, so neither side holds a second copy.

Only a worker that this process started, and its starter, write these messages: nothing of them comes from the cache.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import pickle
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from types import CellType, FunctionType
from typing import Any, Never

import cloudpickle

#: Parts of a message begin at multiples of this, as arrays are best aligned.
_ALIGNMENT = 64
_COUNT = struct.Struct("<q")
#: Of one part: its size, and whether it is read-only.
_PART = struct.Struct("<q?")
_MOST_WRITTEN = 1 << 30  # write(2) takes no more than 2 GiB at once

#: Makes a value of a reference that was received.
Load = Callable[[Any], Any]


class Sending:
    """How values are sent that pickle and cloudpickle do not send as they should be; by default there are none."""

    def refer(self, value: Any) -> Any:
        """What is sent in place of a value that refers to this process, for ``Load``; None for any other."""
        del value
        return None

    def reduce(self, value: Any) -> Any:
        """As ``object.__reduce__`` of another value; NotImplemented for one that is sent as it is.

        Raises CannotSend."""
        del value
        return NotImplemented


class PeerClosedError(Exception):
    """The other side has ended."""


class CannotSend(Exception):
    """A value has no form that another process could read; the message names it."""


class _MessagePickler(cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle has no types
    def __init__(self, file: io.BytesIO, sending: Sending, buffers: list[pickle.PickleBuffer]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.append)
        self._sending = sending

    def persistent_id(self, value: Any) -> Any:
        return self._sending.refer(value)

    def reducer_override(self, value: Any) -> Any:
        reduced = self._sending.reduce(value)
        if reduced is not NotImplemented:
            return reduced
        if type(value) is CellType:
            return _reduce_cell(value)
        reduced = super().reducer_override(value)
        if type(value) is FunctionType and type(reduced) is tuple and value.__closure__:
            reduced = _with_cells(reduced, value.__closure__)
        return reduced


def _reduce_cell(cell: CellType) -> tuple[Any, ...]:
    """A variable of a closure, of which the value is sent afterwards: it may be a function that refers to it."""
    try:
        return CellType, (), (cell.cell_contents,), None, None, _set_cell  # a state of None is not set
    except ValueError:
        return CellType, ()


def _set_cell(cell: CellType, state: tuple[Any]) -> None:
    (cell.cell_contents,) = state


def _with_cells(reduced: tuple[Any, ...], closure: tuple[CellType, ...]) -> tuple[Any, ...]:
    """What cloudpickle says of a function, which has cells of its own there: two functions may share a variable."""
    make, arguments, *rest = reduced
    return make, tuple(closure if _are_cells(each) else each for each in arguments), *rest


def _are_cells(value: object) -> bool:
    return type(value) is tuple and bool(value) and all(type(each) is CellType for each in value)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, buffers: Sequence[memoryview], load: Load) -> None:
        super().__init__(file, buffers=buffers)
        self._load = load

    def persistent_load(self, reference: object) -> Any:
        return self._load(reference)


def _no_reference(reference: object) -> Never:
    raise pickle.UnpicklingError(f"a reference that is not expected: {reference!r}")


def encode(message: object, sending: Sending) -> int:
    """Return the descriptor of a file with a message. Raises CannotSend."""
    file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    try:
        _MessagePickler(file, sending, buffers).dump(message)
        parts = [memoryview(file.getbuffer()), *(buffer.raw() for buffer in buffers)]
    except CannotSend:
        raise
    except Exception as error:
        raise CannotSend(f"{type(error).__name__}: {error}") from error
    fd = os.memfd_create("cachec-message")
    try:
        head = _COUNT.pack(len(parts)) + b"".join(_PART.pack(part.nbytes, part.readonly) for part in parts)
        offset = 0
        for part in (memoryview(head), *parts):
            _write(fd, part, offset)
            offset += _align(part.nbytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


def decode(fd: int, load: Load) -> Any:
    """Return the message of a file, of which the descriptor is closed. Arrays lie in a private map of it."""
    try:
        size = os.fstat(fd).st_size
        view = memoryview(mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE))
    finally:
        os.close(fd)
    (count,) = _COUNT.unpack_from(view)
    sizes = [_PART.unpack_from(view, _COUNT.size + _PART.size * number) for number in range(count)]
    offset = _align(_COUNT.size + _PART.size * count)
    parts = []
    for nbytes, is_read_only in sizes:
        part = view[offset : offset + nbytes]
        parts.append(part.toreadonly() if is_read_only else part)
        offset += _align(nbytes)
    return _Unpickler(io.BytesIO(parts[0]), parts[1:], load).load()


class MessageChannel:
    """One end of the pair. A request and its answer are not interrupted by those of other threads."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._lock = threading.RLock()

    def send(self, message: object, sending: Sending | None = None, fds: Sequence[int] = ()) -> None:
        """Send a message, with other descriptors beside it. Raises CannotSend, and PeerClosedError."""
        fd = encode(message, sending or Sending())
        try:
            with self._lock:
                socket.send_fds(self._socket, [b"m"], [fd, *fds])
        except (BrokenPipeError, ConnectionResetError) as error:
            raise PeerClosedError from error
        finally:
            os.close(fd)

    def receive(self, load: Load = _no_reference, timeout: float | None = None) -> tuple[Any, list[int]]:
        """Return the next message, and the descriptors beside it. Raises PeerClosedError, and TimeoutError."""
        self._socket.settimeout(timeout)
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, 1, 16)
        except ConnectionResetError as error:
            raise PeerClosedError from error
        finally:
            self._socket.settimeout(None)
        if not data:
            raise PeerClosedError
        return decode(fds[0], load), fds[1:]

    def ask(self, request: object) -> tuple[Any, list[int]]:
        """Send a request, and return the answer with the descriptors beside it."""
        with self._lock:
            self.send(request)
            return self.receive()

    def fileno(self) -> int:
        """The descriptor of this end."""
        return self._socket.fileno()

    def close(self) -> None:
        """Take no more part in the conversation, which ends where no other process has this end."""
        self._socket.close()

    def end(self) -> None:
        """End the conversation, also where a process that was forked meanwhile has this end too."""
        with contextlib.suppress(OSError):  # it is closed, or the other side has ended
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _align(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _write(fd: int, data: memoryview, offset: int) -> None:
    flat = data.cast("B") if data.nbytes else data
    done = 0
    while done < data.nbytes:
        done += os.pwrite(fd, flat[done : done + _MOST_WRITTEN], offset + done)
    if not data.nbytes:
        os.ftruncate(fd, max(os.fstat(fd).st_size, offset))
