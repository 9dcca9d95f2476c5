"""The parts of a code key while they are collected: one for each object reached, with unique labels."""

from __future__ import annotations

import ast
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType
from typing import TYPE_CHECKING, Any, NoReturn

from cachec.base.hashing import Hasher, digest_bytes
from cachec.errors import CachecError, UnresolvedCode
from cachec.key.code.code_snapshot import Watch
from cachec.key.code.module_sources import WHOLE, SourceText, Span, TextVersion
from cachec.key.code.scopes import Uses
from cachec.key.describe import words_of
from cachec.model import Part, PartKind

if TYPE_CHECKING:
    from cachec.key.flatten import Leaves

#: What code may ask of other code, and the words, in normalised syntax, by which it does so under whatever object.
_ASKED = {
    "documentation": ("__doc__", "getdoc", "help", "pydoc"),
    "source": (
        "getsource",
        "getsourcelines",
        "getcomments",
        "findsource",
        "getblock",
        "linecache",
        "getline",
        "getlines",
        # Where a statement stands is of its text too.
        "f_lineno",
        "co_firstlineno",
        "tb_lineno",
        "extract_tb",
        "extract_stack",
        "format_stack",
        "format_exc",
        "print_exc",
        "format_exception",
        "print_exception",
        "getframeinfo",
    ),
    "subclasses": ("__subclasses__",),
    "locks": ("locked", "acquire"),
    "order": ("vars", "__dict__", "getmembers"),
    "annotations": ("__annotations__", "get_type_hints", "get_annotations", "signature", "getfullargspec"),
}
_ASKING = {f"s{len(word)}:{word}".encode(): asked for asked, words in _ASKED.items() for word in words}

#: The function behind ``import``: code that names it may import by whatever name, also by another one of its own.
_IMPORTER = b"s10:__import__"

#: Names of modules that are read from source alone, whatever this process has imported.
_text_alone: ContextVar[frozenset[str]] = ContextVar("cachec_text_alone", default=frozenset())

_VERSION = "take charge of its changes with version=..."
_CODE_WAYS_OUT = f"name the functions or modules that it leads to with depends=[...], or {_VERSION}"
_VALUE_WAYS_OUT = f"pass what the stage needs of it as an argument, make it inside the stage, or {_VERSION}"


@contextmanager
def reading_text_alone(modules: frozenset[str]) -> Iterator[None]:
    """Make code keys inside as if these modules were not imported."""
    token = _text_alone.set(modules)
    try:
        yield
    finally:
        _text_alone.reset(token)


def text_alone() -> frozenset[str]:
    """The modules that the surrounding block takes for not imported."""
    return _text_alone.get()


