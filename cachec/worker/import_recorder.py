"""Records which files imports look for in a project, and which code of them runs, where the tracer cannot observe it.

The tracer reports that a folder was listed and a file was opened. An import needs less of both: whether a folder has a
module of that name, and what the text says apart from comments. So ``ImportRecorder`` hides the accesses of the import
system from the tracer, and records them as reads of kind ``modules`` and ``source``. All other code that opens or lists
the same files stays visible. Modules of the project are compiled from their text: a ``.pyc`` may be out of date."""

from __future__ import annotations

import dis
import importlib.machinery
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from cachec.base.hashing import DigestMemory, digest_bytes
from cachec.key import source_parts
from cachec.model import Read
from cachec.worker.started_code import StartedCode, watch

#: Modules that read the code of functions which Python never starts: with one of them, files count as wholes.
CODE_READERS = ("torch._dynamo.convert_frame", "numba.core.bytecode")

#: Functions of cloudpickle and dill that send code to a process which need not open its file; it may run there.
CODE_SENDERS = frozenset({"_code_reduce", "save_code"})

#: What cloudpickle calls the file of code that it sends.
_SENT = "<dynamic-code>"

#: Names of what makes functions run unseen: those that trace others are not traced themselves.
_TRACES = frozenset({"settrace", "setprofile", "settrace_all_threads", "setprofile_all_threads"})

#: Libraries that read the constants of a module by names of their own.
_READ_SETTINGS = ("alembic", "celery", "django.conf", "gunicorn", "sphinx")

#: ``co_flags`` of functions, comprehensions and lambdas; not of modules and class bodies.
_IS_FUNCTION = 1


class ImportedFile(NamedTuple):
    """A file of the project that was imported."""

    path: str
    #: The digest of its text then.
    raw: str
    text: bytes
    #: The functions that ran, as ``co_qualname`` has them; None where all of it counts.
    names: frozenset[str] | None
    #: Of a script, how many statements were replayed.
    replayed: int | None = None

    def read(self, memory: DigestMemory | None = None, named: str | None = None) -> Read:
        """The read of what was used. memory: where tables of units are remembered between processes. named: the marks
        of the names that code read (``sources.marks``), None where it may have read any."""
        units = self._units(memory)
        return source_parts.read_of(self.path, self.text, units, memory, replayed=self.replayed, named=named)

    def _units(self, memory: DigestMemory | None) -> set[str] | None:
        if self.names is None:
            return None
        try:
            table = source_parts.table(self.text, memory)
        except source_parts.UNPARSABLE:
            return None
        found = {table.function_of(name) for name in self.names}
        return None if None in found else {name for name in found if name}


class _CompiledText(NamedTuple):
    """A text that was compiled."""

    path: str
    #: None where no file has it.
    text: bytes | None
    code: CodeType | None
    #: After the state of the caller was set.
    is_late: bool
    replayed: int | None


class _Folder:
    """What imports found in one folder, by the name that they looked for first."""

    def __init__(self) -> None:
        self.found: dict[str, list[str]] = {}
        self._mtime = -1
        self._listing: frozenset[str] = frozenset()

    def record(self, path: str, names: Iterable[str]) -> None:
        names = [name for name in names if name not in self.found]
        if not names:
            return
        try:
            mtime = os.stat(path).st_mtime_ns
        except OSError:
            mtime = -1
        if mtime != self._mtime or mtime == -1:
            self._mtime, self._listing = mtime, source_parts.list_folder(path)
        self.found.update(source_parts.find_modules(path, names, self._listing))

    def invalidate(self) -> None:
        self._mtime = -1


