"""A scanner for MLIR text: where its strings, comments and resources are. No parser: operations mean nothing to it.

The lexical grammar (LLVM, ``mlir/docs/LangRef.md`` and ``mlir/lib/AsmParser/Lexer.cpp``), as far as it is used here:

    comment   // up to the end of the line
    string    "..." on one line; a backslash takes the next character with it
    trailer   {-# dialect_resources: {dialect: {key: "0x...", ...}, ...}, external_resources: {...} #-}
              outside of operations, mostly at the end of the file; a key is a bare word or a string
    blob      a string of the trailer: 0x, then hexadecimal digits of a u32 alignment (little-endian) and of the bytes
    constant  dense<"0x..."> : type, raw little-endian elements; exactly one element is a splat
    use       dense_resource<key> : type

A string of the trailer that does not begin with 0x is text, and a resource that is no string is a setting.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterable, Iterator
from mmap import mmap
from typing import NamedTuple

from cachec.errors import CheckpointError
from cachec_mlir.blobs import Blob, Resource
from cachec_mlir.module_input import ModuleInput

Text = memoryview | mmap

#: What regular expressions over a text are made of. Every repetition is possessive, so nothing is tried twice.
COMMENT = rb"//[^\n]*+"
STRING = rb'"(?:[^"\\\n]++|\\[^\n])*+"'
#: A symbol, an alias or a key without its prefix, bare or as a string.
NAME = rb"(?:[A-Za-z_][A-Za-z0-9_$.\-]*+|" + STRING + rb")"
#: The name of an operation that is a symbol, in generic notation.
SYMBOL_NAME = re.compile(rb"\bsym_name\s*+=\s*+(" + STRING + rb")")
#: In front of a word: nothing that would make it a part of a longer one.
EDGE = rb"(?<![A-Za-z0-9_$.%@^#!-])"

# A string, unless it is hexadecimal: that may have gigabytes, and its end is looked for by memchr. A lone quote is a
# string that does not end.
_MARK = re.compile(COMMENT + rb'|"0x|' + STRING + rb'|"|\{-#')
_SPACE = re.compile(rb"(?:[ \t\r\n]++|" + COMMENT + rb")*+")
_WORD = re.compile(rb"[A-Za-z_][A-Za-z0-9_$.]*+")
_STRING = re.compile(STRING)
_ESCAPE = re.compile(rb'\\(?:([0-9A-Fa-f]{2})|(["\\nt]))')
_VALUE = re.compile(rb"[A-Za-z0-9_.+\-]++")
_LETTERS = {b"n": b"\n", b"t": b"\t", b'"': b'"', b"\\": b"\\"}
_DIGITS = re.compile(rb"[0-9A-Fa-f]*+")
_QUOTE, _BACKSLASH = b'"', b"\\"
#: The number of digits that are checked at once: the decoded bytes fit in a core's cache.
_STEP = 1 << 17
#: Characters from which digits may be left to be checked later.
_LONG = 1 << 16
#: The u32 in front of a blob, in digits.
_HEAD = 8


class TrailerItem(NamedTuple):
    """One item of the trailer. section, group, key: where it stands. start, end: of its value, in bytes of the text.

    digits_only: whether the value is a string of 0x and hexadecimal digits.
    """

    section: str
    group: str
    key: str
    start: int
    end: int
    digits_only: bool
    raw_section: bytes
    raw_group: bytes
    raw_key: bytes


class Trailer(NamedTuple):
    """A trailer. start, end: of all of it."""

    start: int
    end: int
    entries: tuple[TrailerItem, ...]


class Constant(NamedTuple):
    """A string outside of the trailer that begins with 0x. start, end: of the string with its quotes.

    digits_only: whether only hexadecimal digits follow.
    """

    start: int
    end: int
    digits_only: bool


class Marks(NamedTuple):
    """What is in a text: its trailers, and its hexadecimal strings outside of them, in order."""

    trailers: tuple[Trailer, ...]
    constants: tuple[Constant, ...]

    def resources(self) -> list[TrailerItem]:
        """The resources of dialects, of all trailers."""
        every = (entry for trailer in self.trailers for entry in trailer.entries)
        return [entry for entry in every if entry.section == "dialect_resources"]


def scan(source: ModuleInput, *, checked: bool = True) -> Marks:
    """Find trailers and hexadecimal strings. Raises CheckpointError, naming the byte, for text that is malformed.

    checked: whether digits are checked now. Otherwise a long string outside of trailers counts as digits if it has no
    escape, and decoding it finds a bad digit. This is for callers that decode anyway (0.06 s for 180 MB).
    """
    text = source.view()
    trailers: list[Trailer] = []
    constants: list[Constant] = []
    at = 0
    search = _MARK.search
    while (match := search(text, at)) is not None:
        at = match.end()
        start = match.start()
        mark = match[0]
        if mark == b'"0x':
            at, digits_only = _end_of_string(source, text, start, checked=checked)
            constants.append(Constant(start, at, digits_only))
        elif mark == b"{-#":
            trailer = _Trailer(source, text, start).read()
            trailers.append(trailer)
            at = trailer.end
        elif mark == _QUOTE:
            raise _unterminated_error(source, start)
    _refuse_twice(source, trailers)
    return Marks(tuple(trailers), tuple(constants))


def blob_of(source: ModuleInput, entry: TrailerItem, name: str) -> Resource | None:
    """The blob that an item of the trailer states, None for a setting. Digits are checked. Raises CheckpointError."""
    if bytes(source.view()[entry.start : entry.start + 3]) != b'"0x' or entry.section != "dialect_resources":
        return None
    first, digits = entry.start + 3, entry.end - 1 - entry.start - 3
    what = f"resource {name!r}"
    check_digits(source, entry.start, entry.end, what, digits_only=entry.digits_only)
    if digits < _HEAD:
        raise source.error(entry.start, f"{what}: 8 digits of an alignment expected, found {digits} digits")
    where = f"{source.label}: {what}, from byte {first}"
    head = source.at(first, _HEAD, what)
    alignment = int.from_bytes(Blob(memoryview(head), hexadecimal=True, where=where).decode(head), "little")
    is_empty = digits == _HEAD  # MLIR prints 0 for the alignment of a resource without bytes, whatever it was
    if (alignment == 0 and not is_empty) or alignment & (alignment - 1):
        raise source.error(first, f"{what}: an alignment expected that is a power of two, found {alignment}")
    alignment = 1 if is_empty else alignment
    blob = Blob(source.range(first + _HEAD, digits - _HEAD), hexadecimal=True, where=where)
    return Resource(name, entry.group, entry.key, alignment, blob)


def check_digits(source: ModuleInput, start: int, end: int, what: str, *, digits_only: bool) -> None:
    """Raise CheckpointError unless the string ``[start, end)`` is an even number of hexadecimal digits behind 0x."""
    if not digits_only:
        match = _DIGITS.match(source.view(), start + 3)
        place = match.end() if match is not None else start
        raise source.error(place, f"{what}: a hexadecimal digit expected, found {source.at(place, 1, what)!r}")
    if (end - start) % 2:
        raise source.error(end - 1, f"{what}: an even number of hexadecimal digits expected, found {end - start - 4}")


def name_of(entry: TrailerItem) -> str:
    """The name of a blob as a weight."""
    return entry.key if entry.group == "builtin" else f"{entry.group}:{entry.key}"


def unescape(source: ModuleInput, raw: bytes, offset: int) -> str:
    """The text of a bare word, or of a string with its quotes. Raises CheckpointError."""
    if raw[:1] == _QUOTE:
        raw = raw[1:-1]
        if _BACKSLASH in raw:
            if _BACKSLASH in _ESCAPE.sub(b"", raw):
                raise source.error(offset, f"a string with a malformed escape: {raw[:40]!r}")
            raw = _ESCAPE.sub(lambda m: bytes([int(m[1], 16)]) if m[1] else _LETTERS[m[2]], raw)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise source.error(offset, f"a name expected in UTF-8, found {raw[:40]!r}") from error


def as_text(raw: bytes | None) -> str:
    """A piece of a text, empty for none; what is no UTF-8 is replaced."""
    return (raw or b"").decode("utf-8", "replace")


def quote(text: str) -> str:
    """A string literal as MLIR's printer writes it: printable ASCII as it is, any other byte as ``\\XX``."""
    return '"' + "".join(_escape(byte) for byte in text.encode()) + '"'


