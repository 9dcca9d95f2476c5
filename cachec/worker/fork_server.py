"""The fork server: a process that has imported the installed packages, and forks a worker for each call.

Each call has a *supervisor*, a child of the starter, which is the parent of the worker, and so its tracer. None of them
runs code of the project but the worker. They stay in the session of the caller, and end with it. Where a supervisor is
killed, its worker is too (PR_SET_PDEATHSIG), and what that has started comes to the starter (PR_SET_CHILD_SUBREAPER).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial

from cachec.tracing.codec import encode
from cachec.tracing.process import kill_traced, subreaper
from cachec.tracing.supervisor import trace_call
from cachec.worker.generator_states import import_generators
from cachec.worker.messages import Start, StartNotice
from cachec.worker.protocol import MessageChannel, PeerClosedError
from cachec.worker.worker_process import Common, end, serve

#: How often, and with which pause, it is looked for processes to kill: what a killed one leaves behind comes to us.
_ROUNDS, _ROUND_SECONDS = 100, 0.005

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Make workers as long as the caller is there and calls."""
    fd = int(sys.argv[1])
    os.set_inheritable(fd, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(PeerClosedError, ProcessLookupError), subreaper():
        _ForkServer(MessageChannel(fd)).serve()
    end()  # at once: a worker whose stage called another is not done before


class _ForkServer:
    def __init__(self, control: MessageChannel) -> None:
        self._control = control
        self._common = Common()
        start: Start = control.receive()[0]
        self._caller = os.pidfd_open(start.caller)
        if os.getppid() != start.caller:
            raise PeerClosedError
        self._idle_seconds = start.idle_seconds
        sys.path[:] = start.path
        _load(["tomllib", *start.packages], self._common)  # each cache that is opened reads its settings
        self._supervisors: set[int] = set()
        #: Gets a byte when a child has ended.
        self._woken, waking = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(waking)

    def serve(self) -> None:
        """Until the caller has ended the conversation, or has not called for a while. Raises PeerClosedError."""
        poller = select.poll()
        for fd in (self._control.fileno(), self._woken, self._caller):
            poller.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll(None if self._supervisors else self._idle_seconds * 1000)}
            if not ready or self._caller in ready:
                return
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._reap()
            if self._control.fileno() in ready:
                packages, fds = self._control.receive()
                _load(packages, self._common)
                self._fork(fds)

    def _fork(self, fds: Sequence[int]) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                self._control.close()
                os.close(self._woken)
                _supervise(fds, self._caller, self._common)
            finally:
                os._exit(1)
        self._supervisors.add(pid)
        for fd in fds:
            os.close(fd)

    def _reap(self) -> None:
        """Take note of children that have ended. What the worker of a supervisor that was killed has started ends."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                pid, status = ended
                if pid in self._supervisors:
                    self._supervisors.discard(pid)
                    if os.WIFSIGNALED(status):
                        _end_all()


def _supervise(fds: Sequence[int], caller: int, common: Common) -> None:
    """The whole life of a supervisor. fds: of the worker's conversation, its own, the record, and standard error.
    caller: descriptor of that process."""
    channel, control_fd, report, errors = fds
    os.dup2(errors, 2)
    os.close(errors)
    control, worker = MessageChannel(control_fd), MessageChannel(channel)
    control.send(StartNotice(os.getpid()))
    readers = dict.fromkeys((control.fileno(), caller), _end_all)
    accesses = trace_call(partial(_work, worker, common, os.getpid()), readers)
    worker.close()
    if accesses.returncode != 0:  # it has not ended by itself, so what it has started has not either
        _end_all()
    with open(report, "wb") as file:
        file.write(encode(accesses))
    os.close(2)  # the caller waits for the end of it
    with contextlib.suppress(PeerClosedError):
        control.send(accesses.returncode)
    os._exit(0)


def _work(channel: MessageChannel, common: Common, supervisor: int) -> None:
    """The worker."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() == supervisor:
        serve(channel, common)


def _load(packages: Sequence[str], common: Common) -> None:
    """Import packages for the workers to come."""
    common.variables.is_loading = True
    for name in packages:
        with contextlib.suppress(Exception, SystemExit):  # a worker that needs it imports it again, and says so
            importlib.import_module(name)
    import_generators()
    common.variables.is_loading = False
    if packages:
        gc.collect()
        gc.freeze()  # so that a worker's collections do not copy what it shares with this process


def _end_all() -> bool:
    """Kill the worker with all that it has started."""
    for _ in range(_ROUNDS):
        if not kill_traced():
            break
        time.sleep(_ROUND_SECONDS)
    return False
