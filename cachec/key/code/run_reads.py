"""Turns the code, imports and metadata lookups that a run was observed to use into reads, where its key does not cover
them.

A read of code is ``code``: where is the kept path of its file, name is ``module:name`` of the module-level name around
the code (``module:`` for the whole module), the digest is of its normalised syntax and of all that it names, by source
alone. Code that was typed in, or that its module no longer has as its text says, is looked up in the process
(where is ``live``), as is what the run's imports made and no text tells (``imported``): a process that has imported the
module already has to have the same, any other one makes it anew of the same reads.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from types import CodeType, ModuleType
from typing import Any

import msgspec

from cachec.base.anchors import Anchors
from cachec.base.fsio import identity_if_there
from cachec.base.hashing import Hasher
from cachec.base.instances import attribute
from cachec.errors import CachecError, CapturedWeights, UnkeyableArgument, UnresolvedCode
from cachec.key.code.code_objects import code_uses, code_words
from cachec.key.code.dynamic_imports import Reach, reach
from cachec.key.code.fingerprint import CodeKey, CodeKeys
from cachec.key.code.key_coverage import Coverage
from cachec.key.code.module_sources import absolute, is_cell
from cachec.key.code.mutation_analysis import may_change
from cachec.key.code.part_graph import module_name, reading_text_alone
from cachec.key.trace_validation import IMPORTED, LIVE
from cachec.model import Read, Reason
from cachec.recording.observations import ExecutedCode, Observations, is_unrepeatable

#: In place of the name of a module: which of the project's are imported.
EVERY_MODULE = "*"
_UNSEEN = "a later change would go unseen"

_PYCACHE = f"{os.sep}__pycache__{os.sep}"


class CodeNotFound(Exception):
    """What ran can't be found again, so no later look could tell whether it is the same."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class ObservedReads(msgspec.Struct, frozen=True):
    """What was made of the observations of a run: reads, or why its result can't be stored."""

    reads: tuple[Read, ...] = ()
    storage_refusal: tuple[Reason, str] | None = None


class _ImportedModule(msgspec.Struct, frozen=True):
    """A module that a run imported: the spec that it ran with, the digests of its derived names when the run ended, and
    what the run read."""

    spec: object
    digests: dict[str, str]
    reads: tuple[Read, ...]


