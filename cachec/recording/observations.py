"""What a run was observed to do, as bare facts; whether a key covers them is decided elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import CodeType
from typing import Any, NamedTuple

import msgspec
from msgspec import field

from cachec.base.fsio import Identity
from cachec.base.paths import absolute, current_folder, descriptors, links_on, relative_to, resolve_path
from cachec.recording.thread_owner import thread_mark
from cachec.recording.unobserved_processes import Starter

#: The clock of time stamps of files (linux/time.h), which Python has no name for.
_CLOCK_REALTIME_COARSE = 5

#: Places of what can't be read again alike, and the folder among them that holds plain files.
_UNREPEATABLE = ("/proc/", "/sys/", "/dev/")
_SHARED_MEMORY = "/dev/shm/"


#: The reason not to store the result of a run with a read that can't be repeated.
STANDARD_INPUT = "the standard input was read: pass what it says as an argument"


def is_unrepeatable(path: str) -> bool:
    """Whether what is opened there is another thing with each look: the kernel's own files, devices."""
    return path.startswith(_UNREPEATABLE) and not path.startswith(_SHARED_MEMORY)


def is_absolute(path: object) -> bool:
    """Whether a path means the same in every folder. Raises TypeError for what is no path."""
    return os.fsdecode(path).startswith("/")  # type: ignore[arg-type]


def place_of(path: object) -> str | None:
    """The absolute path that is meant. None for what is no path (a descriptor was opened by one before), and where the
    current folder is gone: the call fails by itself."""
    try:
        return absolute(os.fsdecode(path))  # type: ignore[arg-type]
    except (TypeError, OSError):
        return None


class ExecutedCode(NamedTuple):
    """Code of the project that ran, and the globals that it ran in."""

    code: CodeType
    namespace: dict[str, Any]


