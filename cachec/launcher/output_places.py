"""Where a command without an adapter may write, and so where a stored result of it may be put."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cachec.base import xdg
from cachec.launcher.command import Command, Output
from cachec.launcher.direct import default_folder
from cachec.launcher.places import Places
from cachec.launcher.restore import check_place
from cachec.programs.artifact import File

#: What separates words in an argument that may hold paths: of a shell's ``-c``, of ``--out=PATH``, of lists.
_WORDS = re.compile(r"[\s=,;:|&<>(){}\"']+")

#: Longer arguments are no paths (PATH_MAX).
_MAX_NAME = 4096


class OutputPlaces:
    """Where a command may write: below the current folder, where an argument points, and where somebody says."""

    def __init__(self, command: Command, environ: Mapping[str, str]) -> None:
        self._cwd = os.path.realpath(command.cwd)
        here = glob.escape(self._cwd)
        self._patterns = [os.path.normpath(os.path.join(here, each)) for each in command.options.patterns]
        self._named = {os.path.realpath(output.path) for output in command.outputs}
        self._pointed = {*self._named, *self._pointed_at(command.argv[1:])}
        caches = xdg.home_caches(environ)
        store = default_folder(dict(environ), command.cwd)  # of a cachec inside of the command
        caches += [store] if store else []
        caches += [each for each in command.options.cache_folders if "/" in each]
        self._cache_names = {*xdg.CACHE_NAMES, *command.options.cache_folders}
        self._caches = [path for path in map(os.path.realpath, caches) if not _is_below(self._cwd, [path])]

    def _pointed_at(self, arguments: Sequence[str]) -> Iterator[str]:
        for arg in arguments:
            if len(arg) > _MAX_NAME:
                continue
            for word in {arg, arg[arg.find("/") :] if "/" in arg else "", arg[2:], *_WORDS.split(arg)}:
                path = os.path.realpath(os.path.join(self._cwd, word)) if word and "\0" not in word else "/"
                if path != "/" and not f"{self._cwd}/".startswith(f"{path}/"):
                    yield path

    def is_cache(self, path: str) -> bool:
        """Whether a path is below a folder in which programs keep what they can make again."""
        if _is_below(path, self._pointed) or self.is_named(path):
            return False
        names = path.removeprefix(f"{self._cwd}/").split("/")
        return not self._cache_names.isdisjoint(names) or _is_below(path, self._caches)

    def is_named(self, path: str) -> bool:
        """Whether somebody said that a real path is an output."""
        matches = (fnmatch.fnmatchcase(path, each) or fnmatch.fnmatchcase(path, f"{each}/*") for each in self._patterns)
        return _is_below(path, self._named) or any(matches)

    def allows(self, path: str) -> bool:
        """Whether a real path is a place for outputs."""
        return _is_below(path, [self._cwd]) or _is_below(path, self._pointed) or self.is_named(path)


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in folders)


def outputs_of(command: Command, environ: Mapping[str, str], places: Places, value: Mapping[str, Any]) -> list[Output]:
    """The outputs of a stored result, by their paths here. Raises OSError for one that is in no place for outputs."""
    if not command.is_plain:
        return command.outputs
    allowed = OutputPlaces(command, environ)
    found = []
    replaces = command.adapter is not None and command.adapter.replaces
    for where, stored, keeps in zip(value["paths"], value["outputs"], value["kept"], strict=True):
        path = places.present(where)
        folder, name = os.path.split(path)
        real = os.path.join(os.path.realpath(folder), name)
        if name in {"", ".", ".."} or not allowed.allows(real) or allowed.is_cache(real):
            raise PermissionError(1, "the stored result has an output there, where the command may write none", path)
        if isinstance(stored, File):
            check_place(path, replaces=command.options.hardlink, keeps=keeps and not replaces)
        found.append(Output(path, "file" if keeps and not replaces else "new", path))
    return found
