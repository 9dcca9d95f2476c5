"""What a traced run looked up and changed, as typed records.

*First touch decides*: what the run looked up first is an input, in the state that it had then; what the run made first
is its own. States are taken when the kernel reports the call, before it has any effect. Whether the call succeeded is
not reported: a change counts where the file at that path is another one afterwards.

Digests are not taken here: an input's state says at the end of the run whether its content is still the one that the
run saw.
"""

from __future__ import annotations

import enum
import os
from typing import NamedTuple


class Kind:
    """How a run used a path: bits of ``Input.kinds``. Plain numbers, as operations on members of an enumeration take
    ten times as long, and there are some for each call that is reported."""

    #: Whether it is there, and type, mode, link count and size. A link that was not followed: its text.
    STATUS = 1
    #: Opened to be read.
    CONTENT = 2
    #: The names in a folder were read.
    LISTING = 4
    #: The extended attributes were read.
    ATTRIBUTES = 8
    #: Started as a program, or as the interpreter of one.
    EXECUTED = 16


class Effect:
    """What a run did to a path: bits of ``Input.effect`` and ``Change.effect``."""

    #: A new file, folder or link, also one that replaced the whole of what was there.
    CREATED = 1
    #: A file that was there was opened to be changed in place.
    WRITTEN = 2
    #: Removed, or renamed to another path.
    REMOVED = 4
    #: Owner, mode, times or extended attributes were set.
    ATTRIBUTES = 8
    #: The names in a folder that the run had made were read: where it is there before, there may be others.
    LISTED = 16


class TraceProblemKind(enum.StrEnum):
    """Why the result of a run must not be stored. The value is the name that users read."""

    # The command ran without a tracer.
    UNSUPPORTED_MACHINE = "untraced-machine"
    NO_LISTENER = "untraced-no-listener"
    NESTED = "untraced-nested"
    NO_ACCESS = "untraced-no-access"
    # The tracer did not see all.
    FOREIGN_CALLS = "foreign-system-calls"
    UNREADABLE = "unreadable-process"
    UNRESOLVED = "unresolved-path"
    UNSUPPORTED_CALL = "unsupported-system-call"
    NAMESPACE = "other-namespace-or-root"
    # The run depends on, or changes, more than files.
    NETWORK = "network"
    DAEMON = "daemon"
    DEVICE = "device"
    PIPE = "named-pipe"
    PRIVILEGE = "privilege"
    OTHER_RIGHTS = "other-rights"
    MOVED_FOLDER = "moved-folder"
    LEFT_BEHIND = "process-left-behind"
    SIGNAL = "signal"


class TraceProblem(NamedTuple):
    """One reason, and what it is about: a path, an address, a call."""

    reason: TraceProblemKind
    detail: str


class State(NamedTuple):
    """What stat(2) says of a file."""

    dev: int
    ino: int
    mode: int
    nlink: int
    size: int
    mtime_ns: int
    ctime_ns: int
    uid: int
    gid: int


class TracedInput(NamedTuple):
    """One path that the run looked up before it made it.

    The path is literal. ``os.path.join(folder, path)`` leads there; only the kernel resolves it.

    Below /proc, the folder of a process of the run itself is no input, by ``self``, ``thread-self`` or its number. Its
    links ``cwd``, ``root``, ``exe`` and ``fd/N`` count as what they lead to. All else below /proc and /sys is an input,
    other processes too, and the caller decides what it is worth. ``state`` does not say there whether the content is
    the same: size and times are those of no file.
    """

    path: str
    #: The real path of the folder that a relative path starts from; empty for an absolute one.
    folder: str
    #: Whether a link at the end was followed.
    follow: bool
    kinds: int
    #: None where nothing was there.
    state: State | None
    #: errno of the lookup; 0 where something was there.
    error: int
    #: Of a folder: its real path, so that links on the way need no record. Of a link that was not followed: its text.
    target: str | None
    #: Of a listed folder: the names that were in it before the run, with their types (``lookups.names_in``), sorted.
    names: tuple[str, ...] | None
    #: What the run itself did later to what it had looked up. Both CREATED and REMOVED: it is gone again.
    effect: int
    #: Whether more was asked than a call does that makes a name.
    is_asked: bool = True

    @property
    def place(self) -> str:
        """The path with the folder that it starts from."""
        return os.path.join(self.folder, self.path) if self.folder else self.path


class Change(NamedTuple):
    """One path that the run changed. A path that was made and removed again does not count."""

    #: Absolute and real, but for a link at its end.
    path: str
    effect: int
    before: State | None
    after: State | None
    #: Of a file that was emptied: the mode that it would have got from open(2) if it were new; None: not known.
    mode: int | None


class Accesses(NamedTuple):
    """How a command ended, and what it did. Without problems, that is all that it depends on and all that it made."""

    #: As in ``subprocess``: negative for a signal.
    returncode: int
    inputs: tuple[TracedInput, ...]
    changes: tuple[Change, ...]
    #: Empty where the result may be stored.
    problems: tuple[TraceProblem, ...]
    #: A process had a signal handler without SA_RESTART: a lookup may have failed with EINTR, which it can't without a
    #: tracer. A run that failed, and changed nothing, should be repeated without one.
    may_be_interrupted: bool
    #: Calls that the kernel reported.
    notifications: int
    #: Whether a process read from the standard input that the run was given, or duplicated it.
    uses_stdin: bool
    #: The same of another descriptor that the run inherited, or that it was written to.
    uses_descriptor: bool
    #: Whether a process asked for the mask of new files, which umask(2) tells by setting another.
    uses_umask: bool
    #: Whether a process asked if standard input is a terminal, as isatty(3) does.
    asks_for_terminal: bool


def unseen(returncode: int, problem: TraceProblem) -> Accesses:
    """Return the record of a run of which nothing was seen, because of ``problem``."""
    return Accesses(
        returncode,
        inputs=(),
        changes=(),
        problems=(problem,),
        may_be_interrupted=False,
        notifications=0,
        uses_stdin=True,
        uses_descriptor=True,
        uses_umask=True,
        asks_for_terminal=True,
    )


def state_of(status: os.stat_result) -> State:
    """Return what is recorded of a file."""
    return State(
        status.st_dev,
        status.st_ino,
        status.st_mode,
        status.st_nlink,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_uid,
        status.st_gid,
    )