class PartGraph:
    """Parts, what they refer to, and what is still to be looked at.

    A label is ``module.qualname``; a second object of the same name is ``module.qualname#2``, in the order in which
    they are reached. A part's digest holds the labels of what it refers to, never their content: so that a changed
    helper changes its own part alone, and the parts together still tell any two graphs apart.
    """

    def __init__(
        self, *, tolerant: bool, recorded: bool = False, declares_code: bool = False, project: str = ""
    ) -> None:
        """tolerant: what can't be followed is accounted for by the stage. recorded: runs record the code that ran.
        declares_code: the stage names functions or modules, to which computed names lead.
        project: the folder of the stage's project, below which paths count from there; empty for none."""
        self.project = project
        #: Whether a value is a path below that folder.
        self.has_project_paths = False
        #: What is in the key: by a file's text the spans of its statements, and code whose source is another by now.
        self.spans: dict[TextVersion, list[Span]] = {}
        self.codes: set[tuple[str, CodeType]] = set()
        #: The file's text that a label's part is of, and where it begins and ends there.
        self.texts: dict[str, tuple[TextVersion, Span]] = {}
        self.watch = Watch()
        #: With the empty name, where what was reached is of none.
        self.distributions: set[str] = set()
        self.stages: list[object] = []
        self.memos: dict[int, Any] = {}
        #: Names of modules that were imported, read from source, of which the source does not tell what they came to.
        self.derived: set[tuple[str, str]] = set()
        #: Names of modules that were read from source, and are not imported.
        self.unimported: set[str] = set()
        #: Names of modules that count as not imported.
        self.text_alone = text_alone()
        self.is_as_written = True
        self.has_importer = False
        self.has_decimals = False
        self.tolerant = tolerant
        #: Whether computed names need no report: runs record what they lead to, or the stage names it.
        self._resolves_computed = recorded or declares_code
        self._parts: dict[str, Part] = {}
        self._labels: dict[object, str] = {}
        self._owned: list[object] = []
        self._counts: dict[str, int] = {}
        self._used: set[str] = set()
        self._asked: dict[str, bool] = {}
        self._visited: set[str] = set()
        self._mentioned: set[str] = set()
        self._waiting: dict[str, list[Callable[[], object]]] = {}
        self._strict: deque[Callable[[], object]] = deque()
        self._lenient: deque[Callable[[], object]] = deque()
        self._last: deque[Callable[[], object]] = deque()

    def label(self, identity: object, wanted: str, owned: object = None) -> tuple[str, bool]:
        """The label of a thing, and whether this is the first time that it is reached.

        identity: a hashable that is equal for the same thing only, such as an ``id``; ``owned`` is kept alive for it.
        """
        known = self._labels.get(identity)
        if known is not None:
            return known, False
        self._owned.append(owned)
        label = wanted
        while label in self._used:
            count = self._counts[wanted] = self._counts.get(wanted, 1) + 1
            label = f"{wanted}#{count}"
        self._used.add(label)
        self._labels[identity] = label
        return label, True

    def find_label(self, identity: object) -> str | None:
        """The label of a thing that was reached already."""
        return self._labels.get(identity)

    def part(self, label: str, hasher: Hasher, detail: str, value: str = "", leaves: Leaves = ()) -> None:
        """Add the part of a label. Each label has one. value, leaves: as it is written, where it is no code."""
        if label in self._parts:
            raise AssertionError(f"two parts named {label}")
        self._parts[label] = Part(PartKind.CODE, label, hasher.digest(), detail, value=value, leaves=leaves)

    def covers(self, source: SourceText, node: ast.AST | None = None, label: str = "") -> None:
        """Note that a statement, lambda or module of this text is in the key with all that it says; None for what
        importing the module does to others. label: of its part."""
        spans = self.spans.setdefault(source.version, [])
        if node is None:
            return
        spans.append(WHOLE if isinstance(node, ast.Module) else span(node))
        if label:
            self.texts.setdefault(label, (source.version, spans[-1]))

    def later(self, work: Callable[[], object], *, lenient: bool) -> None:
        """Look at something after everything that was found before it; lenient work after all that is strict."""
        (self._lenient if lenient else self._strict).append(work)

    def at_end(self, work: Callable[[], None]) -> None:
        """Look at something when everything else that can be found has been."""
        self._last.append(work)

    def visit(self, label: str, work: Callable[[bool], None], *, lenient: bool) -> None:
        """Look at the thing of a label once, strictly where anything asks for that; ``work`` is told which."""
        asked = self._asked.get(label)
        if asked is None or (asked and not lenient):
            self._asked[label] = lenient

            def once() -> None:
                if label not in self._visited:
                    self._visited.add(label)
                    try:
                        work(lenient)
                    except Exception as error:  # noqa: BLE001 - user code may raise any
                        self.report_exception(label, error)

            self.later(once, lenient=lenient)

    def mentions(self, syntax: bytes) -> None:
        """Note what code with this normalised syntax, reached just now, asks of other code (``when``)."""
        self.has_importer = self.has_importer or _IMPORTER in syntax
        for word, asked in _ASKING.items():
            if word in syntax and asked not in self._mentioned:
                self._mentioned.add(asked)
                for work in self._waiting.pop(asked, ()):
                    self.later(work, lenient=True)

    def when(self, asked: str, work: Callable[[], object]) -> None:
        """Look at something if any code that is reached, before or after, asks for ``documentation`` (docstrings, of
        whatever), ``source`` (text with its comments), ``subclasses``, ``annotations``,
        ``locks`` (whether one is held) or ``order`` (of what a class holds)."""
        if asked in self._mentioned:
            self.later(work, lenient=True)
        else:
            self._waiting.setdefault(asked, []).append(work)

    def aside(self, asked: str, label: str, read: Callable[[], bytes]) -> None:
        """A part of its own for something that counts only if it is asked for, watched from then on."""

        def work() -> None:
            hasher, data = Hasher(asked), read()
            hasher.part(asked, data)
            self.watch.value(read, data)
            self.part(f"{label}.<{asked}>", hasher, f"{len(data)} bytes")

        self.when(asked, work)

    def run(self) -> None:
        """Do all the work that there is, and what it leads to."""
        while self._strict or self._lenient or self._last:
            try:
                (self._strict or self._lenient or self._last).popleft()()
            except Exception as error:  # noqa: BLE001 - code of the values that are looked at may raise any
                self.report_exception("what the stage reaches", error)

    def report_computed(self, what: str, uses: Uses) -> None:
        """Report code whose name is known only when it runs: it is recorded then, or else can't be fingerprinted."""
        for why in () if self._resolves_computed else uses.computed[:1]:
            self._report(what, why, _CODE_WAYS_OUT)

    def importer(self, what: str) -> None:
        """Note that the function behind ``import`` is reached as a value."""
        self.has_importer = True
        if not self._resolves_computed:
            self._report(what, "imports modules by computed names", _CODE_WAYS_OUT)

    def report_exception(self, what: str, error: Exception) -> str:
        """Report the exception that code of a value raised while its key was made. Raises cachec's own errors, those of
        the system and RecursionError unchanged. what: the name of the value."""
        if isinstance(error, CachecError | OSError | RecursionError):
            raise error
        return self._report(what, f"raised {words_of(error)} while its key was made", _VALUE_WAYS_OUT, error)

    def report_unresolved(self, what: str, why: str) -> str:
        """Report code that can't be fingerprinted, unless the stage has a version. No ``depends=`` stands for it."""
        return self._report(what, why, _VERSION)

    def refuse_mock(self, what: str) -> NoReturn:
        """Raise UnresolvedCode for a mock: no key tells what one returns, and no version of the stage does."""
        raise UnresolvedCode(f"{what} is a mock, so the result is not stored; call the stage without it")

    def formless(self, what: str, why: str, cause: CachecError) -> str:
        """Report a value that has no stable form, unless the stage has a version. No ``depends=`` stands for it."""
        return self._report(what, why, _VALUE_WAYS_OUT, cause)

    def _report(self, what: str, why: str, ways_out: str, cause: Exception | None = None) -> str:
        if self.tolerant:
            return f"unresolved {what}"
        raise UnresolvedCode(f"{what} {why}, so a change of it would go unseen; {ways_out}") from cause

    def parts(self) -> tuple[Part, ...]:
        """All parts, by name."""
        return tuple(self._parts[name] for name in sorted(self._parts))


