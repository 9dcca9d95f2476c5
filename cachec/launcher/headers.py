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
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

_ASKS = (b"__has_include", b"__has_include_next")

#: A macro, and what it stands for; a name that is asked for; where it is asked what is defined at all.
_DEFINITION = re.compile(rb"^\s*(?:#|%:|\?\?=)\s*define\s+(\w+)(.*)$", re.MULTILINE)
_NAME = re.compile(rb"\s*\(\s*[<\"]([^>\"\n]+)[>\"]")
#: The first comment of a line. Behind a quote, what looks like one may be in a string.
_COMMENT = re.compile(rb"^([^\"'\n]*?)(?://[^\n]*|/\*.*?\*/)", re.DOTALL | re.MULTILINE)
#: Of a rule of Make: the end of its targets, a word, an escape.
_TARGET = re.compile(rb":(?=\s|\Z)")
_WORD = re.compile(rb"(?:\\[ #\t]|\$\$|\\(?![ #\t])|[^\s\\])+")
_ESCAPE = re.compile(rb"\\([ #\t])")
_IS_DEFINED = re.compile(rb"\b(?:defined\s*\(?|(?:el)?ifn?def|undef|define)\s*\Z")

#: Where compilers look by themselves, in front of ``-idirafter``.
_SYSTEM_SEARCH = ("/usr/local/include", "/usr/include", f"/usr/include/{os.uname().machine}-linux-gnu")


class DepfileError(ValueError):
    """A depfile is no rule of Make."""


def read_depfile(text: bytes) -> list[str]:
    """The prerequisites of the first rule, in order, each once. Raises DepfileError where there is no rule."""
    rule = text.replace(b"\\\r\n", b" ").replace(b"\\\n", b" ")
    target = _TARGET.search(rule)
    if target is None:
        raise DepfileError("no rule of the form 'target: file ...'")
    line = rule[target.end() :].partition(b"\n")[0]
    words = _WORD.findall(line)
    return list(dict.fromkeys(os.fsdecode(_unescaped(word)) for word in words))


def _unescaped(word: bytes) -> bytes:
    return _ESCAPE.sub(rb"\1", word).replace(b"$$", b"$")


def plain(path: str) -> str:
    """A path without what changes nothing in it: compilers leave ``./`` out of some names that they were given with it.
    The current folder is the empty path."""
    parts = [part for part in path.split("/") if part not in {"", "."}]
    return "/" * path.startswith("/") + "/".join(parts)


def system_folders(program: str) -> tuple[str, ...]:
    """Folders in which headers are the system's, or a compiler's own."""
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(program)))
    return ("/usr/include", "/usr/local/include", "/usr/lib", "/usr/lib32", "/usr/lib64", f"{prefix}/lib")


class Included(NamedTuple):
    """What one compilation includes. Paths are as the compiler has them, ``plain``; relative ones from the current
    folder.

    files: the compiled one first. search: the folders of the search. system: folders whose headers are the system's.
    """

    files: Sequence[str]
    search: Sequence[str]
    system: Sequence[str]

    def candidates(self, builtin: Sequence[str] = (), rivals: list[str] | None = None) -> Iterator[str]:
        """The places, none of which is a file, where one of the files might have been found first.

        builtin: folders of the system that are searched too. A file in one of the search could be found in each other
        one by the same name, or beside a file that includes it; one in a folder of the compiler's own, in all of them,
        by any end of its path. rivals: gets the places that are files.
        """
        places = dict.fromkeys([*self.beside(), *self.search])
        missing = _Missing([] if rivals is None else rivals)
        seen: set[str] = set()
        for file in self.files[1:]:
            names: dict[str, Sequence[str]] = {
                name: _SYSTEM_SEARCH for folder in self.search if (name := _below(file, folder))
            }
            if file.startswith("/") and "include" in (parts := file.split("/")):
                ends = range(parts.index("include") + 1, len(parts))
                names |= {"/".join(parts[at:]): builtin for at in ends}
            for name, more in names.items():
                for folder in (*places, *more):
                    shown = missing.candidate(os.path.join(folder, name))
                    if shown is not None and shown not in seen:
                        seen.add(shown)
                        yield shown

    def of_which_some_may_be_one(self, texts: Mapping[str, bytes]) -> Iterator[Sequence[str]]:
        """Paths of which it counts which lead to one file or folder: folders of the search, of which one is left out,
        and files of equal content, which ``#import`` and ``#pragma once`` take once.

        texts: what the files hold."""
        if self.search:
            yield [*dict.fromkeys([*self.search, *_SYSTEM_SEARCH])]
        by_text: dict[bytes, list[str]] = {}
        for file, text in texts.items():
            by_text.setdefault(text, []).append(file)
        yield from (files for files in by_text.values() if len(files) > 1)

    def beside(self) -> list[str]:
        """The folders of the files, none of the system's."""
        return [*dict.fromkeys(os.path.dirname(file) for file in self.files if not self.is_systems(file))]

    def is_systems(self, file: str) -> bool:
        """Whether a header is one of the system's or the compiler's own, and no folder of the search has it."""
        return any(_below(file, folder) for folder in self.system) and not any(
            _below(file, folder) for folder in self.search
        )

    def looked_for(self, texts: Mapping[str, bytes]) -> tuple[list[str], str]:
        """Places, there or not, that ``__has_include`` asks for; a file, none of the system's, that asks for what can't
        be told, empty for none.

        texts: what the files hold, without line breaks behind a backslash. A macro that asks for its argument is
        followed where it is used: it may ask in another file's folder than its own.
        """
        asks, asking = _that_ask(texts)
        places: dict[str, None] = {}
        untold = ""
        for file, text in asking.items():
            folders = dict.fromkeys([os.path.dirname(file), *self.beside(), *self.search, *_SYSTEM_SEARCH])
            for begin, end in _uses(text, asks):
                name = _NAME.match(text, end)
                if name is not None:
                    places |= dict.fromkeys(os.path.join(folder, os.fsdecode(name[1])) for folder in folders)
                elif not (self.is_systems(file) or _is_told(text, begin, end)):
                    untold = untold or file
        return [*places], untold


