"""Starts the command in a child that waits until it may go on, with the filter or without.

Between fork(2) and execve(2) the child imports nothing. It has the terminal, the session, the limits and the umask of
the parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import gc
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

from cachec.tracing.filter import install, libc
from cachec.tracing.syscalls import Architecture

#: The terminal sends these to the command too; it decides.
_TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGQUIT)
_FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
#: Python ignores these by itself.
_PYTHON_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 36, 37
_NOT_FOUND = 127

_TRACED, _BARE = b"t", b"b"
_LISTENER, _LISTENER_WITHOUT_PRIVILEGES, _NO_LISTENER = b"L", b"N", b"E"
_NO_PROGRAM, _NO_FOLDER = b"X", b"C"


class StartedCommand(NamedTuple):
    """What is started, and where; as the kernel takes it, so that the child has nothing to check."""

    arguments: list[bytes]
    #: The program as the caller named it.
    name: str
    #: Its paths, which are tried in turn, as execvp(3) does.
    programs: list[bytes]
    environ: dict[bytes, bytes]
    folder: str | None
    #: Descriptors for standard input, output and error; None: as they are; below 0: closed.
    streams: tuple[int | None, int | None, int | None]
    #: What the child calls in place of a program.
    function: Callable[[], None] | None = None

    @classmethod
    def of_call(cls, function: Callable[[], None]) -> StartedCommand:
        """A call in place of a program."""
        name = getattr(function, "__name__", "a call")
        return cls([], name, [], {}, None, (None, None, None), function)

    @classmethod
    def of(
        cls,
        arguments: Sequence[str],
        program: str | None,
        environ: Mapping[str, str],
        folder: str | None,
        streams: tuple[int | None, int | None, int | None],
    ) -> StartedCommand:
        """Find the program, by PATH of ``environ`` where its name has no slash. Raises ValueError, and OSError.

        program: its name; None: the first of the arguments.
        """
        words = [os.fsencode(word) for word in arguments]
        if not words or not words[0]:
            raise ValueError("a command needs a first word that is not empty")
        name = os.fsencode(words[0] if program is None else program)
        variables = {os.fsencode(name): os.fsencode(value) for name, value in environ.items()}
        if any(b"\0" in text for text in (name, *words, *variables, *variables.values())):
            raise ValueError(f"an argument or a variable of {arguments[0]} has a null character in it")
        if any(not name or b"=" in name for name in variables):
            raise ValueError(f"a variable for {arguments[0]} has no name, or one with '=' in it")
        for fd in streams:
            if fd is not None and fd >= 0:
                os.fstat(fd)
        path = variables.get(b"PATH", os.fsencode(os.defpath))
        search = [os.path.join(each or b".", name) for each in path.split(b":")]
        programs = [name] if b"/" in name or not name else search
        return cls(words, os.fsdecode(name), programs, variables, folder, streams)


class NoListener(Exception):
    """The kernel gives no listener. number: errno."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.number = number


#: The commands that run: each is reaped by its own run, and not as what another has left behind.
_running: set[int] = set()


