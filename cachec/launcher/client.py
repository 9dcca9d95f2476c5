"""Asks a server (``server``) for how a command line ends that no memo answers. Imports no module that takes a
millisecond.

A server is another process of the same user that has all imported which a miss needs, and forks for each. Which one is
asked follows from the process that asks, by the name of its socket: cachec, its Python and all that a child has from
its parent are equal (``surroundings``), so what the server's child sees and may do is what the process itself would.
Where there is no server, or anything fails before the child was told to begin, nothing has happened; where the child
ends before it has said how the command did, all is done again by the process itself.

    to the server   one byte, with descriptors: the current folder, standard input, output and error;
                    the message: count of arguments, arguments, variables (``ending.pack``)
    from its child  its process number, u64 little-endian
    to the child    one byte: begin
    from the child  the message: an ``CommandResult``, or no fields, where the process has to do it by itself
"""

import _signal  # type: ignore[import-not-found]
import _socket
import os
import sys

from blake3 import blake3

from cachec.base import __version__
from cachec.launcher.depth import depth
from cachec.launcher.direct import default_folder
from cachec.launcher.result import CommandResult, die_by, pack

#: Seconds that a server may take until its child is there: beyond that, the process is as quick by itself.
PATIENCE = 2.0

#: Variables that a process obeys from its start on.
#:
#: Not the locale, of which Python takes the encoding of file names alone, nor the time zone, which a child sets anew.
_OBEYED = (b"PYTHON", b"LD_", b"GLIBC_", b"MALLOC_", b"GCONV_", b"LOCPATH")

#: What /proc/self/status has of the credentials and limits of a process, which it has from its parent.
_STATUS = (
    *(b"Umask", b"Uid", b"Gid", b"Groups", b"NoNewPrivs", b"Seccomp", b"Seccomp_filters", b"SigBlk", b"SigIgn"),
    *(b"CapInh", b"CapPrm", b"CapEff", b"CapBnd", b"CapAmb", b"Cpus_allowed", b"Mems_allowed", b"THP_enabled"),
)

#: The rest of that. One that this kernel has not, or does not show, counts as empty.
_PROC = ("limits", "cgroup", "attr/current", "oom_score_adj", "personality", "timerslack_ns", "coredump_filter")
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "time", "time_for_children", "user", "uts")

#: Parts of paths that lead elsewhere in another process.
_OWN = ("proc/self", "proc/thread-self", "dev/fd", "dev/std", "dev/tty")

#: Variables by which a process loads what may obey any other.
_LOADING = (b"LD_PRELOAD", b"LD_AUDIT")

#: Bytes of an answer at most.
_MAX_ANSWER = 1 << 32


class _NoAnswer(Exception):
    """The server, or its child, is not there, or does not do as it should."""


def surroundings() -> str:
    """A name for all that this process has from its parent or from its start, and a child of its own would have; empty
    where somebody follows what it does (strace, gdb, a launcher around this one), or there is no /proc to tell."""
    lines = _read("status").split(b"\n")
    if b"TracerPid:\t0" not in lines or (depth(os.environ) and b"Seccomp:\t2" in lines):
        return ""
    hasher = blake3(pack([__version__.encode(), os.fsencode(__file__), sys.version.encode(), repr(sys.flags).encode()]))
    hasher.update(pack([os.fsencode(text) for text in (sys.executable, sys.prefix, *sys.path)]))
    prefixes = b"" if any(name in os.environb for name in _LOADING) else _OBEYED
    obeyed = sorted(each for each in os.environb.items() if each[0].startswith(prefixes))
    hasher.update(pack([b"%b=%b" % each for each in obeyed]))
    hasher.update(repr((sys.warnoptions, sys._xoptions, sys.getfilesystemencoding())).encode())
    hasher.update(pack([line for line in lines if line.partition(b":")[0] in _STATUS]))
    hasher.update(pack([_read(name) for name in _PROC]))
    hasher.update(pack([os.fsencode(_link(name)) for name in _NAMESPACES]))
    root = os.stat("/")
    scheduled = (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), root.st_dev, root.st_ino)
    hasher.update(repr(scheduled).encode())
    return hasher.hexdigest()[:32]


def _read(name: str) -> bytes:
    try:
        with open(f"/proc/self/{name}", "rb", 0) as file:
            return file.read()
    except OSError:
        return b""


