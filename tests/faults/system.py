"""Runs a function in a forked process whose system calls are watched, and one of which fails, or kills it.

By seccomp's user notification (seccomp_unotify(2), Linux 5.5): the kernel asks the parent before each call, which lets
it go on or answers an error in its place. As with ``strace -e inject``, all calls are seen, of SQLite, of Rust and
of children too; but nothing is started, so a run takes milliseconds. Calls of a program that the process has started
by ``execve`` are its own affair, and pass.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import platform
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple

#: The calls that name a file or a descriptor or make a process, with their numbers on x86-64. What is left out gives
#: memory, signals, time and numbers of processes.
CALLS = {
    number: name
    for name, number in (
        *(("read", 0), ("write", 1), ("open", 2), ("close", 3), ("stat", 4), ("fstat", 5), ("lstat", 6), ("poll", 7)),
        *(("lseek", 8), ("mmap", 9), ("ioctl", 16), ("pread64", 17), ("pwrite64", 18), ("readv", 19), ("writev", 20)),
        *(("access", 21), ("pipe", 22), ("select", 23), ("msync", 26), ("dup", 32), ("dup2", 33), ("sendfile", 40)),
        *(("clone", 56), ("fork", 57), ("vfork", 58), ("execve", 59), ("wait4", 61), ("fcntl", 72), ("flock", 73)),
        *(("fsync", 74), ("fdatasync", 75), ("truncate", 76), ("ftruncate", 77), ("getdents", 78), ("getcwd", 79)),
        *(("chdir", 80), ("fchdir", 81), ("rename", 82), ("mkdir", 83), ("rmdir", 84), ("creat", 85), ("link", 86)),
        *(("unlink", 87), ("symlink", 88), ("readlink", 89), ("chmod", 90), ("fchmod", 91), ("chown", 92)),
        *(("fchown", 93), ("lchown", 94), ("utime", 132), ("statfs", 137), ("fstatfs", 138), ("setxattr", 188)),
        *(("getxattr", 191), ("getdents64", 217), ("fadvise64", 221), ("utimes", 235), ("waitid", 247)),
        *(("openat", 257), ("mkdirat", 258), ("fchownat", 260), ("newfstatat", 262), ("unlinkat", 263)),
        *(("renameat", 264), ("linkat", 265), ("symlinkat", 266), ("readlinkat", 267), ("fchmodat", 268)),
        *(("faccessat", 269), ("ppoll", 271), ("utimensat", 280), ("fallocate", 285), ("dup3", 292), ("pipe2", 293)),
        *(("preadv", 295), ("pwritev", 296), ("renameat2", 316), ("memfd_create", 319), ("execveat", 322)),
        *(("copy_file_range", 326), ("statx", 332), ("clone3", 435), ("close_range", 436), ("faccessat2", 439)),
    )
}
#: Seen where a run is to be awake: not made, but said to be over.
_SLEEPS = (35, 230)  # nanosleep, clock_nanosleep
#: What starts processes and programs.
STARTS = frozenset({"clone", "fork", "vfork", "clone3", "execve", "execveat"})
_MMAP, _CLOSE = 9, 3
_EXECUTES = frozenset({59, 322})
_ANONYMOUS = 0x20

#: Seconds after which a process is stuck.
PATIENCE = 60.0

_SECCOMP = 317
_SET_MODE_FILTER, _NEW_LISTENER = 1, 8
_NO_NEW_PRIVS = 38
_RECV, _SEND, _SET_FLAGS = 0xC0502100, 0xC0182101, 0x40082104
#: Of ``struct seccomp_notif``: id, pid, nr, and the fourth argument.
_NOTICE = struct.Struct("=QI4xi36xQ")
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_CONTINUE = 1
#: How often the place in the code has changed, and its digest.
_PLACE = struct.Struct("=Q16s")


@cache
def unavailable() -> str:
    """Why calls can't be watched here; empty where they can."""
    if platform.machine() != "x86_64":
        return f"the numbers of system calls are those of x86-64, this is {platform.machine()}"
    try:
        watched(lambda: 0, None)
    except OSError as error:
        return f"seccomp's notification: {error}"
    return ""


