"""Make a module ``__main__`` in a worker like the caller's, from the text of the script or notebook.

Only what ``key.script_statements`` selects is executed again, and only statements that the caller has executed: a
training loop never runs a second time. Names that other statements bind are open: their values come from the caller.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import linecache
import os
import re
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from cachec.base.hashing import Hasher
from cachec.key import script_statements, source_parts
from cachec.key.code import normalized_syntax
from cachec.model import Digest

if TYPE_CHECKING:  # it imports email, which imports quopri: the caller's project may have one
    from cachec.worker.import_recorder import ImportRecorder

#: ``co_flags`` of functions, not of modules and class bodies.
_IS_FUNCTION = 1

#: Statements that only set something.
_SETS = (ast.Assign, ast.AnnAssign, ast.Expr)

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

#: Characters of a statement that are shown.
_SHOWN = 60

#: Options of Python before ``-c``, and those that take the next word.
_COMMAND = re.compile(r"-[bBdEhiIOPqRsSuvVx?]*c(.*)", re.DOTALL)
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})


class ReplayError(Exception):
    """``__main__`` can't be made again: the message says why. The caller runs the stage itself."""


class Text(NamedTuple):
    """A script, or a cell of a notebook."""

    #: What its code objects name.
    filename: str
    text: bytes


class MainModule(NamedTuple):
    """How the caller's ``__main__`` was made."""

    #: The script; empty for notebooks, ``-c`` and prompts.
    path: str
    #: ``package``, ``spec_name``: as ``python -m`` sets them, else None.
    package: str | None
    spec_name: str | None
    #: None where Python did not keep them.
    texts: tuple[Text, ...]
    #: The line of the last text that runs now.
    until: int | None
    #: The open names that replaying may read, so their values must be sent first.
    needed: tuple[str, ...]


class ReplayedMain(NamedTuple):
    """What replaying made."""

    module: ModuleType
    #: The names that it bound.
    defined: frozenset[str]
    #: Those whose values are the caller's to send.
    open: frozenset[str]


# --- the caller


def main_of(is_project: Callable[[str], bool]) -> MainModule | None:
    """How this process's ``__main__`` was made; None where it is no code of the project, as under pytest.

    Raises ReplayError where it is the project's and can't be made again.
    """
    module = sys.modules.get("__main__")
    if module is None:
        return None
    namespace = vars(module)
    if module.__name__ != "__main__":
        raise ReplayError(f"__main__ is the module {module.__name__}, as in a child of multiprocessing")
    spec, path = namespace.get("__spec__"), namespace.get("__file__")
    if isinstance(namespace.get("In"), list):
        path, texts = None, _cells(namespace["In"])
    elif path is None or path.startswith("<"):  # <stdin>
        path, texts = None, _command()
    else:
        path = os.path.abspath(path)
        if not is_project(path) or os.path.dirname(path) == sysconfig.get_path("scripts"):
            return None
        try:
            with open(path, "rb") as file:
                texts = (Text(path, file.read()),)
        except OSError as error:
            raise ReplayError(f"the script {path} can't be read: {error.strerror}") from error
    frame = _module_frame(namespace)
    until = None
    if frame is not None and texts:
        until = frame[1]
        if path is None:
            places = [place for place, text in enumerate(texts) if text.filename == frame[0]]
            texts, until = (texts[: places[-1] + 1], until) if places else (texts, None)
    spec_name = None if spec is None else spec.name
    main = MainModule(path or "", namespace.get("__package__"), spec_name, texts, until, ())
    return main._replace(needed=tuple(sorted(_needed_names(main))))


def _cells(history: list[object]) -> tuple[Text, ...]:
    """The cells of a notebook in the order in which they ran, with the file names that IPython gave their code."""
    names = {"".join(entry[2]).strip(): name for name, entry in list(linecache.cache.items()) if len(entry) > 2}
    found = []
    for number, cell in enumerate(history):
        if isinstance(cell, str) and cell.strip():
            found.append(Text(names.get(cell.strip(), f"<cell {number}>"), cell.encode("utf-8", "surrogatepass")))
    return tuple(found)