class RunReads:
    """Turns observations into reads, and tells what such a read would be now. One an opened cache.

    tool: the digest of a distribution by name, of all that are installed for ``*``; raises UsageError for one whose
    files are not listed. own: folders whose files are the cache's. plugins: the packages of installed plugins.
    """

    def __init__(
        self, code: CodeKeys, tool: Callable[[str], str], own: tuple[str, ...], plugins: Callable[[], Collection[str]]
    ) -> None:
        self._code = code
        self._tool = tool
        self._plugins = plugins
        self._imported_modules: dict[str, _ImportedModule] = {}
        self._own = tuple(os.path.join(os.path.realpath(each), "") for each in own)

    def file_of(self, module: str) -> str:
        """The file that importing a module would execute now; empty where there is none."""
        return self._code.origin(module).path

    def leads_to(self, module: str, coverage: Coverage, reads: Iterable[Read]) -> bool:
        """Whether importing a module would execute a text of the project's of which a key holds something, or one of
        these resolved reads of code, which all are as they were."""
        if not all(part.isidentifier() for part in module.split(".")):  # it would be looked for as a path
            return False
        origin = self._code.origin(module)
        source = self._code.source(origin.path) if origin.kind == "project" and origin.source else None
        if source is None:
            return False
        for read in reads:
            if read.kind == "code" and os.path.isfile(read.where) and not coverage.holds_some(source):
                found = self._code.in_text(read.where, *read.name.split(":", 1))
                if found is not None:
                    coverage.add(found[0])
        return coverage.holds_some(source)

    # --- what a run adds

    def code(self, observed: Observations, coverage: Coverage, anchors: Anchors) -> ObservedReads:
        """The code, modules and distributions that a run reached and its key does not hold."""
        loaded = {
            executed.code.co_filename
            for executed in list(observed.executed_code.values())
            if executed.code.co_name == "<module>"
        }
        reads: dict[Read, None] = {}
        try:
            _check_unedited(loaded, observed)
            for executed in list(observed.executed_code.values()):
                reads.update(dict.fromkeys(self._code_reads(executed, coverage, anchors, loaded)))
            for name in list(observed.imported):
                reads.update(dict.fromkeys(self._import_reads(name, coverage, loaded)))
            for name in list(observed.named):
                reads.update(dict.fromkeys(self._computed_name_reads(name, coverage, anchors, loaded)))
            reads.update(dict.fromkeys(self._dynamic_reads(observed, coverage, anchors, loaded)))
            for module, name in sorted(coverage.derived):
                if _file(sys.modules.get(module)) in loaded:
                    reads.update(dict.fromkeys(self._made_value_reads(module, name, coverage)))
                elif sys.modules.get(module) is not None:  # before the run, or meanwhile by another one
                    reads.update(dict.fromkeys(self._derived_value_reads(module, name, coverage, loaded)))
            _check_unedited(loaded, observed)  # nor while its text was read for that
        except CodeNotFound as lost:
            return ObservedReads((), (lost.reason, str(lost)))
        for name in list(observed.sought):
            reads[Read("module", name, "", self._is_there(name))] = None
        for name in observed.installed.keys() - coverage.distributions:
            reads[Read("distribution", name, "", self._tool(name))] = None
        return ObservedReads(tuple(reads))

    def note_imports(self, observed: Observations, names: Iterable[tuple[str, str]], reads: Sequence[Read]) -> None:
        """Note what modules that a run imported came to, and all that it read meanwhile: a later run finds them there.
        names: those of them that their source does not tell."""
        loaded = {
            executed.code.co_filename
            for executed in list(observed.executed_code.values())
            if executed.code.co_name == "<module>"
        }
        stored = tuple(read for read in reads if read.kind != "weight")
        # What the run may have put there is of its arguments, of which its reads do not tell.
        changed = may_change(
            executed.code for executed in list(observed.executed_code.values()) if executed.code.co_name != "<module>"
        )
        for module, name in names:
            if name in changed:
                continue
            found = sys.modules.get(module)
            if found is None or _file(found) not in loaded:
                continue
            spec = getattr(found, "__spec__", None)
            known = self._imported_modules.get(module)
            if known is None or known.spec is not spec or known.reads != stored:
                known = self._imported_modules[module] = _ImportedModule(spec, {}, stored)
            digest = self._value(module, name)
            if digest is not None:
                known.digests[name] = digest

    def _as_in_process(self, module: str, name: str) -> CodeKey | None:
        """The key of what a module of this process holds under a name, as far as that has a stable form."""
        try:
            return self._code.in_process(module, name, in_full=True)
        except (UnresolvedCode, UnkeyableArgument):
            return self._code.in_process(module, name)

    def _value(self, module: str, name: str, coverage: Coverage | None = None) -> str | None:
        """What a module of this process holds under a name; None where that has no stable form. coverage: told where
        that is a path below the project's folder."""
        try:
            key = self._code.in_process(module, name, in_full=True)
        except CachecError:
            return None
        if key is not None and coverage is not None:
            coverage.has_project_paths = coverage.has_project_paths or key.has_project_paths
        return _presence_digest(False) if key is None else key.digest

    def _made_value_reads(self, module: str, name: str, coverage: Coverage) -> Iterator[Read]:
        """A value that importing a module made, in the run: where a process has it already, it has to be the same."""
        value = self._value(module, name, coverage)
        if value is not None or not coverage.is_charged:
            yield Read("code", IMPORTED, f"{module}:{name}", value or _formless())

    def _derived_value_reads(self, module: str, name: str, coverage: Coverage, loaded: set[str]) -> Iterator[Read]:
        """A value that importing a module made, before the run: with what was read then, where that is known and all
        is as it was, or as it is in this process. Raises CodeNotFound where that has no stable form."""
        known, value = self._imported_modules.get(module), self._value(module, name, coverage)
        if value is None:
            if not coverage.is_charged:
                text = (
                    f"{module}.{name}, made by an import before the run, has no stable form: a change would go unseen"
                )
                raise CodeNotFound(Reason.UNNAMED_CODE, f"{text}; `version=` takes charge of it")
        elif (
            known is not None
            and known.spec is getattr(sys.modules.get(module), "__spec__", None)
            and coverage.is_as_written
            and known.digests.get(name) == value
        ):
            yield from known.reads
            yield Read("code", IMPORTED, f"{module}:{name}", value)
        else:
            with reading_text_alone(_modules_of(loaded)):
                value = self._value(module, name) or value
            yield Read("code", LIVE, f"{module}:{name}", value)

    def is_elsewhere(self, path: str) -> bool:
        """Whether a path is a tool's or the cache's own, which other parts of a key stand for, or no file's."""
        return path.startswith(_library_folders()) or path.startswith(self._own) or is_unrepeatable(path)

    def is_keyed(self, path: str) -> bool:
        """Whether what is at a path, a folder's with a slash at its end, counts otherwise or never. Among the installed
        packages that are the files of distributions; one that none of them lists is anybody's, and so is a folder, in
        which there may be such files."""
        if not path.startswith(_site_folders()) or path.startswith(self._own) or _PYCACHE in path:
            return self.is_elsewhere(path)
        return os.path.isfile(path) and not self._code.is_project(path)

    def _code_reads(
        self, executed: ExecutedCode, coverage: Coverage, anchors: Anchors, loaded: set[str]
    ) -> Iterator[Read]:
        code, path = executed.code, executed.code.co_filename
        if not path.startswith(("<", "/")) and os.path.exists(path):
            path = os.path.abspath(path)
        if coverage.holds_code(path, code):
            return
        source = self._code.source(path)
        module = module_name(executed.namespace)
        # In a namespace of no module, whether or not there is a text of it (torch.fx leaves one with linecache); or in
        # a copy of a module's (attrs), to which no name leads.
        is_nameless = "__name__" not in executed.namespace
        is_typed = path.startswith("<ipython") or is_cell(path)
        place = source.place_of(code) if source is not None else None
        # Python 3.13 has a text of ``<string>``: what follows ``python -c``. It is not that of a dataclass's methods.
        is_nobodys = place is None and (path == "<string>" or module not in sys.modules)
        is_made = source is None or is_nameless or is_nobodys or _is_copy(executed.namespace)
        is_made = is_made and path.startswith("<") and not is_typed
        # Frames that stand for those of C++ in a traceback (tvm_ffi) name its sources, which are in no wheel.
        if is_made or (is_nameless and source is None and not os.path.exists(path)):
            # Made by code that ran or that the key holds; modules that it imports may have been imported before.
            for use in code_uses(code).imports if code.co_names else ():
                name = absolute(use, str(executed.namespace.get("__package__") or module.rpartition(".")[0]))
                yield from self._computed_name_reads(name or "", coverage, anchors, loaded)
            if source is not None and not is_nameless:
                yield from self._import_reads(module, coverage, loaded)
            return
        is_body = code.co_name == "<module>"
        if is_body and source is not None:
            if not coverage.holds_some(source):
                yield from self._read(path, module, "", coverage, anchors, loaded)
        elif module == "?" and place is None:
            text = f"code of {path} ran, which is no module of Python's (a template?): {_UNSEEN}"
            raise CodeNotFound(Reason.UNNAMED_CODE, f"{text}; pass what it makes as an argument")
        elif source is None or place is None:
            yield self._live(module, code.co_qualname.partition(".")[0], code.co_qualname, coverage, (path, code))
        elif not coverage.holds_place(source, place):
            for name in source.names_at(place[0]) or ("",):
                yield from self._read(path, module, name, coverage, anchors, loaded, code)

    def _read(
        self,
        path: str,
        module: str,
        name: str,
        coverage: Coverage,
        anchors: Anchors,
        loaded: set[str],
        executed: CodeType | None = None,
    ) -> Iterator[Read]:
        """A read of a module-level name, or of a whole module, by its source if that tells what is there.

        executed: code of it that ran.
        """
        tools = frozenset(coverage.distributions)
        found = self._code.in_text(path, module, name) if os.path.isfile(path) else None
        if found is None or (found[0].digest != found[1].digest and path not in loaded):
            qualname = executed.co_qualname if executed is not None else "<module>"
            yield self._live(
                module, name, qualname, coverage, (path, executed) if executed is not None and name else None
            )
            return
        key, source = found
        coverage.add(key)  # what this one leads to is in its digest, and needs no read of its own
        coverage.derived |= source.derived
        yield Read("code", anchors.keep(path), f"{module}:{name}", key.digest)
        for distribution in sorted(key.distributions - tools):
            yield Read("distribution", distribution, "", self._tool(distribution))

    def _live(
        self, module: str, name: str, qualname: str, coverage: Coverage, executed: tuple[str, CodeType] | None = None
    ) -> Read:
        """A read of what this process holds under a name. Raises CodeNotFound where other code ran."""
        try:
            key = self._as_in_process(module, name)
        except CapturedWeights as error:  # any module of this process, which the stage need not have asked for
            raise CodeNotFound(Reason.UNNAMED_CODE, str(error)) from error
        if key is None or not (executed is None or self._holds(key, *executed)):
            text = f"{module}.{qualname} ran, and no name of {module} leads to it: {_UNSEEN}"
            raise CodeNotFound(Reason.UNNAMED_CODE, text)
        coverage.has_project_paths = coverage.has_project_paths or key.has_project_paths
        return Read("code", LIVE, f"{module}:{name}", key.digest)

    def _holds(self, key: CodeKey, path: str, code: CodeType) -> bool:
        coverage, source = Coverage(), self._code.source(path)
        coverage.add(key)
        place = source.place_of(code) if source is not None else None
        return coverage.holds_code(path, code) or (
            source is not None and place is not None and coverage.holds_place(source, place)
        )

    def _import_reads(self, name: str, coverage: Coverage, loaded: set[str]) -> Iterator[Read]:
        origin, module = self._code.origin(name), sys.modules.get(name)
        if origin.kind == "distribution" and origin.distribution not in coverage.distributions:
            yield Read("distribution", origin.distribution, "", self._tool(origin.distribution))
        elif origin.kind == "absent" and module is not None:
            if _file(module) not in loaded:  # by a way that the run took back; its text counts as code that ran
                yield self._live(name, "", "<module>", coverage)  # its file went since
        elif origin.kind == "absent" or (origin.kind == "project" and module is None and origin.path not in loaded):
            yield Read("module", name, "", _presence_digest(False))

    def _computed_name_reads(self, name: str, coverage: Coverage, anchors: Anchors, loaded: set[str]) -> Iterator[Read]:
        """A module that was asked for by a computed name: which of its values the run took is not known."""
        yield from self._import_reads(name, coverage, loaded)
        origin, module = self._code.origin(name), sys.modules.get(name)
        if origin.kind != "project" or not origin.source or module is None:
            return
        if _file(module) != origin.path:
            yield self._live(name, "", "<module>", coverage)  # another one would be found now
        elif (source := self._code.source(origin.path)) is None or not coverage.holds_whole(source):
            yield from self._read(origin.path, name, "", coverage, anchors, loaded)

    def _dynamic_reads(
        self, observed: Observations, coverage: Coverage, anchors: Anchors, loaded: set[str]
    ) -> Iterator[Read]:
        """What code took that gets at modules in ways that do not show."""
        dynamic = [
            (each, found)
            for each in list(observed.executed_code.values())
            if (found := reach(*each)) is not Reach.NAMED
        ]
        # In a checkout of its own a plugin is code of the project; what it looks up is what it speaks for.
        plugins = self._plugins() if dynamic else ()
        reaches = {found for each, found in dynamic if module_name(each.namespace).partition(".")[0] not in plugins}
        if not reaches and not coverage.has_importer:
            return
        if Reach.PRESENT in reaches:
            yield Read("module", EVERY_MODULE, "", _names(self._imported_project(observed.modules)))
            words = {word for each in list(observed.executed_code.values()) for word in code_words(each.code)}
            names = sorted(filter(_is_module_name, words))
            yield Read(
                "module", EVERY_MODULE, " ".join(names), _names(each for each in names if each in observed.modules)
            )
        reads: list[Read] = []
        with reading_text_alone(_modules_of(loaded)):
            for name in self._imported_project(list(sys.modules)):
                reads += self._computed_name_reads(name, coverage, anchors, loaded)
            main = sys.modules.get("__main__")
            if main is not None and self._code.is_project(_file(main) or "<typed>"):
                reads.append(self._live(module_name(vars(main)), "", "<module>", coverage))
        yield from reads
        yield Read("distribution", "*", "", self._tool("*"))

    def _imported_project(self, names: Iterable[str]) -> list[str]:
        """Those of some imported modules that are the project's, without the script that runs."""
        files = ((name, _file(sys.modules.get(name))) for name in sorted(names))
        return [name for name, file in files if name != "__main__" and file and self._code.is_project(file)]

    def _is_there(self, module: str) -> str:
        """What stands for whether a module can be had."""
        return _presence_digest(sys.modules.get(module) is not None or self._code.origin(module).kind != "absent")

    # --- what it is now

    def present(self, read: Read, path: str | None) -> str:
        """The digest that a read of code, a module or a distribution has now. path: of its file, None where it has
        none here. What is not there has a digest that nothing else has."""
        if read.kind == "module":
            if read.where == EVERY_MODULE and read.name:
                return _names(each for each in read.name.split() if each in sys.modules)
            if read.where == EVERY_MODULE:
                return _names(self._imported_project(list(sys.modules)))
            return self._is_there(read.where)
        if read.kind == "distribution":
            return self._tool(read.where)
        module, _, name = read.name.partition(":")
        if read.where == LIVE:
            live = self._as_in_process(module, name)
            return live.digest if live is not None else _presence_digest(False)
        if read.where == IMPORTED:
            return read.digest if module not in sys.modules else self._value(module, name) or _presence_digest(False)
        found = self._code.in_text(path, module, name) if path is not None else None
        if found is None or found[0].digest != found[1].digest:
            return _presence_digest(False)
        return found[0].digest