def key_literal(text: str) -> str:
    """A key: the bare word, where it is one."""
    return text if _WORD.fullmatch(text.encode()) else quote(text)


def apply_edits(text: bytes, edits: Iterable[tuple[int, int, bytes]]) -> bytes:
    """``text`` with other bytes in place of each ``[start, end)``, in any order; of one place, as they are given."""
    out: list[bytes] = []
    at = 0
    for start, end, new in sorted(edits, key=lambda edit: edit[:2]):
        out += [text[at:start], new]
        at = end
    return b"".join([*out, text[at:]])


def uses(ir: bytes) -> Iterator[tuple[int, int, bytes, str]]:
    """Each ``dense_resource<key> : type``: start, end (behind ``>``), the key as it is written, its type or empty."""
    for match in _USE.finditer(ir):
        if match[1] is not None:
            yield match.start(), match.end(1) + len(match[2]), match[1], as_text(match[3])


# Strings and comments are matched to be passed over.
_USE = re.compile(
    COMMENT + rb"|" + EDGE + rb"dense_resource\s*+<\s*+([A-Za-z_][A-Za-z0-9_$.]*+|" + STRING + rb")"
    rb'(\s*+>)(?:\s*+:\s*+((?:tensor|vector)\s*+<[^>"{}]*+(?:<f(?:32|64)>)?+[^>"{}]*+>))?+|' + STRING
)


