"""Starts a worker for one call, and talks with it until it has ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from cachec.base import fsio
from cachec.commands.process import Ended as EndedProcess
from cachec.commands.traced import Traced, untraced
from cachec.store.locks import forking_to_exec
from cachec.tracing.codec import DamagedRecord
from cachec.tracing.standalone import command_line, decode_report, encode_request
from cachec.worker import child
from cachec.worker.messages import Call, Done, Failed, Output, Prepared, Setup
from cachec.worker.protocol import CannotSend, Channel, Ended
from cachec.worker.values import Values, WeightRequest, answer_request

#: What is kept of the standard error of a worker, for the message of one that crashed. Characters.
_TAIL = 4000


class Ran(NamedTuple):
    """What came of a worker. done: None where the stage did not return. failed: why the call has to be made in the
    caller's process, empty where it has not. tail: the end of its standard error."""

    done: Done | None
    failed: str
    traced: Traced
    tail: str


class TimedOut(Exception):
    """The stage took longer than it may."""


def run(
    setup: Setup,
    make_call: Callable[[Prepared], Call],
    values: Values,
    *,
    timeout: float | None = None,
) -> Ran:
    """Run a stage in a worker. make_call: what is to be run there, once it is known what the worker has.

    Raises OSError where no process can be started, and TimedOut. KeyboardInterrupt ends the worker first.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    worker = _Worker()
    try:
        done, failed = worker.converse(setup, make_call, values, deadline)
    except BaseException as error:
        worker.stop(gently=isinstance(error, KeyboardInterrupt))
        raise
    traced = worker.end()
    return Ran(done, failed, traced, worker.tail)


class _Worker:
    """The process, its supervisor, and the conversation with it."""

    def __init__(self) -> None:
        self._report = os.memfd_create("report")
        request = os.memfd_create("request")
        ours, theirs = socket.socketpair()
        reader, self._alive = os.pipe2(os.O_CLOEXEC)
        try:
            words = child.command_line(theirs.fileno())
            os.write(request, encode_request(words, sys.executable, os.environ, os.getcwd(), joins=True))
            os.lseek(request, 0, os.SEEK_SET)
            self._started = time.time()
            with forking_to_exec():
                self._process = subprocess.Popen(
                    command_line(request, self._report, reader),
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=(request, self._report, reader, theirs.fileno()),
                )
        except BaseException:
            for fd in (self._alive, self._report):
                os.close(fd)
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(request)
            os.close(reader)
        self._channel = Channel(ours.detach())
        self.tail = ""
        self._relay = threading.Thread(target=self._relay_errors, daemon=True)
        self._relay.start()

    def converse(
        self, setup: Setup, make_call: Callable[[Prepared], Call], values: Values, deadline: float | None
    ) -> tuple[Done | None, str]:
        """What the stage returned, or why it can't be run here; neither where the worker ended."""
        try:
            self._channel.send(setup, values)
            prepared = self._next(deadline)
            if isinstance(prepared, Failed):
                return None, prepared.words
            self._channel.send(make_call(prepared), values)
            while True:
                message = self._next(deadline)
                if isinstance(message, Output):
                    (sys.stdout, sys.stderr)[message.stream].write(message.text)
                elif isinstance(message, WeightRequest):
                    answer, fds = answer_request(message, values.weights)
                    self._channel.send(answer, fds=fds)
                    for fd in fds:
                        os.close(fd)
                elif isinstance(message, Failed):
                    return None, message.words
                else:
                    return message, ""
        except Ended:
            return None, ""
        except CannotSend as error:
            return None, str(error)

    def end(self) -> Traced:
        """Wait for the end of the process, and return what the tracer saw."""
        self._channel.close()
        self._process.wait()
        self._relay.join(1.0)  # what a process left behind writes, nobody waits for
        data = fsio.pread_exact(self._report, 0, os.fstat(self._report).st_size)
        self._close()
        ended = EndedProcess(self._process.returncode, b"", b"", None)
        try:
            told = decode_report(data)
        except (DamagedRecord, OSError, ValueError) as error:
            return Traced(ended, untraced(ended, f"the supervisor failed: {error}"), self._started)
        return Traced(ended._replace(returncode=told.accesses.returncode), told.accesses, told.started)

    def stop(self, *, gently: bool) -> None:
        """End the process: after an interrupt, which the terminal sends to it too, it gets a moment for that."""
        if gently:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_SECONDS)
        os.close(self._alive)  # the supervisor kills what is left
        self._alive = -1
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_SECONDS)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self._channel.close()
        self._close()

    def _next(self, deadline: float | None) -> object:
        left = None if deadline is None else max(deadline - time.monotonic(), 0.001)
        try:
            return self._channel.receive(timeout=left)[0]
        except TimeoutError as error:
            raise TimedOut from error

    def _close(self) -> None:
        for fd in (self._alive, self._report):
            if fd >= 0:
                os.close(fd)

    def _relay_errors(self) -> None:
        """Hand on what the worker writes to its standard error, and keep the end of it."""
        source = self._process.stderr
        assert source is not None
        with source:
            while data := os.read(source.fileno(), 1 << 16):
                with contextlib.suppress(OSError):
                    os.write(2, data)
                self.tail = (self.tail + data.decode(errors="replace"))[-_TAIL:]


#: Seconds that a worker has to end by itself.
_GRACE_SECONDS = 2.0
