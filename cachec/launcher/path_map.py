"""Where things are: folders that leave the key (``base_dir``, the current one), and paths as a trace keeps them."""

from __future__ import annotations

import itertools
import mmap
import os
import re
from collections.abc import Iterable

import msgspec

from cachec.base.hashing import digest_bytes
from cachec.errors import UsageError
from cachec.launcher.direct import file_number
from cachec.model import BELOW_BASE, BELOW_TOOL

#: The placeholder for the base folder in a keyed text: no argument has a NUL.
_BASE = "\0"

#: The same in a text that the command wrote.
_MARK = b"\0base_dir\0"


class PathMap(msgspec.Struct, frozen=True):
    """base: the folder below which paths count from there, None for none. cwd: the current folder, as the command is
    told (``PWD``). tools: the environment that the command is installed in, where its adapter names a distribution, and
    that of its interpreter. real_cwd: the real path of ``cwd``."""

    base: str | None
    cwd: str
    tools: tuple[str, ...] = ()
    real_cwd: str = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "real_cwd", os.path.realpath(self.cwd))

    def remove_base(self, text: str) -> str:
        """Return a text of the command line without the base folder, wherever it occurs as a folder."""
        if self.base is None or self.base not in text:
            return text
        pieces = text.split(self.base)
        out = pieces[0]
        for before, after in itertools.pairwise(pieces):
            is_folder = after[:1] in {"", "/", ":", ",", "=", ";", "\0"}
            out += (_BASE if is_folder and _begins_path(before) else self.base) + after
        return out

    def to_anchored(self, path: str) -> str:
        """A path as a trace keeps it. As it is written: behind a link, ``..`` is elsewhere than it seems. A relative
        one stays relative: it is what is there in the current folder of each look."""
        if path.startswith((BELOW_BASE, BELOW_TOOL)):
            return f"./{path}"
        if self.base is not None and (path == self.base or path.startswith(self.base + "/")):
            return BELOW_BASE + path[len(self.base) + 1 :]
        for number, tool in enumerate(self.tools):
            if path.startswith(f"{tool}/"):
                return f"{BELOW_TOOL}{number}{path[len(tool) :]}"
        return path

    def folder(self, where: str, real: str) -> str:
        """The real path of a folder that was looked up at a path, as it counts. Where the current one is counts by
        itself, and what relative paths find below it counts from there. where: as it is looked up, or kept."""
        here = self.real_cwd
        is_relative = not where.startswith(("/", BELOW_BASE, BELOW_TOOL))
        if real == here or (is_relative and real.startswith(f"{here}/")):
            return f".{real[len(here) :]}"
        return self.to_anchored(real)

    def to_absolute(self, anchored: str) -> str:
        """Return the absolute path of a stored one on this machine."""
        if anchored.startswith("/"):
            return anchored
        if anchored.startswith(BELOW_TOOL):
            number, _, rest = anchored.removeprefix(BELOW_TOOL).partition("/")
            return os.path.join((*self.tools, self.cwd, self.cwd)[int(number == "1")], rest)
        if not anchored.startswith(BELOW_BASE):
            return os.path.join(self.cwd, anchored)
        return os.path.join(self.base or self.cwd, anchored.removeprefix(BELOW_BASE))

    def relative_name(self, path: str) -> str:
        """A path below the base folder by the name that it has from the current folder, where that is below it too.

        The path itself where that name leads elsewhere (behind a link), or would be taken for a flag.
        """
        if self.base is None or not all(f"{each}/".startswith(f"{self.base}/") for each in (path, self.cwd)):
            return path
        name = os.path.relpath(path, self.cwd)
        is_it = not name.startswith(("-", "@")) and _is_same(os.path.join(self.cwd, name), path)
        return name if is_it else path

    def sameness(self, anchored: str) -> str:
        """Return ``sameness_digest`` of stored paths that are joined by NULs."""
        return sameness_digest(map(self.to_absolute, anchored.split("\0")))

    def folders(self) -> dict[str, str]:
        """Return the folders with paths that are not in the key, by their names in a trace."""
        return {"cwd": self.cwd, **({} if self.base is None else {"base_dir": self.base})}

    def digest(self, folder: str) -> str:
        """Return the digest of the path of one of ``folders``; of an empty path for an unknown name."""
        path = self.folders().get(folder, "")
        return digest_bytes(os.fsencode(self.remove_base(path) if folder == "cwd" else path))

    def template(self, text: bytes) -> bytes:
        """A text that the command wrote, with the base folder taken out: another checkout fills in its own."""
        if self.base is None or _MARK in text or b"\0" in text:
            return text
        return re.sub(rb"(?<![\w./+-])" + re.escape(os.fsencode(self.base)) + rb"(?![\w.+-])", lambda _: _MARK, text)

    def fill_base(self, template: bytes) -> bytes:
        """The text again, for this base folder."""
        return template if self.base is None else template.replace(_MARK, os.fsencode(self.base))


def _begins_path(before: str) -> bool:
    """Whether an absolute path begins behind ``before``: not within a longer one, but right behind a flag (``-I``)."""
    word = re.split(r"[=,:;\0\s\"']", before)[-1]
    return not word or (word.startswith("-") and "/" not in word)


def sameness_digest(paths: Iterable[str]) -> str:
    """The digest of which of the paths lead to one file or folder, and which to none."""
    numbers = [file_number(path) for path in paths]
    return digest_bytes(b" ".join(each if each == b"-" else b"%d" % numbers.index(each) for each in numbers))


class NoFolder(UsageError):
    """There is no current folder."""


def current_folder(environ: dict[str, str]) -> str:
    """The current folder by the name that the shell has for it, where that is right (``PWD``, as POSIX's getcwd -L).

    Raises NoFolder where it was removed, or the system does not tell it.
    """
    try:
        real = os.getcwd()
    except OSError as error:
        problem = "was removed" if isinstance(error, FileNotFoundError) else f"can't be told ({error.strerror})"
        raise NoFolder(f"the current folder {problem}; change to one that exists") from None
    named = environ.get("PWD", "")
    if named.startswith("/") and os.path.normpath(named) == named:
        return named if _is_same(named, real) else real
    return real


def _is_same(one: str, other: str) -> bool:
    """Whether two paths lead to one file; not where one of them leads nowhere."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def find_leaks(folders: dict[str, str], files: Iterable[str], texts: Iterable[bytes]) -> dict[str, str]:
    """Which of the folders have their path in what was written, and where: name of the folder -> the file."""
    leaks: dict[str, str] = {}
    wanted = {name: os.fsencode(path) for name, path in folders.items()}
    for text in texts:
        leaks.update((name, "its messages") for name, path in wanted.items() if path in text)
    for file in files:
        with open(file, "rb") as opened:
            if not os.fstat(opened.fileno()).st_size:
                continue
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
                leaks.update((name, file) for name, path in wanted.items() if data.find(path) >= 0)
    return leaks
