"""The places of a text where a weight may stand, with what is around them: what each can be replaced by.

Operations as their printers write them (LLVM 19 to 24, IREE 3.13), in custom and in generic notation:

    util.global private mutable @w {attributes} = VALUE : tensor<...>
    ml_program.global private mutable @w(VALUE : tensor<...>) : tensor<...>
    memref.global "private" constant @w : memref<...> = VALUE {attributes}
    %w = arith.constant VALUE : tensor<...>            also any other NAME.constant
    %w = tosa.const  values(VALUE : tensor<...>) : () -> tensor<...>
    "util.global"() <{initial_value = VALUE : tensor<...>, sym_name = "w", ...}> : () -> ()
    %w = "arith.constant"() <{value = VALUE : tensor<...>}> : () -> tensor<...>

VALUE is ``dense<...>`` or ``dense_resource<key>``. A constant that is an attribute of another name (``padding = ...``)
is a setting of its operation, which may take no resource; it is no site.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from cachec_mlir.text.scanner import COMMENT, EDGE, NAME, STRING, SYMBOL_NAME, as_text

#: What an attribute that holds a weight is called in generic notation.
_VALUE_NAMES = rb"(?:value|values|initial_value)"
_VALUE = (
    rb"(?P<value{0}>dense\s*+<\s*+\x00(?P<literal{0}>[0-9]++)\x00\s*+>"
    rb"|dense_resource\s*+<\s*+(?P<key{0}>" + NAME + rb")\s*+>)"
)
_TYPE = rb"(?:tensor|vector|memref)\s*+<[^<>\"{}]*+(?:<f(?:32|64)>)?+[^<>\"{}]*+>"
_TYPED = rb"\s*+:\s*+(?P<type{0}>" + _TYPE + rb")"

GLOBAL, PROGRAM_GLOBAL, MEMREF_GLOBAL = "util.global", "ml_program.global", "memref.global"
CONSTANT, OTHER = "constant", "other"


def _compile(pattern: bytes) -> re.Pattern[bytes]:
    """A verbose expression over the pieces above, of which ``%(value1)b`` and the like have groups of that number."""
    pieces = {b"comment": COMMENT, b"string": STRING, b"name": NAME, b"edge": EDGE, b"names": _VALUE_NAMES}
    pieces |= {b"type": _TYPE, b"dictionary": rb"(?:\{(?:[^{}\"]++|" + STRING + rb")*+\}\s*+)?+"}
    for number in range(1, 9):
        digit = b"%d" % number
        pieces[b"value" + digit] = _VALUE.replace(b"{0}", digit)
        pieces[b"typed" + digit] = _TYPED.replace(b"{0}", digit)
    return re.compile(pattern % pieces, re.VERBOSE)


_SITE = _compile(
    rb"""%(comment)b
    # 1 util.global
    | %(edge)b util\.global\s++(?:[a-z]++\s++)*+@(?P<symbol1>%(name)b)\s*+ %(dictionary)b=\s*+ %(value1)b %(typed1)b
    # 2 ml_program.global
    | %(edge)b ml_program\.global\s++(?:[a-z]++\s++)*+@(?P<symbol2>%(name)b)\s*+\(\s*+ %(value2)b %(typed2)b \s*+\)
    # 3 memref.global
    | %(edge)b memref\.global\s++(?P<visibility3>"[a-z]++"\s++)?+(?:constant\s++)?+@(?P<symbol3>%(name)b) %(typed3)b
      (?P<initialiser3>\s*+=\s*+ %(value3)b)
    # 4 and 5 constants, custom
    | (?P<result4>%%[A-Za-z0-9_$.\-]++\s*+=\s*+)(?P<operation4>[a-z_]++\.constant\s++ %(value4)b %(typed4)b
      |tosa\.const\s*+(?:\{\s*+values\s*+=\s*+|values\s*+\(\s*+) %(value5)b %(typed5)b
      \s*+[})]\s*+:\s*+\(\s*+\)\s*+->\s*+(?P<out5>%(type)b))
    # 6 constants, generic
    | (?P<result6>%%[A-Za-z0-9_$.\-]++\s*+=\s*+)(?P<operation6>"[a-z_]++\.const(?:ant)?+"\s*+\(\s*+\)\s*+<?+\{\s*+
      values?+\s*+=\s*+ %(value6)b %(typed6)b \s*+\}>?+\s*+:\s*+\(\s*+\)\s*+->\s*+(?P<out6>%(type)b))
    # 7 globals, generic: all of their attributes
    | "(?P<generic7>(?:util|ml_program|memref)\.global)"\s*+\(\s*+\)\s*+<?+\{
      (?P<inside7>(?:[^{}"\x00]++|\x00[0-9]++\x00|%(string)b)*+)\}
    # 8 any other; an attribute of another name is a setting
    | %(edge)b %(value8)b (?:%(typed8)b)?+
    | %(string)b"""
)
_FORMS = {1: GLOBAL, 2: PROGRAM_GLOBAL, 3: MEMREF_GLOBAL, 4: CONSTANT, 5: CONSTANT, 6: CONSTANT, 8: OTHER}
#: The attribute of such a one that is its value, with the comma behind it.
_ATTRIBUTE = _compile(
    rb"%(string)b | %(edge)b (?P<attribute7>%(names)b\s*+=\s*+ %(value7)b %(typed7)b (?P<comma7>\s*+,\s*+)?+)"
)
_MEMREF = re.compile(rb"\btype\s*+=\s*+(memref\s*+<[^<>\"{}]*+(?:<[^<>\"{}]*+>[^<>\"{}]*+)*+>)")
_VISIBILITY = re.compile(rb"sym_visibility\s*+=\s*+\"private\"\s*+,?+\s*+")
#: In front of a value: the attribute that it is.
_SETTING = re.compile(rb"(?:^|[\s{,<(\[])([#A-Za-z_][A-Za-z0-9_$.\-]*)\s*=\s*\Z")
_NEAR = 128


class Site(NamedTuple):
    """A value that may be a weight. form: what holds it. All offsets are in the text that was searched.

    value: of ``dense...>`` itself. typed: up to the end of its type. whole: what a form of its own replaces: the
    operation without its result, of a constant; the initialiser, of a memref.global. literal: number of the literal,
    -1 for a resource. key: of the resource, as it is written. symbol: of a global, as it is written. visibility: of the
    word "private" of a memref.global, empty where there is none. generic: whether it is in generic notation.
    setting: whether it is an attribute of another name. out: the type of a constant's result, where written again.
    """

    form: str
    value: tuple[int, int]
    typed: tuple[int, int]
    whole: tuple[int, int]
    literal: int
    key: bytes
    type: str
    symbol: bytes
    visibility: tuple[int, int]
    generic: bool
    setting: bool
    out: str


def sites(text: bytes) -> Iterator[Site]:
    """All values of a skeleton that are set aside or resources, in order."""
    if b"\0" not in text and b"dense_resource" not in text:
        return  # as most modules whose weights are arguments; the expression below takes 0.12 s a megabyte
    for match in _SITE.finditer(text):
        if match["inside7"] is not None:
            site = _generic_global(match)
            if site is not None:
                yield site
            continue
        for number in (1, 2, 3, 4, 5, 6, 8):
            if match[f"value{number}"] is not None:
                yield _site(match, number)
                break


def _site(match: re.Match[bytes], number: int) -> Site:
    form, symbol, visibility, setting, out = _FORMS[number], b"", (0, 0), False, b""
    value, kind = match.span(f"value{number}"), match[f"type{number}"]
    typed = value if kind is None else (value[0], match.end(f"type{number}"))
    whole = value
    if number in {1, 2, 3}:
        symbol = match[f"symbol{number}"]
    if number == 3:
        typed, whole = value, match.span("initialiser3")
        visibility = (0, 0) if match["visibility3"] is None else match.span("visibility3")
    elif number in {4, 5, 6}:
        whole = match.span("operation6" if number == 6 else "operation4")
        out = b"" if number == 4 else match[f"out{number}"]
    elif number == 8:
        before = _SETTING.search(match.string[max(0, value[0] - _NEAR) : value[0]])
        setting = before is not None and re.fullmatch(_VALUE_NAMES, before[1]) is None
    literal = -1 if match[f"literal{number}"] is None else int(match[f"literal{number}"])
    key = match[f"key{number}"] or b""
    return Site(
        form,
        value,
        typed,
        whole,
        literal,
        key,
        as_text(kind),
        symbol,
        visibility,
        number == 6,
        setting,
        as_text(out),
    )


def _generic_global(outer: re.Match[bytes]) -> Site | None:
    """A global in generic notation, None for one without a value that is set aside or a resource."""
    inside, at = outer["inside7"], outer.start("inside7")
    attribute = next((each for each in _ATTRIBUTE.finditer(inside) if each["value7"] is not None), None)
    if attribute is None:
        return None
    start, end = attribute.span("attribute7")
    if attribute["comma7"] is None:  # the last one: the comma in front of it goes too
        start = len(inside[:start].rstrip().removesuffix(b","))
    named, memref, private = (each.search(inside) for each in (SYMBOL_NAME, _MEMREF, _VISIBILITY))
    literal = -1 if attribute["literal7"] is None else int(attribute["literal7"])
    kind = attribute["type7"] if memref is None else memref[1]
    return Site(
        outer["generic7"].decode(),
        (at + attribute.start("value7"), at + attribute.end("value7")),
        (at + attribute.start("value7"), at + attribute.end("type7")),
        (at + start, at + end),
        literal,
        attribute["key7"] or b"",
        as_text(kind),
        b"" if named is None else named[1],
        (0, 0) if private is None else (at + private.start(), at + private.end()),
        True,
        False,
        "",
    )
