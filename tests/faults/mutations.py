"""Foreign bytes: what a real file becomes when somebody, or something, has had a hand in it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

#: Numbers at which readers break: ends of integer types, signs, and what no type holds.
NUMBERS = (0, 1, 2, 8, 127, 128, 255, 65535, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 63) - 8, 1 << 63, (1 << 64) - 1)
#: What stands for a number in a text.
DIGITS = (*b"0 -0 -1 1e999 1.5 NaN Infinity 0x10 1_0".split(), b"9" * 19, b"9" * 40, b"1" + b"0" * 5000)
#: Pieces of text that end, open or nest something, or that are none.
TOKENS = (
    *rb"""" ' \ \u0000 \ud800 { } [ ] ( ) < > , : = # [[ ''' // ../ / - ! % @ $ null true {} [] 1979-05-27""".split(),
    *(b'"""', b"\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf", b"\x85", b"\r", b"\n"),
    *(b"\x1b[31m", b"[" * 2000, b"(" * 300, b'{"a":' * 2000, b"a" * 70_000, b"\n" * 300),
)
#: Values of JSON that stand where others are expected.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 1 << 31, 1 << 63, 1 << 64, 1 << 70, -(1 << 63) - 1, 1.5, -0.0, 1e308),
    *("", "a", "0", "\0", "a\x1b[31m", "\ud800", "é" * 50, "../../x", "/", "x" * 3000),
    *([], {}, [[]], [None], [True], {"a": []}),
)


class Seed(NamedTuple):
    """A real file. document: the JSON in it, or None; inner: bytes in it that something guards, a checksum or a length,
    or None; wrap: makes the file of other such, as text or bytes."""

    data: bytes
    document: Any = None
    wrap: Callable[[bytes], bytes] = bytes
    inner: bytes | None = None


def seed_of_json(text: bytes | str, wrap: Callable[[bytes], bytes] = bytes) -> Seed:
    """A seed whose file is ``wrap`` of a JSON text."""
    raw = text.encode() if isinstance(text, str) else text
    return Seed(wrap(raw), json.loads(raw), wrap)