def _modules_of(loaded: Collection[str]) -> frozenset[str]:
    """The modules whose files a run has executed. The next process has not imported them; they count by themselves."""
    return frozenset(name for name, module in list(sys.modules.items()) if _file(module) in loaded)


def _file(module: object) -> str | None:
    """The file of a module, of which nothing is run to have it."""
    if not issubclass(type(module), ModuleType):  # cffi's libraries say that they are modules
        return None
    file = attribute(module, "__dict__").get("__file__")
    return file if isinstance(file, str) else None


def _is_copy(namespace: dict[str, Any]) -> bool:
    """Whether a namespace with the name of a module that is imported is another one than that module's."""
    module = sys.modules.get(str(namespace.get("__name__")))
    return module is not None and attribute(module, "__dict__") is not namespace


def _check_unedited(paths: Iterable[str], observed: Observations) -> None:
    """Raise CodeNotFound where a module that was imported by the run is not what its file says by now."""
    for path in paths:
        now = identity_if_there(path)
        observed_states = (
            observed.sources.get(path),
            observed.opened.get(path),
        )  # who executes the text of a file opens it
        if now is not None and now.changed_ns >= observed.began and now not in observed_states:
            raise CodeNotFound(
                Reason.INPUT_CHANGED, f"file {path} was written to while the stage ran, which imported it"
            )