class Child:
    """A command that is about to start: it waits for ``go_bare`` or ``go_traced``."""

    def __init__(
        self,
        command: StartedCommand,
        signals: Signals,
        machine: Architecture | None = None,
        program: bytes = b"",
        token: int = 0,
    ) -> None:
        self._command = command
        self._signals = signals
        self._returncode: int | None = None
        self._socket, theirs = socket.socketpair()
        self._program = ctypes.create_string_buffer(program, len(program))
        #: Where the child has ``program`` in its memory.
        self.program_address = ctypes.addressof(self._program)
        # The child takes a signal once it has its own handlers: ours would lose it there.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*_TERMINAL_SIGNALS, *_FORWARDED_SIGNALS))
        arguments = program, token, signals.in_child(), mask, signals.ends_with_us
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._socket.close()
                _run_child(command, machine, *arguments, theirs)
            finally:
                os._exit(_NOT_FOUND)
        theirs.close()
        _running.add(self.pid)
        signals.send_to(self.pid)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def go_bare(self) -> None:
        self._order(_BARE)

    def _order(self, order: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # it was killed
            self._socket.send(order)

    def go_traced(self) -> tuple[int, bool] | None:
        """Return the listener, and whether the command can't gain privileges; None where a signal has ended it.

        Raises NoListener, and the child has ended then; and OSError where the folder can't be used.
        """
        self._order(_TRACED)
        message, fds, *_ = socket.recv_fds(self._socket, 16, 1)
        if fds:
            return fds[0], message == _LISTENER_WITHOUT_PRIVILEGES
        self.reap()
        if message[:1] == _NO_LISTENER:
            raise NoListener(int(message[1:]))
        self._raise_for(message)
        return None

    def has_ended(self) -> bool:
        """Whether it has ended; ``reap`` does not wait then."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def reap(self) -> int:
        """Wait for its end; return how it ended, as ``subprocess`` says it."""
        if self._returncode is None:
            self._signals.send_to(0)
            _, status = os.waitpid(self.pid, 0)
            self._returncode = os.waitstatus_to_exitcode(status)
            _running.discard(self.pid)
        return self._returncode

    def kill(self) -> None:
        """End it, if it has not ended."""
        if self._returncode is None:
            os.kill(self.pid, signal.SIGKILL)
            self.reap()

    def raise_if_not_started(self) -> None:
        """Raise OSError where there was no program, or no folder, to start. To be called when the child has ended."""
        with self._socket:
            self._raise_for(self._socket.recv(16))

    def _raise_for(self, message: bytes) -> None:
        if message[:1] in {_NO_PROGRAM, _NO_FOLDER}:
            number = int(message[1:])
            at = self._command.folder if message[:1] == _NO_FOLDER else self._command.name
            raise OSError(number, os.strerror(number), at)


class Signals:
    """How this process takes signals while a command runs: those of the terminal not at all, the others are passed on.

    Only the main thread can set that; in another thread all stays as it is.
    """

    def __init__(self, *, ends_with_us: bool = False, owns_group: bool = False) -> None:
        """ends_with_us, owns_group: see ``trace``."""
        self.ends_with_us = ends_with_us
        self._owns_group = owns_group
        self._saved: dict[signal.Signals, Any] = {}
        self._pid = 0
        self._pending: list[int] = []
        #: The last signal that came, whoever took it; 0 for none.
        self.caught = 0

    @contextlib.contextmanager
    def set(self) -> Iterator[Signals]:
        if threading.current_thread() is threading.main_thread():
            for number in (*_TERMINAL_SIGNALS, *_FORWARDED_SIGNALS, signal.SIGCHLD):
                self._set(number, signal.getsignal(number))
        try:
            yield self
        finally:
            for number, before in self._saved.items():
                signal.signal(number, before)

    def _set(self, number: signal.Signals, before: Any) -> None:
        if number in _TERMINAL_SIGNALS and before not in {None, signal.SIG_IGN}:
            is_for_us = self.ends_with_us and not _is_in_foreground()
            self._saved[number] = signal.signal(number, self._forward if is_for_us else self._note)
        elif number in _FORWARDED_SIGNALS and before == signal.SIG_DFL:
            self._saved[number] = signal.signal(number, self._forward)
        elif number == signal.SIGCHLD and before == signal.SIG_IGN:  # then there would be no exit status
            self._saved[number] = signal.signal(number, signal.SIG_DFL)

    def in_child(self) -> dict[int, bool]:
        """Return which signals the command ignores (True), and which it does not, of those that are set here."""
        saved = {int(number): before == signal.SIG_IGN for number, before in self._saved.items()}
        return {**dict.fromkeys(map(int, _PYTHON_SIGNALS), False), **saved}

    def send_to(self, pid: int) -> None:
        """Signals are for this process from now on; 0: for none, as it has ended."""
        self._pid = pid
        while pid and self._pending:
            self._forward(self._pending.pop(), None)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.caught = number

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self._note(number, frame)
        if self._owns_group:
            signal.signal(number, signal.SIG_IGN)  # this process is in the group, too
            os.killpg(0, number)
            signal.signal(number, self._forward)
        if not self._pid:
            self._pending.append(number)
        elif not self._owns_group:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def end_if_pending(self) -> None:
        """End by a signal that came when there was no command to take it. To be called when they are as before."""
        if self.ends_with_us and self._pending:
            os.kill(os.getpid(), self._pending[0])


def _is_in_foreground() -> bool:
    """Whether a terminal sends its signals to the group of this process, which is that of the command: proc(5)."""
    with contextlib.suppress(OSError), open("/proc/self/stat", "rb") as file:
        _, _, group, _, _, foreground, *_ = file.read().rpartition(b")")[2].split()
        return group == foreground
    return True


@contextlib.contextmanager
def subreaper() -> Iterator[None]:
    """Adopt processes after the end of their parent: this process may read their memory (Yama), and reap them."""
    prctl = libc().prctl
    before = ctypes.c_int()
    prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def children() -> set[int]:
    """Return the children of this process; none where the kernel does not list them (CONFIG_PROC_CHILDREN, /proc)."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children", "rb") as file:
                found.update(map(int, file.read().split()))
    return found


