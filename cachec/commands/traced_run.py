"""Runs a command under the tracer, and says what it looked up as reads of a trace.

``run_traced`` is for a process of one thread that does nothing else, such as ``cachec exec``; ``run_traced_apart`` for
any other.

A read of a command is one of these kinds; each is taken again for a later look by ``key.trace_validation``:

    content       a file that was opened: its mode, its content, its owner, and whether it has several names
    lookup        a path of which no more was asked than stat(2) or readlink(2) tell, there or not
    names         the names in a folder, and their types
    attributes    extended attributes
    search        where an executable is that was looked for by PATH (of a command alone)
    umask         the mask of new files, where it was asked for
    stdin         what was left to read of a file on standard input
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

from cachec.base import fsio
from cachec.base.hashing import FileDigests, digest_bytes
from cachec.base.lookups import described_state, names_in, owner_words, real_folder, umask
from cachec.commands.process import ProcessResult, run_process
from cachec.key.trace_validation import (
    FOLDER,
    attributes_digest,
    exists_digest,
    folder_digest,
    mode_digest,
    names_digest,
    opened_digest,
    stat_and_hash,
    umask_digest,
)
from cachec.model import Read, Reason
from cachec.store.locks import forking_to_exec
from cachec.tracing import accesses as traced
from cachec.tracing.accesses import Accesses, Change, Effect, Kind, State, TracedInput, TraceProblem, state_of, unseen
from cachec.tracing.codec import DamagedRecord
from cachec.tracing.listener import Keeper
from cachec.tracing.standalone import command_line, decode_report, encode_request

#: Where a kernel keeps what is no file. What is there of the machine is in the key; the rest is its load, like time.
_KERNEL = ("/proc/", "/sys/")

#: Kernels stamp files with a coarse clock, which is at most this much behind (CONFIG_HZ=100).
_CLOCK_SECONDS = 0.02

_PYCACHE = "__pycache__"

#: In place of a descriptor: standard input is closed.
CLOSED = -1

#: How a run uses the former content of a file or a folder.
_CONTENT_KINDS = Kind.CONTENT | Kind.EXECUTED | Kind.LISTING

#: Why a run is not stored, by what the tracer says; all else means that it did not see everything.
_REASONS = {
    traced.TraceProblemKind.NETWORK: Reason.NETWORK,
    traced.TraceProblemKind.DAEMON: Reason.UNDESCRIBED,
    traced.TraceProblemKind.DEVICE: Reason.UNDESCRIBED,
    traced.TraceProblemKind.PIPE: Reason.UNDESCRIBED,
    traced.TraceProblemKind.PRIVILEGE: Reason.UNDESCRIBED,
    traced.TraceProblemKind.OTHER_RIGHTS: Reason.UNDESCRIBED,
    traced.TraceProblemKind.MOVED_FOLDER: Reason.UNDESCRIBED,
    traced.TraceProblemKind.LEFT_BEHIND: Reason.UNDESCRIBED,
    traced.TraceProblemKind.SIGNAL: Reason.UNDESCRIBED,
}

#: What each reason of the tracer means.
WORDS = {
    traced.TraceProblemKind.UNSUPPORTED_MACHINE: "cachec traces no programs of this machine",
    traced.TraceProblemKind.NO_LISTENER: "the system gives no tracer",
    traced.TraceProblemKind.NESTED: "another tracer holds the command",
    traced.TraceProblemKind.NO_ACCESS: "the command's memory can't be read",
    traced.TraceProblemKind.FOREIGN_CALLS: "it runs programs of another architecture",
    traced.TraceProblemKind.UNREADABLE: "the memory of one of its processes can't be read",
    traced.TraceProblemKind.UNRESOLVED: "one of its paths could not be followed",
    traced.TraceProblemKind.UNSUPPORTED_CALL: "it makes a system call that the tracer does not follow",
    traced.TraceProblemKind.NAMESPACE: "it works in another namespace or root folder",
    traced.TraceProblemKind.NETWORK: "it uses the network",
    traced.TraceProblemKind.DAEMON: "it speaks to a process that was there before",
    traced.TraceProblemKind.DEVICE: "it uses a device",
    traced.TraceProblemKind.PIPE: "it uses a named pipe that was there before",
    traced.TraceProblemKind.PRIVILEGE: "it starts a program with other rights, which it does not get under the tracer",
    traced.TraceProblemKind.OTHER_RIGHTS: "it becomes another user or drops rights, so it may be denied what is there",
    traced.TraceProblemKind.MOVED_FOLDER: "it moves a folder that was there before",
    traced.TraceProblemKind.LEFT_BEHIND: "it left a process behind",
    traced.TraceProblemKind.SIGNAL: "it got a signal from outside",
}


#: Those for which a command runs without a tracer, as every other one would here.
BARE = frozenset(
    {
        *(traced.TraceProblemKind.UNSUPPORTED_MACHINE, traced.TraceProblemKind.NO_LISTENER),
        *(traced.TraceProblemKind.NESTED, traced.TraceProblemKind.NO_ACCESS),
    }
)


class TracedRun(NamedTuple):
    """One run."""

    ended: ProcessResult
    accesses: Accesses
    #: Unix time.
    started: float

    def problems(self, *, network: bool = False) -> Iterator[tuple[Reason, str]]:
        """Why the result must not be stored, in words. network: whether the network may be used."""
        for reason, detail in self.accesses.problems:
            if not (network and reason is traced.TraceProblemKind.NETWORK):
                hint = "; `cachec doctor` says what to do" if reason in BARE else ""
                yield _REASONS.get(reason, Reason.UNTRACED), f"{WORDS[reason]} ({detail}){hint}"

    def opened_files(self) -> set[str]:
        """The real paths of files that the run opened, and did not make."""
        inputs = (each for each in self.accesses.inputs if each.kinds & Kind.CONTENT and each.state is not None)
        real = cache(os.path.realpath)  # of few folders
        paths = (os.path.split(each.place) for each in inputs)
        found = {os.path.join(real(folder), name) for folder, name in paths}
        return {os.path.realpath(path) if os.path.islink(path) else path for path in found}


def run_traced(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    cwd: str,
    stdin: str | int | None,
    descriptors: Sequence[int] = (),
    owns_group: bool = False,
    keeper: Keeper | None = None,
) -> TracedRun:
    """Run a command to its end. stdin: a file, a descriptor, ``CLOSED``; None: nothing. descriptors: others it has.
    owns_group, keeper: see ``supervisor.trace``.

    Raises OSError where it can't be started.
    """
    from cachec.tracing.supervisor import trace

    started = time.time()
    streams = [_Stream(), _Stream()]
    if stdin == CLOSED:
        source = CLOSED
    else:
        source = os.dup(stdin) if isinstance(stdin, int) else os.open(stdin or os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with forking_to_exec():
            accesses = trace(
                argv,
                env=environ,
                cwd=cwd,
                stdin=source,
                stdout=streams[0].given,
                stderr=streams[1].given,
                descriptors=descriptors,
                readers={stream.taken: stream.read for stream in streams},
                ends_with_us=True,
                owns_group=owns_group,
                keeper=keeper,
            )
        for stream in streams:
            stream.end()
    finally:
        for fd in (source, *(fd for stream in streams for fd in (stream.given, stream.taken))):
            if fd != CLOSED:
                os.close(fd)
    ended = ProcessResult(accesses.returncode, bytes(streams[0].data), bytes(streams[1].data), None)
    return TracedRun(ended, accesses, started)


def run_traced_apart(
    args: Sequence[str],
    program: str,
    *,
    environ: Mapping[str, str],
    cwd: str,
    stdin: bytes | str | None = None,
    pass_fds: Sequence[int] = (),
    timeout: float | None = None,
) -> TracedRun:
    """The same from any thread, with a supervisor between: see ``tracing.standalone``, and ``run_process``.

    Raises subprocess.TimeoutExpired, ValueError for words that the kernel does not take, and OSError.
    """
    run = partial(run_process, stdin=stdin, timeout=timeout)
    started = time.time()
    if not sys.executable:  # an embedded Python
        ended = run(args, program, environ=environ, cwd=cwd, pass_fds=pass_fds)
        return TracedRun(ended, untraced_accesses(ended, "there is no Python interpreter to run it"), started)
    request, report = os.memfd_create("request"), os.memfd_create("report")
    try:
        os.write(request, encode_request(args, program, environ, cwd))
        os.lseek(request, 0, os.SEEK_SET)
        supervisor = command_line(request, report)
        try:
            ended = run(supervisor, sys.executable, environ=os.environ, cwd=None, pass_fds=(*pass_fds, request, report))
        except subprocess.TimeoutExpired as error:
            error.cmd = list(args)
            raise
        data = fsio.pread_exact(report, 0, os.fstat(report).st_size)
    finally:
        os.close(request)
        os.close(report)
    try:
        outcome = decode_report(data)
    except DamagedRecord:
        return TracedRun(ended, untraced_accesses(ended, "it ended before the command"), started)
    ended = ended._replace(returncode=outcome.accesses.returncode)
    return TracedRun(ended, outcome.accesses, outcome.started)


def untraced_accesses(ended: ProcessResult, detail: str) -> Accesses:
    problem = TraceProblem(traced.TraceProblemKind.NO_LISTENER, detail)
    return unseen(ended.returncode, problem)


class _Stream:
    """A pipe that a command writes to. It does not block us: what is left behind may hold it."""

    def __init__(self) -> None:
        self.taken, self.given = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.taken, False)
        self.data = bytearray()

    def read(self) -> bool:
        """Take what is there; whether more may come."""
        try:
            piece = os.read(self.taken, 1 << 16)
        except BlockingIOError:
            return True
        self.data += piece
        return bool(piece)

    def end(self) -> None:
        """Take what is left."""
        before = -1
        while before != len(self.data):
            before = len(self.data)
            self.read()


class InputChanged(Exception):
    """An input changed while the command ran, or just before: what the command saw is not known. The message says."""


class Reads:
    """What a run looked up, as reads of a trace."""

    def __init__(
        self,
        run: TracedRun,
        digests: FileDigests,
        cwd: str,
        *,
        keyed: Callable[[str, str], str] | None = None,
        is_named: Callable[[str], bool] = lambda _: False,
        is_cache: Callable[[str], bool] = lambda _: False,
        passes: Callable[[str, TracedInput], bool] = lambda _path, _input: False,
        made_before: Callable[[str], bool] = lambda _path: False,
        is_unsized: Callable[[str], bool] = lambda _path: False,
    ) -> None:
        """keyed: how a real path counts for a path; see ``lookup_digest``. is_named: whether a real path was declared
        as an output, of which a status does not count, and of a folder only the names that the run does not write.
        is_cache: whether what the run changes at a real path is there to save time alone. passes: whether what was
        looked up at a path is no input. made_before: whether a path in a listed folder does not count, since it was
        made just before. is_unsized: whether the run can't have asked for the size of a file: where it looked no
        further, type and mode of it count."""
        self._run = run
        self._digests = digests
        self._cwd = os.path.realpath(cwd)
        self._keyed = keyed
        self._is_named = is_named
        self._named = {change.path for change in run.accesses.changes if is_named(change.path)}
        self._is_cache = is_cache
        self._passes = passes
        self._made_before = made_before
        self._is_unsized = is_unsized
        #: Of the files that were opened, by the paths of their reads: digests of their contents alone.
        self.contents: dict[str, str] = {}
        self._made: dict[str, set[str]] = {}
        self._made_folders = {
            each.path for each in run.accesses.changes if each.after is not None and stat.S_ISDIR(each.after.mode)
        }
        for change in run.accesses.changes:
            folder, name = os.path.split(change.path)
            self._made.setdefault(folder, set()).add(name)

    def all(self) -> Iterator[Read]:
        """Each read once, with paths as the run gave them: relative ones start in its current folder. Raises
        InputChanged; OSError for a file that can't be read any more."""
        yielded: set[tuple[str, str, str]] = set()
        for each in self._run.accesses.inputs:
            for read in self._of_input(each):
                place = (read.kind, read.where, read.name)
                if place not in yielded:
                    yielded.add(place)
                    yield read
        yield from self._modes()
        if self._run.accesses.uses_umask:
            yield Read("umask", "", "", umask_digest())

    def _modes(self) -> Iterator[Read]:
        """Of a file that the run writes anew, the mode that it had decides what comes out, unless a new one has it too,
        or the run makes a new one. Where the run sets a mode, it may ask for that of a file that is there."""
        for change in self._run.accesses.changes:
            before, after = change.before, change.after
            if after is None or not stat.S_ISREG(after.mode) or change.effect & Effect.REMOVED:
                continue
            if self._is_cache(change.path):
                continue
            is_set = change.effect & Effect.ATTRIBUTES and change.path not in self._named
            new = 0o666 & ~umask() if change.mode is None else change.mode
            if before is None and is_set:
                yield Read("lookup", change.path, "link exists", exists_digest(there=False))
            elif before is not None and before.ino == after.ino and (is_set or stat.S_IMODE(before.mode) != new):
                yield Read("lookup", change.path, "mode", mode_digest(before.mode, is_empty=not before.size))

    def started_programs(self) -> set[str]:
        """The paths of programs that the run started, as it named them."""
        return {each.path for each in self._run.accesses.inputs if each.kinds & Kind.EXECUTED}

    def _of_input(self, each: TracedInput) -> Iterator[Read]:
        full = each.place
        where = each.path if each.folder == self._cwd and each.folder else full
        if full.startswith(_KERNEL):
            return
        real = os.path.realpath(full) if self._named and (each.effect or each.names is not None) else ""
        if each.effect and real in self._named:
            is_used = each.is_asked or each.names is not None or each.effect & Effect.LISTED
            if is_used and real in self._made_folders:
                yield from self._others(each, real, where)
                return
            if not each.kinds & _CONTENT_KINDS:
                return
        if self._passes(full, each):
            return
        if _PYCACHE in full:
            folder, name = os.path.split(full)
            if name == _PYCACHE:
                return
            if os.path.basename(folder) == _PYCACHE and name.partition(".pyc")[1]:
                yield from self._of_bytecode(each, where)
                return
        flag = "" if each.follow else "link"
        if each.effect:
            if not self._is_cache(os.path.realpath(full)):
                yield self._of_changed(each, full, where, flag)
                if each.names is not None and self._is_output_folder(real):
                    yield from self._others(each, real, where)
                elif each.names is not None:  # as they were
                    yield Read("names", where, "", names_digest(each.names))
            return
        is_file = each.state is not None and stat.S_ISREG(each.state.mode)
        if is_file and each.kinds & (Kind.CONTENT | Kind.EXECUTED):
            yield self._content(full, where, opened_flags(each))
        elif each.state is not None and is_file and self._is_unsized(full):
            mode = mode_digest(each.state.mode, is_empty=not each.state.size)
            yield Read("lookup", where, f"{flag} mode".strip(), mode)
        elif each.kinds & ~(Kind.LISTING | Kind.ATTRIBUTES) or each.state is None:
            yield Read("lookup", where, flag, self._lookup_digest(each, full, where))
        self._check(each, full)
        if each.names is not None and self._is_output_folder(real):
            yield from self._others(each, real, where)
        elif each.names is not None:
            yield self._names(each, full, where)
        if each.kinds & Kind.ATTRIBUTES:
            yield Read("attributes", where, flag, attributes_digest(full, flag))

    def _is_output_folder(self, real: str) -> bool:
        return self._is_named(real) and any(path.startswith(f"{real}/") for path in self._named)

    def _others(self, each: TracedInput, real: str, where: str) -> Iterator[Read]:
        """What else is in a declared folder that the run looked into, or asked for, and in those that it made there:
        the run would remove that, and then it is not stored. One that only makes the folder asks nothing."""
        if each.names is not None:
            self._check_names(each, real)
        below = sorted(path for path in self._named & self._made_folders if path.startswith(f"{real}/"))
        for folder in (real, *below):
            own = self._made.get(folder, set())
            others = names_digest(_without(own, names_in(folder)))
            yield Read("names", where + folder[len(real) :], _joined_names(own), others)

    def _lookup_digest(self, each: TracedInput, full: str, where: str) -> str:
        """``lookup_digest`` of what the run found."""
        state = each.state
        if state is None:
            return digest_bytes(b"-%d" % each.error)
        owner = owner_words(state.uid, state.gid)
        if stat.S_ISDIR(state.mode):
            keyed = self._keyed and partial(self._keyed, where)
            return folder_digest(full, state.mode, owner, each.target or "", keyed)
        numbers = state.nlink, state.size, state.dev, state.ino
        return digest_bytes(described_state(state.mode, *numbers, owner, each.target or ""))

    def _content(self, full: str, where: str, flags: str = "") -> Read:
        read = self._opened(full, where, flags)
        if os.stat(full).st_ctime > self._run.started - _CLOCK_SECONDS:
            raise InputChanged(f"{full} was changed just before the command ran, or while it did")
        return read

    def _opened(self, full: str, where: str, flags: str) -> Read:
        found = stat_and_hash(full, flags, self._digests)
        self.contents[where] = found[-1]
        return Read("content", where, flags, opened_digest(*found))

    def _names(self, each: TracedInput, full: str, where: str) -> Read:
        assert each.names is not None
        self._check_names(each, full)
        names = [name for name in each.names if not self._made_before(os.path.join(full, name.partition("/")[0]))]
        real = os.path.realpath(full)
        named = {name for name in self._made.get(real, ()) if f"{real}/{name}" in self._named}
        return Read("names", where, _joined_names(named) if named else "", names_digest(_without(named, names)))

    def _check_names(self, each: TracedInput, full: str) -> None:
        """See that no other process has changed the names in a folder."""
        own = self._made.get(os.path.realpath(full), set())
        if _without(own, names_in(full)) != _without(own, each.names or ()):
            raise InputChanged(f"other files came or went in {full} while the command ran")

    def _of_bytecode(self, each: TracedInput, where: str) -> Iterator[Read]:
        """Return the reads of a file in __pycache__, which Python uses as long as its module has the same time and
        size."""
        if each.state is None:
            return
        folder, name = os.path.split(where)
        source = os.path.join(os.path.dirname(folder), f"{name.partition('.')[0]}.py")
        full = os.path.join(self._cwd, source)
        if os.path.isfile(full):
            yield self._content(full, source)
        else:
            yield self._content(each.place, where)

    def _of_changed(self, each: TracedInput, full: str, where: str, flag: str) -> Read:
        """Return the read of a path that the run made, replaced or removed later: by existence, and as a folder."""
        if each.state is not None and each.kinds & (Kind.CONTENT | Kind.EXECUTED):
            if is_empty(each.state) and is_empty(state_of(os.stat(full))):
                return self._opened(full, where, opened_flags(each))
            raise InputChanged(f"the command read {full} and then changed it")
        if each.state is not None and stat.S_ISDIR(each.state.mode):  # a link to one is not removed in the same way
            return Read("lookup", where, f"{flag} folder".strip(), FOLDER)
        return Read("lookup", where, f"{flag} exists".strip(), exists_digest(there=each.state is not None))

    @staticmethod
    def _check(each: TracedInput, full: str) -> None:
        """See that the end of the run finds what its look-up did."""
        state = each.state
        try:
            now = state_of(os.stat(full, follow_symlinks=each.follow))
            if now == state and stat.S_ISREG(now.mode):
                return
            if stat.S_ISDIR(now.mode):
                is_same = state is not None and os.fsdecode(real_folder(full)) == each.target
            elif stat.S_ISLNK(now.mode):
                is_same = state is not None and os.readlink(full) == each.target
            else:
                is_same = True
        except OSError as error:
            is_same = state is None and error.errno == each.error
        else:
            is_same = (
                is_same and state is not None and _tracked_state(now, each.kinds) == _tracked_state(state, each.kinds)
            )
        if not is_same:
            raise InputChanged(f"{full} changed while the command ran")