class ImportRecorder:
    """The import system of a worker process. To be installed once, before the first import of the project.

    is_project: whether a folder or file is the project's. hidden: a context in which the tracer ignores the file
    accesses of this thread.
    """

    def __init__(self, is_project: Callable[[str], bool], hidden: Callable[[], AbstractContextManager[object]]) -> None:
        self._is_project = is_project
        self._hidden = hidden
        self._known: dict[str, bool] = {}
        self._folders: dict[str, _Folder] = {}
        self._loaded: list[_CompiledText] = []
        self._files: set[str] = set()
        self._started: StartedCode | None = None
        #: Names that were unpickled; those since ``begin_run``.
        self._named: set[str] = set()
        self._late_named: set[str] = set()
        self._is_late = False
        self._is_child = False
        #: Whether the process was forked: what ran in its children is not known.
        self.has_forked = False

    def install(self) -> None:
        """Take over the imports of this process."""
        self._patch_finder()
        self._patch_loader()
        self._patch_metadata()
        sys.path_hooks.insert(0, self._path_hook)
        for finder in sys.meta_path:
            self._patch_editable(finder)
        for path in [path for path in sys.path_importer_cache if self.is_project(path)]:
            del sys.path_importer_cache[path]  # made by another hook
        self._started = watch(self._is_own)
        sys.addaudithook(self._heard)
        os.register_at_fork(before=self._before_fork, after_in_child=self._in_child)

    def begin_run(self) -> None:
        """The state of the caller was set: only code that starts from now on may read it."""
        self._is_late = True
        if self._started is not None:
            self._started.begin_run()

    def is_project(self, path: str) -> bool:
        """Whether a path is the project's, remembered."""
        known = self._known.get(path)
        if known is None:
            known = self._known[path] = self._is_project(path)
        return known

    def add(self, path: str, text: bytes | None, code: CodeType | None, replayed: int | None = None) -> None:
        """Record code that is executed as a part of the project: of a file, or of a cell of a notebook without text.

        replayed: of a script, how many of its statements are executed.
        """
        self._files.add(path)
        self._loaded.append(_CompiledText(path, text, code, self._is_late, replayed))

    # --- what was recorded

    def reads(self, memory: DigestMemory | None = None) -> list[Read]:
        """The reads of kind ``modules`` and ``source``. Of a file that had two texts there are two.

        memory: where the units of texts are remembered: for runs to come, and to say later what changed.
        """
        if not self._is_child:
            self._record_shadows()
        modules = [
            source_parts.read_of_modules(path, folder.found)
            for path, folder in sorted(self._folders.items())
            if folder.found
        ]
        used = self.imported_files()
        named = self._marks(memory) if any(each.names is not None for each in used) else None
        return modules + [each.read(memory, named) for each in used]

    def imported_files(self) -> list[ImportedFile]:
        """The files that were imported, and what ran of them."""
        executed: dict[str, set[str]] = {}
        for code in self._codes():
            if code.co_flags & _IS_FUNCTION:
                executed.setdefault(code.co_filename, set()).add(code.co_qualname)
        found = {}
        for path, text, _, _, replayed in self._loaded:
            if text is not None:
                names = frozenset(executed.get(path, ())) if self._sees_functions() else None
                used = ImportedFile(path, digest_bytes(text), text, names, replayed)
                found[path, used.raw, -1 if replayed is None else replayed] = used
        return [found[key] for key in sorted(found)]

    def names(self, file: str | None = None) -> set[str]:
        """Every name that code of the project may have read since ``begin_run``: of variables, attributes and items.

        Where functions can't be watched, of all code of the files that were imported. file: not of code that is in
        another of them (functions that the caller sent, and code that was generated, are in none). Names that were
        unpickled are among them.
        """
        others = self._files - {file} if file is not None else set[str]()
        found = {name for code in self._late() if code.co_filename not in others for name in code_names(code)}
        return found | self._late_named

    def written_names(self) -> set[str]:
        """``names``, but for those that are only in code which was generated (by equinox, say, for its own modules)."""
        written = (code for code in self._late() if self._has_file(code.co_filename))
        return {name for code in written for name in code_names(code)} | self._late_named

    def main_names(self, file: str, names: Iterable[str]) -> set[str]:
        """Those of ``names``, the globals of a script, that code may have read; attributes of objects are none, as the
        script's module is no object for that code. With what ``names`` says of others.
        """
        found = self.names(file)
        attributes = found.intersection(names) - self._late_named
        others = self._files - {file}
        codes = [code for code in self._late() if code.co_filename not in others]
        return found - {name for name in attributes if not any(_is_variable(name, code) for code in codes)}

    def evaluates(self) -> bool:
        """Whether that code may have called ``eval``, and not a method of that name."""
        return any(_is_variable("eval", code) for code in self._late())

    def used_libraries(self) -> frozenset[str]:
        """The packages of which code has started since ``begin_run``; all, where functions can't be watched."""
        files = self._started.files() if self._started is not None and self._sees_functions() else None
        found = set()
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            is_used = files is None or file in files or f"<frozen {name}>" in files
            if is_used and isinstance(file, str) and not self.is_project(file):
                found.add(name.partition(".")[0])
        return frozenset(found)

    def _has_file(self, path: str) -> bool:
        """Whether code with this ``co_filename`` was written into a file or sent, so was not generated."""
        return path in self._files or path[:1] == "/" or path == _SENT

    def _late(self) -> Iterator[CodeType]:
        """All code that may have started since ``begin_run``."""
        if self._started is not None:
            yield from self._started.late()
        if not self._sees_functions():
            for loaded in self._loaded:
                if loaded.code is not None:
                    yield from [loaded.code] if loaded.is_late else _functions(loaded.code)

    def _codes(self) -> list[CodeType]:
        return [] if self._started is None else self._started.codes()

    def _sees_functions(self) -> bool:
        return (
            self._started is not None
            and self._started.is_complete()
            and not self.has_forked
            and not any(name in sys.modules for name in CODE_READERS)
            and not any(code.co_name in CODE_SENDERS or not _TRACES.isdisjoint(code.co_names) for code in self._codes())
        )

    def _marks(self, memory: DigestMemory | None) -> str | None:
        """The marks of the names that code of the project has read since ``install``.

        Libraries generate code that finds names (of no file: dataclasses, pytrees), and names all that it means. What
        the project itself generates, it executes by a name of ``sources.DYNAMIC``.
        """
        found, generated = self._named | self._late_named, set[str]()
        constants = set[str]()
        for code in self._codes():
            path = code.co_filename
            if code.co_flags & _IS_FUNCTION or path not in self._files:
                (found if self._has_file(path) else generated).update(code_names(code))
        for loaded in self._loaded:
            try:
                table = None if loaded.text is None else source_parts.table(loaded.text, memory)
            except source_parts.UNPARSABLE:
                table = None
            if table is not None:
                found.update(table.names)
                constants.update(each.binds for each in table.statements if each.is_constant)
            elif loaded.code is not None:
                found |= code_names(loaded.code)
        if found & source_parts.DYNAMIC:
            return None
        if found & source_parts.WITH_DATA or any(name in sys.modules for name in _READ_SETTINGS):
            found |= constants
        return source_parts.marks(found | generated)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "pickle.find_class":
            (self._late_named if self._is_late else self._named).update(str(arguments[1]).split("."))

    # --- the import system

    def _path_hook(self, path: str) -> FileFinder:
        """As ``FileFinder.path_hook``, for folders of the project: whether there is a folder is asked unseen."""
        if self._is_child or not self.is_project(os.path.abspath(path)):
            raise ImportError("not a folder of the project", path=path)
        with self._hidden():
            is_folder = os.path.isdir(path or ".")
        if not is_folder:
            raise ImportError("not a folder of the project", path=path)
        return FileFinder(
            path,
            (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
            (SourceFileLoader, importlib.machinery.SOURCE_SUFFIXES),
            (importlib.machinery.SourcelessFileLoader, importlib.machinery.BYTECODE_SUFFIXES),
        )

    def _patch_finder(self) -> None:
        """The class itself: other finders make theirs from it, and programs compare types."""
        find, invalidate = FileFinder.find_spec, FileFinder.invalidate_caches

        def find_spec(finder: FileFinder, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
            if self._is_child or not self.is_project(finder.path):
                return find(finder, fullname, target)
            with self._hidden():
                self._record(finder.path, fullname.rpartition(".")[2])
                return find(finder, fullname, target)

        def invalidate_caches(finder: FileFinder) -> None:
            invalidate(finder)
            if finder.path in self._folders:
                self._folders[finder.path].invalidate()

        _replace(FileFinder, "find_spec", find_spec)
        _replace(FileFinder, "invalidate_caches", invalidate_caches)

    def _record(self, path: str, *names: str) -> None:
        self._folders.setdefault(path, _Folder()).record(path, names)

    def _record_shadows(self) -> None:
        """Modules that were imported before, by a starter: one in a folder that comes first would be taken instead."""
        path = [os.path.abspath(each) for each in sys.path]
        before = [(place, folder) for place, folder in enumerate(path) if self.is_project(folder)]
        names: dict[str, list[str]] = {folder: [] for _, folder in before}
        for name, module in list(sys.modules.items()):
            place = None if "." in name else _place(module, path)
            for number, folder in before if place is not None else ():
                if number < (place or 0):
                    names[folder].append(name)
        with self._hidden():
            for folder, found in names.items():
                if os.path.isdir(folder):
                    self._record(folder, *found)

    def _patch_loader(self) -> None:
        """Imports and their reloads end here, also those by ``spec_from_file_location`` and of editable installs."""
        get = SourceFileLoader.get_code
        importing = SourceFileLoader.exec_module.__code__

        def get_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
            path = loader.get_filename(fullname)
            if self._is_child or not self.is_project(path):
                return get(loader, fullname)
            if sys._getframe(1).f_code is not importing:  # `runpy` may execute it as `__main__`: let the file be seen
                text = loader.get_data(path)
                self._named.add("run_path")  # what stands below the guard may run: see `sources.DYNAMIC`
            else:
                with self._hidden():
                    text = loader.get_data(path)
            code: CodeType | None = None
            try:
                code = loader.source_to_code(text, path)
            finally:
                self.add(path, text, code)  # also where it is not Python: the program may go on without it
            return code

        _replace(SourceFileLoader, "get_code", get_code)

    def _patch_metadata(self) -> None:
        """``entry_points()`` lists each folder of sys.path, and looks only for distributions."""
        folders = vars(importlib.metadata)["FastPath"]
        search = folders.search

        def search_unseen(folder: Any, name: object) -> object:
            root = os.path.abspath(folder.root or ".")
            if self._is_child or not self.is_project(root):
                return search(folder, name)
            with self._hidden():
                if os.path.isdir(root):
                    self._record(root, source_parts.DISTRIBUTIONS)
                    return search(folder, name)
            return search(folder, name)

        _replace(folders, "search", search_unseen)

    def _patch_editable(self, meta_finder: Any) -> None:
        """The finder of an editable install by setuptools: it knows folders by package, and asks for their files."""
        module = sys.modules.get(getattr(meta_finder, "__module__", ""))
        if module is None or not module.__name__.startswith("__editable__"):
            return
        find: Callable[..., ModuleSpec | None] = meta_finder.find_spec
        folders: dict[str, str] = module.MAPPING

        def find_spec(fullname: str, *rest: Any) -> ModuleSpec | None:
            path = folders.get(fullname)
            if self._is_child or path is None or not self.is_project(path):
                return find(fullname, *rest)
            with self._hidden():
                self._record(os.path.dirname(path), os.path.basename(path))
                return find(fullname, *rest)

        meta_finder.find_spec = find_spec

    def _is_own(self, code: CodeType) -> bool:
        """Whether code is the project's, or of interest beside that.

        That of no file is made by ``exec``, maybe by a library for a class of the project.
        """
        path = code.co_filename
        if path in self._files or code.co_name in CODE_SENDERS:
            return True
        return self.is_project(path) if path[:1] == "/" else not path.startswith("<frozen ")

    def _before_fork(self) -> None:
        self.has_forked = True

    def _in_child(self) -> None:
        self._is_child = True  # nothing of it is reported: let the tracer see all


def _place(module: ModuleType, path: list[str]) -> int | None:
    """The place in ``path`` where a module was found; its end where that is another; None for one of no file."""
    spec = getattr(module, "__spec__", None)
    if not isinstance(spec, ModuleSpec):
        return None
    if spec.submodule_search_locations is None:
        folder = os.path.dirname(spec.origin or "") if spec.has_location else ""
    else:
        folder = os.path.dirname(next(iter(spec.submodule_search_locations), ""))
    if not folder:
        return None
    return path.index(folder) if folder in path else len(path)


def _replace(holder: type, name: str, function: Callable[..., object]) -> None:
    function.__name__ = name
    function.__qualname__ = f"{holder.__qualname__}.{name}"
    setattr(holder, name, function)


def code_names(code: CodeType) -> set[str]:
    """The names that a code object may read, and those inside of it; so ``getattr(x, "name")`` is among them."""
    found = set(code.co_names)
    for each in _constants(code):
        found.update(code_names(each) if isinstance(each, CodeType) else source_parts.words(each))
    return found


def _constants(code: CodeType) -> Iterator[CodeType | str]:
    pending: list[object] = list(code.co_consts)
    while pending:
        each = pending.pop()
        if isinstance(each, CodeType | str):
            yield each
        elif isinstance(each, tuple | frozenset):
            pending.extend(each)


def _is_variable(name: str, code: CodeType) -> bool:
    """Whether a code object, or one inside of it, may have ``name`` as a variable or a text; not as an attribute
    alone."""
    if name in code.co_names and any(
        each.argval == name and "ATTR" not in each.opname and each.opname != "LOAD_METHOD"
        for each in dis.get_instructions(code)
    ):
        return True
    return any(
        _is_variable(name, each) if isinstance(each, CodeType) else name in source_parts.words(each)
        for each in _constants(code)
    )


def _functions(code: CodeType) -> Iterator[CodeType]:
    """The functions of a module's code: what else is in it ran when it was imported."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_flags & _IS_FUNCTION:
                yield each
            else:
                yield from _functions(each)
