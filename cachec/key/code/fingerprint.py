"""Fingerprints of code: a stage function and everything of the project that it reaches.

What counts: the normalised syntax of each function and class that is reached by name, closures, defaults, and the
values of the globals that are read; whole modules where names don't show what is reached (``units``). Code of
installed distributions counts by the distribution, the standard library by the Python that runs. Modules that are
imported inside functions are read from source and never imported (``static``).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import lru_cache
from types import CodeType, MappingProxyType, MethodType, ModuleType
from typing import Any

import msgspec

from cachec.base.anchors import project_of
from cachec.base.cached_properties import UnfilledProperties, collect_encountered, excluded_properties
from cachec.base.hashing import DigestMemory, Hasher
from cachec.base.instances import attribute, function_of
from cachec.errors import CachecError, CapturedWeights, UnkeyableArgument, UnresolvedCode
from cachec.key.code.code_snapshot import Watch
from cachec.key.code.deferred_imports import DeferredImports
from cachec.key.code.live_objects import Walk
from cachec.key.code.lru_cache_validity import Memo, Memos
from cachec.key.code.module_sources import Locator, Origin, Sources, SourceText, Span, TextVersion
from cachec.key.code.normalized_syntax import FORMAT
from cachec.key.code.part_graph import PartGraph, imported_module, text_alone
from cachec.key.code.whole_modules import Units
from cachec.key.describe import words_of
from cachec.model import Part

#: Keys that are remembered; the oldest are forgotten first, so that lambdas made in a loop don't pile up.
_MAX_CACHED = 1024


class CodeKey:
    """What stands for the code of a stage. Immutable; two are equal where their parts and distributions are.

    parts: by name. distributions: installed ones that are reached. stages: other stages that are reached. memos:
    functions that keep results and are reached. texts: of what file's text a part is, by its name, and where it stands
    there. has_importer: whether the function behind ``import`` is among its values. derived: module-level names
    (module, name) whose values are not told by the source that stands for them. has_project_paths: whether paths below
    the project's folder, which count from there, are among its values. is_as_written: whether all that was imported is
    what its source says, as far as that tells. has_decimals: whether decimal numbers are among its values.
    unfilled: instances among its values with cached properties that hold nothing yet. unimported: names of modules that
    were read from source and are not imported.
    digest: 64 hexadecimal characters over all parts.
    """

    __slots__ = (
        "codes",
        "derived",
        "digest",
        "distributions",
        "has_decimals",
        "has_importer",
        "has_project_paths",
        "is_as_written",
        "memos",
        "parts",
        "spans",
        "stages",
        "texts",
        "unfilled",
        "unimported",
    )

    def __init__(
        self,
        parts: tuple[Part, ...],
        distributions: frozenset[str],
        stages: tuple[object, ...],
        memos: tuple[Memo, ...] = (),
        spans: Mapping[TextVersion, Sequence[Span]] = MappingProxyType({}),
        codes: Set[tuple[str, CodeType]] = frozenset(),
        texts: Mapping[str, tuple[TextVersion, Span]] = MappingProxyType({}),
        *,
        has_importer: bool = False,
        has_decimals: bool = False,
        has_project_paths: bool = False,
        derived: Set[tuple[str, str]] = frozenset(),
        is_as_written: bool = True,
        unfilled: tuple[UnfilledProperties, ...] = (),
        unimported: Set[str] = frozenset(),
    ) -> None:
        self.parts = parts
        self.spans = spans
        self.codes = codes
        self.texts = texts
        self.distributions = distributions
        self.stages = stages
        self.memos = memos
        self.has_importer = has_importer
        self.has_decimals = has_decimals
        self.has_project_paths = has_project_paths
        self.derived = derived
        self.is_as_written = is_as_written
        self.unfilled = unfilled
        self.unimported = unimported
        hasher = Hasher("code key")
        for part in parts:
            hasher.part(part.name, part.digest.encode())
        self.digest = hasher.digest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CodeKey):
            return NotImplemented
        return (self.parts, self.distributions) == (other.parts, other.distributions)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"CodeKey({self.digest[:12]}, {len(self.parts)} parts, distributions={sorted(self.distributions)})"


class _KnownCode(msgspec.Struct, frozen=True):
    key: CodeKey
    watch: Watch
    roots: tuple[object, ...]


class CodeKeys:
    """Makes code keys, and remembers each as long as what it was made from is as it was. Safe among threads.

    owner: the distribution that lists a file in its RECORD, None for a file of the project. encode_value: canonical
    bytes of a plain value (value, path), raising UnkeyableArgument for what has none. recorded: whether runs record
    the code that ran, so that code which no name leads to need not be refused. memory: what is kept between processes
    of what source files compile to.
    """

    def __init__(
        self,
        owner: Callable[[str], str | None],
        encode_value: Callable[[object, str], bytes],
        *,
        recorded: bool = False,
        memory: DigestMemory | None = None,
    ) -> None:
        self._encode_value = encode_value
        self.recorded = recorded
        self._locator = Locator(owner)
        self._sources = Sources(memory)
        self._units = Units(self._sources, self._locator)
        self._known: dict[tuple[object, ...], _KnownCode] = {}
        self._memos = Memos()
        self._asking: set[int] = set()
        self._lock = threading.RLock()

    def of(
        self,
        fn: Callable[..., Any],
        *,
        depends: Sequence[object] = (),
        has_version: bool = False,
        file: str | None = None,
    ) -> CodeKey:
        """The key of a function, class, or other callable, with what ``depends`` names beside it.

        Of a bound method it is the key of the function and of the object that it is bound to, with what that holds.
        Raises UnresolvedCode for code that can't be fingerprinted, unless ``has_version`` says that the stage accounts
        for it. A function or module in ``depends`` accounts for computed names only. Raises CapturedWeights for a
        weight set that is reached without being an argument. file: one of the project that paths count from, None for
        that of the function.
        """
        if isinstance(fn, MethodType):
            roots: tuple[object, ...] = (fn.__func__, fn.__self__, *depends)
        elif attribute(fn, "__cachec_stage__") is True and (bound := attribute(fn, "bound_to")):
            roots = (attribute(fn, "__wrapped__") or fn, bound[0], *depends)
        else:
            roots = (fn, None, *depends)
        name = (*map(id, roots), has_version, file)
        if excluded_properties() or text_alone():  # of one look, by which nothing else goes
            with self._lock:
                return self._compute(roots, has_version=has_version, project=_project(fn, file)).key
        known = self._known.get(name)
        if known is not None and known.watch.holds():
            return known.key
        with self._lock:
            known = self._compute(roots, has_version=has_version, project=_project(fn, file))
            self._known.pop(name, None)
            self._known[name] = known
            while len(self._known) > _MAX_CACHED:
                del self._known[next(iter(self._known))]
        return known.key

    def _compute(self, roots: tuple[object, ...], *, has_version: bool, project: str) -> _KnownCode:
        with collect_encountered() as encountered:
            try:
                graph = self._walk(roots, has_version=has_version, project=project)
                memos = tuple(self._memo(each) for each in graph.memos.values() if id(each) not in self._asking)
            except RecursionError as error:
                raise UnresolvedCode(
                    f"{_name(roots[0])} reaches code that is nested too deep to be followed"
                ) from error
            except (CachecError, OSError):
                raise
            except Exception as error:
                raise UnresolvedCode(
                    f"{_name(roots[0])} reaches an object that raised {words_of(error)} while its key was made"
                ) from error
        return _KnownCode(_key(graph, memos, encountered.unfilled), graph.watch, roots)

    def _walk(self, roots: tuple[object, ...], *, has_version: bool, project: str = "") -> PartGraph:
        fn, bound, *depends = roots
        names_code = any(callable(each) or isinstance(each, ModuleType) for each in depends)
        graph = PartGraph(tolerant=has_version, recorded=self.recorded, declares_code=names_code, project=project)
        self._locator.refresh()
        walk = Walk(graph, self._locator, self._sources, self._units, self._encode_value)
        if attribute(fn, "__cachec_stage__") is True:
            fn = attribute(fn, "__wrapped__") or fn
        root = Hasher(FORMAT)
        root.part("function", walk.reference(fn, f"{_name(fn)}.<callable>", lenient=False).encode())
        if bound is not None:
            root.part("self", walk.reference(bound, f"{_name(fn)}.<self>", lenient=False).encode())
        for number, one in enumerate(depends):
            root.part("depends", walk.reference(one, f"depends[{number}]", lenient=False).encode())
        graph.run()
        is_part = self._locator.is_own(fn)  # a function of a library has none of its own
        if not is_part or bound is not None or depends:
            graph.part(graph.label(object(), f"{_name(fn)}.<root>")[0], root, "")
        graph.watch.seal()
        return graph

    def _memo(self, function: Any) -> Memo:
        """What a memo that is reached is keyed by on its own; memos inside of it are looked at by themselves."""
        self._asking.add(id(function))
        try:
            memo = Memo(function, self.of(function.__wrapped__, has_version=True).digest)
        finally:
            self._asking.discard(id(function))
        if not excluded_properties():
            self._memos.note_state(memo)
        return memo

    def stale(self, memos: Iterable[Memo]) -> list[str]:
        """The names of functions that may keep results of code, or with values, that have changed since."""
        return self._memos.stale(memos)

    def note_fill(self, before: Iterable[Memo], now: Iterable[Memo]) -> None:
        """Note that functions with memos reach the values that they did, with cached properties filled since."""
        self._memos.note_fill(before, now)

    def of_value(self, value: object) -> tuple[CodeKey, Callable[[], bool]] | None:
        """The key of a value with the code in it, and whether it still holds; None where it has no stable form."""
        try:
            with self._lock, collect_encountered() as encountered:
                graph = self._walk((value, None), has_version=False)
            return _key(graph, (), encountered.unfilled), graph.watch.holds
        except (UnresolvedCode, UnkeyableArgument, CapturedWeights):
            return None

    # --- what was seen to run

    def is_project(self, path: str) -> bool:
        """Whether a file, by the name that its code has, is the project's; also where that can't be told."""
        try:
            return self._locator.of_file(path)[0] == "project"
        except OSError:  # a relative name, and the current folder is gone
            return True

    def source(self, path: str) -> SourceText | None:
        """The source of a file as it is now, also of one that was typed in; None where there is none."""
        return self._sources.load(path)

    def origin(self, name: str) -> Origin:
        """Where ``import name`` would find the module now."""
        return self._locator.find_uncached(name)

    def in_text(self, path: str, module: str, name: str) -> tuple[CodeKey, CodeKey] | None:
        """The key of a module-level name (the whole module where empty) by its source alone, nothing imported.

        Also that with what is imported already, which is another one where that is not as its text says. None where the
        file has no source, or no such name.
        """
        key = self._in_text(path, module, name, text_only=True)
        walk = self._in_text(path, module, name, text_only=False)
        return None if key is None or walk is None else (key, walk)

    def _in_text(self, path: str, module: str, name: str, *, text_only: bool) -> CodeKey | None:
        asked = ("text", path, module, name, text_only)
        known = self._known.get(asked)
        if known is None or not known.watch.holds():
            with self._lock:
                made = self._compute_text(path, module, name, text_only=text_only)
                if made is None:
                    return None
                known = self._known[asked] = made
        return known.key

    def _compute_text(self, path: str, module: str, name: str, *, text_only: bool) -> _KnownCode | None:
        graph = PartGraph(tolerant=True)
        self._locator.refresh()
        package = module if os.path.basename(path) == "__init__.py" else module.rpartition(".")[0]
        unit = self._units.at(module, path, package)
        if unit is None or (name and name not in unit.source.bindings):
            return None
        static = DeferredImports(
            graph, self._locator, self._sources, self._units, _AlterationListener(graph), text_only=text_only
        )
        if name:
            static.name(unit, name, None)
        else:
            static.whole(unit)
        graph.run()
        graph.watch.file(path)
        if not text_only:
            graph.watch.name(sys.modules, module)
        graph.watch.seal()
        return _KnownCode(_key(graph), graph.watch, ())

    def in_process(self, module: str, name: str, *, in_full: bool = False) -> CodeKey | None:
        """The key of what a module of this process holds under a name, of the whole module where that is empty; None
        where there is none. in_full: raise UnresolvedCode where part of it has no stable form."""
        found = imported_module(module)
        if found is None or (name and name not in vars(found)):
            return None
        value: Any = vars(found)[name] if name else found
        return self.of(value, has_version=not in_full, file=vars(found).get("__file__"))


class _AlterationListener:
    """Hears of what is not as its source says, in place of a walk over live objects: it makes another key."""

    def __init__(self, graph: PartGraph) -> None:
        self._graph = graph

    def as_imported(self, value: object, name: str, made: bytes = b"") -> None:
        """A value that its source does not tell."""
        self._graph.is_as_written = False
        label, first = self._graph.label(("altered", name), f"{name} (as imported)")
        if first:
            self._graph.part(label, Hasher("altered"), "differs from its source file")

    def refuse_weights(self, value: object, name: str) -> None:
        """A weight set here is no argument of anything, and its handles record for themselves."""


def _key(graph: PartGraph, memos: tuple[Memo, ...] = (), unfilled: Iterable[UnfilledProperties] = ()) -> CodeKey:
    stages, distributions = tuple(graph.stages), frozenset(graph.distributions - {""})
    codes = frozenset(graph.codes)
    return CodeKey(
        graph.parts(), distributions, stages, memos, graph.spans, codes, graph.texts,
        has_importer=graph.has_importer,
        has_decimals=graph.has_decimals, has_project_paths=graph.has_project_paths,
        derived=frozenset(graph.derived), is_as_written=graph.is_as_written,
        unfilled=tuple(unfilled), unimported=frozenset(graph.unimported),
    )  # fmt: skip


def _project(fn: object, file: str | None) -> str:
    """The folder of the project that code is of, with a slash at its end; empty where it has no file."""
    if file is None:
        function = function_of(fn)
        code = attribute(attribute(function, "__wrapped__") or function, "__code__")
        file = code.co_filename if isinstance(code, CodeType) else None
    if not isinstance(file, str) or not file.startswith("/"):
        return ""
    return _folder_of(file)


@lru_cache(maxsize=256)
def _folder_of(file: str) -> str:
    return os.path.join(project_of(file), "")


def _name(fn: object) -> str:
    return str(attribute(function_of(fn), "__qualname__") or type(fn).__qualname__)
