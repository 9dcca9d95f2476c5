"""Records what traced processes look up and change, while they do.

A method takes what a call is about to do. It reads the state of the path at once, and returns what is to be recorded,
as a function: the supervisor calls it after the kernel has confirmed that the process still waited for its answer.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from functools import partial

from cachec.base.lookups import mark_of, names_in
from cachec.tracing.accesses import Change, Effect, Kind, State, TracedInput, TraceProblem, TraceProblemKind, state_of

Commit = Callable[[], object]

_STATUS, _CONTENT, _LISTING = Kind.STATUS, Kind.CONTENT, Kind.LISTING
_PROGRAM = _CONTENT | Kind.EXECUTED

_ORDINARY = frozenset({stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK})

#: Devices without state: null, zero, full, random, urandom (``Documentation/admin-guide/devices.txt``).
STATELESS_DEVICES = frozenset(os.makedev(1, minor) for minor in (3, 5, 7, 8, 9))

#: The platform part of a key names driver and device.
_ACCELERATORS = (b"/dev/nvidia", b"/dev/dri/", b"/dev/kfd", b"/dev/accel")

#: A file whose state last changed longer ago than this before the run can't be the run's own. Only to save time: it
#: allows for the clock of another machine.
_RECENT_SECONDS = 3600

#: Links that a path leads through at most: MAXSYMLINKS of the kernel.
_MOST_LINKS = 40

#: ``#!`` interpreters of interpreters: exec_binprm() of fs/exec.c follows five.
_MOST_INTERPRETERS = 5


class _InputDraft:
    """One path that was looked up: an ``Input`` in the making."""

    __slots__ = ("error", "is_asked", "kinds", "names", "status", "target")

    def __init__(
        self,
        kinds: int,
        status: os.stat_result | None,
        error: int,
        target: bytes | None,
        is_asked: bool = True,
    ) -> None:
        self.kinds = kinds
        self.status = status
        self.error = error
        self.target = target
        self.is_asked = is_asked
        self.names: tuple[str, ...] | None = None

    def add(self, kind: int, is_asked: bool) -> None:
        self.kinds |= kind
        self.is_asked |= is_asked


class _Claim:
    """One path that the run changed. before: at its first change; replaced: at its first one that makes a new file;
    mode: of open(2), which a file that was emptied would have if it were new."""

    __slots__ = ("before", "effect", "is_moved_here", "mode", "replaced")

    def __init__(self, before: os.stat_result | None) -> None:
        self.effect = 0
        self.before = self.replaced = before
        self.is_moved_here = False
        self.mode: int | None = None

    def add(self, effect: int) -> None:
        self.effect |= effect


class AccessRecorder:
    """The record of one run. Paths are bytes; ``folder`` is empty, or what a relative path starts from."""

    def __init__(self) -> None:
        self.problems: dict[TraceProblem, None] = {}
        self.may_be_interrupted = False
        #: Whether standard input was read, or duplicated.
        self.uses_stdin = False
        #: The same of another descriptor that the run inherited.
        self.uses_descriptor = False
        #: Whether a process asked if standard input is a terminal.
        self.asks_for_terminal = False
        #: Whether the mask of new files was asked for.
        self.uses_umask = False
        #: Whether programs run without the privileges of their owner and group (PR_SET_NO_NEW_PRIVS).
        self.is_unprivileged = False
        self._lookups: dict[tuple[bytes, bytes, bool], _InputDraft] = {}
        self._claims: dict[bytes, _Claim] = {}
        self._claimed_names: set[bytes] = set()
        #: Whether the run made a path that may lead elsewhere, or to more: a link, or a folder.
        self._has_made_ways = False
        self._real_paths: set[bytes] = set()
        self._recent = time.time() - _RECENT_SECONDS

    # --- what a call is about to do

    def record_lookup(
        self,
        folder: bytes,
        path: bytes,
        follow: bool,
        kind: int,
        is_asked: bool = True,
        *,
        is_resolved: bool = False,
    ) -> Commit | None:
        """The run uses ``path`` in the way of ``kind``. is_asked: see ``Input``. is_resolved: no link of the run leads
        on, but for links that lead in a circle."""
        key = (folder, path, follow)
        known = self._lookups.get(key)
        if known is not None and known.kinds & kind == kind and known.is_asked >= is_asked:
            return None
        full = folder + b"/" + path if folder else path
        status: os.stat_result | None = None
        number = 0
        target = None
        try:
            status = os.stat(full) if follow else os.lstat(full)
        except OSError as error:
            number = error.errno or 0
        else:
            mode = status.st_mode & 0o170000
            if mode not in _ORDINARY:
                return self._record_special(full, follow, status, kind, key)
        if self._claims:
            if self._is_own(full, follow, status):
                return self._record_links(full, follow)
            if self._has_made_ways and not is_resolved and self._is_below_own(full, follow):
                end = self.record_lookup(b"", _resolve_missing(full, follow), follow, kind, is_asked, is_resolved=True)
                return _both(end, self._record_links(full, follow))
        if known is not None:
            return partial(known.add, kind, is_asked)
        if status is not None and mode == stat.S_IFDIR:
            target = _real_path(full, follow=True)
        elif status is not None and mode == stat.S_IFLNK:
            target = _text_of_link(full)
        return partial(self._lookups.setdefault, key, _InputDraft(kind, status, number, target, is_asked))

    def list_folder(self, folder: bytes) -> Commit | None:
        """The run reads the names in an open folder, given by its real path."""
        known = self._lookups.get((b"", folder, True))
        if known is not None and known.names is not None:
            return None
        try:
            status = os.stat(folder)
            names = {each.partition("/")[0]: each for each in names_in(os.fsdecode(folder))}
        except OSError:
            return None  # it is gone, or not ours to read: its lookup is recorded
        if self._claims:
            if self._is_own(folder, True, status):
                own = self._claims.get(folder)
                return None if own is None else partial(own.add, Effect.LISTED)
            for path, claim in self._claims.items():
                if os.path.dirname(path) == folder:
                    name = os.fsdecode(os.path.basename(path))
                    names.pop(name, None)
                    if claim.before is not None:
                        names[name] = name + mark_of(claim.before.st_mode)
        return partial(self._add_listing, folder, status, tuple(sorted(names.values())))

    def open_to_write(self, folder: bytes, path: bytes, flags: int, mode: int) -> Commit | None:
        """The run opens a file to write to it, or to make it. mode: that a new one gets."""
        follow = not flags & os.O_NOFOLLOW and flags & (os.O_CREAT | os.O_EXCL) != os.O_CREAT | os.O_EXCL
        full, status = _status(folder, path, follow)
        if status is None:
            if not flags & os.O_CREAT:
                return self.record_lookup(folder, path, follow, _STATUS)
            claim = self._claim(full, follow, Effect.CREATED, None)
            if flags & os.O_TRUNC and not flags & os.O_EXCL:
                return claim  # it makes no difference whether it was there
            # One that appends depends on all that a file there holds.
            return _both(self.record_lookup(folder, path, follow, _STATUS if flags & os.O_EXCL else _CONTENT), claim)
        if not stat.S_ISREG(status.st_mode):
            return self.record_lookup(folder, path, follow, _CONTENT)
        if flags & os.O_CREAT and flags & os.O_EXCL:
            return self.record_lookup(folder, path, follow, _STATUS)
        if flags & os.O_TRUNC:
            claim = self._claim(full, follow, Effect.CREATED, status, mode=mode if flags & os.O_CREAT else None)
            return claim if flags & os.O_CREAT else _both(self.record_lookup(folder, path, follow, _STATUS), claim)
        return self.write_in_place(folder, path, follow)

    def write_in_place(self, folder: bytes, path: bytes, follow: bool = True) -> Commit | None:
        """The run changes part of a file, so that the result depends on the rest of it."""
        full, status = _status(folder, path, follow)
        draft = self.record_lookup(folder, path, follow, _CONTENT)
        if status is None or self._is_own(full, follow, status):
            return draft
        return _both(draft, self._claim(full, follow, Effect.WRITTEN, status))

    def make_name(self, folder: bytes, path: bytes) -> Commit | None:
        """The run makes a folder, a link, a node or a socket; that fails where something is there."""
        full, status = _status(folder, path, False)
        draft = self.record_lookup(folder, path, False, _STATUS, is_asked=False)
        if status is not None:
            return draft
        return _both(draft, _both(self._claim(full, False, Effect.CREATED, None), self._note_way))

    def remove(self, folder: bytes, path: bytes, *, is_folder: bool) -> Commit | None:
        """Record that the run removes a folder, or another file."""
        full, status = _status(folder, path, False)
        draft = self.record_lookup(folder, path, False, _STATUS)
        if status is None or stat.S_ISDIR(status.st_mode) != is_folder:
            return draft
        if is_folder:  # one that is not empty stays
            draft = _both(draft, self.list_folder(_real_path(full, True)))
        return _both(draft, self._claim(full, False, Effect.REMOVED, status))

    def set_attributes(self, folder: bytes, path: bytes, follow: bool) -> Commit | None:
        """The run sets owner, mode, times or extended attributes."""
        full, status = _status(folder, path, follow)
        if status is None:
            return self.record_lookup(folder, path, follow, _STATUS)
        if not self._is_own(full, follow, status):
            return self._claim(full, follow, Effect.ATTRIBUTES, status)
        claim = self._claims.get(_real_path(full, follow))
        return None if claim is None else partial(claim.add, Effect.ATTRIBUTES)

    def rename(
        self, source: tuple[bytes, bytes], target: tuple[bytes, bytes], *, exchanges: bool = False
    ) -> Commit | None:
        """The run gives a file another path. The content of a file that it did not make is an input then."""
        taken = self._take(source)
        from_path, from_status = _status(*source, False)
        to_path, to_status = _status(*target, False)
        draft = self.record_lookup(*target, False, _STATUS)
        if from_status is None:
            return _both(taken, draft)
        is_folder = stat.S_ISDIR(from_status.st_mode)
        if to_status is not None and stat.S_ISDIR(to_status.st_mode):
            draft = _both(draft, self.list_folder(_real_path(to_path, True)))
        claims = _both(
            self._claim(from_path, False, Effect.CREATED if exchanges else Effect.REMOVED, from_status, is_folder),
            self._claim(to_path, False, Effect.CREATED, to_status, is_folder),
        )
        if not stat.S_ISREG(from_status.st_mode) or exchanges:
            claims = _both(claims, self._note_way)
        return _both(_both(taken, self._take(target) if exchanges else draft), claims)

    def link(self, source: tuple[bytes, bytes], target: tuple[bytes, bytes], follow: bool) -> Commit | None:
        """The run makes a hard link. An empty source is a file that has no path (any more)."""
        return _both(self._take(source, follow) if source[1] else None, self.make_name(*target))

    def _take(self, source: tuple[bytes, bytes], follow: bool = False) -> Commit | None:
        """The run puts a file at another path as it is."""
        folder, path = source
        full, status = _status(folder, path, follow)
        if status is not None and stat.S_ISDIR(status.st_mode) and not self._is_own(full, follow, status):
            return self.problem(TraceProblemKind.MOVED_FOLDER, full)
        return self.record_lookup(folder, path, follow, _CONTENT)

    def execute(self, folder: bytes, path: bytes, interpreter: Callable[[bytes], tuple[bytes, bytes]]) -> Commit | None:
        """The run starts a program, and so what the kernel starts for it. interpreter: locates one by its path."""
        commit = self.record_lookup(folder, path, True, _PROGRAM)
        if commit is None and not self._claims:
            return None
        full, status = _status(folder, path, True)
        if self.is_unprivileged and status is not None and status.st_mode & (stat.S_ISUID | stat.S_ISGID):
            commit = _both(commit, self.problem(TraceProblemKind.PRIVILEGE, full))
        for _ in range(_MOST_INTERPRETERS):
            name = _interpreter(full)
            if name is None:
                break
            if not name:
                return _both(commit, self.problem(TraceProblemKind.FOREIGN_CALLS, full))
            folder, path = interpreter(name)
            commit = _both(commit, self.record_lookup(folder, path, True, _PROGRAM))
            full = _join(folder, path)
        return commit

    def connect_to(self, folder: bytes, path: bytes) -> Commit | None:
        """The run speaks to a Unix socket. An absent one is an absent file; one of its own is no input."""
        full, status = _status(folder, path, True)
        if status is None:
            return self.record_lookup(folder, path, True, _STATUS)
        return None if self._is_own(full, True, status) else self.problem(TraceProblemKind.DAEMON, full)

    def use_real_path(self, path: bytes) -> None:
        """The run learned the real path of an open file (a link of /proc, AT_EMPTY_PATH): how it got there counts."""
        self._real_paths.add(path)

    def problem(self, reason: TraceProblemKind, detail: bytes | str) -> Commit:
        """The result of the run must not be stored."""
        return partial(self.problems.setdefault, TraceProblem(reason, os.fsdecode(detail)))

    # --- what belongs to the run

    def _record_special(
        self, full: bytes, follow: bool, status: os.stat_result, kind: int, key: tuple[bytes, bytes, bool]
    ) -> Commit | None:
        """A device, a named pipe or a socket."""
        mode = status.st_mode
        if stat.S_ISCHR(mode) and (status.st_rdev in STATELESS_DEVICES or full.startswith(_ACCELERATORS)):
            return None
        if self._is_own(full, follow, status):
            return None
        if kind & _PROGRAM and not stat.S_ISSOCK(mode):
            return self.problem(TraceProblemKind.PIPE if stat.S_ISFIFO(mode) else TraceProblemKind.DEVICE, full)
        return partial(self._lookups.setdefault, key, _InputDraft(_STATUS, status, 0, None))

    def _is_own(self, full: bytes, follow: bool, status: os.stat_result | None) -> bool:
        """Whether the run made what is at a path, or took it away. It is decided by the real path."""
        if not self._claims:
            return False
        if status is None:
            if os.path.basename(full) not in self._claimed_names:
                return False
        elif status.st_ctime < self._recent:
            return False
        path = _real_path(full, follow)
        claim = self._claims.get(path)
        if claim is not None and claim.effect & (Effect.CREATED | Effect.REMOVED):
            return _identity(claim.replaced) != _identity(status)  # else that call has failed
        while status is not None and len(path := os.path.dirname(path)) > 1:
            claim = self._claims.get(path)
            if claim is not None and claim.effect & Effect.CREATED:
                return _identity(claim.replaced) != _identity(_status(b"", path, False)[1])
        return False

    def _record_links(self, full: bytes, follow: bool, visited: set[bytes] | None = None) -> Commit | None:
        """Record the links that lead to the run's own paths, but not links of the run. visited: paths on the way."""
        visited = set() if visited is None else visited
        if full in visited or len(visited) == _MOST_LINKS or full == _real_path(full, follow):
            return None
        visited.add(full)
        commit = None
        names = full.split(b"/")
        for end in range(2, len(names) + follow):
            path = b"/".join(names[:end])
            text = _text_of_link(path)
            if text is not None:
                target = os.path.join(os.path.dirname(path), text)
                links = self.record_lookup(b"", path, False, _STATUS), self._record_links(target, True, visited)
                commit = _both(commit, _both(*links))
        return commit

    def _is_below_own(self, full: bytes, follow: bool) -> bool:
        """Whether a path leads through a link that the run made. What it leads to need not be there."""
        path = text = b"/" + os.path.normpath(full).lstrip(b"/")  # normpath leaves two slashes that begin a path
        while len(path) > 1:
            claim = self._claims.get(path)
            if claim is not None and claim.effect & Effect.CREATED:
                status = _status(b"", path, False)[1]
                return self._is_own(path, False, status) and text != _resolve_missing(full, follow)
            path = os.path.dirname(path)
        return False

    def _claim(
        self,
        full: bytes,
        follow: bool,
        effect: int,
        status: os.stat_result | None,
        is_moved: bool = False,
        mode: int | None = None,
    ) -> Commit | None:
        path = _real_path(full, follow)
        if not path:  # there is no such folder, and so the call fails
            return self.record_lookup(b"", os.path.dirname(full), True, _STATUS)
        is_own = self._is_own(full, follow, status)
        # Links on the way, and one at the end, decide where the file is.
        way = self.record_lookup(b"", os.path.dirname(full), True, _STATUS)
        if follow and os.path.islink(full):
            way = _both(way, self.record_lookup(b"", full, False, _STATUS))
        return _both(way, partial(self._add_claim, path, effect, status, is_own, is_moved, mode))

    def _add_claim(
        self,
        path: bytes,
        effect: int,
        status: os.stat_result | None,
        is_own: bool,
        is_moved: bool,
        mode: int | None,
    ) -> None:
        claim = self._claims.get(path)
        if claim is None:  # what is in a folder that the run has made was not there before
            claim = self._claims[path] = _Claim(None if is_own else status)
            self._claimed_names.add(os.path.basename(path))
        elif not is_own:
            claim.effect &= ~(Effect.CREATED | Effect.REMOVED)  # that has failed: the file is still the one of before
            claim.replaced = status
        claim.effect |= effect
        claim.mode = mode if claim.mode is None else claim.mode
        claim.is_moved_here |= is_moved and bool(effect & Effect.CREATED)

    def _note_way(self) -> None:
        self._has_made_ways = True

    def _add_listing(self, folder: bytes, status: os.stat_result, names: tuple[str, ...]) -> None:
        draft = self._lookups.setdefault((b"", folder, True), _InputDraft(_LISTING, status, 0, folder))
        draft.kinds |= _LISTING
        draft.names = names

    def _record_link_paths(self) -> None:
        """Add the links on the way to each file of which the run learned the real path."""
        files = {(status.st_dev, status.st_ino) for path in self._real_paths if (status := _status(b"", path, True)[1])}
        for (folder, path, follow), draft in list(self._lookups.items()):
            if draft.status is None or not follow or (draft.status.st_dev, draft.status.st_ino) not in files:
                continue
            full = _join(folder, path)
            for _ in range(_MOST_LINKS):
                parent = os.path.dirname(full)
                for commit in (
                    self.record_lookup(b"", parent, True, _STATUS),
                    self.record_lookup(b"", full, False, _STATUS),
                ):
                    if commit is not None:
                        commit()
                text = _text_of_link(full)
                if text is None:
                    break
                full = os.path.join(parent, text)

    # --- at the end

    def finish(self) -> tuple[tuple[TracedInput, ...], tuple[Change, ...]]:
        """Return the inputs, and what is different from before the run."""
        self._record_link_paths()
        changes: dict[bytes, Change] = {}
        for path, claim in self._claims.items():
            after = _status(b"", path, False)[1]
            is_made_anew = claim.effect & Effect.REMOVED and claim.effect & Effect.CREATED and after is not None
            if _is_same(claim.before, after) and not is_made_anew:  # a number may be given out again
                if after is None:  # made and removed: where it is there before, that is gone
                    self._lookups.setdefault((b"", path, False), _InputDraft(_STATUS, None, errno.ENOENT, None))
                continue
            changes[path] = _change(path, claim.effect, claim.before, after, claim.mode)
            is_moved_here = claim.is_moved_here and _identity(claim.replaced) != _identity(after)
            if is_moved_here and after is not None and stat.S_ISDIR(after.st_mode):
                for inner in _below(path):
                    changes.setdefault(inner, _change(inner, Effect.CREATED, None, _status(b"", inner, False)[1]))
        by_file = {(each.before.dev, each.before.ino): each.effect for each in changes.values() if each.before}
        created = {path: each.effect for path, each in changes.items() if each.before is None}
        passing = Effect.CREATED | Effect.REMOVED  # scratch files: made, and gone again
        created |= {path: passing for path, claim in self._claims.items() if _is_passing(path, claim)}
        names = set(map(os.path.basename, created))
        inputs = []
        for (folder, path, follow), draft in self._lookups.items():
            effect = 0
            if draft.status is not None:
                effect = by_file.get((draft.status.st_dev, draft.status.st_ino), effect)
            elif names and os.path.basename(path) in names:
                effect = created.get(_real_path(_join(folder, path), follow), effect)
            inputs.append(_input(folder, path, follow, draft, effect))
        return tuple(inputs), tuple(changes.values())