class At(NamedTuple):
    """The call that fails: the how manieth of them all, or of those of a name, from 1, and the errno that it returns;
    0 kills the process."""

    number: int
    error: int
    name: str = ""


class Watched(NamedTuple):
    """status: as of ``subprocess``, None where it was stuck and was killed. calls: all that were made, or those of the
    name. struck: the call that failed, None where there were not so many. seconds: of wall time. slept: how often it
    would have, if awake. sites: of each call the place in the code, if asked."""

    status: int | None
    calls: tuple[str, ...]
    struck: str | None
    seconds: float
    slept: int = 0
    sites: tuple[str, ...] = ()


class Sites:
    """From where each call of a run is made: by the lines of all Python functions that run then, the function of C that
    the innermost calls, and the how manieth of its name it is since that began. Two calls from one site are the same
    code in the same state but for the data: turns of a loop."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, _PLACE.size)
        self._turn, self._within = -1, Counter[int]()

    def run(self, body: Callable[[], int]) -> int:
        """In the child: run it, telling where it is."""
        turn = 0

        def note(frame: FrameType | None, event: str, given: object) -> None:
            nonlocal turn
            turn += 1
            place = [getattr(given, "__qualname__", "")] if event.startswith("c_") else []
            while frame is not None:
                place.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
                frame = frame.f_back
            _PLACE.pack_into(self._shared, 0, turn, hashlib.blake2b("\n".join(place).encode(), digest_size=16).digest())

        sys.setprofile(note)
        try:
            return body()
        finally:
            sys.setprofile(None)

    def now(self, call: int) -> str:
        """In the parent, while the child waits in a call: its site."""
        turn, place = _PLACE.unpack_from(self._shared)
        if turn != self._turn:
            self._turn, self._within = turn, Counter()
        self._within[call] += 1
        return f"{CALLS[call]} {self._within[call]} of {place.hex()}"


def _program(numbers: Iterable[int]) -> bytes:
    """BPF: notify of these calls, let others pass."""
    numbers = list(numbers)
    code = [struct.pack("=HBBI", 0x20, 0, 0, 0)]  # the number of the call
    for at, number in enumerate(numbers):
        code.append(struct.pack("=HBBI", 0x15, len(numbers) - at, 0, number))  # equal: to the end
    code.append(struct.pack("=HBBI", 0x06, 0, 0, _ALLOW))
    code.append(struct.pack("=HBBI", 0x06, 0, 0, _NOTIFY))
    return b"".join(code)


def _listen(channel: socket.socket, program_text: bytes) -> None:
    """In the child: from now on its calls are watched by who has the other end of the channel."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(program_text, len(program_text))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(program_text) // 8, ctypes.addressof(code)))
    libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    fd = libc.syscall(_SECCOMP, _SET_MODE_FILTER, _NEW_LISTENER, program)
    if fd < 0:
        code = ctypes.get_errno()
        os.write(channel.fileno(), b"!")
        os._exit(code)
    socket.send_fds(channel, [b"x"], [fd])
    os.close(fd)  # the first call that is seen


_PROGRAM, _AWAKE = _program(CALLS), _program([*CALLS, *_SLEEPS])


def watched(
    body: Callable[[], int],
    at: At | None,
    patience: float = PATIENCE,
    *,
    before: Callable[[], object] = lambda: None,
    awake: bool = False,
    sites: Sites | None = None,
) -> Watched:
    """Run ``body`` in a child, which ends with what it returns, or with 1 and a traceback. before: called in the child
    first, unwatched. awake: it never sleeps, and goes on at once. sites: are noted, if there are any. Raises OSError
    where calls can't be watched."""
    named = [number for number, name in CALLS.items() if at is not None and name == at.name]
    program = _program({*named, *_EXECUTES}) if named else _AWAKE if awake else _PROGRAM
    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        status = 1
        try:
            ours.close()
            before()
            _listen(theirs, program)
            status = sites.run(body) if sites else body()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    theirs.close()
    with ours:
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    if not fds:
        raise OSError(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "no listener")
    with suppress(OSError):  # before Linux 6.6: whoever is woken runs where the other one was, who now waits
        fcntl.ioctl(fds[0], _SET_FLAGS, 1)
    try:
        return _serve(fds[0], child, at, patience, named or CALLS, sites)
    finally:
        os.close(fds[0])


