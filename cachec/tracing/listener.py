"""The listener of a filter: receives reports of calls, and lets each call go on.

Source: seccomp_unotify(2), ``include/uapi/linux/seccomp.h``. The report lies in memory that is shared with the keeper,
a process that holds the listener too. Where the supervisor is killed, the keeper answers the report that was not
answered, and all later ones: a call without a listener fails with ENOSYS.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import mmap
import os
import select
import signal
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

from cachec.tracing.filter import libc

_RECEIVE, _SEND, _SET_FLAGS = 0xC0502100, 0xC0182101, 0x40082104  # SECCOMP_IOCTL_NOTIF_*
_SYNC_WAKE_UP = 1  # SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP, Linux 6.6
_CONTINUE = 1  # SECCOMP_USER_NOTIF_FLAG_CONTINUE, Linux 5.5

_ADD_FD, _ADD_FD_AND_SEND = 0x40182103, 2  # SECCOMP_IOCTL_NOTIF_ADDFD, SECCOMP_ADDFD_FLAG_SEND

#: ``struct seccomp_notif_addfd``: id, flags, descriptor here, descriptor there, its flags.
_ADDITION = struct.Struct("<QIIII")
#: ``struct seccomp_notif``: id, pid, flags, and ``struct seccomp_data``: number, architecture, address, arguments.
_REPORT = struct.Struct("<QIIiIQ6Q")
#: ``struct seccomp_notif_resp``: id, value, error, flags.
_ANSWER = struct.Struct("<QqiI")
_ANSWER_AT = 128
_ZEROS = bytes(_REPORT.size)


class SeccompListener:
    """One listener, in the supervisor or in its keeper."""

    def __init__(self, fd: int, page: mmap.mmap) -> None:
        """page: of the keeper."""
        self.fd = fd
        self._shared = page
        _ANSWER.pack_into(self._shared, _ANSWER_AT, 0, 0, 0, _CONTINUE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._shared))
        self._report, self._answer = start, start + _ANSWER_AT
        self._ioctl = libc().ioctl
        self._ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)
        with suppress(OSError):
            fcntl.ioctl(fd, _SET_FLAGS, _SYNC_WAKE_UP)

    def close(self) -> None:
        """Close it in this process."""
        os.close(self.fd)

    def receive(self) -> tuple[int, int, int, int, int, int, int, int, int, int, int, int] | None:
        """Return a report: id, thread, flags, number, architecture, address and six arguments.

        None where the call was interrupted, or its thread has ended, since ``poll`` said that there is one.
        """
        self._shared[: _REPORT.size] = _ZEROS
        if self._ioctl(self.fd, _RECEIVE, self._report):
            return None
        return _REPORT.unpack_from(self._shared)

    def answer(self, report: int) -> bool:
        """Let the call go on. False where its thread does not wait any more: nothing that was read counts then."""
        self._shared[_ANSWER_AT : _ANSWER_AT + 8] = report.to_bytes(8, "little")
        while self._ioctl(self.fd, _SEND, self._answer):
            if ctypes.get_errno() != errno.EINTR:  # by a signal to this process; the thread waits still
                return False
        return True

    def answer_with(self, report: int, fd: int) -> None:
        """Let the call return a copy of ``fd``, in place of what the kernel would do (Linux 5.14)."""
        with suppress(OSError):  # it is answered then as any other call, or has ended
            fcntl.ioctl(self.fd, _ADD_FD, _ADDITION.pack(report, _ADD_FD_AND_SEND, fd, 0, os.O_CLOEXEC))
        self.answer(report)

    def answer_all(self) -> None:
        """Let all calls go on, the one that was received last too, until the last process with the filter has ended."""
        self.answer(int.from_bytes(self._shared[:8], "little"))
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        while True:
            for _, event in poller.poll():
                if not event & select.POLLIN:
                    return
                report = self.receive()
                if report is not None:
                    self.answer(report[0])


class Keeper:
    """A second process with the listener of a run. It takes over if this one is killed, or when asked to.

    One keeper serves any number of runs, one after the other.
    """

    def __init__(self) -> None:
        #: Memory that both processes see.
        self.page = mmap.mmap(-1, mmap.PAGESIZE)
        self._socket, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _keep(theirs, self.page)
            finally:
                os._exit(1)
        theirs.close()

    def hold(self, listener: SeccompListener) -> None:
        """Give it the listener of a run."""
        with suppress(BrokenPipeError):  # it was killed: the run goes on, as long as this process does
            socket.send_fds(self._socket, [b"h"], [listener.fd])

    def let_go(self) -> None:
        """Have it close that: the last process with the filter has ended."""
        with suppress(BrokenPipeError):
            self._socket.send(b"l")

    def dismiss(self) -> None:
        """End it, where it holds no listener."""
        if self._socket.fileno() < 0:
            return  # it has taken over
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._socket.close()

    def take_over(self, at_end: Callable[[], object]) -> None:
        """Have it answer from now on. When the last process has ended, it is reaped, and a thread calls ``at_end``. It
        serves no other run."""

        def wait() -> None:
            os.waitpid(self.pid, 0)
            at_end()

        self._socket.close()
        threading.Thread(target=wait, daemon=True).start()


def _keep(connection: socket.socket, page: mmap.mmap) -> None:
    """The whole life of the keeper."""
    gc.disable()  # nothing of the parent is to be finalized here
    os.chdir("/")
    with suppress(PermissionError):  # it has one
        os.setsid()  # signals of the terminal are for the command
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    os.dup2(connection.fileno(), 0)
    os.closerange(1, os.sysconf("SC_OPEN_MAX"))
    connection = socket.socket(fileno=0)
    received: list[int] = []
    while True:  # until the parent closes its end, or is killed
        order, fds, *_ = socket.recv_fds(connection, 1, 1)
        received += fds
        if not order:
            break
        if order == b"l":
            os.close(received.pop())
    if received:
        SeccompListener(received[0], page).answer_all()
    os._exit(0)
