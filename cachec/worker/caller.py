"""The caller's side: starts fork servers, lets them fork workers, and talks with the workers."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cachec.base import fsio
from cachec.base.installed_folders import InstalledFolders
from cachec.base.wait_strategy import Waiter
from cachec.commands.process import ProcessResult as EndedProcess
from cachec.commands.traced_run import TracedRun, untraced_accesses
from cachec.store.locks import forking_to_exec
from cachec.tracing.codec import DamagedRecord, decode
from cachec.worker.memory_usage import resident
from cachec.worker.messages import (
    OutputText,
    PrepareReply,
    Setup,
    StageDone,
    StageRequest,
    Start,
    StartNotice,
    WorkerFailure,
)
from cachec.worker.protocol import CannotSend, MessageChannel, PeerClosedError
from cachec.worker.value_transfer import ValueTransfer, WeightRequest, answer_request

#: What is kept of the standard error of a worker, for the message of one that crashed. Characters.
_TAIL = 4000

#: Seconds that a worker has to end by itself after an interrupt, and that its last words have to arrive.
_GRACE_SECONDS = 2.0

#: Seconds to wait for the rest of its standard error where it has returned: a process that it left behind has it too.
_DRAIN_SECONDS = 0.1

#: Seconds between two looks at the memory of a worker that has a limit.
_POLL_SECONDS = 0.05

#: Seconds without a call after which a starter ends: what it has imported takes memory.
IDLE_SECONDS = 60.0


class RunResult(NamedTuple):
    """What came of a worker."""

    #: None where the stage did not return.
    done: StageDone | None
    #: Why the call has to be made in the caller's process, empty where it has not.
    failed: str
    traced: TracedRun
    #: The end of its standard error.
    tail: str


class Limits(NamedTuple):
    """What one run may take; None: as much as it likes."""

    seconds: float | None = None
    #: Bytes that the worker and the programs that it started have resident.
    memory: int | None = None


class TimedOut(Exception):
    """The stage took longer than it may."""


class OutOfMemory(Exception):
    """The stage took more memory than it may. resident: bytes."""

    def __init__(self, resident: int) -> None:
        super().__init__(resident)
        self.resident = resident


class Starters:
    """The starter of one opened cache. There is one at a time, which makes a worker for each call.

    Another takes its place where a worker would not be as one that is started now.
    """

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        """idle_seconds: after how long without a call a starter ends."""
        self._idle_seconds = idle_seconds
        self._current: _ForkServerClient | None = None
        self._lock = threading.Lock()

    async def run(
        self,
        setup: Setup,
        make_call: Callable[[PrepareReply], StageRequest],
        values: ValueTransfer,
        *,
        waiter: Waiter,
        limits: Limits = Limits(),  # noqa: B008 - it is a tuple
        packages: Sequence[str] = (),
    ) -> RunResult:
        """Run a stage in a worker. make_call: what is to be run there, once it is known what the worker has. packages:
        installed ones that the starter is to import first.

        Raises OSError where no process can be started, TimedOut and OutOfMemory. Where it is interrupted, by an
        exception that comes out of ``waiter``, the worker ends first.
        """
        worker = await self._worker(setup.path, packages, waiter, limits)
        try:
            return await worker.run(setup, make_call, values)
        except KeyboardInterrupt:
            worker.await_end()  # a terminal has interrupted it too
            raise
        finally:
            worker.close()

    def close(self) -> None:
        """End the starter, once its workers have ended."""
        with self._lock:
            one, self._current = self._current, None
        if one is not None:
            one.close()

    async def _worker(self, path: list[str], packages: Sequence[str], waiter: Waiter, limits: Limits) -> _Worker:
        """A new worker, of a starter that was started in a state like that of now."""
        while True:
            one, is_new = self._starter(_state(path))
            worker = one.order(packages, waiter, limits)
            try:
                await worker.begin()
            except (
                PeerClosedError
            ):  # a starter that has waited for too long ends, and one that can't start: never again
                worker.close()
                if is_new:
                    raise OSError(
                        f"the process that starts workers ended: {worker.tail() or 'it said nothing'}"
                    ) from None
            except BaseException:
                worker.close()
                raise
            else:
                return worker

    def _starter(self, state: _WorkerState) -> tuple[_ForkServerClient, bool]:
        """The starter, and whether it was started just now."""
        with self._lock:
            one = self._current
            if one is not None and one.fits(state):
                return one, False
            if one is not None:
                one.close()
            self._current = new = _ForkServerClient(state, self._idle_seconds)
            return new, True


class _WorkerState(NamedTuple):
    """What a starter has of its caller from the start."""

    #: Of the caller: a child of it has starters of its own.
    pid: int
    path: tuple[str, ...]
    environ: dict[str, str]


def _state(path: list[str]) -> _WorkerState:
    environ = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return _WorkerState(os.getpid(), tuple(path), environ)


class _ForkServerClient:
    """The process that makes workers."""

    def __init__(self, state: _WorkerState, idle_seconds: float) -> None:
        self._state = state
        ours, theirs = socket.socketpair()
        try:
            with forking_to_exec():
                self._process = subprocess.Popen(
                    _command_line(theirs.fileno()),
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    env=os.environ,
                )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._control = MessageChannel(ours.detach())
        self.close = weakref.finalize(self, _end_starter, self._control, self._process, state.pid)
        # It ends with this process by itself. A worker waits for one that it has for the stages that its stage calls:
        # what it left behind would keep its result out.
        self.close.atexit = "cachec.worker.worker_process" in sys.modules
        with contextlib.suppress(PeerClosedError):  # it was killed at once, as the first order finds out
            self._control.send(Start(state.pid, list(state.path), _packages(), idle_seconds))

    def fits(self, state: _WorkerState) -> bool:
        """Whether a worker of it would be as one that is started now."""
        return self._state == state and self._process.poll() is None

    def order(self, packages: Sequence[str], waiter: Waiter, limits: Limits) -> _Worker:
        """Have a worker made."""
        with contextlib.ExitStack() as theirs:
            pairs = socket.socketpair(), socket.socketpair()
            errors = os.pipe2(os.O_CLOEXEC)
            for each in pairs:
                theirs.enter_context(each[1])
            theirs.callback(os.close, errors[1])
            worker = _Worker(pairs[0][0].detach(), pairs[1][0].detach(), errors[0], waiter, limits)
            fds = (pairs[0][1].fileno(), pairs[1][1].fileno(), worker.report, errors[1])
            with contextlib.suppress(PeerClosedError):  # ``begin`` finds out
                self._control.send(tuple(packages), fds=fds)
            return worker


def _end_starter(control: MessageChannel, process: subprocess.Popen[bytes], owner: int) -> None:
    if owner != os.getpid():
        return  # it is the parent's
    control.end()  # it ends by that
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_SECONDS)
    if process.poll() is None:
        process.kill()
        process.wait()


class _Worker:
    """The conversation with one worker, and with the supervisor that traces it."""

    def __init__(self, channel: int, control: int, errors: int, waiter: Waiter, limits: Limits) -> None:
        self._channel, self._control = MessageChannel(channel), MessageChannel(control)
        self._waiter, self._memory = waiter, limits.memory
        self._deadline = None if limits.seconds is None else time.monotonic() + limits.seconds
        self.report = os.memfd_create("report")
        self._supervisor = 0
        self._began = time.time()
        self._tail: list[str] = [""]
        self._relay = threading.Thread(target=_relay, args=(errors, self._tail), daemon=True)
        self._relay.start()

    async def begin(self) -> None:
        """Wait until it is there. Raises PeerClosedError, and TimedOut."""
        started: StartNotice = await self._receive(self._control)
        self._supervisor = started.pid

    async def run(
        self, setup: Setup, make_call: Callable[[PrepareReply], StageRequest], values: ValueTransfer
    ) -> RunResult:
        """Talk with it until it has ended."""
        done, failed = await self._converse(setup, make_call, values)
        self._channel.close()
        try:
            returncode = await self._receive(self._control)
        except PeerClosedError:  # so has its supervisor, which would have said how
            returncode = -signal.SIGKILL
        is_crash = done is None and not failed
        self._relay.join(_GRACE_SECONDS if is_crash else _DRAIN_SECONDS)
        return RunResult(done, failed, self._read_trace(returncode), self.tail())

    def tail(self) -> str:
        """The end of what it has written to its standard error."""
        return self._tail[0]

    def await_end(self) -> None:
        """Give it a moment to end by itself."""
        select.select([self._control.fileno()], [], [], _GRACE_SECONDS)

    def close(self) -> None:
        """End it, if it has not ended: by the end of the conversation, its supervisor kills it with all it started."""
        self._channel.end()
        self._control.end()
        os.close(self.report)

    async def _converse(
        self, setup: Setup, make_call: Callable[[PrepareReply], StageRequest], values: ValueTransfer
    ) -> tuple[StageDone | None, str]:
        """What the stage returned, or why it can't be run there; neither where the worker ended before."""
        channel = self._channel
        try:
            channel.send(setup, values)
            prepared = await self._receive(channel)
            if isinstance(prepared, WorkerFailure):
                return None, prepared.words
            assert isinstance(prepared, PrepareReply)
            self._began = time.time()
            channel.send(make_call(prepared), values)
            while True:
                message = await self._receive(channel)
                if isinstance(message, OutputText):
                    (sys.stdout, sys.stderr)[message.stream].write(message.text)
                elif isinstance(message, WeightRequest):
                    answer, fds = answer_request(message, values.weights)
                    channel.send(answer, fds=fds)
                    for fd in fds:
                        os.close(fd)
                elif isinstance(message, WorkerFailure):
                    return None, message.words
                else:
                    return message, ""
        except PeerClosedError:
            return None, ""
        except CannotSend as error:
            return None, str(error)

    async def _receive(self, channel: MessageChannel) -> Any:
        """The next message of the worker, or of its supervisor. Raises PeerClosedError, TimedOut, and OutOfMemory."""
        fds = {channel.fileno(), self._control.fileno()}
        while True:
            remaining = None if self._deadline is None else max(self._deadline - time.monotonic(), 0.001)
            is_limited = self._memory is not None and (remaining is None or remaining > _POLL_SECONDS)
            readable = await self._waiter.readable(fds, _POLL_SECONDS if is_limited else remaining)
            if channel.fileno() in readable:
                return channel.receive()[0]
            if readable:
                raise PeerClosedError
            if self._memory is not None and self._supervisor:
                taken = resident(self._supervisor)
                if taken > self._memory:
                    raise OutOfMemory(taken)
            if not is_limited:
                raise TimedOut

    def _read_trace(self, returncode: int) -> TracedRun:
        ended = EndedProcess(returncode, b"", b"", None)
        data = fsio.pread_exact(self.report, 0, os.fstat(self.report).st_size)
        try:
            return TracedRun(ended, decode(data), self._began)
        except DamagedRecord as error:
            return TracedRun(ended, untraced_accesses(ended, f"the supervisor failed: {error}"), self._began)


