"""One line at the end of a program: how many calls hit and missed, in it and in the processes that it started.

The first process holds a file without a name, and tells the others by a variable where it is. Each writes a line of it
a call, at once: a worker of ``multiprocessing`` ends without another word.
"""

import atexit
import os
import sys

from cachec_startup.recorded import is_recorded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cachec.model import Outcome

#: Where the file is, for the processes that this one starts.
_VARIABLE = "CACHEC_CALLS_FILE"

#: The file has the first free descriptor from here on: the program's own files have the numbers that they would have.
_FIRST_DESCRIPTOR = 200


def start() -> None:
    """Find the file of the process that started this one; where there is none, make it, and print the line at exit."""
    calls = CallsFile(os.environ.get(_VARIABLE, ""))
    if not calls.is_there():
        calls = CallsFile.made()
        os.environ[_VARIABLE] = calls.place
        atexit.register(_print, calls, os.getpid())


def listen(module: str) -> None:
    """Count the calls of this process. module: ``cachec.base.call_hooks``, which has just been imported."""
    sys.modules[module].listen(count)


def count(outcome: "Outcome") -> None:
    """Write a call to the file, unless the cache was not asked."""
    if outcome.reason.counts_in_rate and not is_recorded():
        saved = outcome.saved - outcome.seconds if outcome.hit else 0.0
        CallsFile(os.environ.get(_VARIABLE, "")).append(f"{outcome.reason.kind} {saved:.6f}\n".encode())


class CallsFile:
    """The file. place: ``PATH DEVICE INODE``; the path leads to a descriptor, whose number may be another file's by now."""

    def __init__(self, place: str) -> None:
        self.place = place

    @classmethod
    def made(cls) -> "CallsFile":
        """A new one, which this process holds as long as it lives."""
        from fcntl import F_DUPFD_CLOEXEC, fcntl

        lowest = os.memfd_create("cachec-calls")
        fd = fcntl(lowest, F_DUPFD_CLOEXEC, _FIRST_DESCRIPTOR)
        os.close(lowest)
        status = os.fstat(fd)
        return cls(f"/proc/{os.getpid()}/fd/{fd} {status.st_dev} {status.st_ino}")

    def is_there(self) -> bool:
        """Whether it can be opened."""
        fd = self._opened()
        if fd is not None:
            os.close(fd)
        return fd is not None

    def append(self, line: bytes) -> None:
        """Add a line. Nothing where the process that holds the file has ended: nobody waits for it."""
        fd = self._opened()
        if fd is not None:
            os.write(fd, line)
            os.close(fd)

    def lines(self) -> list[bytes]:
        """All lines."""
        fd = self._opened()
        if fd is None:
            return []
        with open(fd, "rb") as file:
            return file.read().splitlines()

    def _opened(self) -> int | None:
        """A descriptor of its own; None where it is not there."""
        path, _, identity = self.place.partition(" ")
        try:
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            return None
        status = os.fstat(fd)
        if f"{status.st_dev} {status.st_ino}" == identity:
            return fd
        os.close(fd)
        return None


def _print(calls: CallsFile, pid: int) -> None:
    """Write the line to stderr; nothing where nothing was asked, with ``log = off``, and in a fork of the process."""
    lines = [line.split() for line in calls.lines()] if os.getpid() == pid else []
    if not lines:
        return
    from cachec import config
    from cachec.errors import CachecError
    from cachec.report import gain

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
    saved = gain(sum(float(seconds) for _, seconds in lines))
    print(f"cachec: {', '.join(told)}; saved {saved}", file=sys.stderr)  # noqa: T201
