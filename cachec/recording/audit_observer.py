"""Files, folders and modules that a run accesses, from audit events (PEP 578)."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, cast

from cachec.base import audit_events
from cachec.base.distributions import OWN_FOLDER
from cachec.base.fsio import identity_if_there
from cachec.base.paths import descriptor_path, in_folder
from cachec.recording.active_runs import Active
from cachec.recording.audit_hook import Handler, audit_hook
from cachec.recording.calling_frames import removes, takes_either
from cachec.recording.library_lookups import (
    content_asked,
    content_at,
    entry_asked,
    input_at,
    links_at,
    listed_at,
    modules_sought,
    place_asked,
    place_at,
    removal_asked,
    result_file_at,
)
from cachec.recording.observations import STANDARD_INPUT, Observations, is_unrepeatable, place_of
from cachec.recording.os_calls import caller_arguments
from cachec.recording.unobserved_processes import starter

#: Modules that import others instead of Python, and store the compiled code in the source's folder.
_LOADERS = frozenset({"_pytest.assertion.rewrite"})
#: Modules with frames that read a module's own code: the read counts as an import, not as a file.
_IMPORTERS = ("<frozen importlib._bootstrap_external>", "<frozen importlib._bootstrap>", "<frozen zipimport>")
_SOCKETS = frozenset({"socket.connect", "socket.getaddrinfo", "urllib.Request"})
#: Events of a path that comes to be: which argument it is, and which the descriptor of the folder that it starts from.
_MADE = {
    "os.mkdir": (0, 2),
    "os.rename": (1, 3),
    "os.link": (1, 3),
    "os.symlink": (1, 2),
}
#: Those of them in which there must be nothing before; those of what was somewhere else, with its folder's descriptor.
_MADE_NEW = frozenset({"os.mkdir", "os.link", "os.symlink"})
_TAKEN = {"os.rename": 2, "os.link": 2}
#: Events of a path that goes, with the place of the descriptor of its folder.
_REMOVED = {"os.remove": 1, "os.rmdir": 1, "os.rename": 2}
#: Events of partial changes, with the argument index of the folder's descriptor, if any.
_TOUCHED = {
    "os.chmod": 2,
    "os.chown": 3,
    "os.utime": 3,
    "os.setxattr": None,
    "os.removexattr": None,
    "os.truncate": None,
}
_LISTED = frozenset({"os.listdir", "os.scandir"})
#: What these read and run is not observed.
_PROGRAMS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.exec", "os.system"})
_PROCESSES = frozenset({"os.fork", "os.forkpty"})


class AuditObserver:
    """Tells active runs of the files that are opened, the folders that are listed and the modules that are imported."""

    def __init__(self, runs: Active) -> None:
        self._runs = runs
        self._handlers: dict[str, Handler] = {
            "open": self._on_open,
            "import": self._on_import,
            **dict.fromkeys(_LISTED, self._on_list),
            **dict.fromkeys(_REMOVED, self._on_remove),
            **dict.fromkeys(_MADE, self._on_create),
            **dict.fromkeys(_TOUCHED, self._on_touch),
            "shutil.rmtree": self._tree_removed,
            "os.chdir": self._on_move,
            "builtins.input": self._input,
            "sqlite3.connect": self._database,
            "ctypes.dlopen": self._on_load,
            "pickle.find_class": self._on_unpickle,
            audit_events.READS: self._on_own_access,
            audit_events.KEEPS: self._on_own_access,
            audit_events.ASKS: self._on_query,
            **dict.fromkeys(_SOCKETS, self._on_connect),
            **dict.fromkeys(_PROGRAMS | _PROCESSES, self._on_start),
        }

    def arm(self, on: bool) -> None:
        """A run begins (``on``), or the last one has ended."""
        (audit_hook().listen if on else audit_hook().leave)(self._handlers)

    def _on_list(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        if _by_importer(frame) or _by_cachec(frame) or _for_metadata(frame) or removes(frame):
            return
        folder = descriptor_path(args[0]) if isinstance(args[0], int) else args[0] or os.curdir
        self._each(listed_at, folder)
        if event == "os.scandir" and self._runs.is_project(frame.f_code.co_filename):
            self._each(_scan_folder, folder)

    def _on_create(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        at, dir_fd = _MADE[event]
        path = in_folder(args[at], args[dir_fd])
        if event in _TAKEN:
            self._each(_read_moved, in_folder(args[0], args[_TAKEN[event]]))
        if event in _REMOVED:
            self._on_remove(event, args, frame)
        if event in _MADE_NEW:
            is_scratch = event != "os.mkdir" or frame.f_globals.get("__name__") == "tempfile"
            self._new(path, frame, Observations.make if is_scratch else Observations.make_or_keep)
        else:
            self._makes(path, frame)

    def _new(
        self, path: Any, frame: FrameType, make: Callable[[Observations, str], object] = Observations.make
    ) -> None:
        """Where something is already, none is made: whether it is, is seen, but where the caller takes either."""
        note = entry_asked if os.path.lexists(path) else Observations.make_new
        if not takes_either(frame):
            for observed in self._runs.asked_by(frame):
                note(observed, path)
        if note is Observations.make_new:
            self._makes(path, frame, note=make)

    def _on_remove(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        path, acting = in_folder(args[0], args[_REMOVED[event]]), self._runs.acting()
        if event != "os.rename" and frame.f_locals.get("missing_ok") is not True:
            for observed in self._runs.asked_by(frame):
                removal_asked(observed, path)
        self._each(Observations.remove, path, acting)
        self._each(Observations.make_by_another, path, self._others(acting, frame))

    def _on_touch(self, event: str, args: tuple[Any, ...], _frame: FrameType) -> None:
        at = _TOUCHED[event]
        path = descriptor_path(args[0]) if isinstance(args[0], int) else in_folder(args[0], args[at] if at else None)
        note = Observations.write if event == "os.truncate" else Observations.touch
        self._each(note, path, self._runs.acting())

    def _tree_removed(self, _event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        if frame.f_locals.get("ignore_errors") is not True:
            for observed in self._runs.asked_by(frame.f_back):
                place_asked(observed, in_folder(args[0], args[1]))

    def _on_move(self, _event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        for observed in self._runs.asked_by(frame):
            place_asked(observed, args[0])
        if not isinstance(args[0], int):
            self._each(links_at, args[0])
        self._each(_went, args[0])
        for observed in self._others(self._runs.acting(), frame):
            observed.inconsistent = observed.inconsistent or "another thread went to another current folder meanwhile"

    def _on_own_access(self, event: str, args: tuple[Any, ...], _frame: FrameType) -> None:
        """Observe a file that a stage passes to cachec. Accesses for cachec's own purposes do not count."""
        path, is_relative = args
        self._each(
            input_at if event == audit_events.READS else result_file_at, os.path.relpath(path) if is_relative else path
        )

    def _on_query(self, _event: str, args: tuple[Any, ...], _frame: FrameType) -> None:
        for observed in self._runs.here():
            observed.nondeterministic = (
                observed.nondeterministic or f"{args[0]}: in a thread of which nobody knows for which stage it works"
            )

    def _on_connect(self, event: str, _args: tuple[Any, ...], frame: FrameType) -> None:
        self._unrepeatable(f"a connection ({event})", frame)

    def _on_open(self, _event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        path, flags = args[0], args[2] if len(args) > 2 and isinstance(args[2], int) else 0
        if isinstance(path, int) or path is None:
            if path == 0:
                self._input(_event, args, frame)
            return  # a descriptor was opened by a path before
        frame, how = caller_arguments(frame)
        path = in_folder(path, how.get("dir_fd"))
        cuts, is_new = flags & os.O_TRUNC, bool(flags & os.O_CREAT) and not os.path.lexists(path)
        if flags & os.O_CREAT and (flags & os.O_EXCL or (flags & os.O_RDWR and is_new)):
            if not flags & (os.O_EXCL | os.O_TRUNC) and not _by_cachec(frame):  # what is there would be read
                self._each(content_at, path)
            self._new(path, frame)
        elif cuts or is_new:
            if not os.path.isdir(path):  # which fails; or tempfile names its folder, and opens a file itself
                self._each(_folder_missed, path)
                note = Observations.rewrite if cuts else Observations.make_or_keep
                self._makes(path, frame, note=note, is_shared=bool(flags & os.O_APPEND))
        elif flags & os.O_WRONLY:  # existing content is not read
            place = place_of(path)
            for observed in self._runs.acting() if place is not None else ():
                observed.write(str(place))
        elif removes(frame):
            self._pass(path)
        elif _by_importer(frame):
            self._each(_source, path)
        elif not _for_messages(frame) and not _by_cachec(frame) and not _for_metadata(frame):
            if is_unrepeatable(os.fsdecode(path)):
                if path != os.devnull:
                    self._unrepeatable(os.fsdecode(path), frame)
            else:
                self._each(content_at, path)
        else:
            self._pass(path)

    def _pass(self, path: Any) -> None:
        """Note a file that Python opens, and that is no read."""
        place = place_of(path)
        if place is not None:
            for observed in self._runs.acting():
                observed.passed.setdefault(place)

    def _input(self, _event: str, _args: tuple[Any, ...], frame: FrameType) -> None:
        for observed in self._runs.asked_by(frame):
            observed.nondeterministic = observed.nondeterministic or STANDARD_INPUT

    def _makes(
        self,
        path: object,
        frame: FrameType,
        *,
        note: Callable[[Observations, str], object] = Observations.make,
        is_shared: bool = False,
    ) -> None:
        """What is at a path from here on is made by those for whom this thread acts. is_shared: what others add to it
        takes nothing from anybody (a log)."""
        acting = self._runs.acting()
        self._each(note, path, acting)
        if not is_shared:
            self._each(Observations.make_by_another, path, self._others(acting, frame))

    def _others(self, acting: tuple[Observations, ...], frame: FrameType) -> tuple[Observations, ...]:
        """Return the runs for which a file that ``frame`` makes is foreign. cachec's own files are no input."""
        others = tuple(each for each in self._runs.every if not any(each is one for one in acting))
        return others if others and not _by_cachec(frame) else ()

    def _each(
        self, note: Callable[[Observations, str], object], path: object, runs: tuple[Observations, ...] | None = None
    ) -> None:
        """``note`` the place that a path means with these runs; with every one that is active here."""
        for observed in self._runs.here() if runs is None else runs:
            place = observed.note_path(path)
            if place is not None:
                note(observed, place)

    def _database(self, _event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        """SQLite opens by itself a file that is there, or makes it."""
        place = os.fsdecode(args[0]) if isinstance(args[0], str | bytes | os.PathLike) else ":memory:"
        options = ""
        if place.startswith("file:"):
            place, _, options = place.removeprefix("file:").partition("?")
        if place and place != ":memory:" and "mode=memory" not in options:
            is_there = os.path.exists(place) or "mode=r" in options
            self._each(content_at, place)
            if not is_there:
                self._makes(place, frame)
            for suffix in ("-wal", "-journal") if is_there else ():  # of which a reader takes what is newer
                self._each(content_at, place + suffix)

    def _on_load(self, _event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        """A library that the project names by its path."""
        if isinstance(args[0], str | bytes) and "/" in os.fsdecode(args[0]):
            for observed in self._runs.asked_by(frame):
                content_asked(observed, args[0])

    def _on_unpickle(self, _event: str, args: tuple[Any, ...], _frame: FrameType) -> None:
        """A pickle names a module, imported or not."""
        for observed in self._runs.here():
            observed.named.setdefault(str(args[0]))

    def _unrepeatable(self, what: str, frame: FrameType) -> None:
        for observed in self._runs.asked_by(frame):
            observed.unrepeatable.setdefault(what)

    def _on_start(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        for observed in self._runs.acting():
            observed.children = True
        if not _by_cachec(frame):
            program = args[0] if args and event in _PROGRAMS else None
            description = (
                os.fsdecode(program) if isinstance(program, str | bytes | os.PathLike) else f"a process ({event})"
            )
            by = starter(frame, self._runs.is_project)
            for observed in self._runs.here():
                observed.started.setdefault(description)
                if by is not None:
                    observed.undeclared.setdefault(description, by)

    def _on_import(self, _event: str, args: tuple[Any, ...], asking: FrameType) -> None:
        """A module is looked for that is not in ``sys.modules``; it counts where project code asks for it."""
        name, frame = str(args[0]), cast("FrameType | None", asking)
        while frame is not None and frame.f_code.co_filename.startswith(("<frozen importlib", "<frozen zipimport")):
            frame = frame.f_back
        while frame is not None and frame.f_globals.get("__name__") in {"importlib", "pkgutil", "runpy"}:
            frame = frame.f_back
        if frame is not None and self._runs.is_project(frame.f_code.co_filename):
            for observed in self._runs.here():
                observed.imported.setdefault(name)
                modules_sought(observed)


def _read_moved(observed: Observations, path: str) -> None:
    """What is here is moved or linked to where the run is at home: it counts as read."""
    if observed.counted_place(path) is not None and os.path.isdir(path) and not os.path.islink(path):
        observed.incomplete = observed.incomplete or f"the folder {path} was moved, with all that is in it"
    content_at(observed, path)


def _folder_missed(observed: Observations, path: str) -> None:
    """Where its folder is missing, no file is made."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        place_at(observed, folder)


def _went(observed: Observations, path: str) -> None:
    observed.moved = observed.moved or path in observed.absolute


def _source(observed: Observations, path: str) -> None:
    state = identity_if_there(path)
    if state is not None:
        observed.sources.setdefault(path, state)


def _scan_folder(observed: Observations, path: str) -> None:
    counted = observed.counted_place(path)
    for name in observed.listed.get(counted or "", ()):
        place = os.path.join(counted or "", name.partition("/")[0])
        state = identity_if_there(place)
        if state is not None:
            with suppress(OSError):
                observed.scanned.setdefault(place, (state, os.stat(place)))


def _by_importer(frame: FrameType | None) -> bool:
    """Whether the import system reads a module."""
    while frame is not None and frame.f_code.co_filename in {"<frozen codecs>", "<frozen os>"}:
        frame = frame.f_back
    while frame is not None and frame.f_code.co_name in {"get_data", "_get_data"} and frame.f_back is not None:
        frame = frame.f_back  # which anybody may ask of a loader, and the importer of itself
    if frame is None:
        return False
    return frame.f_code.co_filename in _IMPORTERS or frame.f_globals.get("__name__") in _LOADERS


def _for_messages(frame: FrameType | None) -> bool:
    """Whether source is read for the text of a warning or an error."""
    asked = False
    while frame is not None and frame.f_globals.get("__name__") in {"tokenize", "linecache", "warnings", "traceback"}:
        asked = asked or frame.f_globals["__name__"] in {"warnings", "traceback"}
        frame = frame.f_back
    return asked


def _for_metadata(frame: FrameType | None) -> bool:
    """Whether it is asked which distributions are installed, and what they say: ``looks`` tells of that."""
    library = os.path.join(os.path.dirname(os.__file__), "")
    while frame is not None and frame.f_code.co_filename.startswith(("<frozen", library)):
        if str(frame.f_globals.get("__name__")).startswith("importlib.metadata"):
            return True
        frame = frame.f_back
    return False


def _by_cachec(frame: FrameType | None) -> bool:
    """Whether cachec itself looks: what that means for a run its handles record."""
    library = os.path.dirname(os.__file__)
    while frame is not None and frame.f_code.co_filename.startswith(("<frozen", library + "/")):
        if "-packages/" in frame.f_code.co_filename:
            return False
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(OWN_FOLDER)