def reap_orphans(known: set[int], *, all_end: bool = False) -> None:
    """Reap what has ended of the run, and was left to this process. known: children that are not of the run.

    all_end: wait for each, as all are about to end. Before Linux 6.11 a zombie still uses its filter.
    A process that another thread has started has no filter more than we have.
    """
    for pid in children() - known - _running:
        if _filters(pid) > _filters("self"):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0 if all_end else os.WNOHANG)


def kill_traced() -> bool:
    """Kill the children of this process that have the filter; whether any ran."""
    has_killed = False
    for pid in children():
        if _filters(pid) > _filters("self") and not _is_zombie(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            has_killed = True
    return has_killed


def _is_zombie(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] in {b"Z", b"X"}
    return True


def _filters(pid: int | str) -> int:
    """The number of seccomp filters of a process; 0 where the kernel does not say (before Linux 5.10)."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:
        _, found, rest = file.read().partition(b"\nSeccomp_filters:")
        return int(rest.split(None, 1)[0]) if found else 0
    return 0


def _run_child(
    command: StartedCommand,
    machine: Architecture | None,
    program: bytes,
    token: int,
    signals: Mapping[int, bool],
    mask: set[int],
    ends_with_parent: bool,
    parent: socket.socket,
) -> None:
    """The child, up to execve(2). signals: whether each is ignored. mask: those that are blocked in the command."""
    gc.disable()  # nothing of the parent is to be finalized here
    for number, is_ignored in signals.items():
        signal.signal(number, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if ends_with_parent:  # of one that has ended already there is no order below
        libc().prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    _set_streams(command.streams)
    order = parent.recv(1)
    try:
        if command.folder is not None:
            os.chdir(command.folder)
    except OSError as error:
        parent.send(_NO_FOLDER + b"%d" % (error.errno or 0))
        return
    if order == _TRACED and machine is not None:
        try:
            listener, is_unprivileged = install(machine, program)
        except OSError as error:
            parent.send(_NO_LISTENER + b"%d" % (error.errno or 0))
            return
        kind = _LISTENER_WITHOUT_PRIVILEGES if is_unprivileged else _LISTENER
        _send_listener(machine, parent.fileno(), listener, kind, token)
        os.close(listener)
    elif order != _BARE:
        return  # the parent has ended
    if command.function is not None:
        parent.close()
        gc.enable()
        command.function()
        os._exit(1)
    parent.send(_NO_PROGRAM + b"%d" % _execute(command))


def _execute(command: StartedCommand) -> int:
    """Become the program. Return the errno of why that is not possible, as execvp(3) chooses it."""
    refused = 0
    number = errno.ENOENT
    for program in command.programs:
        try:
            os.execve(program, command.arguments, command.environ)
        except OSError as error:
            number = error.errno or 0
            if number not in {errno.ENOENT, errno.ENOTDIR, errno.EACCES}:
                return number
            refused = refused or (number if number == errno.EACCES else 0)
    return refused or number


def _set_streams(streams: Sequence[int | None]) -> None:
    """Make descriptors 0, 1 and 2 of those that are given, in whatever order these are."""
    copies = [None if fd is None or fd < 0 else fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in streams]
    for number, fd in enumerate(copies):
        if fd is not None:
            os.dup2(fd, number)
        elif streams[number] is not None:
            with contextlib.suppress(OSError):  # it is closed already
                os.close(number)


def _send_listener(machine: Architecture, to: int, listener: int, kind: bytes, token: int) -> None:
    """sendmsg(2) with SCM_RIGHTS, which the filter allows for its token: see unix(7) and cmsg(3)."""
    control = ctypes.create_string_buffer(struct.pack("<QiiiI", 20, socket.SOL_SOCKET, socket.SCM_RIGHTS, listener, 0))
    data = ctypes.create_string_buffer(kind, 1)
    vector = ctypes.create_string_buffer(struct.pack("<QQ", ctypes.addressof(data), 1))
    addresses = ctypes.addressof(vector), 1, ctypes.addressof(control), 24
    header = ctypes.create_string_buffer(struct.pack("<QQQQQQQ", 0, 0, *addresses, 0))
    number = ctypes.c_long(machine.numbers["sendmsg"])
    libc().syscall(number, ctypes.c_long(to), header, ctypes.c_ulong(token << 32))
