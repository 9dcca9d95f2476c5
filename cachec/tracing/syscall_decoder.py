"""What each reported system call means: its arguments, as lookups and changes.

Arguments: the manual page of each call; flags: ``include/uapi/linux/fcntl.h``, ``openat2.h`` and ``fs.h``.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import struct
from collections.abc import Callable, Mapping
from functools import partial

from cachec.tracing.accesses import Kind, TraceProblemKind
from cachec.tracing.process_paths import (
    AT_FDCWD,
    BadAddress,
    ProcessMemory,
    Unreadable,
    Unresolvable,
    descriptor_path,
    locate,
    named_descriptor,
    umask_of,
)
from cachec.tracing.recorder import STATELESS_DEVICES, AccessRecorder, Commit
from cachec.tracing.syscalls import READS_DESCRIPTOR, WRITES_DESCRIPTOR

#: Takes the thread and the arguments of a call; returns what is to be recorded once it goes on.
Handler = Callable[[int, tuple[int, ...]], Commit | None]

_NOFOLLOW, _REMOVE_FOLDER, _FOLLOW, _EMPTY_PATH = 0x100, 0x200, 0x400, 0x1000  # AT_*
_RENAME_EXCHANGE = 2
_RESOLVE_IN_ROOT = 0x10
_SA_RESTART = 0x10000000
_CREAT = os.O_CREAT | os.O_WRONLY | os.O_TRUNC  # of creat(2)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_NO_CONTENT = os.O_PATH | os.O_DIRECTORY  # O_TMPFILE has the latter
_STATUS, _CONTENT = Kind.STATUS, Kind.CONTENT

#: Families of sockets within the kernel: AF_UNSPEC (ends a connection), AF_NETLINK, AF_ALG.
_KERNEL_FAMILIES = frozenset({0, 16, 38})

#: Lookups by name: position of the descriptor, of the path, and of the flags (None: there is none; True and False: a
#: link at the end is followed, and is not), and the kind.
_LOOKUPS: Mapping[str, tuple[int | None, int, int | bool, int]] = {
    "stat": (None, 0, True, Kind.STATUS),
    "lstat": (None, 0, False, Kind.STATUS),
    "newfstatat": (0, 1, 3, Kind.STATUS),
    "statx": (0, 1, 2, Kind.STATUS),
    "statfs": (None, 0, True, Kind.STATUS),
    "access": (None, 0, True, Kind.STATUS),
    "faccessat": (0, 1, True, Kind.STATUS),
    "faccessat2": (0, 1, 3, Kind.STATUS),
    "readlink": (None, 0, False, Kind.STATUS),
    "readlinkat": (0, 1, False, Kind.STATUS),
    "chdir": (None, 0, True, Kind.STATUS),
    "inotify_add_watch": (None, 1, True, Kind.STATUS),
    "name_to_handle_at": (0, 1, False, Kind.STATUS),
    "getxattr": (None, 0, True, Kind.ATTRIBUTES),
    "lgetxattr": (None, 0, False, Kind.ATTRIBUTES),
    "listxattr": (None, 0, True, Kind.ATTRIBUTES),
    "llistxattr": (None, 0, False, Kind.ATTRIBUTES),
    "getxattrat": (0, 1, 2, Kind.ATTRIBUTES),
    "listxattrat": (0, 1, 2, Kind.ATTRIBUTES),
    "file_getattr": (0, 1, 4, Kind.ATTRIBUTES),
}

#: The same of calls that set owner, mode, times or extended attributes.
_ATTRIBUTES: Mapping[str, tuple[int | None, int, int | bool]] = {
    "chmod": (None, 0, True),
    "fchmodat": (0, 1, True),
    "fchmodat2": (0, 1, 3),
    "chown": (None, 0, True),
    "lchown": (None, 0, False),
    "fchownat": (0, 1, 4),
    "utime": (None, 0, True),
    "utimes": (None, 0, True),
    "futimesat": (0, 1, True),
    "utimensat": (0, 1, 3),
    "setxattr": (None, 0, True),
    "lsetxattr": (None, 0, False),
    "removexattr": (None, 0, True),
    "lremovexattr": (None, 0, False),
    "setxattrat": (0, 1, 2),
    "removexattrat": (0, 1, 2),
    "file_setattr": (0, 1, 4),
}

#: Positions of the descriptor and the path of calls that make one name.
_MAKES = {
    "mkdir": (None, 0),
    "mkdirat": (0, 1),
    "mknod": (None, 0),
    "mknodat": (0, 1),
    "symlink": (None, 1),
    "symlinkat": (1, 2),
}

_NAMESPACE_CALLS = ["chroot", "unshare", "setns", "mount", "umount2", "pivot_root", "move_mount", "open_tree", "clone"]

#: Requests of ioctl(2), from ``include/uapi/asm-generic/ioctls.h``.
_FIONREAD, _TIOCGWINSZ = 0x541B, 0x5413

#: Programs of GCC. They ask for the width of messages on a terminal, and their messages go to none.
_GCC = re.compile(r"(.*-)?(gcc|g\+\+|cpp|gfortran|cc1|cc1plus|f951|lto1|lto-wrapper)(-[\d.]+)?")

#: Calls that set identities of a process, and how many arguments of them are such.
_SET_USERS = {"setuid": 1, "setfsuid": 1, "setreuid": 2, "setresuid": 3}
_SET_GROUPS = {"setgid": 1, "setfsgid": 1, "setregid": 2, "setresgid": 3}
_UNCHANGED = 0xFFFFFFFF

#: ``include/uapi/linux/seccomp.h`` and ``bpf_common.h``.
_BPF_RETURN, _ACTION, _TRACE = 0x06, 0xFFFF0000, 0x7FF00000

#: Bytes of another process's memory that are read at once.
_PIECE = 4096

#: Descriptors at which shells keep what they redirect (POSIX.1-2024, Shell Command Language, 2.7).
_SAVED_FROM = 10

_UNSUPPORTED_CALLS = ("open_by_handle_at", "uselib")


class SyscallDecoder:
    """The handlers of one run."""

    def __init__(
        self,
        recorder: AccessRecorder,
        memory: ProcessMemory,
        numbers: Mapping[str, int],
        supervisor: int,
        given: Mapping[int, os.stat_result | None],
    ) -> None:
        """supervisor: the process that started the run. given: standard input and other descriptors that the run was
        given; None where it is not known what one is."""
        self._recorder = recorder
        self._given = given
        self._supervisor = supervisor
        self._memory = memory
        self._abstract_sockets: set[bytes] = set()
        named: dict[str, Handler] = {
            "open": lambda pid, a: self._open(pid, AT_FDCWD, a[0], a[1], a[2]),
            "creat": lambda pid, a: self._open(pid, AT_FDCWD, a[0], _CREAT, a[1]),
            "openat": lambda pid, a: self._open(pid, a[0], a[1], a[2], a[3]),
            "openat2": self._openat2,
            "execve": lambda pid, a: self._execute(pid, AT_FDCWD, a[0], 0),
            "execveat": lambda pid, a: self._execute(pid, a[0], a[1], a[4]),
            "getdents": self._list,
            "getdents64": self._list,
            "truncate": self._truncate,
            "unlink": lambda pid, a: self._remove(pid, AT_FDCWD, a[0], 0),
            "rmdir": lambda pid, a: self._remove(pid, AT_FDCWD, a[0], _REMOVE_FOLDER),
            "unlinkat": lambda pid, a: self._remove(pid, a[0], a[1], a[2]),
            "rename": lambda pid, a: self._rename(pid, AT_FDCWD, a[0], AT_FDCWD, a[1], 0),
            "renameat": lambda pid, a: self._rename(pid, a[0], a[1], a[2], a[3], 0),
            "renameat2": lambda pid, a: self._rename(pid, a[0], a[1], a[2], a[3], a[4]),
            "link": lambda pid, a: self._link(pid, AT_FDCWD, a[0], AT_FDCWD, a[1], 0),
            "linkat": lambda pid, a: self._link(pid, a[0], a[1], a[2], a[3], a[4]),
            "connect": lambda pid, a: self._address(pid, a[1], a[2], is_bound=False),
            "bind": lambda pid, a: self._address(pid, a[1], a[2], is_bound=True),
            "sendto": lambda pid, a: self._address(pid, a[4], a[5], is_bound=False),
            "sendmsg": self._send_message,
            "sendmmsg": self._send_message,
            "rt_sigaction": self._set_handler,
            "capset": lambda _pid, _arguments: self._drop_capabilities(),
            "umask": lambda _pid, _arguments: partial(setattr, recorder, "uses_umask", True),
        }
        for name, (descriptor, path, flags, kind) in _LOOKUPS.items():
            named[name] = self._on_path(descriptor, path, flags, partial(recorder.record_lookup, kind=kind))
        for name, (descriptor, path, flags) in _ATTRIBUTES.items():
            named[name] = self._on_path(descriptor, path, flags, recorder.set_attributes)
        for name, (descriptor, path) in _MAKES.items():
            named[name] = self._on_path(descriptor, path, False, lambda f, p, _: recorder.make_name(f, p))
        for name in {**READS_DESCRIPTOR, **WRITES_DESCRIPTOR}:
            positions = {table[name] for table in (READS_DESCRIPTOR, WRITES_DESCRIPTOR) if name in table}
            named[name] = partial(self._use_descriptor, tuple(positions))
        named["fcntl"] = self._duplicate
        named["ioctl"] = self._control
        named["seccomp"] = named["prctl"] = self._set_filter
        for name in _NAMESPACE_CALLS:
            named[name] = partial(self._refuse, TraceProblemKind.NAMESPACE, name)
        for name in _UNSUPPORTED_CALLS:
            named[name] = partial(self._refuse, TraceProblemKind.UNSUPPORTED_CALL, name)
        for table, own in ((_SET_USERS, os.geteuid()), (_SET_GROUPS, os.getegid())):
            for name, count in table.items():
                named[name] = partial(self._set_identity, name, count, own)
        self._by_number = {numbers[name]: handler for name, handler in named.items() if name in numbers}

    def handle(self, number: int, pid: int, arguments: tuple[int, ...]) -> Commit | None:
        """Return what a call is to be recorded as, None for nothing."""
        try:
            return self._by_number[number](pid, arguments)
        except BadAddress:
            return None
        except Unreadable as error:
            return self._recorder.problem(TraceProblemKind.UNREADABLE, str(error))
        except Unresolvable as error:
            return self._recorder.problem(TraceProblemKind.UNRESOLVED, str(error))

    def foreign(self, number: int, architecture: int) -> Commit | None:
        """A call of another architecture or ABI: what it does is not known."""
        return self._recorder.problem(
            TraceProblemKind.FOREIGN_CALLS, f"call {number} of architecture {architecture:#x}"
        )

    def _on_path(
        self,
        descriptor_at: int | None,
        path_at: int,
        flags_at: int | bool,
        record: Callable[[bytes, bytes, bool], Commit | None],
    ) -> Handler:
        """Return the handler of calls that use one path in one way."""
        string = self._memory.string
        locate = self._locate

        def handle(pid: int, arguments: tuple[int, ...]) -> Commit | None:
            path = string(pid, arguments[path_at])
            if not path:
                return None  # ENOENT, or the open file itself (AT_EMPTY_PATH), whose opening was recorded
            descriptor = AT_FDCWD if descriptor_at is None else arguments[descriptor_at] & 0xFFFFFFFF
            folder, path = locate(pid, descriptor, path)
            if not path:
                return None
            follow = flags_at if isinstance(flags_at, bool) else not arguments[flags_at] & _NOFOLLOW
            return record(folder, path, follow)

        return handle

    def _locate(self, pid: int, descriptor: int, path: bytes) -> tuple[bytes, bytes]:
        """See ``paths.locate``."""
        folder, located = locate(self._supervisor, pid, descriptor, path)
        if located != path and path.startswith((b"/proc/", b"/dev/")):
            self._recorder.use_real_path(located)
        return folder, located

    def _path(self, pid: int, descriptor: int, address: int, flags: int = 0) -> tuple[bytes, bytes]:
        """The folder and the path; with AT_EMPTY_PATH in ``flags``, those of the open file where the path is empty."""
        path = self._memory.string(pid, address)
        if path:
            return self._locate(pid, descriptor & 0xFFFFFFFF, path)
        if not flags & _EMPTY_PATH:
            return b"", b""
        real = descriptor_path(pid, descriptor & 0xFFFFFFFF)
        self._recorder.use_real_path(real)
        return b"", real

    def _open(self, pid: int, descriptor: int, address: int, flags: int, mode: int) -> Commit | None:
        text = self._memory.string(pid, address)
        if text.startswith((b"/dev/", b"/proc/")):
            self._note_given(pid, text)
        folder, path = self._locate(pid, descriptor & 0xFFFFFFFF, text) if text else (b"", b"")
        if not path or _is_probe_of_bash(pid, path, flags):
            return None
        if flags & _NO_CONTENT:
            return self._recorder.record_lookup(folder, path, not flags & os.O_NOFOLLOW, _STATUS)
        if flags & _WRITES:
            return self._recorder.open_to_write(folder, path, flags, mode & 0o7777 & ~umask_of(pid))
        return self._recorder.record_lookup(folder, path, not flags & os.O_NOFOLLOW, _CONTENT)

    def _openat2(self, pid: int, arguments: tuple[int, ...]) -> Commit | None:
        flags, mode, resolve = struct.unpack("<QQQ", self._memory.read(pid, arguments[2], 24))
        if resolve & _RESOLVE_IN_ROOT:
            return self._recorder.problem(TraceProblemKind.UNSUPPORTED_CALL, "openat2 with RESOLVE_IN_ROOT")
        return self._open(pid, arguments[0], arguments[1], flags, mode)

    def _execute(self, pid: int, descriptor: int, address: int, flags: int) -> Commit | None:
        folder, path = self._path(pid, descriptor, address, flags)
        return self._recorder.execute(folder, path, partial(self._locate, pid, AT_FDCWD)) if path else None

    def _list(self, pid: int, arguments: tuple[int, ...]) -> Commit | None:
        folder = descriptor_path(pid, arguments[0] & 0xFFFFFFFF)
        if folder.startswith(b"/proc/"):
            _, folder = self._locate(pid, AT_FDCWD, folder)
        return self._recorder.list_folder(folder) if folder else None

    def _truncate(self, pid: int, arguments: tuple[int, ...]) -> Commit | None:
        folder, path = self._path(pid, AT_FDCWD, arguments[0])
        return self._recorder.write_in_place(folder, path) if path else None

    def _remove(self, pid: int, descriptor: int, address: int, flags: int) -> Commit | None:
        folder, path = self._path(pid, descriptor, address)
        return self._recorder.remove(folder, path, is_folder=bool(flags & _REMOVE_FOLDER)) if path else None

    def _rename(
        self, pid: int, old_descriptor: int, old: int, new_descriptor: int, new: int, flags: int
    ) -> Commit | None:
        source, target = self._path(pid, old_descriptor, old), self._path(pid, new_descriptor, new)
        return (
            self._recorder.rename(source, target, exchanges=bool(flags & _RENAME_EXCHANGE))
            if source[1] and target[1]
            else None
        )

    def _link(
        self, pid: int, old_descriptor: int, old: int, new_descriptor: int, new: int, flags: int
    ) -> Commit | None:
        source, target = self._path(pid, old_descriptor, old, flags), self._path(pid, new_descriptor, new)
        return self._recorder.link(source, target, bool(flags & _FOLLOW)) if target[1] else None

    def _send_message(self, pid: int, arguments: tuple[int, ...]) -> Commit | None:
        """``struct msghdr`` begins with the address; of sendmmsg(2) the first message stands for all."""
        address, size = struct.unpack("<QI", self._memory.read(pid, arguments[1], 12))
        return self._address(pid, address, size, is_bound=False) if address else None

    def _address(self, pid: int, address: int, size: int, *, is_bound: bool) -> Commit | None:
        """A socket's address: sockaddr of bind(2), unix(7), ip(7), ipv6(7)."""
        if size < 2:
            raise BadAddress
        data = self._memory.read(pid, address, min(size & 0xFFFFFFFF, 110))
        family = int.from_bytes(data[:2], "little")
        if family == socket.AF_UNIX:
            return self._unix_socket(pid, data[2:], is_bound=is_bound)
        if family in _KERNEL_FAMILIES:
            return None
        port = int.from_bytes(data[2:4], "big")
        host = data[4:8] if family == socket.AF_INET else data[8:24]
        if family in {socket.AF_INET, socket.AF_INET6} and len(host) in {4, 16}:
            return self._recorder.problem(TraceProblemKind.NETWORK, f"{socket.inet_ntop(family, host)} port {port}")
        return self._recorder.problem(TraceProblemKind.NETWORK, f"socket family {family}")

    def _unix_socket(self, pid: int, name: bytes, *, is_bound: bool) -> Commit | None:
        if name[:1] in {b"", b"\0"}:  # abstract, or of the kernel's choice
            if is_bound:
                return partial(self._abstract_sockets.add, name)
            known = name in self._abstract_sockets
            return None if known else self._recorder.problem(TraceProblemKind.DAEMON, name.replace(b"\0", b"@"))
        folder, path = self._locate(pid, AT_FDCWD, name.split(b"\0", 1)[0])
        if not path:
            return None
        return self._recorder.make_name(folder, path) if is_bound else self._recorder.connect_to(folder, path)

    def _set_handler(self, pid: int, arguments: tuple[int, ...]) -> Commit | None:
        """``struct sigaction`` of the kernel begins with handler and flags; 0 and 1 are no handlers."""
        handler, flags = struct.unpack("<QQ", self._memory.read(pid, arguments[1], 16))
        if handler > 1 and not flags & _SA_RESTART:
            self._recorder.may_be_interrupted = True
        return None

    def _use_descriptor(self, positions: tuple[int, ...], pid: int, arguments: tuple[int, ...]) -> Commit | None:
        """A descriptor with the number of a given one is used: it is that, unless the process has opened another."""
        for position in positions:
            fd = arguments[position] & 0xFFFFFFFF
            name = "uses_descriptor" if fd else "uses_stdin"
            if fd in self._given and not getattr(self._recorder, name) and self._is_given(pid, fd):
                return partial(setattr, self._recorder, name, True)
        return None

    def _note_given(self, pid: int, path: bytes) -> None:
        """A descriptor that the run was given may be opened once more, by its name."""
        named = named_descriptor(pid, path)
        if named is not None and named[1] in self._given and self._is_given(*named):
            setattr(self._recorder, "uses_descriptor" if named[1] else "uses_stdin", True)

    def _is_given(self, pid: int, fd: int) -> bool:
        given = self._given[fd]
        if given is None:
            return True
        try:
            status = os.stat(f"/proc/{pid}/fd/{fd}")
        except OSError:
            return False  # it is closed
        return (status.st_dev, status.st_ino) == (given.st_dev, given.st_ino)

    def _duplicate(self, pid: int, arguments: tuple[int, ...]) -> Commit | None:
        """A shell that redirects its standard input keeps the old one at 10 or above, and does not read it there."""
        is_saved = arguments[0] & 0xFFFFFFFF == 0 and arguments[2] >= _SAVED_FROM
        return None if is_saved else self._use_descriptor((0,), pid, arguments)

    def _control(self, pid: int, arguments: tuple[int, ...]) -> Commit | None:
        """ioctl(2): only a terminal answers most, such as what isatty(3) asks. FIONREAD tells what any file holds."""
        if arguments[1] & 0xFFFFFFFF == _FIONREAD:
            return self._use_descriptor((0,), pid, arguments)
        is_stdin = not arguments[0] & 0xFFFFFFFF and 0 in self._given and self._is_given(pid, 0)
        if not is_stdin:
            return None
        is_size = arguments[1] & 0xFFFFFFFF == _TIOCGWINSZ
        if is_size and _may_be_terminal(self._given[0]) and not _GCC.fullmatch(_program_name(pid)):
            return self._recorder.problem(TraceProblemKind.DEVICE, "the size of its terminal")
        return partial(setattr, self._recorder, "asks_for_terminal", True)

    def _set_filter(self, pid: int, arguments: tuple[int, ...]) -> Commit | None:
        """A filter is ``struct sock_fprog``, of ``struct sock_filter``. Calls that are reported here reach no tracer of
        the run: the kernel takes SECCOMP_RET_USER_NOTIF before SECCOMP_RET_TRACE.
        """
        count, address = struct.unpack("<H6xQ", self._memory.read(pid, arguments[2], 16))
        ends = [min(at + _PIECE, 8 * count) for at in range(0, 8 * count, _PIECE)]
        code = b"".join(
            self._memory.read(pid, address + at, end - at) for at, end in zip([0, *ends], ends, strict=False)
        )
        filters = struct.iter_unpack("<HBBI", code)
        if any(code == _BPF_RETURN and action & _ACTION == _TRACE for code, _, _, action in filters):
            return self._recorder.problem(
                TraceProblemKind.UNSUPPORTED_CALL, "seccomp with SECCOMP_RET_TRACE, as strace --seccomp-bpf"
            )
        return None

    def _set_identity(self, name: str, count: int, own: int, _pid: int, arguments: tuple[int, ...]) -> Commit | None:
        """The supervisor takes the states of files: it finds some that another user is denied."""
        if {each & 0xFFFFFFFF for each in arguments[:count]} <= {own, _UNCHANGED}:
            return None
        return self._recorder.problem(TraceProblemKind.OTHER_RIGHTS, name)

    def _drop_capabilities(self) -> Commit | None:
        """Only root reads by a capability what his permissions deny."""
        return None if os.geteuid() else self._recorder.problem(TraceProblemKind.OTHER_RIGHTS, "capset")

    def _refuse(self, reason: TraceProblemKind, name: str, _pid: int, _arguments: tuple[int, ...]) -> Commit | None:
        return self._recorder.problem(reason, name)


def _program_name(pid: int) -> str:
    """The name of the program that a process runs; empty where the process has ended."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""


def _is_probe_of_bash(pid: int, path: bytes, flags: int) -> bool:
    """Whether bash opens its terminal as it starts, to close it at once (check_dev_tty() of its shell.c)."""
    is_probe = flags & ~os.O_CLOEXEC == os.O_RDWR | os.O_NONBLOCK and path.startswith((b"/dev/tty", b"/dev/pts/"))
    return is_probe and _program_name(pid) == "bash"


def _may_be_terminal(given: os.stat_result | None) -> bool:
    return given is None or (stat.S_ISCHR(given.st_mode) and given.st_rdev not in STATELESS_DEVICES)