def _relay(source: int, tail: list[str]) -> None:
    """Hand on what a worker writes to its standard error, and keep the end of it."""
    try:
        while data := os.read(source, 1 << 16):
            with contextlib.suppress(OSError):
                os.write(2, data)
            tail[0] = (tail[0] + data.decode(errors="replace"))[-_TAIL:]
    finally:
        os.close(source)


def _command_line(control: int) -> list[str]:
    """What starts a starter, with the flags of this interpreter. control: the descriptor of its socket."""
    from subprocess import _args_from_interpreter_flags as flags  # type: ignore[attr-defined] # as multiprocessing does

    # The folder of cachec comes first for its own imports alone: ``Start.path`` replaces the path. The current folder,
    # which ``-c`` puts there, may have modules named as Python's own.
    folder = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = "import sys; sys.path[:] = [sys.argv.pop(1), *filter(None, sys.path)]"
    text = f"{path}; from cachec.worker.fork_server import main; main()"
    # Python sets it by the locale, and then the locale for its children: these would not do the same.
    utf8 = f"-Xutf8={sys.flags.utf8_mode}"
    return [sys.executable, *flags(), utf8, "-c", text, folder, str(control)]


def _packages() -> list[str]:
    """The installed packages that this process has imported, in that order; but for what has threads or a main module
    of its own. The modules of cachec that a stage needs are among them."""
    installed = InstalledFolders()
    found: dict[str, None] = {}
    for name, module in list(sys.modules.items()):
        first = name.partition(".")[0]
        file = getattr(module, "__file__", None)
        if first == "cachec" and ".".join(name.split(".")[:2]) not in _NOT_AHEAD:
            found.setdefault(name)
        elif isinstance(file, str) and installed.is_package(file) and first not in _NOT_AHEAD:
            found.setdefault(first)
    return list(found)


#: Packages that are not imported ahead: they look into the program that runs.
_NOT_AHEAD = frozenset(
    {"IPython", "_pytest", "coverage", "ipykernel", "pytest", "pytest_timeout", "xdist"}
    | {"cachec.__main__", "cachec.cli", "cachec.pytest_plugin", "cachec.testing", "cachec.warm"}
)
