"""The difference between two contents of a file, for a person: JSON and YAML by key, other text by line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from cachec.base import fsio
from cachec.base.display_text import shown_pair
from cachec.base.hashing import digest_bytes
from cachec.key.flatten import leaf_difference, leaves
from cachec.model import MALFORMED_JSON, Digest

if TYPE_CHECKING:
    from cachec.key.code.fingerprint import CodeKey

#: Bytes of a file that are looked into, and leaves of one that has keys.
MAX_BYTES = 1 << 20
_MAX_LEAVES = 20_000

#: Bytes up to which a file that a call works on is stored, so that a later difference is told.
MAX_STORED_BYTES = 1 << 16

#: Characters of the text of one function, and of all that a call reaches, that are kept.
_MAX_TEXT, _MAX_TEXTS = 1 << 14, 1 << 18

#: Lines that are shown.
_SHOWN = 4


def content_difference(name: str, old: bytes, new: bytes) -> str:
    """What differs, in words; empty where that can't be told of such contents. name: of the file."""
    if max(len(old), len(new)) > MAX_BYTES:
        return ""
    try:
        before, after = old.decode(), new.decode()
    except UnicodeDecodeError:
        return ""
    if "\0" in before or "\0" in after:
        return ""
    return _by_key(name, before, after) or _by_line(before, after)


def content_of(path: str, digest: Digest, most: int) -> bytes | None:
    """The content of a file; None where it is not this one any more, larger, or can't be read."""
    try:
        with open(fsio.open_read(path), "rb") as file:
            data = file.read(most + 1)
    except OSError:
        return None
    return data if len(data) <= most and digest_bytes(data) == digest else None


class CodeText(msgspec.Struct, frozen=True, array_like=True):
    """The text of a function, class or module, and the line of its file that it begins at."""

    line: int
    text: str


#: Name of a part of code -> its text.
CodeTexts = dict[str, CodeText]


def code_texts(keys: Iterable[CodeKey]) -> bytes:
    """The texts of code, as far as there is room, in JSON."""
    texts: CodeTexts = {}
    lines: dict[bytes | str, list[str]] = {}
    remaining = _MAX_TEXTS
    for key in keys:
        for name, ((_, whole), ((first, _), (last, _))) in key.texts.items():
            if whole not in lines:
                text = whole if isinstance(whole, str) else whole.decode("utf-8", "replace")
                lines[whole] = text.splitlines()
            text = "\n".join(lines[whole][max(first - 1, 0) : last])
            if name not in texts and len(text) <= min(remaining, _MAX_TEXT):
                texts[name] = CodeText(max(first, 1), text)
                remaining -= len(text)
    return msgspec.json.encode(texts, order="sorted")


@lru_cache(maxsize=4)
def _texts_in(data: bytes) -> CodeTexts:
    """Asked for each part that differs. None where it is malformed: then less is said."""
    try:
        return msgspec.json.decode(data, type=CodeTexts)
    except MALFORMED_JSON:
        return {}


def code_difference(name: str, old: bytes, new: bytes) -> str:
    """The lines that differ in a part of code; empty where either text is not known."""
    before, after = _texts_in(old).get(name), _texts_in(new).get(name)
    if before is None or after is None or before.text == after.text:
        return ""
    return _by_line(before.text, after.text, after.line)


def _by_key(name: str, old: str, new: str) -> str:
    load: Callable[[str], Any]
    refused: tuple[type[Exception], ...]
    if name.endswith(".json"):
        load, refused = json.loads, (ValueError, RecursionError)
    elif name.endswith((".yaml", ".yml")):
        try:
            yaml = import_module("yaml")  # where somebody has installed it
        except ImportError:
            return ""
        load, refused = yaml.safe_load, (yaml.YAMLError, ValueError, RecursionError)
    else:
        return ""
    try:
        before, after = (leaves(load(text), "", _MAX_LEAVES) for text in (old, new))
    except refused:  # malformed: it is told by line
        return ""
    return leaf_difference(before, after)


def _by_line(old: str, new: str, start: int = 1) -> str:
    """start: the number of the first line."""
    from difflib import SequenceMatcher  # for these words alone

    before, after = old.splitlines(), new.splitlines()
    head = next((at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), None)
    if head is None:
        head = min(len(before), len(after))
    tail = 0
    while tail < min(len(before), len(after)) - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    middle = before[head : len(before) - tail], after[head : len(after) - tail]
    if max(map(len, middle)) > 500:  # matching takes the square of this
        return f"line {head + start} and others: {len(middle[0])} lines -> {len(middle[1])} lines"
    words = []
    for tag, first, last, begin, end in SequenceMatcher(None, *middle, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        for at in range(max(last - first, end - begin)):
            was = middle[0][first + at] if first + at < last else None
            now = middle[1][begin + at] if begin + at < end else None
            words.append(_line(head + (begin if now is not None else first) + at + start, was, now))
    more = f"; and {len(words) - _SHOWN} more lines" if len(words) > _SHOWN else ""
    return "; ".join(words[:_SHOWN]) + more


def _line(number: int, was: str | None, now: str | None) -> str:
    if was is None:
        return f"line {number} added: {shown_pair('', now)[1]!r}"
    if now is None:
        return f"line {number} removed: {shown_pair(was, '')[0]!r}"
    old, new = shown_pair(was, now)
    return f"line {number}: {old!r} -> {new!r}"
