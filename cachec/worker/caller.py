"""The caller's side: starts starters, has them make workers, and talks with these."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cachec.base import fsio
from cachec.base.installed import Installed
from cachec.commands.process import Ended as EndedProcess
from cachec.commands.traced import Traced, untraced
from cachec.store.locks import forking_to_exec
from cachec.tracing.codec import DamagedRecord, decode
from cachec.worker import starter
from cachec.worker.messages import Call, Done, Failed, Output, Prepared, Setup, Start
from cachec.worker.protocol import CannotSend, Channel, Ended
from cachec.worker.values import Values, WeightRequest, answer_request

#: What is kept of the standard error of a worker, for the message of one that crashed. Characters.
_TAIL = 4000

#: Seconds that a worker has to end by itself after an interrupt.
_GRACE_SECONDS = 2.0

#: How often a starter is asked for a worker, or another in its place.
_TRIES = 3

#: Starters that wait for the next call; more are ended.
_MOST_IDLE = 2


class RunResult(NamedTuple):
    """What came of a worker. done: None where the stage did not return. failed: why the call has to be made in the
    caller's process, empty where it has not. tail: the end of its standard error."""

    done: Done | None
    failed: str
    traced: Traced
    tail: str


class TimedOut(Exception):
    """The stage took longer than it may."""


