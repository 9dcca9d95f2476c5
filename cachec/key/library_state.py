"""What a program sets in libraries by statements of its own: registrations, attributes, contexts.

A worker has imported the libraries afresh, so it has nothing of that. ``targets`` finds the objects of libraries that
the text of a program names where it sets something, and ``describe`` says what they hold now: where a worker has
something else there, and the stage uses the library, it can't run in the worker.

Limits: what compiled code holds (``codecs.register``), and what a library sets in others.
"""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final

from cachec.base.display_text import module_of
from cachec.base.hashing import DigestMemory, digest_bytes
from cachec.base.instances import attributes, class_attribute
from cachec.key.canonical_forms import Forms
from cachec.key.code import normalized_syntax
from cachec.key.option_encoding import SCALARS
from cachec.key.script_statements import dotted_words
from cachec.key.source_parts import UNPARSABLE
from cachec.key.trace_validation import PRESENT
from cachec.model import Read

#: Version of what ``targets`` finds. A change of that must change it.
_VERSION: Final = "1"
#: What a read names in place of an attribute.
STATE: Final = "state that the program sets"
#: Modules whose state a worker is given, or that no result depends on.
_CARRIED: Final = frozenset(
    {"asyncio", "atexit", "cachec", "decimal", "gc", "locale", "logging", "multiprocessing", "os", "random", "signal"}
    | {"subprocess", "sys", "threading", "time", "warnings"}
)
#: Names of functions that set something.
_SETS: Final = re.compile(
    r"_*(activate|add|append|clear|config|define|disable|enable|extend|init|insert|install|override|patch|pop|push|"
    r"register|remove|reset|set|uninstall|unregister|update|use)",
    re.IGNORECASE,
)
#: How deep what a target holds is looked through, and how many items of a container.
_DEPTH, _MOST = 3, 1000
_MISSING: Final = "missing"
_FUNCTIONS: Final = (FunctionType, BuiltinFunctionType)