def _escape(byte: int) -> str:
    if byte == 0x5C:
        return "\\\\"
    return chr(byte) if 0x20 <= byte < 0x7F and byte != 0x22 else f"\\{byte:02X}"


def _end_of_string(source: ModuleInput, text: Text, start: int, *, checked: bool = True) -> tuple[int, bool]:
    """The offset behind a string that begins with 0x, and whether only hexadecimal digits follow."""
    end = find(text, _QUOTE, start + 1)
    if end < 0:
        raise _unterminated_error(source, start)
    if not checked and end - start >= _LONG:
        if find(text, _BACKSLASH, start + 3, end) < 0:
            return end + 1, True
    elif _digits_only(text, start + 3, end):  # so no escape hides the quote
        return end + 1, True
    match = _STRING.match(text, start)
    if match is None:
        raise _unterminated_error(source, start)
    return match.end(), False


def _digits_only(text: Text, start: int, end: int) -> bool:
    """Whether there are only hexadecimal digits. binascii reads 3 GB/s, a regular expression 0.7."""
    even = end - (end - start) % 2
    try:
        with memoryview(text) as view:
            for at in range(start, even, _STEP):
                binascii.a2b_hex(view[at : min(even, at + _STEP)])
            binascii.a2b_hex(bytes(view[even:end]) * 2)
    except binascii.Error:
        return False
    return True


def find(text: Text, byte: bytes, start: int, end: int | None = None) -> int:
    """The offset of the first such byte within ``[start, end)``, -1 for none."""
    if isinstance(text, mmap):
        return text.find(byte, start, len(text) if end is None else end)
    match = re.compile(re.escape(byte)).search(text, start, len(text) if end is None else end)
    return -1 if match is None else match.start()


def _unterminated_error(source: ModuleInput, start: int) -> CheckpointError:
    return source.error(start, "a string that does not end on its line")


def _refuse_twice(source: ModuleInput, trailers: list[Trailer]) -> None:
    keys: set[tuple[str, str, str]] = set()
    for trailer in trailers:
        for entry in trailer.entries:
            key = (entry.section, entry.group, entry.key)
            if key in keys:
                raise source.error(entry.start, f"resource {entry.key!r} of {entry.group!r} expected once, found again")
            keys.add(key)


class _Trailer:
    """Reads one trailer."""

    def __init__(self, source: ModuleInput, text: Text, start: int) -> None:
        self._source = source
        self._text = text
        self._start = start
        self._at = start + 3
        self._entries: list[TrailerItem] = []

    def read(self) -> Trailer:
        """All of it. Raises CheckpointError."""
        self._list(b"#-}", self._section)
        return Trailer(self._start, self._at, tuple(self._entries))

    def _section(self) -> None:
        section, raw = self._key()
        self._expect(b"{")
        self._list(b"}", lambda: self._group(section, raw))

    def _group(self, section: str, raw_section: bytes) -> None:
        group, raw = self._key()
        self._expect(b"{")

        def item() -> None:
            key, raw_key = self._key()
            start = self._skip()
            digits_only = self._value()
            self._entries.append(
                TrailerItem(section, group, key, start, self._at, digits_only, raw_section, raw, raw_key)
            )

        self._list(b"}", item)

    def _list(self, close: bytes, item: Callable[[], None]) -> None:
        if self._take(close):
            return
        while True:
            item()
            if self._take(close):
                return
            self._expect(b",")

    def _key(self) -> tuple[str, bytes]:
        at = self._skip()
        match = _WORD.match(self._text, at) or _STRING.match(self._text, at)
        if match is None:
            raise self._source.error(at, "a key of a resource expected, found something else")
        self._at = match.end()
        self._expect(b":")
        return unescape(self._source, match[0], at), match[0]

    def _value(self) -> bool:
        """Pass over a value; whether it is hexadecimal."""
        at, digits_only = self._at, False
        if bytes(self._text[at : at + 1]) == _QUOTE:
            if bytes(self._text[at : at + 3]) == b'"0x':
                self._at, digits_only = _end_of_string(self._source, self._text, at)
                return digits_only
            match = _STRING.match(self._text, at)
            if match is None:
                raise _unterminated_error(self._source, at)
        else:
            match = _VALUE.match(self._text, at)
            if match is None:
                raise self._source.error(at, "a string, number or word expected as a resource, found something else")
        self._at = match.end()
        return digits_only

    def _skip(self) -> int:
        match = _SPACE.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
        return self._at

    def _take(self, token: bytes) -> bool:
        at = self._skip()
        if bytes(self._text[at : at + len(token)]) != token:
            return False
        self._at = at + len(token)
        return True

    def _expect(self, token: bytes) -> None:
        if not self._take(token):
            raise self._source.error(self._at, f"{token.decode()!r} expected in the trailer, found something else")
