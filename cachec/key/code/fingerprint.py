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
from types import FunctionType, MappingProxyType, MethodType
from typing import Any, NamedTuple

from cachec.base.hashing import Hasher
from cachec.key.code.graph import Graph, module_name
from cachec.key.code.live import Walk
from cachec.key.code.memos import Memo, Memos
from cachec.key.code.modules import Locator, Sources
from cachec.key.code.syntax import FORMAT
from cachec.key.code.units import Units
from cachec.key.code.watch import Watch
from cachec.model import Part

#: Keys that are remembered; the oldest are forgotten first, so that lambdas made in a loop don't pile up.
_KEPT = 1024


class CodeKey:
    """What stands for the code of a stage. Immutable; two are equal where their parts and distributions are.

    parts: by name. distributions: installed ones that are reached. stages: other stages that are reached. memos:
    functions that keep results and are reached. digest: 64 hexadecimal characters over all parts.
    """

    __slots__ = ("_covered", "digest", "distributions", "memos", "parts", "stages")

    def __init__(
        self,
        parts: tuple[Part, ...],
        distributions: frozenset[str],
        stages: tuple[object, ...],
        memos: tuple[Memo, ...] = (),
        covered: Mapping[str, Set[str]] = MappingProxyType({}),
    ) -> None:
        self.parts = parts
        self.lines = lines
        self.codes = codes
        self.distributions = distributions
        self.stages = stages
        self.memos = memos
        self._covered = covered
        hasher = Hasher("code key")
        for part in parts:
            hasher.part(part.name, part.digest.encode())
        self.digest = hasher.digest()

    def covers(self, path: str, qualname: str) -> bool:
        """Whether the code of this qualified name (``co_qualname``) in this source file is in the key: by itself, in a
        function or class around it, or with its whole module. The body of a module, ``<module>``, is there as soon as
        the module is reached: with what it does to others, and with the statements whose names are used."""
        names = self._covered.get(path, frozenset())
        while qualname:
            if qualname in names:
                return True
            qualname = qualname.rpartition(".")[0]
        return "" in names

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CodeKey):
            return NotImplemented
        return (self.parts, self.distributions) == (other.parts, other.distributions)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"CodeKey({self.digest[:12]}, {len(self.parts)} parts, distributions={sorted(self.distributions)})"


class Coverage:
    """What a key holds of code, so that what ran beyond it can be told. Grows by the code keys of one request."""

    __slots__ = ("_codes", "_lines", "distributions", "stages")

    def __init__(self) -> None:
        self._lines: dict[str, set[tuple[int, int]]] = {}
        self._codes: set[tuple[str, CodeType]] = set()
        self.distributions: set[str] = set()
        self.stages: list[object] = []

    def holds_stage(self, stage: object) -> bool:
        """Whether a stage is there, with all that it is declared to depend on."""
        return any(each is stage for each in self.stages)

    def add(self, key: CodeKey) -> None:
        """All that a code key holds."""
        for path, lines in key.lines.items():
            self._lines.setdefault(path, set()).update(lines)
        self._codes |= key.codes
        self.distributions |= key.distributions

    def holds_code(self, path: str, code: CodeType) -> bool:
        """Whether code that its source no longer says is there as it runs."""
        return (path, code) in self._codes

    def holds_line(self, path: str, line: int) -> bool:
        """Whether the statement at a line of the file, as it is now, is there with what it names."""
        return any(first <= line <= last for first, last in self._lines.get(path, ()))

    def holds_whole(self, path: str) -> bool:
        """Whether all of this module is there."""
        return any(last == sys.maxsize for _, last in self._lines.get(path, ()))

    def holds_some(self, path: str) -> bool:
        """Whether names of this module were followed: what importing it does is there then."""
        return path in self._lines


class _Known(NamedTuple):
    key: CodeKey
    watch: Watch
    held: tuple[object, ...]


