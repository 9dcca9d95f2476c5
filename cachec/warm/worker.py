"""The worker process: ``main``, with one argument, a descriptor. Frames come and go on that socket.

A frame: 8 bytes, the length (big endian), then a Task, or a Result going back, as JSON (RFC 8259), both validated by
the reader. The worker ends when the socket is closed; where a row runs at that moment, it ends its process group with
it, compilers included: whoever asked is gone.
"""

from __future__ import annotations

import io
import os
import queue
import signal
import socket
import sys
import threading

import msgspec

from cachec.errors import CachecError
from cachec.oversight import Oversight, oversee_process
from cachec.warm.model import Result, Status, Task
from cachec.warm.run import prepare, run_task

_LENGTH = 8


def send(channel: socket.socket, record: msgspec.Struct) -> None:
    """Send one frame."""
    body = msgspec.json.encode(record)
    channel.sendall(len(body).to_bytes(_LENGTH, "big") + body)


def receive(channel: socket.socket) -> bytes | None:
    """The body of the next frame; None at the end of the stream."""
    head = _exactly(channel, _LENGTH)
    return None if head is None else _exactly(channel, int.from_bytes(head, "big"))


def _exactly(channel: socket.socket, nbytes: int) -> bytes | None:
    data = bytearray()
    while len(data) < nbytes:
        piece = channel.recv(min(nbytes - len(data), 1 << 20))
        if not piece:
            return None
        data += piece
    return bytes(data)


class Worker:
    """Runs tasks one by one in the main thread, while another waits for the socket."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._busy = False

    def serve(self) -> None:
        """Until the socket is closed."""
        threading.Thread(target=self._read, daemon=True).start()
        while (task := self._tasks.get()) is not None:
            result = self._answer(task)
            sys.stdout.flush()
            self._busy = False
            try:
                send(self._channel, result)
            except OSError:
                return

    def _answer(self, task: Task) -> Result:
        try:
            prepare(task.row)
        except CachecError as error:
            return Result(id=task.row.id, status=Status.FAILED, error=str(error))
        # Threads of the target that have no context of their own must not compile in a check either.
        heard: Oversight = _strict() if task.check else Oversight()
        with oversee_process(heard):
            if not task.files:
                return run_task(task)
            from cachec.warm.files import traced  # for `cachec watch` only

            return traced(task)

    def _read(self) -> None:
        decode = msgspec.json.Decoder(Task).decode
        try:
            while (body := receive(self._channel)) is not None:
                self._busy = True
                self._tasks.put(decode(body))
        except OSError:
            pass
        if self._busy:
            os.killpg(0, signal.SIGKILL)
        self._tasks.put(None)


def _strict() -> Oversight:
    from cachec.model import Mode

    return Oversight(mode=Mode.REQUIRE, defer=lambda _emit: None)


def main() -> None:
    """Entry point."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    sys.argv[:] = ["cachec-warm"]
    for stream in (sys.stdout, sys.stderr):  # they are a file; what was printed is to be there when this is killed
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    Worker(channel).serve()
