"""Records lookups of a worker's Python code that make no traced call: variables and the current folder, and whether it
starts programs."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, SupportsIndex

from cachec.base.tracer_hiding import is_unseen
from cachec.key.process_state import digest
from cachec.key.tools.environment import OBEYED_NAME, environment_reads, variable_digest
from cachec.key.trace_validation import PRESENT
from cachec.model import Read

#: Modules that hand on what others set.
_PASSING_ON = frozenset(
    {"os", "posixpath", "pathlib", "_collections_abc", "collections.abc", "unittest.mock", "contextlib"}
)

#: Events of Python at which another program starts: https://docs.python.org/3/library/audit_events.html
_STARTS = frozenset(
    {"os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "os.system", "pty.spawn", "subprocess.Popen"}
)


#: Packages that look at the arguments of the program only to say how it was started.
_SAY_HOW_STARTED = frozenset({"jax", "jaxlib", "torch"})

#: Variables that say where libraries save time. They set them themselves once they are in use.
_OF_CACHES = frozenset({"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"})

#: Events at which a name for a temporary file or folder is made up.
_MADE_UP = frozenset({"tempfile.mkdtemp", "tempfile.mkstemp"})


class VariableRecorder:
    """Notes the variables that code reads by ``os.environ`` and ``os.getenv``, with their values at that time."""

    def __init__(self, is_project: Callable[[str], bool]) -> None:
        self._is_project = is_project
        #: The variables that the process began with: what is set since is its own.
        self._given = dict(os.environ)
        self._read: dict[str, str] = {}
        #: The variables that were set, and whether the project has.
        self._set: dict[str, bool] = {}
        #: The variables that were read in the order of a listing, of which others are not read yet.
        self._copied: list[str] = []
        #: Whether packages are being imported for workers to come. What they open then, no tracer sees.
        self.is_loading = False
        self.opened: set[str] = set()
        #: The current folders that code has asked for, and whether the project's has.
        self.asked_for_folder: dict[str, bool] = {}
        #: Names in folders for temporary files that were made up.
        self.temporary: set[str] = set()
        #: Whether code has asked for the arguments of the program.
        self.asked_for_arguments = False
        self._lock = threading.Lock()

    def install(self) -> None:
        """From now on."""
        variables, base, copying = self, type(os.environ), threading.local()

        class Environ(base):  # type: ignore[misc, valid-type] # a class of its own, as os has no hook
            def __getitem__(self, name: str) -> str:
                left = getattr(copying, "left", None)
                if left and left[-1] == name:
                    variables._copied.append(left.pop())
                    if not left:
                        variables._copied.clear()  # all of them: that counts as ``OBEYED_NAME``
                else:
                    copying.left = None
                    variables._note_copied()
                    variables._note(name)
                return str(super().__getitem__(name))

            def __contains__(self, name: object) -> bool:
                variables._note(name)
                return bool(super().__contains__(name))

            def __iter__(self) -> Iterator[str]:
                # All of them are copied, for a program say: those that say where it runs are no input of that.
                variables._note(OBEYED_NAME)
                names = list(super().__iter__())
                copying.left = names[::-1]  # ``dict`` asks for the names first, and then for each value
                yield from names

            def __len__(self) -> int:
                variables._note(OBEYED_NAME)
                return int(super().__len__())

            def __setitem__(self, name: str, value: str) -> None:
                super().__setitem__(name, value)
                variables._note_set(name)

            def __delitem__(self, name: str) -> None:
                super().__delitem__(name)
                variables._note_set(name)

        Environ.__name__ = Environ.__qualname__ = base.__name__
        Environ.__module__ = base.__module__
        os.environ.__class__ = Environ
        assert isinstance(os.environ, MutableMapping)

        def heard(event: str, arguments: tuple[Any, ...]) -> None:
            if event in _STARTS:
                self.note_program()
            elif event in _MADE_UP:
                self.temporary.add(os.path.abspath(os.fsdecode(arguments[0])))
            elif event == "open" and self.is_loading and isinstance(arguments[0], str):
                self.opened.add(os.path.abspath(arguments[0]))

        sys.addaudithook(heard)
        getcwd = os.getcwd

        def recorded_getcwd() -> str:
            """Return the current folder, which counts as a value."""
            folder = getcwd()
            if not is_unseen():
                asked = variables.asked_for_folder.get(folder, False) or variables._is_asked_by_project(2)
                variables.asked_for_folder[folder] = asked
            return folder

        recorded_getcwd.__name__ = recorded_getcwd.__qualname__ = "getcwd"
        recorded_getcwd.__module__ = getcwd.__module__
        os.getcwd = recorded_getcwd

    def watch_arguments(self, arguments: list[str]) -> None:
        """Set ``sys.argv``, and note whether it is asked for."""
        variables = self

        class Arguments(list[str]):
            def __getitem__(self, index: SupportsIndex | slice) -> Any:
                variables._note_arguments()
                return super().__getitem__(index)

            def __iter__(self) -> Iterator[str]:
                variables._note_arguments()
                return super().__iter__()

            def __len__(self) -> int:
                variables._note_arguments()
                return super().__len__()

            def __reduce__(self) -> tuple[type[list[str]], tuple[list[str]]]:
                variables._note_arguments()
                return list, (self.copy(),)

        sys.argv = Arguments(arguments)

    def _note_arguments(self) -> None:
        asks = str(sys._getframe(2).f_globals.get("__name__"))
        if asks.partition(".")[0] not in _SAY_HOW_STARTED:
            self.asked_for_arguments = self.asked_for_arguments or not is_unseen()

    def note_program(self) -> None:
        """Another program has started, and may obey any variable."""
        self._note(OBEYED_NAME)

    def changed_names(self) -> set[str]:
        """The variables that the project has set or deleted, and that are not as before again."""
        return {name for name, is_project in self._set.items() if is_project and self._is_changed(name)}

    def reads(self) -> list[Read]:
        """What was read."""
        self._note_copied()
        variables = [Read("env", name, "", value) for name, value in sorted(self._read.items())]
        if OBEYED_NAME in self._read:
            variables += (each for each in environment_reads(OBEYED_NAME, self._given) if each.where not in self._read)
        if self.asked_for_arguments:
            variables.append(Read("process", "arguments", "", digest("arguments")))
        return [*variables, *(Read("current", path, "", PRESENT) for path in sorted(self.asked_for_folder))]

    def _is_changed(self, name: str) -> bool:
        """Whether the run has set a variable that is not as before again (``mock.patch.dict``)."""
        value = os.environ._data.get(os.environ.encodekey(name))  # type: ignore[attr-defined] # which notes nothing
        return name in self._set and self._given.get(name) != (None if value is None else os.environ.decodevalue(value))

    def _note_set(self, name: str) -> None:
        """A variable was set or deleted; by a library, it is the library's."""
        self._set.setdefault(name, self._is_asked_by_project(3))

    def _is_asked_by_project(self, depth: int) -> bool:
        """Whether the code that asks is the project's. depth: of its frame, but for modules that hand on."""
        frame = sys._getframe(depth)
        while frame.f_back is not None and frame.f_globals.get("__name__") in _PASSING_ON:
            frame = frame.f_back
        return self._is_project(frame.f_code.co_filename)

    def _note_copied(self) -> None:
        while self._copied:
            self._note(self._copied.pop())

    def _note(self, name: object) -> None:
        if not isinstance(name, str) or name in self._read or self._is_changed(name) or is_unseen():
            return  # what the run has set itself is no input
        if name in _OF_CACHES and not self._is_asked_by_project(3):
            return
        with self._lock:
            self._read.setdefault(name, variable_digest(name, self._given))