def span(node: ast.AST) -> Span:
    """Where a statement or lambda begins, its decorators among it, and where it ends. Lines alone would not do: several
    statements may share one."""
    first = min((each.lineno, each.col_offset) for each in (node, *getattr(node, "decorator_list", ())))
    return first, (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]


def module_name(namespace: dict[str, Any]) -> str:
    """The name of a module by its globals. What runs as ``__main__`` has the name that importing it would give."""
    name = namespace.get("__name__")
    if name != "__main__":
        return name if isinstance(name, str) else "?"
    spec = namespace.get("__spec__")
    if spec is not None and isinstance(getattr(spec, "name", None), str):
        found: str = spec.name
        return found
    file = namespace.get("__file__")
    return os.path.splitext(os.path.basename(file))[0] if isinstance(file, str) else "__main__"


def imported_module(name: str) -> Any:
    """What this process has imported under a name, or runs as its script; None where there is nothing."""
    main = sys.modules.get("__main__")
    return main if main is not None and module_name(vars(main)) == name else sys.modules.get(name)


def package_name(namespace: dict[str, Any]) -> str:
    """What the relative imports of a module start from."""
    package = namespace.get("__package__")
    if isinstance(package, str):
        return package
    name = module_name(namespace)
    return name if "__path__" in namespace else name.rpartition(".")[0]


def file_part(graph: PartGraph, label: str, path: str) -> None:
    """A part for a file that has no source to be read: its content. Raises OSError where it can't be read."""
    hasher = Hasher("file")
    with open(path, "rb") as file:
        hasher.part("content", digest_bytes(file.read()).encode())
    graph.watch.file(path)
    graph.part(label, hasher, os.path.basename(path))
