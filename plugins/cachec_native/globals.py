"""The global variables of LLVM IR that stand for weights: that each is undefined, of the right type, and how aligned.

LLVM's Language Reference, "Global Variables": ``@NAME = external ... global|constant TYPE, align N, ...``, a line each
in what mlir-translate prints. One line of these says all that the rest of the module may count on.
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

#: Types of elements, as mlir-translate has them, by a weight's dtype. Types of eight bits are bytes to LLVM.
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
    """An undefined global. Needs: what the module may count on."""

    name: str
    needs: Needs


def external_weights(text: str, specs: Mapping[str, WeightSpec]) -> list[External]:
    """The weights that the LLVM IR ``text`` refers to.

    Raises PluginError where a weight is not external (its bytes, or undefined values, are then compiled in), or is of
    another shape or dtype than its spec says.
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
        # Without one, LLVM counts on the alignment of an element: the global is no definition of its own.
        alignment = int(stated.group(1)) if stated else max(1, spec.nbytes // max(1, math.prod(spec.shape)))
        if alignment > LARGEST_ALIGNMENT:
            raise PluginError(f"weight {name!r} wants {alignment} bytes of alignment; {LARGEST_ALIGNMENT} is the most")
        externals.append(External(name, Needs(1 << (alignment - 1).bit_length(), constant=kind == "constant")))
    return externals


def section_of_needs(weights: list[External]) -> bytes:
    """Lines of LLVM IR that put a section with these into the library, one that is not loaded."""
    data = msgspec.json.encode({weight.name: weight.needs for weight in weights}, order="sorted")
    lines = [f".pushsection {SECTION},\\22\\22,%progbits", *_bytes(data), ".popsection"]
    return "".join(f'module asm "{line}"\n' for line in ("", *lines)).encode()


def _bytes(data: bytes) -> Iterator[str]:
    for start in range(0, len(data), 64):
        yield ".byte " + ",".join(map(str, data[start : start + 64]))


def _globals(text: str) -> Iterator[tuple[str, list[str], str, str]]:
    """Name, words before ``global`` or ``constant``, which of the two, and the rest of the line."""
    for match in _GLOBAL.finditer(text):
        quoted = match["quoted"]
        name = match["plain"] if quoted is None else _unescaped(quoted)
        yield name, match["words"].split(), match["kind"], match["rest"]


def _unescaped(text: str) -> str:
    """The name between quotes: bytes as two hexadecimal digits after a backslash, UTF-8."""
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