class Starters:
    """The starters of one opened cache. Each has one worker at a time; those that have none wait for the next."""

    def __init__(self) -> None:
        self._idle: list[_Starter] = []
        self._lock = threading.Lock()

    def run(
        self,
        setup: Setup,
        make_call: Callable[[Prepared], Call],
        values: Values,
        *,
        packages: Sequence[str] = (),
        timeout: float | None = None,
    ) -> RunResult:
        """Run a stage in a worker. make_call: what is to be run there, once it is known what the worker has. packages:
        installed ones that the starter is to import first.

        Raises OSError where no process can be started, and TimedOut. KeyboardInterrupt ends the worker first.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        one = self._take(setup.path)
        try:
            for _ in range(_TRIES):
                try:
                    one.order(packages, deadline)
                    break
                except Ended:  # it has waited for too long, or was killed
                    one.stop(gently=False)
                    one = _Starter(_state(setup.path))
            else:
                raise ChildProcessError("the process that makes workers was killed each time that it was started")
            ran = one.run(setup, make_call, values, deadline)
        except BaseException as error:
            one.stop(gently=isinstance(error, KeyboardInterrupt))
            raise
        self._give_back(one)
        return ran

    def close(self) -> None:
        """End the starters that wait."""
        with self._lock:
            idle, self._idle = self._idle, []
        for one in idle:
            one.stop(gently=False)

    def _take(self, path: list[str]) -> _Starter:
        """One that waits, if it was started in a state like that of now; else a new one."""
        state = _state(path)
        while True:
            with self._lock:
                one = self._idle.pop() if self._idle else None
            if one is None:
                return _Starter(state)
            if one.fits(state):
                return one
            one.stop(gently=False)

    def _give_back(self, one: _Starter) -> None:
        with self._lock:
            if len(self._idle) < _MOST_IDLE and one.is_alive:
                self._idle.append(one)
                return
        one.stop(gently=False)


class _State(NamedTuple):
    """What a starter has of its caller from the start. pid: of the caller: a child of it has starters of its own."""

    pid: int
    path: tuple[str, ...]
    environ: dict[str, str]


def _state(path: list[str]) -> _State:
    environ = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return _State(os.getpid(), tuple(path), environ)


class _Starter:
    """The process, and the conversation with it and its workers."""

    def __init__(self, state: _State) -> None:
        self._state = state
        ours, theirs = socket.socketpair()
        try:
            with forking_to_exec():
                self._process = subprocess.Popen(
                    starter.command_line(theirs.fileno()),
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=(theirs.fileno(),),
                    env=os.environ,
                )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._control = Channel(ours.detach())
        self.is_alive = True
        self._tail = ""
        threading.Thread(target=self._relay_errors, daemon=True).start()
        with contextlib.suppress(Ended):  # it was killed at once, as the first order finds out
            self._control.send(Start(list(state.path), _packages()))
        self._is_ready = False
        self._began = 0.0
        self._worker, self._report = self._control, -1

    def fits(self, state: _State) -> bool:
        """Whether a worker of it would be as one that is started now."""
        return self.is_alive and self._state == state and self._process.poll() is None

    def order(self, packages: Sequence[str], deadline: float | None) -> None:
        """Have a worker made. Raises Ended where it has ended, and TimedOut."""
        if not self._is_ready:
            self._receive(self._control, deadline)
            self._is_ready = True
        ours, theirs = socket.socketpair()
        report = os.memfd_create("report")
        try:
            self._control.send(tuple(packages), fds=(theirs.fileno(), report))
        except BaseException:
            ours.close()
            os.close(report)
            raise
        finally:
            theirs.close()
        self._worker, self._report = Channel(ours.detach()), report

    def run(
        self, setup: Setup, make_call: Callable[[Prepared], Call], values: Values, deadline: float | None
    ) -> RunResult:
        """Talk with the worker that was ordered until it has ended."""
        self._tail = ""
        self._began = time.time()
        try:
            try:
                done, failed = self._converse(self._worker, setup, make_call, values, deadline)
            finally:
                self._worker.close()
            returncode = self._returncode(deadline)
            return RunResult(done, failed, self._traced(self._report, returncode), self._tail)
        finally:
            os.close(self._report)

    def stop(self, *, gently: bool) -> None:
        """End it. gently: after an interrupt, which a terminal sends to the worker too, that gets a moment to end."""
        self.is_alive = False
        if self._state.pid != os.getpid():
            return  # it is the parent's
        if gently:
            select.select([self._control.fileno()], [], [], _GRACE_SECONDS)
        self._control.close()  # it ends by that, and kills its worker
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_SECONDS)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _converse(
        self,
        channel: Channel,
        setup: Setup,
        make_call: Callable[[Prepared], Call],
        values: Values,
        deadline: float | None,
    ) -> tuple[Done | None, str]:
        """What the stage returned, or why it can't be run there; neither where the worker ended before."""
        try:
            channel.send(setup, values)
            prepared = self._receive(channel, deadline)
            if isinstance(prepared, Failed):
                return None, prepared.words
            assert isinstance(prepared, Prepared)
            self._began = time.time()
            channel.send(make_call(prepared), values)
            while True:
                message = self._receive(channel, deadline)
                if isinstance(message, Output):
                    (sys.stdout, sys.stderr)[message.stream].write(message.text)
                elif isinstance(message, WeightRequest):
                    answer, fds = answer_request(message, values.weights)
                    channel.send(answer, fds=fds)
                    for fd in fds:
                        os.close(fd)
                elif isinstance(message, Failed):
                    return None, message.words
                else:
                    return message, ""  # type: ignore[return-value] # it is Done
        except Ended:
            return None, ""
        except CannotSend as error:
            return None, str(error)

    def _receive(self, channel: Channel, deadline: float | None) -> object:
        """The next message of the worker, or of the starter. Raises Ended, also where the worker has, and TimedOut."""
        left = None if deadline is None else max(deadline - time.monotonic(), 0.001)
        poller = select.poll()
        for fd in {channel.fileno(), self._control.fileno()}:
            poller.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poller.poll(None if left is None else left * 1000)]
        if not ready:
            raise TimedOut
        if channel.fileno() not in ready:
            raise Ended
        return channel.receive()[0]

    def _returncode(self, deadline: float | None) -> int:
        """How the worker ended; that of the starter, where that has ended too."""
        try:
            code = self._receive(self._control, deadline)
        except Ended:
            self.is_alive = False
            return self._process.wait()
        assert isinstance(code, int)
        return code

    def _traced(self, report: int, returncode: int) -> Traced:
        ended = EndedProcess(returncode, b"", b"", None)
        data = fsio.pread_exact(report, 0, os.fstat(report).st_size)
        try:
            return Traced(ended, decode(data), self._began)
        except DamagedRecord as error:
            return Traced(ended, untraced(ended, f"the supervisor failed: {error}"), self._began)

    def _relay_errors(self) -> None:
        """Hand on what workers write to their standard error, and keep the end of it."""
        source = self._process.stderr
        assert source is not None
        with source:
            while data := os.read(source.fileno(), 1 << 16):
                with contextlib.suppress(OSError):
                    os.write(2, data)
                self._tail = (self._tail + data.decode(errors="replace"))[-_TAIL:]


def _packages() -> list[str]:
    """The installed packages that this process has imported, in that order; but for what has threads or a main module
    of its own."""
    installed = Installed()
    found: dict[str, None] = {}
    for name, module in list(sys.modules.items()):
        first = name.partition(".")[0]
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and installed.is_package(file) and first not in _NOT_AHEAD:
            found.setdefault(first)
    return list(found)


#: Packages that are not imported ahead: they look into the program that runs.
_NOT_AHEAD = frozenset({"IPython", "_pytest", "coverage", "ipykernel", "pytest", "pytest_timeout", "xdist"})