def _is_passing(path: bytes, claim: _Claim) -> bool:
    """Whether the run made what is not there before and after it."""
    is_done = claim.effect & (Effect.CREATED | Effect.REMOVED) == Effect.CREATED | Effect.REMOVED
    return is_done and claim.before is None and not os.path.lexists(path)


def _both(first: Commit | None, second: Commit | None) -> Commit | None:
    if first is None or second is None:
        return first or second
    return partial(_run, first, second)


def _run(first: Commit, second: Commit) -> None:
    first()
    second()


def _join(folder: bytes, path: bytes) -> bytes:
    return folder + b"/" + path if folder else path


def _status(folder: bytes, path: bytes, follow: bool) -> tuple[bytes, os.stat_result | None]:
    """Return the path that the supervisor uses, and what is there."""
    full = _join(folder, path)
    try:
        return full, os.stat(full) if follow else os.lstat(full)
    except OSError:
        return full, None


def _real_path(full: bytes, follow: bool) -> bytes:
    """Return the path without links on the way, and without one at its end where that is followed.

    It need not be there, but for its folder: else nothing can be there, and the path is empty.
    """
    try:
        fd = os.open(full, os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    except OSError:
        if follow and os.path.islink(full):
            return os.path.realpath(full)
        folder, name = os.path.split(full.rstrip(b"/"))
        if len(folder) >= len(full) or not os.path.isdir(folder):
            return b""
        return os.path.join(_real_path(folder, True), name)
    try:
        return os.readlink(b"/proc/self/fd/%d" % fd)
    finally:
        os.close(fd)


def _resolve_missing(full: bytes, follow: bool) -> bytes:
    """The same of a path below folders that need not be there either."""
    if follow:
        return os.path.realpath(full)
    folder, name = os.path.split(full.rstrip(b"/"))
    return os.path.join(os.path.realpath(folder), name)


def _text_of_link(full: bytes) -> bytes | None:
    try:
        return os.readlink(full)
    except OSError:
        return None


def _identity(status: os.stat_result | None) -> tuple[int, ...]:
    """What differs after a path was replaced, or a file was emptied; not after a new mode, or another hard link."""
    if status is None:
        return ()
    times = () if stat.S_ISDIR(status.st_mode) else (status.st_size, status.st_mtime_ns)
    return status.st_dev, status.st_ino, *times


def _is_same(one: os.stat_result | None, other: os.stat_result | None) -> bool:
    """Whether nothing that is recorded has changed. The names in a folder don't count."""
    if one is None or other is None:
        return one is other
    if stat.S_ISDIR(one.st_mode):
        return _identity(one) == _identity(other) and one.st_mode == other.st_mode
    return state_of(one) == state_of(other)


def _interpreter(full: bytes) -> bytes | None:
    """The program that the kernel opens to start one: of a ``#!`` line (execve(2)), or PT_INTERP of ELF (elf(5)).

    It is empty for a program of another width of addresses.
    """
    try:
        fd = os.open(full, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None
    try:
        head = os.read(fd, 4096) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        if head.startswith(b"\x7fELF"):
            return _elf_interpreter(fd, head)
    finally:
        os.close(fd)
    words = head[2:].split(b"\n", 1)[0].split() if head.startswith(b"#!") else []
    return words[0] if words else None


def _elf_interpreter(fd: int, head: bytes) -> bytes | None:
    if head[4] != 2:  # ELFCLASS64
        return b""
    start, size, count = (int.from_bytes(head[at : at + n], "little") for at, n in ((32, 8), (54, 2), (56, 2)))
    table = os.pread(fd, size * count, start)
    for at in range(0, size * count, size or 1):
        if table[at : at + 4] == b"\3\0\0\0":  # PT_INTERP
            offset, nbytes = (int.from_bytes(table[at + n : at + n + 8], "little") for n in (8, 32))
            return os.pread(fd, min(nbytes, 4096), offset).split(b"\0", 1)[0] or None
    return None


def _below(folder: bytes) -> Iterator[bytes]:
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            yield os.path.join(parent, name)


def _change(
    path: bytes,
    effect: int,
    before: os.stat_result | None,
    after: os.stat_result | None,
    mode: int | None = None,
) -> Change:
    return Change(os.fsdecode(path), effect, _state(before), _state(after), mode)


def _state(status: os.stat_result | None) -> State | None:
    return None if status is None else state_of(status)


def _input(folder: bytes, path: bytes, follow: bool, draft: _InputDraft, effect: int) -> TracedInput:
    kinds = draft.kinds
    if kinds & _CONTENT and draft.status is not None and stat.S_ISDIR(draft.status.st_mode):
        kinds = kinds & ~_CONTENT | _STATUS  # a folder has no content but its names
    target = None if draft.target is None else os.fsdecode(draft.target)
    text, start = os.fsdecode(path), os.fsdecode(folder) if folder else ""
    return TracedInput(
        text, start, follow, kinds, _state(draft.status), draft.error, target, draft.names, effect, draft.is_asked
    )