def _is_module_name(word: str) -> bool:
    return all(each.isidentifier() for each in word.split("."))


def _names(modules: Iterable[str]) -> str:
    hasher = Hasher("modules")
    for name in modules:
        hasher.part("module", name.encode("utf-8", "surrogatepass"))
    return hasher.digest()


@lru_cache(maxsize=2)
def _presence_digest(there: bool) -> str:
    hasher = Hasher("module")
    hasher.part("found", b"there" if there else b"absent")
    return hasher.digest()


@lru_cache(maxsize=1)
def _formless() -> str:
    """What stands for a value without a stable form."""
    return Hasher("value without a stable form").digest()


@lru_cache(maxsize=1)
def _library_folders() -> tuple[str, ...]:
    """Places whose content a key holds otherwise: Python and its packages, as tools. The rest of ``sys.prefix`` is not
    among them: that may be ``/usr``, or a project's own folder."""
    return _installed_folders("stdlib", "platstdlib", "purelib", "platlib")


@lru_cache(maxsize=1)
def _site_folders() -> tuple[str, ...]:
    """Those of them that packages are installed to."""
    return _installed_folders("purelib", "platlib")


def _installed_folders(*names: str) -> tuple[str, ...]:
    roots = map(sysconfig.get_path, names)
    both = {each for root in roots for each in (os.path.abspath(root), os.path.realpath(root))}
    return tuple(os.path.join(root, "") for root in sorted(both))
