"""Worker processes as an executor of ``concurrent.futures``. One that is killed costs its row, not the others.

Each worker has a process group of its own, so that ending it ends its compilers, and gets no Ctrl-C of the terminal:
whoever owns the pool decides. What a worker prints goes to a file, whose end belongs to the result.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from multiprocessing.connection import Pipe
from typing import ParamSpec, TypeVar, cast

import msgspec

from cachec.commands.process import await_end, has_ended, signal_group
from cachec.errors import CachecError
from cachec.warm.model import Result, Status, Task
from cachec.warm.run import run_task
from cachec.warm.worker import receive, send

P = ParamSpec("P")
T = TypeVar("T")

#: The number of bytes of a worker's output that a result has.
_OUTPUT = 8192
#: Not ``-m``: the package has imported the module by then, which Python warns of.
_PROGRAM = "from cachec.warm.worker import main; main()"
#: Seconds between two looks if a worker that says nothing is alive.
_POLL_SECONDS = 0.5


class WorkerLost(CachecError):
    """A worker ended before its row did."""


class RowExecutor(Executor):
    """Runs ``run_task`` in processes of cachec's own: rows may have variables and processes to themselves."""

    @property
    def width(self) -> int:
        """Rows that it runs at a time now."""
        raise NotImplementedError


