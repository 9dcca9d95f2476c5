"""The worker process: ``main``, with one argument, a descriptor. Frames come and go on that socket.

A frame: a Task, or a Result going back, as JSON (RFC 8259), both validated by the reader, sent as
``multiprocessing.connection`` sends bytes. The worker ends when the socket is closed; where a row runs at that moment,
it ends its process group with it, compilers included: whoever asked is gone.
"""

from __future__ import annotations

import io
import os
import queue
import signal
import sys
import threading
import time
from importlib.machinery import SourceFileLoader
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from cachec.base.call_hooks import Oversight, oversee_process
from cachec.errors import CachecError
from cachec.model import Mode
from cachec.warm.model import Result, Status, Task
from cachec.warm.run import prepare, run_task

#: Seconds in which a source may change again without a trace: the second that is written down, and the clock's tick.
_FRESH = 2.0


def send(channel: Connection, record: Task | Result) -> None:
    try:
        body = msgspec.json.encode(record)
    except UnicodeEncodeError:  # words of a target, or paths, that are no text
        if isinstance(record, Task):
            raise
        body = msgspec.json.encode(_as_text(record))
    channel.send_bytes(body)


def _as_text(result: Result) -> Result:
    """The same, with ``\\udcff`` written out; without the paths that are no text."""

    def text(words: str) -> str:
        return words.encode("utf-8", "backslashreplace").decode()

    return msgspec.structs.replace(
        result,
        error=text(result.error),
        output=text(result.output),
        outcomes=tuple(
            msgspec.structs.replace(each, stage=text(each.stage), detail=text(each.detail)) for each in result.outcomes
        ),
        files=tuple(path for path in result.files if text(path) == path),
        written=tuple(path for path in result.written if text(path) == path),
    )


def receive(channel: Connection) -> bytes | None:
    """The body of the next frame; None at the end of the stream. Raises OSError where that is in the midst of one."""
    try:
        return channel.recv_bytes()
    except EOFError:
        return None


class WarmWorker:
    """Runs tasks one by one in the main thread, while another waits for the socket."""

    def __init__(self, channel: Connection) -> None:
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
        heard = Oversight(mode=Mode.REQUIRE, defer=lambda _emit: None) if task.check else Oversight()
        with oversee_process(heard):
            if not task.files:
                return run_task(task)
            from cachec.warm.files import run_traced  # for `cachec watch` only

            return run_traced(task)

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


def leave_no_fresh_bytecode() -> None:
    """Write no compiled module of a source that changed in the last two seconds.

    Python tells whether a compiled module belongs to its source by the size of that and the *second* of its last change
    (PEP 3147, ``py_compile.PycInvalidationMode.TIMESTAMP``). A source that is saved twice within a second, at one size,
    would run as it was before, here and in every later process.
    """
    write = SourceFileLoader.set_data

    def set_data(self: SourceFileLoader, path: str, data: bytes, **more: Any) -> None:
        try:
            fresh = time.time() - os.stat(self.path).st_mtime < _FRESH
        except OSError:
            fresh = True
        if not fresh:
            write(self, path, data, **more)

    SourceFileLoader.set_data = set_data  # type: ignore[method-assign,assignment]


def main() -> None:
    channel = Connection(int(sys.argv[1]))
    os.set_inheritable(channel.fileno(), False)
    leave_no_fresh_bytecode()
    sys.argv[:] = ["cachec-warm"]
    vars(sys.modules["__main__"])["__file__"] = __file__  # else isolated stages take it for the user's `python -c`
    for stream in (sys.stdout, sys.stderr):  # they are a file; what was printed is to be there when this is killed
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    WarmWorker(channel).serve()
