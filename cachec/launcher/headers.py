"""What a compiler included, and what would be included instead if it were there: from a depfile to reads of a trace.

Syntax of depfiles: the rules that clang and gcc write (``-MD``) for GNU Make; spaces, ``#`` and ``$`` are escaped as in
clang's ``PrintFilename`` (clang/lib/Frontend/DependencyFile.cpp).

A header that is added in a folder that comes earlier in the search would be taken from then on. So for each included
file every other place where its name could be found is kept as absent; where that place lies in a folder that is not
there itself, the folder is. Folders count that come later on the command line too: ``-I`` goes before ``-isystem``,
``-iquote`` before both and ``-idirafter`` behind, wherever they stand.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence

_HAS_INCLUDE = re.compile(rb"__has_include(?:_next)?\s*\(\s*[<\"]([^>\"\n]+)[>\"]")


#: The same of what is no name: a macro. In a definition it is that of a parameter.
_HAS_INCLUDE_MACRO = re.compile(rb"^(?!\s*#\s*define\b).*__has_include(?:_next)?\s*\(\s*\w", re.MULTILINE)


class DepfileError(ValueError):
    """A depfile is no rule of Make."""


def read_depfile(text: bytes) -> list[str]:
    """The prerequisites of the first rule, in order, each once. Raises DepfileError where there is no rule."""
    rule = text.replace(b"\\\r\n", b" ").replace(b"\\\n", b" ")
    target = re.search(rb":(?=\s|\Z)", rule)
    if target is None:
        raise DepfileError("no rule of the form 'target: file ...'")
    line = rule[target.end() :].partition(b"\n")[0]
    words = re.findall(rb"(?:\\[ #\t]|\$\$|\\(?![ #\t])|[^\s\\])+", line)
    return list(dict.fromkeys(os.fsdecode(_unescaped(word)) for word in words))


def _unescaped(word: bytes) -> bytes:
    return re.sub(rb"\\([ #\t])", rb"\1", word).replace(b"$$", b"$")


def candidates(files: Sequence[str], search: Sequence[str], builtin: Sequence[str] = ()) -> Iterator[str]:
    """The places, none of which is a file, where one of the included ``files`` might have been found first.

    files: absolute paths, the compiled one first, as the compiler named them. search: the folders of the search.
    builtin: folders of the system that are searched too. A file in one of the former could be found in each other one
    by the same name, or beside a file that includes it; one in a folder of the compiler's own, in all of them, by any
    end of its path.
    """
    beside = dict.fromkeys(os.path.dirname(file) for file in files if not is_builtin(file, search))
    seen: set[str] = set()
    for file in files[1:]:
        for place in _elsewhere(file, [*beside], search, builtin):
            shown = _candidate(place)
            if shown is not None and shown not in seen:
                seen.add(shown)
                yield shown


def is_builtin(file: str, search: Sequence[str]) -> bool:
    """Whether a header is one of the system's or the compiler's own."""
    return "include" in file.split("/") and not any(_below(file, folder) for folder in search)


def _elsewhere(file: str, beside: Sequence[str], search: Sequence[str], builtin: Sequence[str]) -> Iterator[str]:
    if is_builtin(file, search):
        parts = file.split("/")
        first = parts.index("include") + 1
        for name in ("/".join(parts[at:]) for at in range(first, len(parts))):
            yield from (os.path.join(folder, name) for folder in (*beside, *search, *builtin))
    for folder in search:
        name = _below(file, folder)
        if name:
            yield from (os.path.join(other, name) for other in (*beside, *search) if other != folder)


def _below(file: str, folder: str) -> str:
    """The name of a file relative to a folder that it lies in; empty where it does not."""
    prefix = folder.rstrip("/") + "/"
    return file[len(prefix) :] if file.startswith(prefix) else ""


def _candidate(place: str) -> str | None:
    """The topmost part of a path that is not there, or the folder that is in its place; None where a file is. A link
    to nothing may lead somewhere later."""
    if os.path.exists(place):
        return place if os.path.isdir(place) else None
    while not os.path.exists(parent := os.path.dirname(place)):
        place = parent
    return place


def asks_by_macro(file: str, search: Sequence[str]) -> bool:
    """Whether a file, none of the system's, asks whether a file is there whose name is not in it."""
    if is_builtin(file, search):
        return False
    with open(file, "rb") as opened:
        return _HAS_INCLUDE_MACRO.search(opened.read()) is not None


def looked_for(files: Iterable[str], search: Sequence[str]) -> Iterator[str]:
    """Places, there or not, that ``__has_include`` in one of the files asks for."""
    seen: set[bytes] = set()
    for file in files:
        with open(file, "rb") as opened:
            names = {match[1] for match in _HAS_INCLUDE.finditer(opened.read())}
        for name in names - seen:
            seen.add(name)
            for folder in (os.path.dirname(file), *search):
                yield os.path.join(folder, os.fsdecode(name))