class CodeKeys:
    """Makes code keys, and remembers each as long as what it was made from is as it was. Safe among threads.

    owner: the distribution that lists a file in its RECORD, None for a file of the project. encode_value: canonical
    bytes of a plain value (value, path), raising UnkeyableArgument for what has none. recorded: whether runs record
    the code that ran, so that code which no name leads to need not be refused.
    """

    def __init__(
        self,
        owner: Callable[[str], str | None],
        encode_value: Callable[[object, str], bytes],
        *,
        recorded: bool = False,
    ) -> None:
        self._encode_value = encode_value
        self._recorded = recorded
        self._locator = Locator(owner)
        self._sources = Sources()
        self._units = Units(self._sources, self._locator)
        self._known: dict[tuple[object, ...], _Known] = {}
        self._memos = Memos()
        self._asking: set[int] = set()
        self._lock = threading.RLock()

    def of(self, fn: Callable[..., Any], *, depends: Sequence[object] = (), has_version: bool = False) -> CodeKey:
        """The key of a function, class, or other callable, with what ``depends`` names beside it.

        Of a bound method it is the key of the function and of the object that it is bound to, with what that holds.
        Raises UnresolvedCode for code that can't be fingerprinted, unless ``depends`` or ``has_version`` says that the
        stage accounts for it, and CapturedWeights for a weight set that is reached without being an argument.
        """
        if isinstance(fn, MethodType):
            held: tuple[object, ...] = (fn.__func__, fn.__self__, *depends)
        elif getattr(fn, "__cachec_stage__", False) is True and (bound := getattr(fn, "bound_to", ())):
            held = (getattr(fn, "__wrapped__", fn), bound[0], *depends)
        else:
            held = (fn, None, *depends)
        name = (*map(id, held), has_version)
        known = self._known.get(name)
        if known is not None and known.watch.holds():
            return known.key
        with self._lock:
            known = self._compute(held, has_version=has_version)
            self._known.pop(name, None)
            self._known[name] = known
            while len(self._known) > _KEPT:
                del self._known[next(iter(self._known))]
        return known.key

    def _compute(self, held: tuple[object, ...], *, has_version: bool) -> _Known:
        fn, bound, *depends = held
        graph = Graph(tolerant=has_version or bool(depends), recorded=self._recorded)
        self._locator.refresh()
        walk = Walk(graph, self._locator, self._sources, self._units, self._encode_value)
        if getattr(fn, "__cachec_stage__", False) is True:
            fn = getattr(fn, "__wrapped__", fn)
        root = Hasher(FORMAT)
        root.part("function", walk.reference(fn, f"{_name(fn)}.<callable>", lenient=False).encode())
        if bound is not None:
            root.part("self", walk.reference(bound, f"{_name(fn)}.<self>", lenient=False).encode())
        for number, one in enumerate(depends):
            root.part("depends", walk.reference(one, f"depends/{number}", lenient=False).encode())
        graph.run()
        if not (isinstance(fn, FunctionType) and bound is None and not depends):
            graph.part(graph.label(object(), f"{_name(fn)}.<root>")[0], root, "")
        graph.watch.seal()
        memos = tuple(self._memo(each) for each in graph.memos.values() if id(each) not in self._asking)
        key = CodeKey(graph.parts(), frozenset(graph.distributions), tuple(graph.stages), memos, graph.covered)
        return _Known(key, graph.watch, held)

    def _memo(self, function: Any) -> Memo:
        """What a memo that is reached is keyed by on its own; memos inside of it are looked at by themselves."""
        self._asking.add(id(function))
        try:
            memo = Memo(function, self.of(function.__wrapped__, has_version=True).digest)
        finally:
            self._asking.discard(id(function))
        self._memos.met(memo)
        return memo

    def stale(self, memos: Iterable[Memo]) -> list[str]:
        """The names of functions that may keep results of code, or with values, that have changed since."""
        return self._memos.stale(memos)


def _name(fn: object) -> str:
    found = fn if hasattr(fn, "__qualname__") else type(fn)
    return str(getattr(found, "__qualname__", "?"))
