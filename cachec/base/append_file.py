"""A file that takes whole records at its end, by one ``write`` each. Imports nothing: the launcher uses it."""

import errno
import os
import stat


class Appender:
    """A regular file to append whole records to. It is closed with its last reference.

    A thread that replaces the appender of a log (a new day) must not close a descriptor that another one is about to
    write to, so closing is left to the reference count: no lock, which a fork could leave held.
    """

    def __init__(self, path: str) -> None:
        self.fd = -1  # for __del__, where open fails
        self.path = path
        # A link at the end would let whoever made it choose the file; to open a FIFO would wait for its reader.
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            self.fd = os.open(path, flags)
        except FileNotFoundError:
            shared = stat.S_ISGID | stat.S_IWGRP  # as fsio.is_shared
            if os.stat(os.path.dirname(path) or ".").st_mode & shared == shared:
                make_shared_file(path, 0o660)
            self.fd = os.open(path, flags | os.O_CREAT, 0o600)
        status = os.fstat(self.fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        self._place = (status.st_dev, status.st_ino)
        if status.st_size and os.pread(self.fd, 1, status.st_size - 1) != b"\n":
            os.write(self.fd, b"\n")  # a torn last line (power cut, full disk) must not swallow the next record

    def append(self, line: bytes) -> bool:
        """Append a record by one write; whether all of it fitted. Raises OSError."""
        return os.write(self.fd, line) == len(line)

    def is_replaced(self) -> bool:
        """Whether the path no longer leads to this file."""
        try:
            status = os.stat(self.path)
        except OSError:
            return True
        return (status.st_dev, status.st_ino) != self._place

    def disown(self) -> None:
        """After a fork: a child that made itself a daemon may have closed the descriptor, and used its number again."""
        try:
            status = os.fstat(self.fd)
        except OSError:
            self.fd = -1
            return
        if (status.st_dev, status.st_ino) != self._place:
            self.fd = -1

    def __del__(self, close=os.close) -> None:  # type: ignore[no-untyped-def]  # Callable would have to be imported
        if self.fd >= 0:
            try:
                close(self.fd)
            except OSError:
                return  # Python would only print it, and each write has raised its own error


def make_shared_file(path: str, mode: int, *, is_new: bool = False) -> None:
    """Make an empty file that has its mode from the moment that it has its name: others of a group may be waiting.

    One that is there stays. is_new: raise FileExistsError for that. Raises OSError.
    """
    if not is_new and os.path.lexists(path):
        return
    staged = f"{path}.new-{os.getpid()}-{os.urandom(8).hex()}"
    fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(fd, mode)
        os.link(staged, path)
    except FileExistsError:
        if is_new:
            raise
    finally:
        os.unlink(staged)
        os.close(fd)


def create_once(path: str) -> bool:
    """Make an empty file; return whether it is new. Raises OSError."""
    shared = stat.S_ISGID | stat.S_IWGRP  # as fsio.is_shared
    try:
        if os.stat(os.path.dirname(path)).st_mode & shared == shared:
            make_shared_file(path, 0o660, is_new=True)
        else:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    except FileExistsError:
        return False
    return True