class WorkerPool(RowExecutor):
    """Starts its processes when there is work for them, 1 to ``workers`` of them."""

    def __init__(self, workers: int, environ: Mapping[str, str] | None = None) -> None:
        """environ: the variables of the workers, by default those of this process."""
        self._workers = workers
        self._environ = dict(os.environ if environ is None else environ)
        self._queue: queue.SimpleQueue[tuple[Future[Result], Task] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[_Hand] = []
        self._waiting = 0
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a task. Raises TypeError for anything but ``run_task``, RuntimeError after ``shutdown``."""
        if fn is not run_task or kwargs or len(args) != 1:
            raise TypeError("workers of cachec run run_task(task) and nothing else")
        future: Future[Result] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool is shut down")
            self._waiting += 1
            idle = sum(not hand.busy for hand in self._threads)
            if self._waiting > idle and len(self._threads) < self._workers:
                self._hire()
        self._queue.put((future, cast("Task", args[0])))
        return cast("Future[T]", future)

    @property
    def width(self) -> int:
        """How many workers there may be."""
        return self._workers

    def _take_worker(self, hand: _Hand) -> None:
        with self._lock:
            hand.busy = True
            self._waiting -= 1

    def prestart(self) -> None:
        """Start a worker before there is work: it has imported cachec when work comes."""
        with self._lock:
            if not self._closed and not self._threads:
                self._hire(early=True)

    def _hire(self, *, early: bool = False) -> None:
        hand = _Hand(self._queue, self._environ, self._take_worker, early=early)
        self._threads.append(hand)
        hand.start()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """No more work. cancel_futures: what is queued is cancelled and what runs is ended."""
        with self._lock:
            self._closed = True
        if cancel_futures:
            with contextlib.suppress(queue.Empty):
                while (item := self._queue.get_nowait()) is not None:
                    item[0].cancel()
            for hand in self._threads:
                hand.end()
        for _ in self._threads:
            self._queue.put(None)
        if wait:
            for hand in self._threads:
                hand.join()

    @property
    def pids(self) -> list[int]:
        """The processes that are alive."""
        return [hand.pid for hand in self._threads if hand.pid]


class _Hand(threading.Thread):
    """One worker process at a time, and the thread that waits for it."""

    def __init__(
        self,
        work: queue.SimpleQueue[tuple[Future[Result], Task] | None],
        environ: Mapping[str, str],
        taken: Callable[[_Hand], None],
        *,
        early: bool = False,
    ) -> None:
        super().__init__(daemon=True, name="cachec-warm")
        self.busy = False
        self._work = work
        self._base = environ
        self._take_worker = taken
        self._early = early
        self._process: _WorkerProcess | None = None
        self._lock = threading.Lock()
        self._ended = False

    @property
    def pid(self) -> int:
        process = self._process
        return process.popen.pid if process is not None else 0

    def run(self) -> None:
        if self._early:
            with contextlib.suppress(OSError):  # no process can be started now: the first row tries again, and says so
                self._ready({}, ())
        while (item := self._work.get()) is not None:
            self._take_worker(self)
            future, task = item
            if not future.set_running_or_notify_cancel():
                self.busy = False
                continue
            try:
                result = self._execute(task)
            except BaseException as error:  # noqa: BLE001 - whoever waits for the future gets it
                self.busy = False
                future.set_exception(error)
            else:
                self.busy = False  # first: whoever waits may submit at once, and no second worker is to start
                future.set_result(result)
        self._stop()

    def end(self) -> None:
        """Kill what runs, and start nothing more."""
        with self._lock:
            self._ended = True
            if self._process is not None:
                self._process.kill()

    def _execute(self, task: Task) -> Result:
        place = (task.row.folder, *task.row.path)
        process = self._ready(task.row.env, place, fresh=task.row.isolated)
        if process is None:
            return Result(id=task.row.id, status=Status.CANCELLED)
        process.forget_output()
        started = time.monotonic()
        try:
            result = process.ask(task, started + task.row.timeout)
        except WorkerLost as lost:
            output = process.output()
            self._stop(kill=True)
            if self._ended:
                return Result(id=task.row.id, status=Status.CANCELLED, seconds=time.monotonic() - started)
            seconds = time.monotonic() - started
            return Result(id=task.row.id, status=Status.FAILED, error=str(lost), output=output, seconds=seconds)
        if result.status is Status.FAILED:
            result = msgspec.structs.replace(result, output=process.output() + result.output)
        if task.row.isolated:
            self._stop()
        return result

    def _ready(self, env: Mapping[str, str], place: tuple[str, ...], *, fresh: bool = False) -> _WorkerProcess | None:
        """A process with these variables on top, that imports from ``place`` alone (or has not imported anything yet):
        a module of the same name elsewhere is another. None after ``end``."""
        environ = {**self._base, **env}
        process = self._process
        if process is not None and (
            fresh or process.environ != environ or process.place not in {(), place} or not process.alive
        ):
            self._stop()
        with self._lock:
            if self._ended:
                return None
            if self._process is None:
                self._process = _WorkerProcess(environ)
            self._process.place = place
            return self._process

    def _stop(self, *, kill: bool = False) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.close(kill=kill)


class _WorkerProcess:
    """A worker process and the channel to it."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.environ = environ
        self.place: tuple[str, ...] = ()
        self._channel, theirs = Pipe()
        self._printed = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed in close()
        # The worker goes on at the new end after ``forget_output``.
        fcntl.fcntl(self._printed, fcntl.F_SETFL, fcntl.fcntl(self._printed, fcntl.F_GETFL) | os.O_APPEND)
        with theirs:
            self.popen = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=self._printed,
                env=environ,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        return not has_ended(self.popen)

    def ask(self, task: Task, end: float) -> Result:
        """The result of a task. Raises WorkerLost where the worker ends, or takes longer than until ``end``."""
        try:
            send(self._channel, task)
            while True:
                remaining = end - time.monotonic()
                if remaining <= 0:
                    self.kill()
                    raise WorkerLost(
                        f"it did not end in {task.row.timeout:g} s and was killed; raise `timeout` of the target "
                        "where it is meant to take longer"
                    )
                ready, _, _ = select.select([self._channel], [], [], min(remaining, _POLL_SECONDS))
                if ready:
                    body = receive(self._channel)
                    if body is None:
                        raise self._lost_error()
                    return msgspec.json.decode(body, type=Result)
                if not self.alive:  # a child of the target may still hold the other end
                    raise self._lost_error()
        except OSError as error:
            raise self._lost_error() from error

    def _lost_error(self) -> WorkerLost:
        if not await_end(self.popen):
            return WorkerLost("its worker closed its channel")
        self.kill()
        code = self.popen.wait()
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
            return WorkerLost(f"its worker was ended by {name}")
        return WorkerLost(f"its worker ended with status {code}")

    def output(self) -> str:
        """The end of what was printed since ``forget_output``."""
        fd = self._printed.fileno()
        size = os.fstat(fd).st_size
        start = max(0, size - _OUTPUT)
        text = os.pread(fd, _OUTPUT, start).decode(errors="replace")
        return f"[...]\n{text}" if start else text

    def forget_output(self) -> None:
        """Discard the output so far."""
        self._printed.truncate(0)

    def kill(self) -> None:
        """End the process with its group."""
        if self.popen.returncode is None:  # until it is reaped the number of its group can't be another's
            signal_group(self.popen, signal.SIGKILL)

    def close(self, *, kill: bool) -> None:
        """End it: by itself where it can, so that it writes down the digests that it learned."""
        if kill:
            self.kill()
        self._channel.close()
        await_end(self.popen)
        # Its group may outlive it: a compiler that it started and did not wait for.
        self.kill()
        self.popen.wait()
        self._printed.close()