def _link(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{name}")
    except OSError:
        return ""


def server_folder(environ: "os._Environ[str] | dict[str, str]", cwd: str) -> str:
    """Return the folder of the sockets of this user's servers; empty without a folder for the store."""
    folder = default_folder(environ, cwd)
    return folder and f"{folder}/server-{os.geteuid()}"


def open_own(folder: str) -> int:
    """Return a descriptor of a folder that this user owns and no other user can write to. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(fd)
        raise PermissionError(1, "is not this user's alone", folder)
    return fd


def connect(folder: int, name: str) -> "tuple[_socket.socket, int]":
    """A connection to a server, and its process number. Raises OSError."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(PATIENCE)
        connection.connect(f"/proc/self/fd/{folder}/{name}")
        return connection, peer(connection)
    except BaseException:
        connection.close()
        raise


def peer(connection: "_socket.socket") -> int:
    """The process number of who is at the other end. Raises PermissionError where it is not this user."""
    data = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    pid, uid = (int.from_bytes(data[at : at + 4], sys.byteorder) for at in (0, 4))
    if uid != os.geteuid():
        raise PermissionError(1, f"the process at the other end is of user {uid}")
    return pid


def ask(args: "list[str]") -> "tuple[CommandResult | None, str, str]":
    """How a command line (what follows ``cachec exec``) ended; None where this process has to see to it. Then, where a
    server could be started: the folder and the name of its socket, else empty."""
    wanted = os.environ.get("CACHEC_SERVER") or "auto"
    if wanted != "auto" or None in (sys.stdin, sys.stderr):
        return None, "", ""
    folder = name = ""
    try:
        for fd in range(3):
            os.fstat(fd)
        cwd = os.getcwd()
        if any(own in f"{cwd}/{arg}" for own in _OWN for arg in args):
            return None, "", ""
        if {"", cwd} & {*sys.path}:  # python -m, -c: where a build writes, modules may come to be
            return None, "", ""
        folder = server_folder(os.environ, cwd)
        name = surroundings() if folder else ""
        if not name:
            return None, "", ""
        opened = open_own(folder)
        try:
            connection, _ = connect(opened, name)
        finally:
            os.close(opened)
    except (FileNotFoundError, ConnectionRefusedError):
        return None, folder, name
    except (OSError, ValueError):
        return None, "", ""  # what is wrong, if anything is, the process itself meets
    try:
        return _ServerRequest(connection, args).ending(), "", ""
    except (_NoAnswer, OSError, ValueError, OverflowError):
        return None, "", ""
    except KeyboardInterrupt:
        die_by(_signal.SIGINT)
        raise
    finally:
        connection.close()


class _ServerRequest:
    """A request that was made. Raises _NoAnswer, OSError where the server's child did not come to be there in time."""

    def __init__(self, connection: "_socket.socket", args: "list[str]") -> None:
        self._connection = connection
        self._caught = 0
        folder = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            descriptors = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (folder, 0, 1, 2))
            connection.sendmsg([b"\1"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)])
        finally:
            os.close(folder)
        variables = [b"%b=%b" % each for each in os.environb.items()]
        connection.sendall(pack([b"%d" % len(args), *map(os.fsencode, args), *variables]))
        # Opened before it begins, so that its number can't belong to another process.
        self._number = int.from_bytes(self._receive(8), "little")
        self._child = os.pidfd_open(self._number)

    def ending(self) -> CommandResult | None:
        """Let the child run the command. Signals that would end this process go to the child, which sends them to all
        processes of the command. This process then ends by them after the command, unless the command succeeded."""
        replaced = []
        try:
            for number in (_signal.SIGTERM, _signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT):
                before = _signal.getsignal(number)
                if before in (_signal.SIG_DFL, _signal.default_int_handler):
                    replaced.append((number, before))
                    _signal.signal(number, self._forward)
            self._connection.sendall(b"\1")
            self._connection.settimeout(None)
            answer = self._receive(int.from_bytes(self._receive(8), "little"))
        except (_NoAnswer, OSError):
            if self._caught:
                die_by(self._caught)
            self._kill_leftovers()
            raise
        finally:
            for number, before in replaced:
                _signal.signal(number, before)
            os.close(self._child)
        ending = CommandResult.decode(answer) if answer else None
        if self._caught and (ending is None or ending.status is None):
            die_by(self._caught)
        return ending

    def _kill_leftovers(self) -> None:
        """Kill the command of a killed child, so that it does not write at the same time as the next run."""
        import select

        ended = select.poll()
        ended.register(self._child, select.POLLIN)
        if ended.poll(1000 * PATIENCE):
            from cachec.commands.process import end_session

            end_session(self._number)

    def _forward(self, number: int, _frame: object) -> None:
        self._caught = number
        try:
            _signal.pidfd_send_signal(self._child, number)
        except OSError:
            return  # it has ended, and we shall

    def _receive(self, count: int) -> bytes:
        if count > _MAX_ANSWER:
            raise _NoAnswer
        pieces = []
        while count:
            piece = self._connection.recv(min(count, 1 << 20))
            if not piece:
                raise _NoAnswer
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)
