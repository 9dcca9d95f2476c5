"""The canonical tokens of MLIR text, without names, locations and spaces that do not count."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from cachec.base.hashing import Hasher, digest_bytes
from cachec_mlir.module_input import ModuleInput
from cachec_mlir.text.scanner import Marks, find

#: Operations in custom notation whose region sees no value from outside (trait IsolatedFromAbove), each of the form
#: ``name words @symbol(arguments) ... {body}``.
ISOLATED = frozenset({b"func.func", b"util.func", b"llvm.func", b"ml_program.func", b"ml_program.subgraph"})

# Spaces and comments in front of a token are matched with it, so that one call of findall does all the work. In order:
# a float with exponent, a word or number (and a shape, ``4x8xf32``), a prefixed name, a string, punctuation of two
# characters, any other character, the end.
_TOKEN = re.compile(
    rb"(?:\s++|//[^\n]*+)*+("
    rb"[0-9]++\.[0-9]*+[eE][+-]?[0-9]++|[A-Za-z0-9_$.]++|[%^#!@](?:[0-9]++|[A-Za-z_$.\-][A-Za-z0-9_$.\-]*+)"
    rb'|"(?:[^"\\\n]++|\\[^\n])*+"|->|>=|<=|==|::|\S|\Z)'
)
# An attribute or type of a dialect up to the bracket of its body, with what has to be passed over to find one: without
# a dot in its name (the dialect's alone) spaces may be in front of the bracket (LLVM, DialectSymbolParser.cpp).
_BODY = re.compile(
    rb'//[^\n]*+|"(?:[^"\\\n]++|\\[^\n])*+"|[#!](?:[A-Za-z_$\-][A-Za-z0-9_$\-]*+(?:\s++|//[^\n]*+)*+<'
    rb"|[A-Za-z_$.\-][A-Za-z0-9_$.\-]*+<)"
)
# What nests in a body, and what hides it; a comment does not.
_NESTED = re.compile(rb'->|[<>\[\](){}]|"(?:[^"\\\n]++|\\[^\n])*+"|"')
_NAME = re.compile(rb"[#!][A-Za-z0-9_$.\-]++")
_WINDOW = 1 << 20
#: A longer string or body, or a longer meaning of an alias, is replaced by its digest.
_LONG_STRING = 1 << 10
_LONG_ALIAS = 256

_OPEN = {b"(": b")", b"[": b"]", b"{": b"}", b"<": b">"}
_CLOSE = frozenset(_OPEN.values())
#: The tokens before a location that is a value.
_VALUE_AHEAD = frozenset({b"=", b",", b"[", b"<", b"("})
#: The tokens that follow a location only if the operation continues.
_VALUE_BEHIND = frozenset({b":", b"->", b"=", b"{", b"(", b"[", b"<"})
_PLAIN_SYMBOL = re.compile(rb'"([A-Za-z_][A-Za-z0-9_$.]*+)"')
# First bytes of the tokens that may not simply be kept.
_MARKS = frozenset(b'%^#!{}"')
_ALIAS = frozenset(b"#!")
_ALIAS_MARKS = frozenset({b"#", b"!"})
_MAX_HEADER_WORDS = 4
#: What may stand between the results of a function and its body, and the bracket that follows it.
_HEADER_WORDS = {b"attributes": b"{", b"comdat": b"(", b"vscale_range": b"(", b"loc": b"("}


class _Frame(NamedTuple):
    """A function that is being read. Indices of tokens, -1 for none.

    header: the last token, if it has no body. body: the brace that opens it. region: the body, once that is open.
    """

    header: int
    body: int
    region: int = -1


class Canonical:
    """One text, on its way to canonical tokens."""

    def __init__(self, module: ModuleInput, marks: Marks) -> None:
        self._module = module
        self._marks = marks
        self._tokens = _tokens(module, marks)
        # What each token becomes: another, several with NULs between, nothing.
        self._out: list[bytes | None] = list(self._tokens)
        # What aliases stand for, and where they are used: locations are defined behind their uses.
        self._aliases: dict[bytes, list[bytes]] = {}
        self._uses: list[int] = []
        self._meanings: dict[bytes, list[bytes]] = {}
        # The regions that are open; the last region within each (numbers count in the order of the opening braces).
        self._open = [0]
        self._last = [sys.maxsize]
        self._frames: list[_Frame] = []
        # Of each frame, and of what is around them all: name, region -> where.
        self._names: list[dict[tuple[bytes, int], list[int]]] = [{}]
        self._labels: dict[tuple[int, bytes], list[int]] = {}
        self._defined: set[tuple[int, bytes]] = set()

    def tokens(self) -> bytes:
        """The canonical tokens, with NULs between. Raises CheckpointError for braces that do not match."""
        tokens = self._tokens
        special = {token for token in set(tokens) if token[0] in _MARKS or token == b"loc" or token in ISOLATED}
        behind = 0
        for index in [index for index, token in enumerate(tokens) if token in special]:
            if index < behind:  # in a location, or the meaning of an alias
                continue
            while self._frames and 0 <= self._frames[-1].header < index:
                self._end_frame()
            token = tokens[index]
            first = token[0]
            if first == 0x25:  # %
                names, key = self._names[-1], (token, self._open[-1])
                places = names.get(key)
                if places is None:
                    names[key] = [index]
                else:
                    places.append(index)
            elif first == 0x7B:  # {
                if self._frames and self._frames[-1].body == index:
                    self._frames[-1] = self._frames[-1]._replace(region=len(self._last))
                self._open.append(len(self._last))
                self._last.append(sys.maxsize)
            elif first == 0x7D:  # }
                self._close(index)
            elif first in _ALIAS:
                behind = self._alias(index)
            elif first == 0x5E:  # ^
                self._label(index)
            elif first == 0x22:  # a string
                if index and tokens[index - 1] == b"@" and (plain := _PLAIN_SYMBOL.fullmatch(token)):
                    self._out[index - 1 : index + 1] = [b"@" + plain[1], None]
            elif token == b"loc":
                if tokens[index + 1 : index + 2] == [b"("]:
                    behind = self._location(index)
            elif (frame := self._function(index)) is not None:
                self._frames.append(frame)
                self._names.append({})
        if len(self._open) > 1:
            raise self._module.error(
                self._module.size, f"{len(self._open) - 1} braces expected to be closed, found none"
            )
        while self._names:
            self._rename(self._names.pop())
        self._rename_labels()
        for index in self._uses:
            self._out[index] = b"\0".join(self._meaning(self._tokens[index]))
        return b"\0".join(filter(None, self._out))

    # --- what tokens mean

    def _close(self, index: int) -> None:
        if len(self._open) == 1:
            raise self._module.error(self._offset(index), "a brace that closes none")
        region = self._open.pop()
        self._last[region] = len(self._last) - 1
        if self._frames and self._frames[-1].region == region:
            self._end_frame()

    def _end_frame(self) -> None:
        self._frames.pop()
        self._rename(self._names.pop())

    def _alias(self, index: int) -> int:
        """A use or a definition of an alias, or any other token with # or !; the index behind it."""
        tokens, token = self._tokens, self._tokens[index]
        if len(self._open) == 1 and not self._frames and tokens[index + 1 : index + 2] == [b"="]:
            end = self._end_of_value(index + 2)
            self._aliases[token] = tokens[index + 2 : end]
            self._remove(index, end)
            return end
        # A number behind a value is one of its results: %a#1
        if not (token[1:].isdigit() and tokens[index - 1][:1] == b"%"):
            self._uses.append(index)
        return index + 1

    def _meaning(self, token: bytes) -> list[bytes]:
        """Return the meaning of a token with # or !.

        MLIR may keep the body of a dialect's attribute as text, so it counts to the letter, with the aliases in it.
        """
        stack, opened = [token], set()
        while stack:
            name = stack[-1]
            parts = self._aliases[name] if name in self._aliases else _NAME.findall(name)[1:]
            waiting = [each for each in parts if self._stands(each) and each not in self._meanings]
            if waiting and name not in opened:
                opened.add(name)
                stack += waiting
                continue
            stack.pop()
            if name in self._aliases:
                pieces = [piece for each in parts for piece in self._meanings.get(each, (each,))]
            else:
                pieces = [name if len(name) <= _LONG_STRING else b"#\n<" + digest_bytes(name).encode()]
                for each in dict.fromkeys(filter(self._aliases.__contains__, parts)):
                    pieces += [b"#\n=" + each, *self._meanings.get(each, ())]
            if len(pieces) > _LONG_ALIAS:
                pieces = [b"#\n" + digest_bytes(b"\0".join(pieces)).encode()]
            self._meanings[name] = pieces
        return self._meanings[token]

    def _stands(self, token: bytes) -> bool:
        """Whether a token is an alias, or has a body."""
        return token in self._aliases or (token[0] in _ALIAS and token[-1:] == b">")

    def _remove(self, start: int, end: int) -> None:
        self._out[start:end] = [None] * (end - start)

    def _end_of_value(self, index: int) -> int:
        """The index behind an attribute or type that begins at ``index`` (LangRef, "attribute-value" and "type")."""
        while True:
            token = self._at(index)
            if token in {b"-", b"@"}:
                index += 1
            index = self._end_of_bracket(index) if self._at(index) in _OPEN else index + 1
            # dialect.attr<...>, dense<...>, loc(...), distinct[0]<...>, @a::@b
            while token != b"(" and (more := self._at(index)) in {b"<", b"(", b"[", b"::"}:
                index = (
                    index + 3 - self._at(index + 1).startswith(b"@") if more == b"::" else self._end_of_bracket(index)
                )
            # a typed attribute, a function type
            if self._at(index) not in {b":", b"->"}:
                return min(index, len(self._tokens))
            index += 1

    def _end_of_bracket(self, index: int) -> int:
        """The index behind the bracket that closes the one at ``index``. Raises CheckpointError where none does."""
        start, depth = index, []
        while True:
            token = self._at(index)
            if token in _OPEN:
                depth.append(_OPEN[token])
            elif token in _CLOSE and token != depth.pop():
                raise self._module.error(self._offset(index), "a bracket that does not close the one before it")
            elif not token:
                raise self._module.error(self._offset(start), "a bracket that is not closed")
            index += 1
            if not depth:
                return index

    def _at(self, index: int) -> bytes:
        return self._tokens[index] if index < len(self._tokens) else b""

    def _location(self, index: int) -> int:
        """Process ``loc(...)``, which stays if it is a value. Returns the index after it."""
        if index and self._tokens[index - 1] in _VALUE_AHEAD:
            return index + 1
        end = self._parenthesis(index + 1)
        if not self._at(end):
            raise self._module.error(self._offset(index), "a location that is not closed")
        if self._at(end + 1) in _VALUE_BEHIND:
            return index + 1
        self._remove(index, end + 1)
        return end + 1

    def _label(self, index: int) -> None:
        token, region = self._tokens[index], self._open[-1]
        self._labels.setdefault((region, token), []).append(index)
        behind = index + 1
        if self._at(behind) == b"(":
            behind = self._parenthesis(behind) + 1
        if self._at(behind) == b":":
            self._defined.add((region, token))

    def _parenthesis(self, index: int) -> int:
        """The index of the parenthesis that closes the one at ``index``, or of the end."""
        depth = 0
        while token := self._at(index):
            depth += (token == b"(") - (token == b")")
            if depth == 0:
                break
            index += 1
        return index

    def _function(self, index: int) -> _Frame | None:
        """Return the frame of a function with its name at ``index``.

        None for another token, or if the end is uncertain: its names then belong to the text around it, which is
        correct.
        """
        at = index + 1
        while self._at(at)[:1].isalpha() and at - index <= _MAX_HEADER_WORDS:
            at += 1
        if self._at(at) == b"@":  # a quoted symbol
            at += 1
        elif not self._at(at).startswith(b"@"):
            return None
        if self._at(at + 1) != b"(" or (at := self._group(at + 1) + 1) == 0:
            return None
        if self._at(at) == b"->":
            at = self._results(at + 1)
        while at and (token := self._at(at)) in _HEADER_WORDS and self._at(at + 1) == _HEADER_WORDS[token]:
            at = self._group(at + 1) + 1
        if not at:
            return None
        if token == b"{":
            return _Frame(-1, at)
        if not (
            token[:1] in {b"", b"}", b"%", b"^"}
            or token == b"module"
            or (b"." in token and token[:1].isalpha())
            or (token[:1] == b'"' and self._at(at + 1) == b"(")
            or (token[:1] in _ALIAS_MARKS and self._at(at + 1) == b"=")
        ):
            return None
        return _Frame(at - 1, -1)  # what follows is the next operation

    def _results(self, index: int) -> int:
        """The index behind the results of a function, from behind the arrow; 0 where it is not certain."""
        token = self._at(index)
        if token == b"(":
            return self._group(index) + 1
        if token[:1] == b"%":  # IREE: the result is an argument, perhaps as another type
            if self._at(index + 1) != b"as":
                return index + 1
            index += 2
        at = index + 1
        if self._at(at) == b"<" and (at := self._group(at) + 1) == 0:
            return 0
        # An element of a shape, a symbol, a second pair of brackets: no type that is known here.
        return 0 if self._at(at) in {b"<", b"(", b"[", b"::", b":", b"->"} else at

    def _group(self, index: int) -> int:
        """The index of the bracket that closes the one at ``index``, -1 where they do not match."""
        depth: list[bytes] = []
        for at in range(index, len(self._tokens)):
            token = self._tokens[at]
            if token in _OPEN:
                depth.append(_OPEN[token])
            elif token in _CLOSE:
                if token != depth.pop():
                    return -1
                if not depth:
                    return at
        return -1

    # --- names

    def _rename(self, names: Mapping[tuple[bytes, int], list[int]]) -> None:
        """Number the values of a frame that is closed. Regions that are still open have all later ones in them."""
        out, last = self._out, self._last
        regions: dict[bytes, list[int]] = {}
        for token, region in names:
            regions.setdefault(token, []).append(region)
        values: list[list[int]] = []
        for token, within in regions.items():
            root = -1
            # Regions that are in none of the others: the name is another value in each.
            for region in sorted(within):
                places = names[token, region]
                if root < 0 or region > last[root]:
                    root = region
                    values.append(places)
                else:
                    values[-1] += places
        values.sort(key=min)
        for number, each in enumerate(values):
            name = b"%%%d" % number
            for place in each:
                out[place] = name

    def _rename_labels(self) -> None:
        out = self._out
        numbers: dict[int, int] = {}
        for (region, label), each in self._labels.items():
            if (region, label) in self._defined:
                number = numbers[region] = numbers.get(region, -1) + 1
                for place in each:
                    out[place] = b"^\n%d" % number

    def _offset(self, index: int) -> int:
        """Where a token begins. Reads the text again: for errors."""
        for number, (_, offset) in enumerate(_tokens_with_offsets(self._module, self._marks)):
            if number == index:
                return offset
        return self._module.size


