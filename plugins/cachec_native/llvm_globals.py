"""The global variables for weights in LLVM IR: a check that each is undefined and of the right type, and its alignment.

LLVM's Language Reference, "Global Variables": ``@NAME = external ... global|constant TYPE, align N, ...``, one line for
each in the output of mlir-translate. The line has all facts on which the rest of the module may depend.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from cachec.errors import PluginError
from cachec.model import WeightSpec
from cachec_native.elf import LARGEST_ALIGNMENT, SECTION, Needs

_GLOBAL = re.compile(
    r'^@(?:"(?P<quoted>[^"]*)"|(?P<plain>[-a-zA-Z$._0-9]+)) = (?P<words>(?:[a-z_]+(?:\([^)]*\))? )*?)'
    r"(?P<kind>global|constant) (?P<rest>.*)$",
    re.MULTILINE,
)
_ESCAPE = re.compile(r"\\([0-9a-fA-F]{2}|\\)")
_ARRAY = re.compile(r"\[(\d{1,19}) x ")
_ALIGN = re.compile(r", align (\d{1,19})")

#: A weight's dtype -> the type of an element in the output of mlir-translate. Eight-bit types are bytes in LLVM.
_ELEMENTS = {
    "bool": "i1",
    "float16": "half",
    "bfloat16": "bfloat",
    "float32": "float",
    "float64": "double",
    "complex64": "{ float, float }",
    "complex128": "{ double, double }",
    **{f"{sign}int{bits}": f"i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


class External(NamedTuple):
    """An undefined global, and the module's requirements on it."""

    name: str
    needs: Needs


def external_weights(text: str, specs: Mapping[str, WeightSpec]) -> list[External]:
    """The weights that the LLVM IR ``text`` refers to.

    Raises PluginError for a weight that is not external, because its bytes, or undefined values, would be compiled in.
    Also raises it for a weight of another shape or dtype than in its spec.
    """
    externals = []
    for name, words, kind, rest in _globals(text):
        spec = specs.get(name)
        if spec is None:
            continue
        if "@" in name or not name.isprintable():
            raise PluginError(f"weight {name!r} can't be a symbol of a library: '@' would begin a version; rename it")
        if "external" not in words:
            raise PluginError(
                f"weight {name!r} is no undefined symbol in the module but {' '.join(words) or 'defined'}: compiled "
                'so, it would not be read at run time. Strip its initialiser (cachec_mlir.strip(..., to="undefined")); '
                'and it must be public, as MLIR gives a "private" one without initialiser any value'
            )
        if "thread_local" in " ".join(words) or any(word.startswith("addrspace") for word in words):
            raise PluginError(f"weight {name!r} is a {' '.join(words)} global; expected one in the memory of all")
        _check_type(name, rest, spec)
        stated = _ALIGN.search(rest)
        # Without a stated alignment LLVM assumes that of an element, as the global is only a declaration.
        alignment = int(stated.group(1)) if stated else max(1, spec.nbytes // max(1, math.prod(spec.shape)))
        if alignment > LARGEST_ALIGNMENT:
            raise PluginError(f"weight {name!r} wants {alignment} bytes of alignment; {LARGEST_ALIGNMENT} is the most")
        externals.append(External(name, Needs(1 << (alignment - 1).bit_length(), constant=kind == "constant")))
    return externals


def section_of_needs(weights: list[External]) -> bytes:
    """Return lines of LLVM IR that put a section with the weights' requirements into the library. It is not loaded."""
    data = msgspec.json.encode({weight.name: weight.needs for weight in weights}, order="sorted")
    lines = [f".pushsection {SECTION},\\22\\22,%progbits", *_bytes(data), ".popsection"]
    return "".join(f'module asm "{line}"\n' for line in ("", *lines)).encode()


def _bytes(data: bytes) -> Iterator[str]:
    for start in range(0, len(data), 64):
        yield ".byte " + ",".join(map(str, data[start : start + 64]))


def _globals(text: str) -> Iterator[tuple[str, list[str], str, str]]:
    """Return name, words before ``global`` or ``constant``, the one of these two, and the rest of the line."""
    for match in _GLOBAL.finditer(text):
        quoted = match["quoted"]
        name = match["plain"] if quoted is None else _unescape(quoted)
        yield name, match["words"].split(), match["kind"], match["rest"]


def _unescape(text: str) -> str:
    """Decode a quoted name: UTF-8 with bytes as two hexadecimal digits after a backslash."""
    raw = b"".join(
        bytes([int(piece, 16)]) if number % 2 and piece != "\\" else piece.encode()
        for number, piece in enumerate(_ESCAPE.split(text))
    )
    return raw.decode(errors="surrogateescape")


def _check_type(name: str, rest: str, spec: WeightSpec) -> None:
    shape, at = [], 0
    while match := _ARRAY.match(rest, at):
        shape.append(int(match.group(1)))
        at = match.end()
    element = _ELEMENTS.get(spec.dtype, "i8" if spec.dtype.startswith("float8") else "")
    if tuple(shape) != spec.shape or not rest.startswith(element + "]" * len(shape), at) or not element:
        declared = rest.split(", align", 1)[0]
        raise PluginError(f"weight {name!r} is {declared} in the module; {spec.dtype} {list(spec.shape)} was expected")