def _command() -> tuple[Text, ...]:
    """The text of ``python -c``; nothing at a prompt."""
    words = iter(sys.orig_argv[1:])
    for word in words:
        command = _COMMAND.fullmatch(word)
        if command:
            return (Text("<string>", (command[1] or next(words, "")).encode("utf-8", "surrogateescape")),)
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-") or word == "-m":
            break
    return ()


def _module_frame(namespace: Mapping[str, Any]) -> tuple[str, int] | None:
    """The file name and line of the statement of ``__main__`` that runs now."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    found = None
    while frame is not None:
        if frame.f_globals is namespace and not frame.f_code.co_flags & _IS_FUNCTION:
            found = frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return found


def _needed_names(main: MainModule) -> set[str]:
    stale: set[str] = set()
    needed: set[str] = set()
    for _, statements in _statements(main):
        for each in statements:
            needed |= each.reads & stale
            (stale.difference_update if each.is_replayed else stale.update)(each.binds)
    return needed


def effects_of(main: MainModule) -> Digest:
    """The digest of all that replaying does beyond binding names: what notebooks count, which have no file.

    Calls that register and set something, attributes that are set, decorators, classes with bases. A statement that
    ran twice counts where it ran last. Values, functions and other classes count by what they are in the caller.
    """
    hasher = Hasher("effects")
    found: dict[bytes, None] = {}
    for _, statements in _statements(main):
        for each in statements:
            if each.is_replayed and _has_effect(each.node):
                form = normalized_syntax.normalise(each.node)
                found.pop(form, None)
                found[form] = None
    for form in found:
        hasher.part("", form)
    return hasher.digest()


def _has_effect(node: ast.stmt) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return bool(node.decorator_list)
    if isinstance(node, ast.ClassDef):
        return bool(node.decorator_list or node.bases or node.keywords)
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(isinstance(each, ast.Attribute) for target in targets for each in ast.walk(target))
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant)
    return not isinstance(node, ast.Import | ast.ImportFrom | ast.Pass)


# --- what both sides understand of a text


class _Statement(NamedTuple):
    node: ast.stmt
    is_replayed: bool
    reads: set[str]
    binds: set[str]


def _statements(main: MainModule) -> Iterator[tuple[Text, list[_Statement]]]:
    """The statements of each text that the caller has executed. A text that is not Python, such as a cell with a
    magic, has none."""
    trees = []
    for text in main.texts:
        try:
            trees.append((text, normalized_syntax.parse(text.text, text.filename)))
        except source_parts.UNPARSABLE:
            continue
    bodies = [(text, normalized_syntax.without_docstring(tree.body)) for text, tree in trees]
    # Before statements are cut off: a trace counts the first of those that the whole text selects.
    selected = set(map(id, script_statements.select([node for _, body in bodies for node in body])[0]))
    if main.until is not None and bodies and bodies[-1][0] is main.texts[-1]:
        text, body = bodies.pop()
        bodies.append((text, [node for node in body if (node.end_lineno or node.lineno) < main.until]))
    everything = [node for _, body in bodies for node in body]
    functions: dict[str, ast.AST] = {
        node.name: node
        for node in everything
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    for text, body in bodies:
        found = []
        for node in body:
            is_replayed = id(node) in selected
            reads = script_statements.read_names(node, functions) if is_replayed else set()
            found.append(_Statement(node, is_replayed, reads, set(script_statements.bound_names([node]))))
        yield text, found


# --- the worker


def replay(main: MainModule, values: Callable[[str], object], imports: ImportRecorder | None = None) -> ReplayedMain:
    """Make ``__main__`` and register it in ``sys.modules``.

    values: the caller's value of a name of ``main.needed``; LookupError where it could not be sent: then a statement
    that reads it is left out, and so is one that sets something and fails. imports: told what is executed. Raises
    ReplayError where an import or a definition fails.
    """
    module = _new_module(main)
    namespace = vars(module)
    before = set(namespace)
    sys.modules["__main__"] = module
    flags = 0
    stale: set[str] = set()
    left_out = ""
    for text, statements in _statements(main):
        if not main.path:
            lines = text.text.decode("utf-8", "surrogatepass").splitlines(keepends=True)
            linecache.cache[text.filename] = (len(text.text), None, lines, text.filename)
        if imports is not None:
            count = sum(each.is_replayed for each in statements)
            imports.add(text.filename, text.text if main.path else None, _whole(text), count)
        declared = _declared_imports(text)
        for each in statements:
            if not each.is_replayed:
                stale |= each.binds
                if isinstance(each.node, ast.Expr):
                    left_out = f"; {ast.unparse(each.node)[:_SHOWN]} in line {each.node.lineno} was not replayed"
                continue
            absent = set()
            for name in sorted(each.reads & stale):
                try:
                    namespace[name] = values(name)
                except LookupError:
                    namespace.pop(name, None)
                    absent.add(name)
            flags |= _features(each.node)
            try:
                _execute(declared, each.node, text.filename, namespace, flags)
            except ReplayError as error:
                is_absent = isinstance(error.__cause__, NameError) and error.__cause__.name in absent
                if not is_absent and not isinstance(each.node, _SETS):
                    raise ReplayError(f"{error}{left_out}") from error
                stale |= each.binds  # what else it sets is compared, and sent
            else:
                stale -= each.binds
    return ReplayedMain(module, frozenset(namespace.keys() - before - stale), frozenset(stale))


def _new_module(main: MainModule) -> ModuleType:
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    module.__package__ = main.package
    if main.path:
        module.__file__ = main.path
        module.__dict__["__cached__"] = None
        name = main.spec_name or "__main__"
        module.__loader__ = SourceFileLoader(name, main.path)
        if main.spec_name is not None:
            module.__spec__ = ModuleSpec(name, module.__loader__, origin=main.path)
            module.__spec__.has_location = True
    if main.path and main.texts:
        try:
            module.__doc__ = ast.get_docstring(normalized_syntax.parse(main.texts[0].text, main.path), clean=False)
        except source_parts.UNPARSABLE as error:
            raise ReplayError(f"the script {main.path} is not Python any more: {error}") from error
    return module


def _whole(text: Text) -> CodeType | None:
    """The code of a text, to find names in; never executed."""
    try:
        code = compile(text.text, text.filename, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except source_parts.UNPARSABLE:
        return None
    return code if isinstance(code, CodeType) else None


def _features(node: ast.stmt) -> int:
    """The flags for the compiler that ``from __future__ import`` sets for what follows."""
    flags = 0
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        for each in node.names:
            flags |= getattr(__future__, each.name).compiler_flag
    return flags


def _declared_imports(text: Text) -> ast.stmt:
    """A statement that does nothing, and tells the compiler which names the whole text imports: calls of methods of
    such names have other code."""
    found: list[ast.stmt] = []
    pending: list[ast.AST] = list(ast.iter_child_nodes(normalized_syntax.parse(text.text, text.filename)))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and _is_plain(node)):
            found.append(node)
        elif not isinstance(node, (*_SCOPES, ast.expr)):
            pending.extend(ast.iter_child_nodes(node))
    never = ast.If(ast.Constant(False), found or [ast.Pass()], [])
    return ast.fix_missing_locations(ast.copy_location(never, ast.Pass(lineno=1, col_offset=0)))


def _is_plain(node: ast.ImportFrom) -> bool:
    return node.module != "__future__" and node.names[0].name != "*"


def _execute(declared: ast.stmt, node: ast.stmt, filename: str, namespace: dict[str, Any], flags: int) -> None:
    try:
        body = [node] if _features(node) else [declared, node]  # `from __future__` stands first
        code = compile(ast.Module(body, []), filename, "exec", flags=flags, dont_inherit=True)
        exec(code, namespace)
    except (Exception, SystemExit) as error:
        raise ReplayError(f"{filename}:{node.lineno}: replaying it raised {error!r}") from error