def opened_flags(each: TracedInput) -> str:
    """The flags of ``content_digest``: a call that names a path may have asked for the number of links."""
    assert each.state is not None
    words = "" if each.follow else "link", "status" if each.kinds & Kind.STATUS else ""
    return " ".join(filter(None, (*words, owner_words(each.state.uid, each.state.gid).decode().strip())))


def _tracked_state(state: State, kinds: int) -> tuple[object, ...]:
    """What may not change of a path that is used in these ways: what a status tells, and of a file's content all."""
    owner = owner_words(state.uid, state.gid)
    if stat.S_ISLNK(state.mode):
        return "link", owner
    if stat.S_ISDIR(state.mode):
        return state.mode, state.dev, state.ino, owner
    times = (state.dev, state.ino, state.mtime_ns, state.ctime_ns) if kinds & ~Kind.STATUS else ()
    return state.mode, state.nlink, state.size, owner, times


def _joined_names(names: Iterable[str]) -> str:
    return "/" + "/".join(sorted(names))


def _without(own: set[str], names: Iterable[str]) -> set[str]:
    return {name for name in names if name.partition("/")[0] not in own}


def is_empty(state: State) -> bool:
    """Whether that is a file without content, such as a stamp of a build, of which a new time is all that changes."""
    return stat.S_ISREG(state.mode) and not state.size