def _tokens(module: ModuleInput, marks: Marks) -> list[bytes]:
    """All tokens outside of trailers, equal ones as one object; a long hexadecimal string as its digest."""
    one = dict[bytes, bytes]().setdefault
    tokens: list[bytes] = []
    for data, start in _windows(module, marks):
        if start >= 0:
            tokens.append(data)
            continue
        pieces = _TOKEN.findall(data)
        while pieces and not pieces[-1]:
            pieces.pop()
        tokens.extend(map(one, pieces, pieces))
    return tokens


def _tokens_with_offsets(module: ModuleInput, marks: Marks) -> Iterator[tuple[bytes, int]]:
    """The same with offsets."""
    for data, start in _windows(module, marks):
        if start >= 0:
            yield data, start
            continue
        for match in _TOKEN.finditer(data):
            if match[1]:
                yield match[1], ~start + match.start(1)


def _windows(module: ModuleInput, marks: Marks) -> Iterator[tuple[bytes, int]]:
    """The text in pieces of whole lines, each with the complement of its offset; between them hexadecimal strings (or
    their digests), and dialects' attributes and types that have a body, each with its offset.
    """
    view = module.view()
    stops = [(each.start, each.end, '"') for each in marks.constants]
    stops += [(each.start, each.end, "") for each in marks.trailers]
    stops.sort()
    stops += [(start, end, "<") for start, end in _bodies(module, stops)]
    stops.append((module.size, module.size, ""))
    at = 0
    for start, end, kind in sorted(stops):
        if start < at:  # in a body
            continue
        while at < start:
            upto = min(start, at + _WINDOW)
            data = bytes(view[at:upto])
            if upto < start:
                cut = data.rfind(b"\n") + 1
                if cut == 0:  # one long line
                    end_of_line = find(view, b"\n", upto, start)
                    data = bytes(view[at : start if end_of_line < 0 else end_of_line + 1])
                    cut = len(data)
                data = data[:cut]
            _refuse_nul(module, data, at)
            yield data, ~at
            at += len(data)
        if kind == "<":
            data = bytes(view[start:end])
            _refuse_nul(module, data, start)
            yield data, start
        elif kind:
            yield (
                (bytes(view[start:end]) if end - start <= _LONG_STRING else b'"\n' + _digest(module, start, end)),
                start,
            )
        at = end


