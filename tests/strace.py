"""strace's output, as system calls.

Format: strace(1) of 5.0 or later with ``-f -y -qq -o FILE``: a line is ``PID  name(arguments) = result``, ``PID  --- a
signal ---`` or ``PID  +++ an end +++``. A call that another process interrupts is two lines: ``name(arguments
<unfinished ...>`` and ``<... name resumed>rest``. Strings are C literals with octal escapes; a file descriptor has its
path behind it in angle brackets, in which ``<`` and ``>`` are escaped too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


class SystemCall(NamedTuple):
    """One system call that ended. pid: the thread's. result: as it is printed, ``0``, ``3</a/b>`` or ``-1 ENOENT``."""

    pid: int
    name: str
    arguments: tuple[str, ...]
    result: str

    @property
    def failed(self) -> str:
        """The name of the error, empty for none."""
        return self.result.split()[1] if self.result.startswith("-1 ") else ""


class Calls(Iterator[SystemCall]):
    """The calls in strace's lines. strange: lines that were not understood; first_strange: the first of them."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.strange = 0
        self.first_strange = ""
        self._calls = self._run(lines)

    def __next__(self) -> SystemCall:
        return next(self._calls)

    def _run(self, lines: Iterable[str]) -> Iterator[SystemCall]:
        waiting: dict[int, str] = {}
        for line in lines:
            head = re.match(r"(\d{1,10})\s+(.*)", line.rstrip("\n"), re.DOTALL)
            if head is None:
                self._note(line)
                continue
            pid, text = int(head[1]), head[2]
            if text.startswith(("--- ", "+++ ")):
                # A thread that starts a program goes on as the first thread of its process.
                superseded = re.match(r"\+\+\+ superseded by execve in pid (\d{1,10})", text)
                if superseded is not None and int(superseded[1]) in waiting:
                    waiting[pid] = waiting.pop(int(superseded[1]))
                continue
            if text.endswith("<unfinished ...>"):
                waiting[pid] = text.removesuffix("<unfinished ...>").rstrip()
                continue
            resumed = re.match(r"<\.\.\. (\w+) resumed>", text)
            if resumed is not None:
                begun = waiting.pop(pid, None)
                if begun is None or not begun.startswith(f"{resumed[1]}("):
                    self._note(line)
                    continue
                text = begun + text[resumed.end() :]
            call = parse_call(pid, text)
            if call is None:
                self._note(line)
            else:
                yield call

    def _note(self, line: str) -> None:
        self.strange += 1
        self.first_strange = self.first_strange or line.strip()[:200]


def parse_call(pid: int, text: str) -> SystemCall | None:
    """One whole call; None for what is none."""
    name = re.match(r"(\w+)\(", text)
    if name is None:
        return None
    arguments: list[str] = []
    start = at = name.end()
    depth = 0
    while at < len(text):
        character = text[at]
        if character == '"':
            literal = _STRING.match(text, at)
            if literal is None:
                return None
            at = literal.end()
            continue
        if (
            character == "<"
            and re.search(r"(?:\d|AT_FDCWD)\Z", text[start:at])
            and text[at + 1 : at + 2] not in {"<", "="}
        ):
            at = text.find(">", at)
            if at < 0:
                return None
        elif character in "([{":
            depth += 1
        elif character in ")]}" and depth:
            depth -= 1
        elif character in ",)" and not depth:
            argument = text[start:at].strip()
            if argument or arguments:
                arguments.append(argument)
            start = at + 1
            if character == ")":
                break
        at += 1
    result = re.match(r"\s*=\s+(.*)", text[at + 1 :], re.DOTALL)
    return None if result is None else SystemCall(pid, name[1], tuple(arguments), result[1])


_ESCAPE = re.compile(rb"\\([0-7]{1,3}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_LETTERS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"v": b"\v", b"f": b"\f", b"a": b"\a", b"b": b"\b"}


def unescape(text: str) -> str:
    """The path that an escaped one stands for, as Python has paths."""
    return os.fsdecode(_ESCAPE.sub(_unescaped, os.fsencode(text)))


def _unescaped(match: re.Match[bytes]) -> bytes:
    word = match[1]
    if word[:1] in b"01234567":
        return bytes([int(word, 8) & 0xFF])
    if word[:1] == b"x" and len(word) == 3:
        return bytes([int(word[1:], 16)])
    return _LETTERS.get(word, word)


def string(argument: str) -> str | None:
    """The text of an argument that is a string; None for NULL, an address, or one that was cut."""
    if len(argument) < 2 or argument[0] != '"' or argument[-1] != '"':
        return None
    return unescape(argument[1:-1])


def descriptor_path(text: str) -> str | None:
    """The path of ``3</a/b>`` or ``AT_FDCWD</a/b>``; None where there is none, as for a pipe."""
    match = re.match(r"(?:-?\d+|AT_FDCWD)<(/[^>]*)>", text)
    if match is None:
        return None
    path = unescape(match[1])
    return None if path.endswith(" (deleted)") or path.startswith("/memfd:") else path