def _that_ask(texts: Mapping[str, bytes]) -> tuple[set[bytes], dict[str, bytes]]:
    """``__has_include``, and the macros that ask for their argument, or are another name for one of these; the texts
    that have any of them, without comments as far as they can be told: one with raw strings keeps them."""
    asks = {*_ASKS}
    asking: dict[str, bytes] = {}
    size = 0
    while size < len(asks):
        size = len(asks)
        for file, text in texts.items():
            if _mentions(text, asks) and file not in asking:
                asking[file] = text if b'R"' in text else _COMMENT.sub(rb"\1 ", text)
        asks |= {
            name
            for text in asking.values()
            for name, body in _DEFINITION.findall(text)
            if any(_NAME.match(body, end) is None for _, end in _uses(body, asks))
        }
    return asks, asking


def _mentions(text: bytes, names: Iterable[bytes]) -> bool:
    return any(name in text for name in names)


def _uses(text: bytes, names: Collection[bytes]) -> Iterator[tuple[int, int]]:
    if _mentions(text, names):
        yield from (match.span() for match in re.finditer(rb"\b(?:%b)\b" % b"|".join(sorted(names)), text))


def _is_told(text: bytes, begin: int, end: int) -> bool:
    """Whether no file is asked for: it is asked whether the macro is defined, or it is told what a macro is."""
    line = text[text.rfind(b"\n", 0, begin) + 1 : begin]
    return _IS_DEFINED.search(line) is not None or _DEFINITION.match(line + text[begin:end]) is not None


def _below(file: str, folder: str) -> str:
    """The name of a file relative to a folder that it lies in; empty where it does not."""
    prefix = folder if folder in {"", "/"} else folder + "/"
    return file[len(prefix) :] if file.startswith(prefix) and (prefix or not file.startswith("/")) else ""


class _Missing:
    """What is not there, as it is met: most places lie in a few folders."""

    def __init__(self, files: list[str]) -> None:
        """files: gets the places that are files."""
        self._files = files
        self._folders: dict[str, str] = {"": ""}

    def candidate(self, place: str) -> str | None:
        """The topmost part of a path that is not there, or the folder that is in its place; None where a file is. A
        link to nothing may lead somewhere later."""
        folder = self._topmost(os.path.dirname(place))
        if folder:
            return folder
        if os.path.exists(place) and not os.path.isdir(place):
            self._files.append(place)
            return None
        return place

    def _topmost(self, folder: str) -> str:
        known = self._folders.get(folder)
        if known is None:
            parent = os.path.dirname(folder)
            above = self._topmost(parent) if parent != folder else ""
            known = self._folders[folder] = above or ("" if os.path.exists(folder) else folder)
        return known


class Ways:
    """Whether files are what they were at a time, and were found on the way that leads to them now.

    What is moved to another name gets a new ctime. A folder gets one with each entry that comes or goes, too, with the
    same mtime then.
    """

    def __init__(self, since: float) -> None:
        """since: Unix time."""
        self._since = since
        self._known: dict[str, bool] = {"": False, "/": False}

    def changed(self, path: str) -> bool:
        """Whether the file, or a link or a folder on the way to it, was written to, made or moved since. Raises OSError
        where it is not there."""
        known = self._known.get(path)
        if known is None:
            self._known[path] = False  # a link that leads back to itself
            known = self._known[path] = self._has_changed(path)
        return known

    def _has_changed(self, path: str) -> bool:
        status = os.lstat(path)
        folder = os.path.dirname(path)
        is_new = status.st_ctime > self._since
        if stat.S_ISDIR(status.st_mode):
            is_new = is_new and status.st_mtime_ns < status.st_ctime_ns
        elif stat.S_ISLNK(status.st_mode):
            is_new = is_new or self.changed(os.path.join(folder, os.readlink(path)).rstrip("/") or "/")
        return is_new or self.changed(folder)
