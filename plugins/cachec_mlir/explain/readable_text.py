"""A module as a person reads it: operations a line each, no byte of a weight.

Text stays in its own notation, bytecode is printed by the MLIR of an installed compiler. Literals that stay in a
stripped text are cut to their first digits, with their size and digest, so that two that differ look different.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from blake3 import blake3

from cachec.errors import CachecError, CheckpointError, PluginError
from cachec_mlir.blobs import Resource
from cachec_mlir.file_writer import StripResult
from cachec_mlir.live.bindings import Bindings, generic
from cachec_mlir.module_input import Source, open_input
from cachec_mlir.strip_and_link import strip
from cachec_mlir.text.scanner import scan, unescape, uses
from cachec_mlir.text.skeleton import MARKER, Literal, Skeleton

#: The compilers with an MLIR that can print bytecode, in the default order.
READERS = ("iree", "jax")

#: Characters of a literal that are shown.
_SHOWN = 24
#: One in a function's line, or in that of a module or global.
_SYMBOL = re.compile(r'@((?:[A-Za-z_][\w$.\-]*)|"(?:[^"\\]|\\.)*")')
_FUNCTION = re.compile(r'^\s*"?(?:[a-z_]+\.)?func"?[\s(]')
_SYM_NAME = re.compile(r'\bsym_name\s*=\s*"((?:[^"\\]|\\.)*)"')
_NAME = re.compile(r'^\s*(?:%[^="]*=\s*)?"?([A-Za-z_][\w$]*(?:\.[\w$]+)*)"?')
#: Operations that are written without their dialect.
_BARE: Mapping[str, str] = {"module": "builtin.module", "return": "func.return", "func": "func.func"}
_LOCATION = re.compile(r'\s*\bloc\((?:[^()"]|"(?:[^"\\]|\\.)*"|\((?:[^()"]|"(?:[^"\\]|\\.)*")*\))*\)\s*$')


class Operation(NamedTuple):
    """A line of the text. number: from 1. name: of its operation, empty for a line that begins none (a brace, a label,
    an alias). function: that it is in.
    """

    number: int
    text: str
    name: str
    function: str


class ReadableModule(NamedTuple):
    """A module as readable text."""

    text: str
    notation: str
    cut: int


def make_readable(source: Source, bindings: str | None = None, *, limit: int = 0) -> ReadableModule:
    """Return the module without its weights, as readable text.

    bindings: the compiler with the MLIR that prints it, in generic notation; None for text as it is. limit: the length
    up to which a literal stays whole.

    Raises CheckpointError, OSError; PluginError where no installed MLIR reads the bytecode.
    """
    ir = strip(source).ir
    if isinstance(ir, bytes) and bindings is None and not ir.startswith(b"ML\xefR"):
        text, cut = cut_literals(ir, limit)
        return ReadableModule(text, "text", cut)
    label = open_input(source).label
    tried: list[str] = []
    for name in READERS if bindings is None else (bindings,):
        try:
            mlir = Bindings(name)
        except PluginError:  # not installed
            if bindings is not None:
                raise
            continue
        try:
            text, cut = cut_literals(generic(mlir.parse(ir, label)), limit)
        except CachecError as error:
            tried.append(str(error))
            continue
        return ReadableModule(text, name, cut)
    if len(tried) == 1:
        raise CheckpointError(tried[0])
    why = f": {'; '.join(tried)}" if tried else ", and no MLIR is installed"
    raise PluginError(
        f"{label}: bytecode, which only the MLIR that wrote it can print{why}. Print it with its own tool "
        "(mlir-opt FILE, iree-opt FILE), or install that compiler's Python package"
    )


def typed_resources(stripped: StripResult, readable: ReadableModule | None = None) -> list[Resource]:
    """The resources with their types: of bytecode, those that its printed text uses them with. readable: that text.

    A type that no MLIR here tells, or that is not of the resource's size, is left open.
    """
    types: dict[str, str] = {}
    if any(each.type is None for each in stripped.resources.values()):
        try:
            text = (readable or make_readable(stripped.ir)).text.encode()
        except CachecError:
            return list(stripped.resources.values())  # inspect says why; the bytes are of no known type then
        module = open_input(text)
        types = {unescape(module, key, start): kind for start, _, key, kind in uses(text) if kind}
    out = []
    for name, each in stripped.resources.items():
        typed = each._replace(type=types.get(name, each.type))
        try:
            typed.spec()
        except CheckpointError:
            typed = each
        out.append(typed)
    return out


def cut_literals(ir: bytes, limit: int = 0) -> tuple[str, int]:
    """A text with its literals of more than ``limit`` characters cut (64 at least), and how many there were.

    Raises CheckpointError.
    """
    module = open_input(ir)
    skeleton = Skeleton(module, scan(module))
    cut = 0

    def short(match: re.Match[bytes]) -> bytes:
        nonlocal cut
        literal, raw = skeleton.literals[int(match[1])], skeleton.raw(int(match[1]))
        if len(raw) <= limit:
            return raw
        cut += 1
        return _cut(raw, literal)

    return MARKER.sub(short, skeleton.text).decode("utf-8", "backslashreplace"), cut


def literals(source: Source) -> Iterator[tuple[int, str, int]]:
    """(line, type where it is written behind, bytes of text) of each large literal that a stripped text still has."""
    module = open_input(strip(source).ir)
    skeleton = Skeleton(module, scan(module))
    for match in MARKER.finditer(skeleton.text):
        literal = skeleton.literals[int(match[1])]
        behind = re.match(rb"\s*>\s*:\s*([^\s,)}]+)", skeleton.text[match.end() : match.end() + 200])
        line = skeleton.text.count(b"\n", 0, match.start()) + 1
        yield line, "" if behind is None else behind[1].decode("utf-8", "replace"), literal.end - literal.start


def operations(text: str) -> list[Operation]:
    """The lines of a text, without empty ones, comments and definitions of locations."""
    lines: list[Operation] = []
    function, depth = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        line = _LOCATION.sub("", line.rstrip())
        bare = line.lstrip()
        if not bare or bare.startswith(("//", "#loc")):
            continue
        indent = len(line) - len(bare)
        if function and bare.startswith("}") and indent <= depth:
            lines.append(Operation(number, line, "", function))
            function = ""
            continue
        if _FUNCTION.match(line):
            symbol = _SYM_NAME.search(line) or _SYMBOL.search(line)
            function, depth = (symbol[1] if symbol else ""), indent
        lines.append(Operation(number, line, name_of(bare), function))
    return lines


def pair_changes(
    removed: Sequence[Operation], added: Sequence[Operation]
) -> list[tuple[Operation | None, Operation | None]]:
    """A removed and an added operation of one name, in order, are taken for a changed one."""
    waiting: dict[str, list[Operation]] = {}
    for each in reversed(added):
        waiting.setdefault(each.name, []).append(each)
    pairs: list[tuple[Operation | None, Operation | None]] = []
    taken: set[int] = set()
    for each in removed:
        partners = waiting.get(each.name)
        partner = partners.pop() if partners else None
        if partner is not None:
            taken.add(partner.number)
        pairs.append((each, partner))
    pairs += [(None, each) for each in added if each.number not in taken]
    return pairs


def name_of(line: str) -> str:
    """The name of the operation that a line begins, with its dialect; empty where it begins none."""
    match = _NAME.match(line)
    if match is None:
        return ""
    if "." in match[1]:
        return match[1]
    return _BARE.get(match[1], "")


def _cut(raw: bytes, literal: Literal) -> bytes:
    nbytes = (len(raw) - 4) // 2 if literal.hexadecimal else len(raw)
    unit = "bytes" if literal.hexadecimal else "characters"
    digest = blake3(raw).hexdigest()[:12]
    if literal.hexadecimal:
        return raw[:_SHOWN] + f'... {nbytes} {unit}, {digest}"'.encode()
    return raw[:_SHOWN] + f"... {nbytes} {unit}, {digest}]".encode()