class Observations(msgspec.Struct):
    """What one run was observed to do. Filled from several threads; every step is one atomic dict operation, and the
    first observation of a thing counts: what a run sees later may be its own doing."""

    #: When, in ns of Unix time, as file systems tell it, which go by ticks.
    began: int = field(default_factory=lambda: time.clock_gettime_ns(_CLOCK_REALTIME_COARSE))
    #: When, as other clocks tell it: a part of a tick later than ``began``.
    after: int = field(default_factory=time.time_ns)
    #: Code that ran, by its ``id``; the code is referenced, since equal code of two files is two things.
    executed_code: dict[int, ExecutedCode] = {}
    #: Names of modules that project code imported, or looked for in vain.
    imported: dict[str, None] = {}
    #: Modules that it asked for by a computed name, imported or not.
    named: dict[str, None] = {}
    #: Modules of which it asked whether they exist.
    sought: dict[str, None] = {}
    #: Distributions with metadata that it read, ``*`` for all.
    installed: dict[str, None] = {}
    #: Absolute paths that were opened for reading.
    opened: dict[str, Identity] = {}
    #: Paths that were looked for and did not exist.
    absent: dict[str, None] = {}
    #: Paths of which it asked only whether they exist (True for a folder).
    there: dict[str, bool] = {}
    #: Paths for which it mattered what links are on the way, with these links.
    links: dict[str, tuple[tuple[str, str], ...]] = {}
    #: Paths of which it asked what may be done with them, with the answer.
    allowed: dict[str, str] = {}
    #: Paths with a queried status -> that status.
    stated: dict[str, os.stat_result] = {}
    #: Paths with a status from ``os.scandir`` -> that status; no later event reports its use.
    scanned: dict[str, tuple[Identity, os.stat_result]] = {}
    #: Files that the import system read.
    sources: dict[str, Identity] = {}
    #: Files that Python or cachec opened for its own ends.
    passed: dict[str, None] = {}
    #: Paths that the run itself wrote or made, files and folders, each with what was there before.
    made: dict[str, _State | None] = {}
    #: Paths that could be made only because nothing was there.
    new: dict[str, None] = {}
    #: Paths that the run removed or moved away, and has not made since.
    removed: dict[str, _Removal] = {}
    #: Folders with what is in them.
    listed: dict[str, tuple[str, ...]] = {}
    #: Paths in listed folders that the run had made.
    scratch: dict[str, None] = {}
    #: Names that project code looked up in the environment, with the values that it found.
    variables: dict[str, str | None] = {}
    #: Variables that the run had set before it looked them up.
    fixed: dict[str, None] = {}
    #: Paths, and ``$NAME`` for variables, that another thread made or removed, each with the thread and the state
    #: before.
    others: dict[str, tuple[object, _State | None]] = {}
    #: Files that the run opened to write to as they were, each with its state before.
    written: dict[str, _State | None] = {}
    #: Paths of which it changed anything but all, with the state before.
    touched: dict[str, _State | None] = {}
    #: Paths that it made in a way that would have taken what is there as it is.
    own_results: dict[str, None] = {}
    #: Existing files that it opened to overwrite them.
    rewritten: dict[str, None] = {}
    #: Folders that it made in such a way, or that are in one, and looked through.
    filled: dict[str, None] = {}
    #: Functions of Python that queried a status without their names in any code.
    asked: dict[str, None] = {}
    #: Whether this thread acts for the run.
    acts: Callable[[], bool] = lambda: True
    #: The function of a pool's job that the run was begun in, if it was.
    job: CodeType | None = None
    #: All variables, as they were when it first went through them.
    copied: dict[str, str] | None = None
    #: Programs and processes that it started.
    started: dict[str, None] = {}
    #: Programs and processes that may have worked for the run, each with the code that started or used it.
    undeclared: dict[str, Starter] = {}
    #: Reads of project code that can't be repeated with the same result.
    unrepeatable: dict[str, None] = {}
    #: Nested stages, by ``id``.
    stages: dict[int, Any] = {}
    #: Where modules were looked for when the run began.
    path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    #: The current folder when the run began, empty where it was gone.
    cwd: str = field(default_factory=current_folder)
    #: Descriptors that were open when it began.
    descriptors: frozenset[int] = field(default_factory=descriptors)
    #: Whether the run took the current folder for a value or for a part of one.
    asked_cwd: bool = False
    #: An access that no read can represent; empty for none.
    nondeterministic: str = ""
    #: Whether it went to a folder by an absolute path.
    moved: bool = False
    #: Paths that were given relative to ``cwd``, by the absolute ones.
    relative: dict[str, str] = {}
    #: Paths that were given absolute.
    absolute: dict[str, None] = {}
    #: Modules that were imported when the run began.
    modules: frozenset[str] = field(default_factory=lambda: frozenset(sys.modules))
    #: Why something that ran may not have been observed; empty where everything was.
    incomplete: str = ""
    #: What had changed when the run looked again, though not by its own doing; empty for nothing.
    inconsistent: str = ""
    #: Whether it started a program or a process, which may do what is not observed.
    children: bool = False

    def note_path(self, path: object) -> str | None:
        """The place that a path means, as ``place_of``, and note in which form it was given: what is relative means
        another place in another folder."""
        place = place_of(path)
        if place is None:
            return None
        self._go_back(os.fsdecode(path))  # type: ignore[arg-type]
        try:
            place.encode()
        except UnicodeEncodeError:
            self.nondeterministic = (
                self.nondeterministic or f"{place!r}, which is no UTF-8, was looked at: no read can hold its name"
            )
            return None
        if is_absolute(path) or self.moved or not self.cwd:
            self.absolute.setdefault(place)
        else:
            self.relative.setdefault(place, relative_to(place, self.cwd))
        return place

    def _go_back(self, path: str) -> None:
        """A path leads over a folder and back: that counts, although what is meant is not in it."""
        parts = path.split("/") if ".." in path else []
        backs = [at for at in range(1, len(parts)) if parts[at] == ".." and parts[at - 1] not in {"", ".", ".."}]
        # As far as the last one: what leads to that is given in its turn, with those before it.
        place = self.note_path("/".join(parts[: backs[-1]])) if backs else None
        if place is not None and not self.own(place):
            self.links.setdefault(place, links_on(place))
            if os.path.exists(place):
                self.there.setdefault(place, os.path.isdir(place))
            else:
                self.absent.setdefault(place)

    def is_since(self, place: str, state: Identity) -> bool:
        """Whether what is at ``place``, in this state, came to be since the run began: it has made it, also where no
        event tells of that. Of what came to be in the tick in which it began nobody knows."""
        before = self.touched.get(place)
        return state.changed_ns > self.after and (before is None or before[_CHANGED] > self.after)

    def touch(self, place: str) -> None:
        """The run changes something of what is there, such as its times."""
        for each in self._names(place):
            self.touched.setdefault(each, _state(each))

    def write(self, place: str) -> None:
        """The run writes to a file that is there, and does not cut it off before."""
        self.touch(place)
        for each in self._names(place):
            self.written.setdefault(each, self.touched[each])

    def is_mixed(self, place: str) -> bool:
        """Whether the run itself made a part of the content: the former content can't be read any more."""
        before = self.written.get(place)
        return before is not None and before[_CHANGED] <= self.after and _state(place) != before

    def make_new(self, path: object) -> None:
        """The run makes something where it sees that nothing is."""
        place = self.note_path(path)
        if place is not None and not self.own(place):
            self.new.setdefault(place)

    def make(self, place: str) -> None:
        """Record that the run makes this, or overwrites it."""
        for each in self._names(place):
            self.made.setdefault(each, _state(each))
            self.removed.pop(each, None)
            self.own_results.pop(each, None)

    def rewrite(self, place: str) -> None:
        """Record that the run writes a file, or overwrites an existing one in place."""
        for each in self._names(place):
            if os.path.lexists(each) and each not in self.made:
                self.rewritten.setdefault(each)
        self.make(place)

    def make_or_keep(self, place: str) -> None:
        """The run makes this where nothing is, and would have taken what is there as it is."""
        for each in self._names(place):
            if self._last_action(each) is None:
                self.make(each)
                self.own_results.setdefault(each)
            elif each not in self.made:
                self.make(each)

    def remove(self, place: str) -> None:
        """The run removes this, or moves it away: what is there next is not its own any more."""
        for each in self._names(place):
            before = _state(each)
            if each not in self.removed or before is not None:
                self.removed[each] = _Removal(before, self.made.get(each, before), each in self.own_results)
            for done in (self.made, self.own_results, self.rewritten):
                done.pop(each, None)

    def make_by_another(self, place: str) -> None:
        """Somebody else makes or removes this. Where the run itself does, too, nobody knows who came last: both are
        told before it is done."""
        for each in self._names(place):
            thread, before = self.others.get(each, (None, None))
            self.others[each] = thread_mark(), before if thread is thread_mark() else _state(each)

    @staticmethod
    def _names(place: str) -> set[str]:
        folder, _, name = place.rpartition("/")
        return {place, os.path.join(resolve_path(folder), name)}

    def differs(self, place: str, is_there: bool) -> None:
        """The run looks at what it has looked at before, and it is another by now: nobody could look at both again. But
        where the run itself did that, or may have (a program that it started), it is as it has to be."""
        if not self.children and not (self.own(place) if is_there else self.is_removed_by_run(place)):
            self.inconsistent = self.inconsistent or f"{place} was looked at twice, and had changed in between"

    def counted_place(self, place: str) -> str | None:
        """Where a look at ``place`` goes that counts: None where the run itself made what is there, or removed what
        was, and where another thread looks at what it has made itself. A link leads to what was not made with it. What
        is there again may be of its own native code, and counts as what is found there by whoever looks next."""
        if place in self.others and self._last_action(place) is not None:
            self.inconsistent = (
                self.inconsistent or f"{place}, which the run made, was changed by another thread meanwhile"
            )
        if self.others and self._is_anothers(place) and not self.acts():
            return self._beyond(place, self._is_anothers)
        if self.is_removed_by_run(place):
            return place if os.path.lexists(place) else None
        if not self.own(place):
            return place
        if self.own_results and not os.path.lexists(place) and self.is_in_own_result(place):
            return place
        return self._beyond(place, self.own)

    @staticmethod
    def _beyond(place: str, is_own: Callable[[str], bool]) -> str | None:
        there = resolve_path(place, is_own)
        return None if there == place or is_own(there) else there

    def _is_anothers(self, path: str) -> bool:
        """Whether this thread made it, or a folder above it, and not for this run."""
        while path not in self.others:
            above = path.rpartition("/")[0]
            if not above or above == path:
                return False
            path = above
        thread, before = self.others[path]
        return thread is thread_mark() and _state(path) != before

    def own(self, path: str) -> bool:
        """Whether the run itself made ``path``, or a folder above it."""
        return self._last_action(path) is self.made

    def is_in_own_result(self, path: str) -> bool:
        """Whether the run itself made ``path``, or a folder above it, and would have taken what is there as it is: all
        that is in it is its own, and what is not might be."""
        done, place = self._deciding_action(path)
        return done is self.made and place in self.own_results

    def is_removed_by_run(self, path: str) -> bool:
        """Whether the run itself removed ``path``, or a folder above it."""
        return self._last_action(path) is self.removed

    def _last_action(self, path: str) -> dict[str, Any] | None:
        """Among which things that the run did the last one is that decides of a path."""
        return self._deciding_action(path)[0]

    def _deciding_action(self, path: str) -> tuple[dict[str, Any] | None, str]:
        while True:
            if path in self.removed and self._is_removed(path):
                return self.removed, path
            if path in self.made and self._is_made(path):
                return self.made, path
            above = path.rpartition("/")[0]
            if not above or above == path:
                return None, path
            path = above

    def _is_removed(self, path: str) -> bool:
        """Whether it was, in the end: else it is what it was before."""
        before, made, was_own_result = self.removed[path]
        if before is None:
            return True
        now, identity_size = _state(path), 2 if os.path.isdir(path) else None  # others may come and go in a folder
        if now is not None and now[:identity_size] == before[:identity_size]:
            del self.removed[path]
            if made != before:
                self.made[path] = made
                if was_own_result:
                    self.own_results.setdefault(path)
            return False
        self.removed[path] = _Removal(None, None, False)
        return True

    def _is_made(self, path: str) -> bool:
        """Whether the change took place: its event comes before the change, which may fail."""
        before = self.made[path]
        if before != _MADE:
            if _state(path) == before:
                return False
            self.made[path] = _MADE
        return True


#: What tells whether something is done with a path: device, inode, size, and times of change.
_State = tuple[int, ...]
_CHANGED = 4  # st_ctime_ns


class _Removal(NamedTuple):
    """before: what is to be removed, None once it is. made: as in ``made``, where the run had made it; else as before.
    was_own_result: as in ``own_results``."""

    before: _State | None
    made: _State | None
    was_own_result: bool


#: In place of the state before, where something was.
_MADE: _State = ()


def _state(path: str) -> _State | None:
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
