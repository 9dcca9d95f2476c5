"""One child process: started in a group of its own, its signals forwarded, ended with its group, always reaped."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

from cachec.store.locks import forking_to_exec

#: Seconds between asking a group to end and ending it.
GRACE_SECONDS = 2.0

_FORWARDED = (signal.SIGTERM, signal.SIGHUP)


class ProcessResult(NamedTuple):
    """How a process ended."""

    returncode: int
    stdout: bytes
    stderr: bytes
    #: Whether a descendant that stayed in its group outlived it; None: not known.
    survivors: bool | None


def run_process(
    args: Sequence[str],
    program: str,
    *,
    environ: Mapping[str, str],
    cwd: str | None,
    stdin: bytes | str | None = None,
    pass_fds: Sequence[int] = (),
    timeout: float | None = None,
    in_session: bool = False,
) -> ProcessResult:
    """Run ``program`` with ``args`` and exactly ``environ``. stdin: the bytes to feed, or a file to read; None: empty.

    Raises OSError where the program can't be started, or SIGCHLD is ignored, so that no status is told: a caller in
    the main thread has that ended instead. Raises subprocess.TimeoutExpired after its group was killed. SIGTERM and
    SIGHUP that would end this process go to the group first (only the main thread can see to that). in_session: it
    stays in the session of this process, and somebody else sees to its end where this is killed
    (``ask_session_to_end``).
    """
    _have_statuses()
    data = stdin if isinstance(stdin, bytes) else None
    source = -1 if isinstance(stdin, bytes) else os.open(stdin or os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with _forwarding() as forward:
            with forking_to_exec():
                process = subprocess.Popen(
                    list(args),
                    executable=program,
                    env=dict(environ),
                    cwd=cwd,
                    stdin=subprocess.PIPE if data is not None else source,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=tuple(pass_fds),
                    start_new_session=not in_session,
                    process_group=0 if in_session else None,
                )
            with process:
                stdout, stderr = _communicate(process, forward, data, timeout)
        return ProcessResult(process.returncode, stdout, stderr, True if _group_lives(process) else None)
    finally:
        if source >= 0:
            os.close(source)


def _have_statuses() -> None:
    """Have the kernel keep how children end. Where SIGCHLD is ignored it does not, and ``subprocess`` says 0."""
    if signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN:
        return
    if threading.current_thread() is not threading.main_thread():
        words = "SIGCHLD is ignored here, so how a command ends is not known; run it in the main thread, or set SIG_DFL"
        raise ChildProcessError(errno.ECHILD, words)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _place_of(pid: int) -> tuple[str, int]:
    """State and session of a process. Raises OSError where it is gone."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return fields[0].decode(), int(fields[3])


def end_session(leader: int) -> None:
    """Kill the remaining processes in the session of an ended process, and wait for their end."""
    while _signal_session(leader, signal.SIGKILL):
        time.sleep(0.002)


def kill_session() -> None:
    """Kill all others that run in the session of this process, which leads it."""
    for pid in _running_in(os.getpid()) - {os.getpid()}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def ask_session_to_end(leader: int) -> None:
    """Send SIGTERM to what is left of the session of a process that has ended, and is not reaped yet."""
    _signal_session(leader, signal.SIGTERM)


def _signal_session(leader: int, number: int) -> bool:
    """Send a signal to all that runs in a session; whether anything does. Nothing where its leader runs: that is
    another's session then, which has come to have the number."""
    with contextlib.suppress(OSError):
        if _place_of(leader)[0] not in "ZX":
            return False
    running = _running_in(leader)
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return bool(running)


def _running_in(session: int) -> set[int]:
    return {pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _runs_in(pid, session)}


def _runs_in(pid: int, session: int) -> bool:
    """Whether a process is in a session, runs, and may be ended by us."""
    try:
        state, place = _place_of(pid)
        if place != session or state in "ZX":
            return False
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _communicate(
    process: subprocess.Popen[bytes], forward: _Forward, data: bytes | None, timeout: float | None
) -> tuple[bytes, bytes]:
    try:
        forward.to(process)
        return process.communicate(data, timeout)
    except subprocess.TimeoutExpired:
        signal_group(process, signal.SIGKILL)
        process.wait()
        raise
    except BaseException as error:
        signal_group(process, signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
        await_end(process)
        signal_group(process, signal.SIGKILL)
        process.wait()
        raise


def _group_lives(process: subprocess.Popen[bytes]) -> bool:
    """Whether there are others of its group, after it was reaped."""
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has ended. It is not reaped: the number of its group stays taken until that was killed."""
    if process.returncode is not None:
        return True
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:
        return True


def await_end(process: subprocess.Popen[bytes]) -> bool:
    """Wait a little for a process to end, without reaping it; whether it did."""
    end = time.monotonic() + GRACE_SECONDS
    while not has_ended(process):
        if time.monotonic() >= end:
            return False
        time.sleep(0.002)
    return True


def signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to the group of a process that was not reaped yet; nothing where none of it is left."""
    # The group outlives its leader while any member does.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


class _Forward:
    """Signals that came for the command. caught: one that ends this process too, once the command has ended."""

    def __init__(self) -> None:
        self.caught = 0
        self._interrupted = False
        self._process: subprocess.Popen[bytes] | None = None

    def to(self, process: subprocess.Popen[bytes]) -> None:
        """From now on ``process`` gets them; what came while it was being started, it gets now."""
        self._process = process
        if self._interrupted:
            raise KeyboardInterrupt
        if self.caught:
            signal_group(process, self.caught)

    def handle(self, number: int, _frame: FrameType | None) -> None:
        self.caught = number
        if self._process is not None and self._process.poll() is None:
            signal_group(self._process, number)

    def interrupt(self, _number: int, _frame: FrameType | None) -> None:
        """SIGINT: raised at once where there is a process to end, else as soon as it was started.

        ``Popen`` itself would lose the process that it is just starting.
        """
        self._interrupted = True
        if self._process is not None:
            raise KeyboardInterrupt


@contextlib.contextmanager
def _forwarding() -> Iterator[_Forward]:
    """Forward signals that would end this process by default; it ends by them after the command did."""
    forward = _Forward()
    replaced: list[tuple[signal.Signals, Any]] = []
    if threading.current_thread() is threading.main_thread():
        for number in _FORWARDED:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, forward.handle)
                replaced.append((number, signal.SIG_DFL))
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, forward.interrupt)
            replaced.append((signal.SIGINT, signal.default_int_handler))
    try:
        yield forward
    finally:
        for number, before in replaced:
            signal.signal(number, before)
        if forward.caught:
            os.kill(os.getpid(), forward.caught)