def targets(text: bytes) -> tuple[str, ...]:
    """The dotted names under which a text sets something in a module that it imports; with ``()`` where it calls."""
    try:
        tree = normalized_syntax.parse(text)
    except UNPARSABLE:
        return ()
    nodes = list(ast.walk(tree))
    imported: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                imported[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    found = set()
    for node in nodes:
        for expression, end in _set_by(node):
            first, *rest = dotted_words(expression) or [""]
            path = ".".join([imported.get(first, ""), *rest])
            if first in imported and path.partition(".")[0] not in _CARRIED:
                found.add(path + end)
    return tuple(sorted(found))


def _set_by(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """The expressions of what a statement sets, each with what follows its name."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
        yield node, ""
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        yield node.value, ".__setitem__()"
    elif isinstance(node, ast.Expr | ast.Assign) and isinstance(node.value, ast.Call):
        call = node.value
        name = (dotted_words(call.func) or [""])[-1]
        if name in {"setattr", "delattr"} and call.args:
            yield call.args[0], ".__setattr__()"
        elif _SETS.match(name) and (isinstance(node, ast.Expr) or "register" in name):
            yield call.func, "()"
    elif isinstance(node, ast.withitem) and isinstance(node.context_expr, ast.Call):
        yield node.context_expr.func, "()"


def top(target: str) -> str:
    """The package of a target."""
    return target.partition(".")[0].removesuffix("()")


def describe(target: str, forms: Forms) -> str:
    """The digest of what a target holds now. forms: of the values of the project among that."""
    path = target.removesuffix("()")
    found = _find(path)
    if path != target:
        owner = _find(path.rpartition(".")[0])
        if isinstance(owner, ModuleType):  # a function of it
            module = getattr(found, "__module__", None)
            found = sys.modules.get(module, owner) if isinstance(module, str) and type(found) in _FUNCTIONS else found
            found = owner if found is _MISSING else found
        else:
            found = owner
    elif found is _MISSING:  # kept in a place of its owner's own
        found = _find(path.rpartition(".")[0])
    return digest_bytes(_content(found, forms, _DEPTH).encode("utf-8", "surrogatepass"))


def _find(path: str) -> Any:
    """What a dotted name leads to, without running code of the objects on the way."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        found: Any = sys.modules.get(".".join(parts[:count]))
        if found is not None:
            for name in parts[count:]:
                found = _part(found, name)
            return found
    return _MISSING


def _part(holder: Any, name: str) -> Any:
    if isinstance(holder, type):
        found = class_attribute(holder, name)
    else:
        held = vars(holder) if isinstance(holder, ModuleType) else _attributes(holder)
        found = held[name] if name in held else class_attribute(type(holder), name)
    return _MISSING if found is None else getattr(found, "__func__", found)


def _content(value: Any, forms: Forms, depth: int) -> str:
    """What a target holds, in one text: its own attributes or items."""
    kind = type(value)
    if issubclass(kind, ModuleType):
        is_code = (*_FUNCTIONS, type, ModuleType)
        held = {name: each for name, each in vars(value).items() if not isinstance(each, is_code)}
    elif issubclass(kind, type):
        held = dict(vars(value))
    else:
        return _brief(value, forms, depth)
    names = sorted(name for name in held if not (name.startswith("__") and name.endswith("__")))
    return " ".join(f"{name}={_brief(held[name], forms, depth - 1)}" for name in names)


def _brief(value: Any, forms: Forms, depth: int) -> str:
    kind = type(value)
    name = f"{module_of(kind)}.{kind.__qualname__}"
    if kind in SCALARS:
        return repr(value)
    if name == "re.Pattern":
        return repr((value.pattern, value.flags))
    if issubclass(kind, ModuleType):
        return str(value.__name__)
    if issubclass(kind, type) or kind in _FUNCTIONS:
        return f"{module_of(value)}.{value.__qualname__}{_own(value, module_of(value), forms)}"
    if issubclass(kind, dict | list | tuple | set | frozenset):
        if depth <= 0 or len(value) > _MOST:
            return f"{name} {len(value)}"
        if issubclass(kind, dict):
            items = [f"{_brief(key, forms, depth - 1)}:{_brief(each, forms, depth - 1)}" for key, each in value.items()]
        else:
            items = [_brief(each, forms, depth - 1) for each in value]
        return f"{name} {items if issubclass(kind, list | tuple) else sorted(items)}"
    if forms.is_own_module(module_of(kind)):
        return name + _own(value, module_of(kind), forms)
    if depth <= 0:
        return name
    held = _attributes(value)
    return f"{name} {[(each, _brief(held[each], forms, depth - 1)) for each in sorted(held)]}"


def _attributes(value: Any) -> dict[str, Any]:
    """What an object holds; of a thread-local, what this thread has there."""
    is_local = issubclass(type(value), threading.local)
    return dict(threading.local.__getattribute__(value, "__dict__")) if is_local else attributes(value)


def _own(value: Any, module: object, forms: Forms) -> str:
    """What tells a value of the project from others."""
    return f" {forms.digest(value)}" if isinstance(module, str) and forms.is_own_module(module) else ""


class LibraryStates:
    """What the code of this process sets in libraries."""

    def __init__(self, memory: DigestMemory | None) -> None:
        """memory: where the targets of texts are remembered between processes."""
        self._memory = memory
        self._targets: dict[object, Sequence[str]] = {}

    def now(self, forms: Forms) -> dict[str, str]:
        """The targets in libraries that are imported, each with what it holds now. forms: in the state of now."""
        found: dict[str, str] = {}
        for name, module in list(sys.modules.items()):
            for target in self._of_module(name, module) if forms.is_own_module(name) else ():
                library = top(target)
                if target not in found and library in sys.modules and not forms.is_own_module(library):
                    found[target] = describe(target, forms)
        return found

    def _of_module(self, name: str, module: ModuleType) -> Iterator[str]:
        """The targets of a module's text, as it was when it was first asked for; of a notebook, of its cells."""
        cells = getattr(module, "In", None) if name == "__main__" else None
        if isinstance(cells, list):
            for cell in map(str, cells):
                yield from self._of_text(cell, partial(cell.encode, "utf-8", "surrogatepass"))
        elif isinstance(file := getattr(module, "__file__", None), str) and file.endswith(".py"):
            yield from self._of_text(file, Path(file).read_bytes)

    def _of_text(self, key: object, read: Callable[[], bytes]) -> Sequence[str]:
        known = self._targets.get(key)
        if known is None:
            try:
                known = self._remembered(read())
            except OSError:  # the file is gone: what the module sets, nothing says
                known = ()
            self._targets[key] = known
        return known

    def _remembered(self, text: bytes) -> Sequence[str]:
        row = f"library targets:{normalized_syntax.FORMAT}:{_VERSION}:{digest_bytes(text)}"
        known = None if self._memory is None else self._memory.recall(row)
        if known is not None:
            return known.decode("utf-8", "surrogatepass").split()
        found = targets(text)
        if self._memory is not None:
            self._memory.remember(row, " ".join(found).encode("utf-8", "surrogatepass"))
        return found


def read_of(used: Collection[str], states: Mapping[str, str]) -> Read:
    """The read of the states of those targets that are of packages which a run has used."""
    texts = [f"{name}={states[name]}" for name in sorted(states) if top(name) in used]
    found = digest_bytes(" ".join(texts).encode())
    return Read("library", " ".join(sorted(used)), f"{STATE}={found}", PRESENT)
