"""One line at the end of a program: how many calls hit and missed, in it and in the processes that it started.

The first process holds a file without a name, of which the others know by its descriptor, as no variable may say where
it is: stages can depend on variables. Each process writes a line of it a call, at once: a worker of
``multiprocessing`` ends without another word.
"""

import atexit
import os
import sys

from cachec_startup.messages import write_line
from cachec_startup.own_process import is_own_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cachec.model import Outcome

#: The file's name, as the kernel has it of its descriptor.
_NAME = "cachec-calls"

#: Its descriptor. The program's own files have the numbers that they would have without it.
_DESCRIPTOR = 200


def start() -> "Callable[[str], None]":
    """Find the file of the processes that started this one; where there is none, make it, and print the line at exit.

    Returns what counts the calls of this process, given the name of the module that tells of them, once imported.
    """
    calls = _of_ancestors()
    if calls is None:
        calls = _made()
        atexit.register(_print, calls, os.getpid())

    def count(outcome: "Outcome") -> None:
        if outcome.reason.counts_in_rate and not is_own_process():
            saved = outcome.saved - outcome.seconds if outcome.hit else 0.0
            calls.append(f"{outcome.reason.kind} {saved:.6f}\n".encode())

    return lambda module: sys.modules[module].listen(count)


class CallsFile:
    """The file, by the path of a process's descriptor, whose number may be another file's by now."""

    def __init__(self, path: str, inode: int) -> None:
        self._path = path
        self._inode = inode

    def append(self, line: bytes) -> None:
        """Add a line. Nothing where the process that holds the file has ended: nobody waits for it."""
        fd = self._opened(os.O_WRONLY | os.O_APPEND)
        if fd is not None:
            os.write(fd, line)
            os.close(fd)

    def lines(self) -> list[bytes]:
        """All lines; none where it is not there."""
        fd = self._opened(os.O_RDONLY)
        if fd is None:
            return []
        with open(fd, "rb") as file:
            return file.read().splitlines()

    def _opened(self, mode: int) -> int | None:
        """A descriptor; None where it is not there."""
        try:
            fd = os.open(self._path, mode | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            return None
        if os.fstat(fd).st_ino == self._inode:
            return fd
        os.close(fd)
        return None


def _of_ancestors() -> CallsFile | None:
    """The file of the first of the processes that this one descends from; None where they have none."""
    found = None
    for path in _descriptors():
        try:
            if os.readlink(path).startswith(f"/memfd:{_NAME} "):
                found = CallsFile(path, os.stat(path).st_ino)
        except OSError:  # nothing is there, or another user's process
            continue
    return found


def _descriptors() -> "Iterator[str]":
    """Where the file would be, in each process that this one descends from."""
    pid = str(os.getppid())
    while pid != "0":
        yield f"/proc/{pid}/fd/{_DESCRIPTOR}"
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = file.read().rpartition(b")")[2].split()[1].decode()
        except OSError:  # it has just ended
            return


def _made() -> CallsFile:
    """A new one, which this process holds as long as it lives."""
    from fcntl import F_DUPFD_CLOEXEC, fcntl

    lowest = os.memfd_create(_NAME)
    fd = fcntl(lowest, F_DUPFD_CLOEXEC, _DESCRIPTOR)
    os.close(lowest)
    return CallsFile(f"/proc/{os.getpid()}/fd/{fd}", os.fstat(fd).st_ino)


def _print(calls: CallsFile, pid: int) -> None:
    """Write the line to stderr; nothing where nothing was asked, with ``log = off``, and in a fork of the process."""
    lines = [line.split() for line in calls.lines()] if os.getpid() == pid else []
    if not lines:
        return
    from cachec import config
    from cachec.errors import CachecError
    from cachec.report import gain, period

    try:
        if config.load({}).log == "off":
            return
    except CachecError:
        pass  # settings that can't be read were reported to whoever asked the cache
    kinds = [kind.decode() for kind, _ in lines]
    hits, misses, bypasses = (kinds.count(kind) for kind in ("hit", "miss", "bypass"))
    told = [f"{hits} hit{'s' * (hits != 1)}", f"{misses} miss{'es' * (misses != 1)}"]
    if bypasses:
        told.append(f"{bypasses} not stored")
    saved = sum(float(seconds) for _, seconds in lines)
    words = f"saved {period(saved)}" if saved >= 0 else gain(saved)
    write_line(f"{', '.join(told)}; {words}")
