"""What a traced process means by a path: its bytes in the memory of the process, and the folder that it starts from.

Sources: process_vm_readv(2), proc(5), path_resolution(7). A thread may change the bytes, or the current folder, between
the report and the use by the kernel: a limit.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re

from cachec.base import tracer_hiding
from cachec.tracing.filter import libc

#: A path relative to this starts from the current folder: ``AT_FDCWD`` of fcntl.h, as an unsigned int.
AT_FDCWD = 0xFFFFFF9C

_REQUESTS = tracer_hiding.REQUESTS.encode()

_PAGE = 4096  # the smallest page of both architectures
_PATH_MAX = 4096
_USUAL = 256  # bytes of a path; more are read if they contain no end
_DELETED = b" (deleted)"
_STANDARD_STREAMS = {b"stdin": b"0", b"stdout": b"1", b"stderr": b"2"}
_DESCRIPTOR = re.compile(
    rb"/+(?:dev/+fd|proc/+(self|thread-self|\d+)/+(?:task/+\d+/+)?fd)/+(\d+)/*|/+dev/+(stdin|stdout|stderr)"
)


class Unreadable(Exception):
    """The memory of a traced process, or its entry in /proc, can't be read: the run is not fully traced."""


class Unresolvable(Exception):
    """A path that the supervisor can't look up: below a folder that was removed, or that it can't reach."""


class NestedRunRequest(Exception):
    """A nested run asks its outer supervisor for something: see ``nested``."""

    def __init__(self, token: bytes, verb: bytes) -> None:
        super().__init__(token, verb)
        self.token = token
        self.verb = verb


class BadAddress(Exception):
    """The call has a pointer that leads nowhere, or the process has ended: the call itself has no effect."""


