"""How a command line ended, as data: what is left to do for the process that was called. Imports next to nothing.

The launcher's whole road ends with one, be it in the process itself or in a server's (``client``, ``server``).
"""

import _signal  # type: ignore[import-not-found]
import os
import sys

#: What a shell returns where a command can't be started, or ended by signal n (then 128 + n).
_NOT_STARTED, _SIGNALLED = 126, 128

#: The signals of faults, which write a core.
_DUMPED = (_signal.SIGSEGV, _signal.SIGABRT, _signal.SIGBUS, _signal.SIGFPE, _signal.SIGILL, _signal.SIGQUIT)


class CommandResult:
    """status: as ``subprocess`` has it, negative for a signal; None where the process is to become the command. stdout,
    stderr: to be written before. become: the executable and the command line for that; with a status, for where these
    can't be written: the command says it as it always does. stdin: a descriptor with what was read of standard input
    already. stored: whether the result is in the cache, be it since this run, to which nothing was to be said; not
    packed."""

    def __init__(
        self,
        status: int | None,
        stdout: bytes = b"",
        stderr: bytes = b"",
        become: "tuple[str, list[str]] | None" = None,
        stdin: int | None = None,
        *,
        stored: bool = False,
    ) -> None:
        self.status = status
        self.stdout = stdout
        self.stderr = stderr
        self.become = become
        self.stdin = stdin
        self.stored = stored

    def encode(self) -> bytes:
        """As bytes, for another process, which has no such descriptor."""
        program, argv = self.become or ("", [])
        status = b"" if self.status is None else b"%d" % self.status
        return pack([status, self.stdout, self.stderr, *map(os.fsencode, (program, *argv))])

    @classmethod
    def decode(cls, data: bytes) -> "CommandResult":
        """Raises ValueError where that is not what ``packed`` made."""
        status, stdout, stderr, program, *argv = unpack(data)
        become = (os.fsdecode(program), list(map(os.fsdecode, argv))) if program else None
        return cls(int(status) if status else None, stdout, stderr, become)


def perform(ending: CommandResult) -> int:
    """Do what is left; returns the exit status of this process, or does not return."""
    status = ending.status
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
        write_streams(ending.stdout, ending.stderr)
    except KeyboardInterrupt:
        return die_by(_signal.SIGINT)
    except BrokenPipeError:
        return die_by(_signal.SIGPIPE)
    except OSError:  # a full disk behind them, say
        status = status or None
    if status is None:
        return _NOT_STARTED if ending.become is None else pass_through(*ending.become, ending.stdin)
    if status < 0:
        return die_by(-status)
    return status


def write_streams(stdout: "bytes | memoryview", stderr: "bytes | memoryview") -> None:
    """Write what the command wrote. Raises OSError where it can't be written. Where that is stderr alone, what is
    written to stdout from then on goes nowhere: who runs the command next, for it to say so, has written that already.
    """
    _write(1, stdout)
    try:
        _write(2, stderr)
    except BrokenPipeError:
        raise
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, 1)
        raise


def _write(fd: int, data: "bytes | memoryview") -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # another user of the stream has set O_NONBLOCK
            import select

            select.select([], [fd], [])


def pass_through(program: str, argv: "list[str]", stdin: int | None) -> int:
    """Become the command, as if cachec were not there; returns where it can't be started. stdin: what was read of it
    already."""
    if stdin is not None:
        os.lseek(stdin, 0, os.SEEK_SET)
        os.dup2(stdin, 0)
    for fd, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if stream is None:  # closed from the start; SQLite has put /dev/null there
            try:
                os.close(fd)
            except OSError:
                continue
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):  # Python ignores them, and that would be inherited
        _signal.signal(number, _signal.SIG_DFL)
    from cachec.launcher.depth import increase_depth

    try:
        os.execve(path_to_start(program, argv[0]), argv, {**os.environ, **increase_depth(os.environ)})
    except OSError as error:
        say(f"error: {argv[0]!r} can't be started: {error.strerror}")
        return _NOT_STARTED


def path_to_start(program: str, name: str) -> str:
    """Return the path by which a command is started; a script sees it. program: what ``name`` leads to in PATH."""
    return name if "/" in name else program


def die_by(number: int) -> int:
    """End as the command did, so that who waits for us sees the signal; returns where it is blocked."""
    if number in _DUMPED:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core of this process does not show the command
    if number != _signal.SIGKILL:
        _signal.signal(number, _signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return _SIGNALLED + number


def say(words: str) -> None:
    """Print a message to the user, if stderr is open."""
    try:
        sys.stderr.write(f"cachec: {words}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return  # it is closed, or full; the status tells


def mistake_words(error: Exception) -> str:
    """Return the message for an exception that cachec did not expect."""
    return f"cachec made a mistake, please report it ({type(error).__name__}: {error})"


def pack(fields: "list[bytes]") -> bytes:
    """Fields as one message: its length and that of each, u64 little-endian, before them."""
    body = b"".join(len(field).to_bytes(8, "little") + field for field in fields)
    return len(body).to_bytes(8, "little") + body


def unpack(body: bytes) -> "list[bytes]":
    """The fields of a message without its own length. Raises ValueError where it is cut."""
    fields = []
    at = 0
    while at < len(body):
        end = at + 8 + int.from_bytes(body[at : at + 8], "little")
        if end > len(body):
            raise ValueError("a field ends beyond its message")
        fields.append(body[at + 8 : end])
        at = end
    return fields