def is_changed_in_place(change: Change) -> bool:
    """Whether something of what was there before is left."""
    before, after = change.before, change.after
    if before is None or after is None or change.effect & Effect.CREATED:
        return False
    return not (is_empty(before) and is_empty(after))


def unstorable(changes: Iterable[Change], is_output: Callable[[str], bool]) -> str:
    """Why what a run did can't be done again from a store; empty where it can. is_output: whether a path is a place for
    outputs."""
    for change in changes:
        path, after = change.path, change.after
        if after is None:
            return f"it removed {path}, which was there before"
        if not is_output(path):
            return f"it wrote {path}, which is not known as an output; --outputs names outputs"
        kind = stat.S_IFMT(after.mode)
        if kind not in {stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK}:
            return f"it made {path}, which is no file, folder or link"
        if is_changed_in_place(change):
            return f"it changed {path} in place, so the result depends on what that held before"
        if kind == stat.S_IFREG and after.nlink > 1:
            return f"{path} has a second name (a hard link)"
        if kind != stat.S_IFLNK and after.mode & 0o7000 & ~(stat.S_ISGID if kind == stat.S_IFDIR else 0):
            return f"{path} has the mode {after.mode & 0o7777:o}, which is given to no file from a store"
        if kind == stat.S_IFDIR and (after.mode ^ os.stat(os.path.dirname(path)).st_mode) & stat.S_ISGID:
            return f"{path} and the folder that it is in differ in their set-group-ID bit"
        if os.lstat(path).st_uid != os.geteuid():
            return f"{path} belongs to another user"
        if set(os.listxattr(path, follow_symlinks=False)) - {"security.selinux"}:
            return f"{path} has extended attributes"
    return ""
