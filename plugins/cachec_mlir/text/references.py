"""References to weights in a stripped text, of each kind, with name and type."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from cachec_mlir.module_input import ModuleInput
from cachec_mlir.text.scanner import (
    COMMENT,
    EDGE,
    NAME,
    STRING,
    SYMBOL_NAME,
    as_text,
    key_literal,
    quote,
    unescape,
    uses,
)

_TYPE = rb"(?:tensor|memref)\s*+<[^<>\"{}]*+(?:<[^<>\"{}]*+>[^<>\"{}]*+)*+>"
_EXTERN = rb"\#ml_program\.extern\s*+:\s*+(?P<type1>" + _TYPE + rb")|(?P<alias1>\#[A-Za-z_][A-Za-z0-9_$.\-]*+)"


def _compile(pattern: bytes) -> re.Pattern[bytes]:
    """A verbose expression over these pieces, which passes over comments and strings."""
    pieces = {b"string": STRING, b"name": NAME, b"edge": EDGE, b"type": _TYPE, b"extern": _EXTERN}
    return re.compile(COMMENT + rb"|" + pattern % pieces + rb"|" + STRING, re.VERBOSE)


_PARAMETER = _compile(
    rb"""\#flow\.parameter\.named<\s*+(?:(?P<scope>%(string)b)\s*+::\s*+)?+(?P<name>%(string)b)\s*+>
    (?:\s*+:\s*+(?P<type>%(type)b))?+"""
)
_EXTERNAL = _compile(
    rb"""%(edge)b ml_program\.global\s++(?:[a-z]++\s++)*+@(?P<name>%(name)b)\s*+\(\s*+(?P<value1>%(extern)b)\s*+\)
    | "ml_program\.global"\s*+\(\s*+\)\s*+<?+\{(?P<inside>(?:[^{}"]++|%(string)b)*+)\}"""
)
_EXTERN_INSIDE = re.compile(rb"\bvalue\s*+=\s*+(?P<value1>" + _EXTERN + rb")")
_EXTERN_ALIAS = re.compile(
    rb"^(#[A-Za-z_][A-Za-z0-9_$.\-]*+)\s*+=\s*+#ml_program\.extern\s*+:\s*+(" + _TYPE + rb")", re.MULTILINE
)
_UNDEFINED = _compile(
    rb"""%(edge)b memref\.global\s++(?:"[a-z]++"\s++)?+(?:constant\s++)?+
    @(?P<name>%(name)b)\s*+:\s*+(?P<type>%(type)b)(?!\s*+=)
    | "memref\.global"\s*+\(\s*+\)\s*+<?+\{(?P<inside>(?:[^{}"]++|%(string)b)*+)\}"""
)
_MEMREF = re.compile(rb"\btype\s*+=\s*+(" + _TYPE + rb")")
_INITIAL = re.compile(rb"\binitial_value\b")


class Reference(NamedTuple):
    """A reference. ``[start, end)`` of the text is replaced by ``before``, a value, and ``after``. type: empty if not
    written.
    """

    start: int
    end: int
    name: str
    type: str
    before: bytes = b""
    after: bytes = b""


def references(module: ModuleInput, text: bytes, kind: str, scope: str) -> list[Reference]:
    """All references of a kind (see ``strip_text``), in order; of ``parameter`` those of ``scope``."""
    if kind == "resource":
        places: Iterator[tuple[int, int, bytes, str]] = uses(text)
        return [Reference(start, end, unescape(module, key, start), kind_) for start, end, key, kind_ in places]
    return list(_FINDERS[kind](module, text, scope))


def types(used: Iterable[Reference]) -> dict[str, list[str]]:
    """Name -> the types that it is used with, each once, by place."""
    by_name: dict[str, dict[str, None]] = {}
    for each in used:
        by_name.setdefault(each.name, {})[each.type] = None
    return {name: list(kinds) for name, kinds in by_name.items()}


def reference_text(kind: str, scope: str, name: str) -> bytes:
    """A reference of kind ``resource`` or ``parameter``."""
    if kind == "resource":
        return f"dense_resource<{key_literal(name)}>".encode()
    return f"#flow.parameter.named<{quote(scope)}::{quote(name)}>".encode()


def _parameters(module: ModuleInput, text: bytes, scope: str) -> Iterator[Reference]:
    for match in _PARAMETER.finditer(text):
        if match["name"] is None:
            continue
        of = unescape(module, match["scope"], match.start()) if match["scope"] is not None else ""
        if of == scope:
            end = text.index(b">", match.end("name")) + 1
            yield Reference(match.start(), end, unescape(module, match["name"], match.start()), as_text(match["type"]))


def _externals(module: ModuleInput, text: bytes, scope: str) -> Iterator[Reference]:
    aliases: dict[bytes, bytes] = dict(_EXTERN_ALIAS.findall(text))
    for outer in _EXTERNAL.finditer(text):
        name, match, at = outer["name"], outer, 0
        if outer["inside"] is not None:
            inside, symbol = _EXTERN_INSIDE.search(outer["inside"]), SYMBOL_NAME.search(outer["inside"])
            if inside is None or symbol is None:
                continue
            name, match, at = symbol[1], inside, outer.start("inside")
        if name is None:
            continue
        kind = match["type1"] or aliases.get(match["alias1"])
        if kind is not None:
            start, end = (at + place for place in match.span("value1"))
            yield Reference(start, end, unescape(module, name, start), as_text(kind), b"", b" : " + kind)


def _undefined_references(module: ModuleInput, text: bytes, scope: str) -> Iterator[Reference]:
    for match in _UNDEFINED.finditer(text):
        if match["name"] is not None:
            end = match.end()
            yield Reference(end, end, unescape(module, match["name"], end), _tensor(match["type"]), b" = ")
        elif match["inside"] is not None and not _INITIAL.search(match["inside"]):
            symbol, kind = SYMBOL_NAME.search(match["inside"]), _MEMREF.search(match["inside"])
            if symbol is not None and kind is not None:
                at, tensor = match.start("inside"), _tensor(kind[1])
                after = f" : {tensor}, ".encode()
                yield Reference(at, at, unescape(module, symbol[1], at), tensor, b"initial_value = ", after)


_FINDERS: dict[str, Callable[[ModuleInput, bytes, str], Iterator[Reference]]] = {
    "parameter": _parameters,
    "external": _externals,
    "undefined": _undefined_references,
}


def _tensor(raw: bytes) -> str:
    """The tensor of a memref's initial value: without its layout and memory space."""
    text = raw.decode("utf-8", "replace").removeprefix("memref").strip()
    return "tensor" + text.partition(",")[0].rstrip(">") + ">" if "," in text else "tensor" + text