def _serve(
    listener: int, child: int, at: At | None, patience: float, counted: Collection[int], sites: Sites | None
) -> Watched:
    """Answer what the kernel asks until all have ended. In a run of a thousand calls this loop is most of the cost."""
    calls: list[int] = []
    struck, slept = None, 0
    ours = _Ours()
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    ended = os.pidfd_open(child)
    poll.register(ended, select.POLLIN)
    started = time.monotonic()
    status: int | None = None
    is_first, is_alive, is_stuck = _CLOSE in counted, True, False
    number, error, _ = at or At(-1, 0)
    places: list[str] = []
    try:
        while True:
            ready = poll.poll(max(0.0, started + patience - time.monotonic()) * 1000)
            if not ready:
                is_stuck = True
                os.kill(child, signal.SIGKILL)
                patience += 5
                if patience > 3 * PATIENCE:
                    seconds = time.monotonic() - started
                    break
                continue
            if (listener, select.POLLIN) in ready:
                found = _received(listener)
                if found is None:
                    continue
                notice, caller, call, flags = found
                answer = 0
                if call in _SLEEPS:
                    slept += 1
                    _answer(listener, notice, 0, made=False)
                    continue
                if is_first:
                    is_first = False
                elif not (call == _MMAP and flags & _ANONYMOUS) and ours.has(caller, call) and call in counted:
                    calls.append(call)
                    if sites:
                        places.append(sites.now(call))
                    if len(calls) == number:
                        struck = CALLS[call]
                        if error:
                            answer = error
                        else:
                            os.kill(child, signal.SIGKILL)
                _answer(listener, notice, answer)
                continue
            events = dict(ready)
            if ended in events and is_alive:
                is_alive = False
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                seconds = time.monotonic() - started
                poll.unregister(ended)
            elif events.get(listener, 0) & select.POLLHUP and not is_alive:
                break
            elif events.get(listener, 0) & select.POLLHUP:
                poll.unregister(listener)  # all that is left is that the child is reaped
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                seconds = time.monotonic() - started
                break
    finally:
        os.close(ended)
    names = tuple(CALLS[call] for call in calls)
    return Watched(None if is_stuck else status, names, struck, seconds, slept, tuple(places))


class _Ours:
    """Which processes are copies of this one, which have executed no other program."""

    def __init__(self) -> None:
        self._own = Path("/proc/self/cmdline").read_bytes()
        self._known: dict[int, bool] = {}

    def has(self, caller: int, call: int) -> bool:
        """Whether the process is one; this call of it may be the last of which that is so."""
        if caller not in self._known:
            try:
                self._known[caller] = Path(f"/proc/{caller}/cmdline").read_bytes() == self._own
            except OSError:
                return False
        return self._known.pop(caller) if call in _EXECUTES else self._known[caller]


def _received(listener: int) -> tuple[int, int, int, int] | None:
    """The number of the notice, who calls, what, and the fourth argument (of mmap its flags)."""
    buffer = bytearray(80)
    try:
        fcntl.ioctl(listener, _RECV, buffer)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.EINTR}:  # killed meanwhile
            return None
        raise
    found: tuple[int, int, int, int] = _NOTICE.unpack_from(buffer)
    return found


def _answer(listener: int, notice: int, error: int, *, made: bool = True) -> None:
    reply = struct.pack("=QqiI", notice, 0, -error, _CONTINUE if made and not error else 0)
    try:
        fcntl.ioctl(listener, _SEND, bytearray(reply))
    except OSError as refused:
        if refused.errno != errno.ENOENT:  # killed meanwhile
            raise