class ProcessMemory:
    """Reads the memory of traced processes."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(_PAGE + 1)
        self._local = (ctypes.c_size_t * 2)(ctypes.addressof(self._buffer), 0)  # struct iovec
        self._remote = (ctypes.c_size_t * 2)(0, 0)
        readv = libc().process_vm_readv
        readv.argtypes = (
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_ulong,
            ctypes.c_void_p,
            ctypes.c_ulong,
            ctypes.c_ulong,
        )
        readv.restype = ctypes.c_ssize_t
        self._readv = readv
        self._pointers = ctypes.addressof(self._local), ctypes.addressof(self._remote)

    def string(self, pid: int, address: int) -> bytes:
        """Return the bytes up to NUL. Raises BadAddress, and Unreadable."""
        size = min(_USUAL, _PAGE - address % _PAGE)
        found = self._fill(pid, address, size)
        if len(found) < size:
            return found
        text = found
        while len(text) <= _PATH_MAX:
            address += size
            size = _PAGE - address % _PAGE
            found = self._fill(pid, address, size)
            text += found
            if len(found) < size:
                return text
        raise BadAddress  # ENAMETOOLONG

    def read(self, pid: int, address: int, size: int) -> bytes:
        """Return exactly ``size`` bytes, at most a page. Raises BadAddress, and Unreadable."""
        self._fill(pid, address, size)
        return self._buffer.raw[:size]

    def _fill(self, pid: int, address: int, size: int) -> bytes:
        """Read into the buffer; return what is in front of the first NUL."""
        self._local[1] = self._remote[1] = size
        self._remote[0] = address
        local, remote = self._pointers
        got = self._readv(pid, local, 1, remote, 1, 0)
        if got != size:
            number = ctypes.get_errno() if got < 0 else errno.EFAULT
            if number in {errno.EFAULT, errno.ESRCH}:
                raise BadAddress
            self._fill_from_proc(pid, address, size)
        self._buffer[size] = b"\0"
        return self._buffer.value

    def _fill_from_proc(self, pid: int, address: int, size: int) -> None:
        """Read memory in a sandbox without process_vm_readv. Opened each time, as the kernel reuses process numbers."""
        try:
            fd = os.open(b"/proc/%d/mem" % pid, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = os.pread(fd, size, address)
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in {errno.EIO, errno.EFAULT, errno.ENOENT, errno.ESRCH}:
                raise BadAddress from error
            raise Unreadable(f"process {pid}: {error.strerror}") from error
        if len(data) != size:
            raise BadAddress
        ctypes.memmove(self._buffer, data, size)


def locate(supervisor: int, pid: int, descriptor: int, path: bytes) -> tuple[bytes, bytes]:
    """Return the folder that ``path`` starts from (empty where it is absolute) and ``path``, as the process means both.

    supervisor: the process that started the run. descriptor: of the folder, or AT_FDCWD. Both are empty where the path
    is no input: see ``_through_proc``. Raises Unreadable, Unresolvable, BadAddress.
    """
    if path[:1] != b"/":
        folder = current_folder(pid) if descriptor == AT_FDCWD else descriptor_path(pid, descriptor)
        if not folder:
            if b".." in path:
                raise Unresolvable(f"{os.fsdecode(path)}, in a folder that was removed")
            return b"", b""
        if not folder.startswith((b"/proc", b"/dev")):
            return folder, path
        path = folder + b"/" + path
    elif path[1:2] == b"/":
        path = b"/" + path.lstrip(b"/")
    if path.startswith((b"/proc/", b"/dev/")):
        return b"", _through_proc(supervisor, pid, path)
    return b"", path


def current_folder(pid: int) -> bytes:
    """Return the real path of the current folder; empty where it was removed. Raises as ``locate`` does."""
    return _read_link(b"/proc/%d/cwd" % pid)


def descriptor_path(pid: int, descriptor: int) -> bytes:
    """Return the real path of an open file; empty where it has none. Raises as ``locate`` does."""
    return _read_link(b"/proc/%d/fd/%d" % (pid, descriptor))


def _read_link(link: bytes) -> bytes:
    try:
        target = os.readlink(link)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ESRCH}:
            raise BadAddress from error  # EBADF, or the process has ended
        raise Unreadable(f"{os.fsdecode(link)}: {error.strerror}") from error
    if target.startswith(b"(unreachable)"):
        raise Unresolvable(f"{os.fsdecode(link)} leads to {os.fsdecode(target)}")
    if not target.startswith(b"/") or (target.endswith(_DELETED) and not os.path.lexists(target)):
        return b""
    return target


def named_descriptor(pid: int, path: bytes) -> tuple[int, int] | None:
    """Return the process and the number of the descriptor that a path as ``/dev/stdin`` or ``/proc/self/fd/0`` names
    for a process; None for other paths."""
    found = _DESCRIPTOR.fullmatch(path)
    if found is None:
        return None
    owner = int(found[1]) if found[1] is not None and found[1].isdigit() else pid
    return owner, int(found[2] or _STANDARD_STREAMS[found[3]])


def is_below(pid: int, ancestor: int) -> bool:
    """Whether a process, named by one of its threads, descends from ``ancestor``. Raises OSError where it has ended."""
    process, parent = parent_of(pid)
    while process != ancestor and parent:
        if parent == ancestor:
            return True
        process, parent = parent_of(parent)
    return False


def parent_of(pid: int) -> tuple[int, int]:
    """Return the process of a thread, and the parent of that. Raises OSError where it has ended."""
    with open(b"/proc/%d/status" % pid, "rb") as file:
        found = re.search(rb"^Tgid:\s*(\d+)$.*^PPid:\s*(\d+)$", file.read(), re.MULTILINE | re.DOTALL)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def umask_of(pid: int) -> int:
    """Return the mask of new files of a process. Raises BadAddress where it has ended."""
    try:
        with open(b"/proc/%d/status" % pid, "rb") as file:
            found = re.search(rb"^Umask:\s*([0-7]+)$", file.read(), re.MULTILINE)
    except OSError as error:
        raise BadAddress from error
    return int(found[1], 8) if found else 0


def _is_of_run(supervisor: int, pid: int, name: bytes) -> bool:
    """Whether a name in /proc is that of a process of the run, seen by its process ``pid``.

    The keeper counts as one, and so do processes of another run that the same supervisor has at the same time.
    """
    try:
        return not name.isdigit() or int(name) == pid or is_below(int(name), supervisor)
    except OSError:
        return False  # nothing is there


def _through_proc(supervisor: int, pid: int, path: bytes) -> bytes:
    """Follow a link of /proc from a process of the run to a folder or an open file, at the start of an absolute path.

    Return the path as it is where it leads elsewhere, also to a process that is not of the run. Return an empty one
    for a pipe, for what is not in the file system any more, and for all else in the folder of a process of the run:
    that differs in each run, as times do.
    """
    names = [name for name in path.split(b"/") if name not in {b"", b"."}]
    if names[0] == b"dev":
        if len(names) == 2 and names[1] in _STANDARD_STREAMS:
            names = [b"proc", b"self", b"fd", _STANDARD_STREAMS[names[1]]]
        elif len(names) > 2 and names[1] == b"fd":
            names = [b"proc", b"self", *names[1:]]
        else:
            return path
    if path.startswith(_REQUESTS) and len(names) == 4:
        raise NestedRunRequest(*names[2:])
    if len(names) < 2 or not (names[1].isdigit() or names[1] in {b"self", b"thread-self"}):
        return path
    if not _is_of_run(supervisor, pid, names[1]):
        return path
    if not names[1].isdigit():
        names[1] = b"%d" % pid
    link = 4 if names[2:3] == [b"task"] else 2
    end = link + (2 if names[link : link + 1] == [b"fd"] else 1)
    if b".." in names[:end]:
        raise Unresolvable(os.fsdecode(path))
    if len(names) < end or names[link] not in {b"cwd", b"root", b"exe", b"fd"}:
        return b""
    target = _read_link(b"/" + b"/".join(names[:end]))
    return os.path.join(target, *names[end:]) if target else b""