def _refuse_nul(module: ModuleInput, data: bytes, at: int) -> None:
    zero = data.find(b"\0")
    if zero >= 0:
        raise module.error(at + zero, "text expected, found a NUL")


def _bodies(module: ModuleInput, stops: Sequence[tuple[int, int, str]]) -> Iterator[tuple[int, int]]:
    """Where dialects' attributes and types with a body are, from # or ! to behind the bracket. stops: what is passed
    over, in order, unless a body holds it.
    """
    view = module.view()
    at = 0
    for start, end, _ in [*stops, (module.size, module.size, "")]:
        while at < start and (match := _BODY.search(view, at, start)) is not None:
            at = match.end()
            if match[0][:1] in _ALIAS_MARKS:
                at = _end_of_body(module, at - 1)
                yield match.start(), at
        at = max(at, end)


def _end_of_body(module: ModuleInput, start: int) -> int:
    """Behind the bracket that closes the one at ``start``. Raises CheckpointError where none does, as MLIR would."""
    depth: list[bytes] = []
    for match in _NESTED.finditer(module.view(), start):
        mark = match[0]
        if mark in _OPEN:
            depth.append(_OPEN[mark])
        elif mark == b'"' or (mark in _CLOSE and mark != depth.pop()):
            raise module.error(match.start(), "a string or bracket that does not end in the attribute that it is in")
        if not depth:
            return match.end()
    raise module.error(start, "a bracket that is not closed")


def _digest(module: ModuleInput, start: int, end: int) -> bytes:
    hasher = Hasher("mlir-string")
    for at in range(start, end, _WINDOW):
        hasher.part("", bytes(module.view()[at : min(end, at + _WINDOW)]))
    return hasher.digest().encode()