class Mutator:
    """Makes mutations of some seeds, in an order of its own."""

    def __init__(self, seeds: Sequence[Seed], rng: random.Random) -> None:
        self._seeds = seeds
        self._rng = rng

    def next(self) -> bytes:
        """Another input."""
        rng = self._rng
        seed = rng.choice(self._seeds)
        if rng.random() < 0.4 or (seed.document is None and seed.inner is None):
            return self._bytes(seed.data)
        if seed.inner is not None:
            return seed.wrap(self._bytes(seed.inner))
        text = self._text(seed.document)
        return seed.wrap(self._bytes(text) if rng.random() < 0.15 else text)

    # --- bytes

    def _bytes(self, data: bytes) -> bytes:
        found = bytearray(data)
        for _ in range(self._rng.choice((1, 1, 1, 2, 3, 6))):
            self._rng.choice(_EDITS)(self, found)
        return bytes(found)

    def _at(self, found: bytearray) -> int:
        """A place: often near the start, where structures are, or at a digit or a quote."""
        size = len(found)
        if not size:
            return 0
        if self._rng.random() < 0.3:
            return self._rng.randrange(min(size, 64))
        return self._rng.randrange(size)

    def _flip(self, found: bytearray) -> None:
        if found:
            found[self._at(found)] ^= 1 << self._rng.randrange(8)

    def _set(self, found: bytearray) -> None:
        if found:
            found[self._at(found)] = self._rng.choice((0, 1, 0x7F, 0x80, 0xFF, self._rng.randrange(256)))

    def _cut(self, found: bytearray) -> None:
        del found[self._at(found) :]

    def _remove(self, found: bytearray) -> None:
        at = self._at(found)
        del found[at : at + self._rng.choice((1, 1, 2, 4, 8, 64))]

    def _repeat(self, found: bytearray) -> None:
        at, end = sorted((self._at(found), self._at(found)))
        piece = found[at : min(end, at + 4096)]
        found[at:at] = piece * self._rng.choice((1, 1, 2, 16))

    def _token(self, found: bytearray) -> None:
        at = self._at(found)
        found[at : at + self._rng.choice((0, 0, 1))] = self._rng.choice(TOKENS)

    def _number(self, found: bytearray) -> None:
        """A length field, little- or big-endian, or a varint, becomes another."""
        width = self._rng.choice((1, 2, 4, 8, 8))
        number = self._rng.choice((*NUMBERS, len(found), len(found) - 1, len(found) + 1)) % (1 << 8 * width)
        at = self._at(found)
        found[at : at + width] = number.to_bytes(width, self._rng.choice(("little", "little", "big")))

    def _digits(self, found: bytearray) -> None:
        """A number in the text becomes another."""
        at = start = self._at(found)
        while start < len(found) and not 48 <= found[start] <= 57:
            start += 1
        end = start
        while end < len(found) and 48 <= found[end] <= 57:
            end += 1
        if start < end:
            found[start:end] = self._rng.choice(DIGITS)
        else:
            found[at:at] = self._rng.choice(DIGITS)

    def _splice(self, found: bytearray) -> None:
        other = self._rng.choice(self._seeds).data
        if other:
            start = self._rng.randrange(len(other))
            found[self._at(found) :] = other[start : start + 65536]

    # --- JSON

    def _text(self, document: Any) -> bytes:
        """The document with a place or two changed, as text: keys may come twice, which no dict can have."""
        places = sum(1 for _ in _nodes(document))
        chosen = {self._rng.randrange(places) for _ in range(self._rng.choice((1, 1, 1, 2)))}
        number = -1

        def written(value: Any) -> str:
            nonlocal number
            number += 1
            if number in chosen:
                what = self._rng.random()
                if what < 0.75 or not isinstance(value, dict | list):
                    rest = list(_nodes(value))  # so that the numbers of what follows stay
                    number += len(rest) - 1
                    return self._strange()
                if isinstance(value, dict):
                    return self._object(value, written)
                items = [written(each) for each in value]
                items += items[:1] * self._rng.choice((1, 3)) if items else [self._strange()]
                self._rng.shuffle(items)
                return f"[{','.join(items)}]"
            if isinstance(value, dict):
                return "{" + ",".join(f"{_dumped(key)}:{written(each)}" for key, each in value.items()) + "}"
            if isinstance(value, list):
                return f"[{','.join(written(each) for each in value)}]"
            return _dumped(value)

        return written(document).encode("utf-8", "surrogatepass")

    def _object(self, value: dict[str, Any], written: Callable[[Any], str]) -> str:
        """A key more, a key less, a key twice, a key of another name."""
        members = [(_dumped(key), written(each)) for key, each in value.items()]
        what = self._rng.randrange(4)
        if what == 0 or not members:
            members.append((_dumped(self._rng.choice(("", "a", "__metadata__", "\ud800", "\0"))), self._strange()))
        elif what == 1:
            members.pop(self._rng.randrange(len(members)))
        elif what == 2:
            members.insert(0, (self._rng.choice(members)[0], self._strange()))
        else:
            at = self._rng.randrange(len(members))
            members[at] = (_dumped(self._rng.choice(("", "a", "x" * 5000, "\x1b[2J"))), members[at][1])
        return "{" + ",".join(f"{key}:{each}" for key, each in members) + "}"

    def _strange(self) -> str:
        if self._rng.random() < 0.1:
            return self._rng.choice(
                ("[" * 600 + "]" * 600, "1e999", "9" * 5000, "-", "NaN", "1.0000000000000000000001")
            )
        return _dumped(self._rng.choice(VALUES))


_EDITS = (
    *(Mutator._flip, Mutator._flip, Mutator._set, Mutator._cut, Mutator._remove, Mutator._repeat),
    *(Mutator._token, Mutator._token, Mutator._number, Mutator._number, Mutator._digits, Mutator._splice),
)


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=random_ascii(value))


def random_ascii(value: Any) -> bool:
    """Lone surrogates are written as escapes by half: the other half makes a text that is not UTF-8."""
    return not (isinstance(value, str) and len(value) % 2)


def _nodes(value: Any) -> Any:
    yield value
    if isinstance(value, dict):
        for each in value.values():
            yield from _nodes(each)
    elif isinstance(value, list):
        for each in value:
            yield from _nodes(each)
