"""Which lookups of a run in a process of its own are inputs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from cachec.base import xdg
from cachec.base.distributions import Distributions
from cachec.base.installed_folders import InstalledFolders
from cachec.base.paths import is_below
from cachec.tracing.accesses import Effect, Kind, TracedInput
from cachec.worker.messages import StageDone

_READ = Kind.CONTENT | Kind.EXECUTED

#: Files by which Python starts. Which Python that is, the platform's part of the key says.
_INTERPRETER = frozenset(
    {
        *(sys.executable, os.path.realpath(sys.executable)),
        *(os.path.join(folder, "pyvenv.cfg") for folder in (sys.prefix, os.path.dirname(sys.executable))),
        "/etc/ld.so.cache",
    }
)


class InputFilter:
    """Says which lookups of a run are no inputs, or count in another way. owners: the distributions of files that it
    opened."""

    def __init__(
        self, done: StageDone, paths: Sequence[str], installed: InstalledFolders, is_cache: Callable[[str], bool]
    ) -> None:
        """paths: of the arguments. is_cache: whether a path is of this cache."""
        self.owners: set[str] = set()
        self._made_up = done.temporary
        self._installed = installed
        self._distributions = Distributions()
        self._folders: dict[str, str | None] = {}
        self._is_cache = is_cache
        self._given = frozenset(paths)
        self._below = tuple(os.path.join(path, "") for path in paths if os.path.isdir(path))
        self._above = _folders_above([os.getcwd(), os.path.expanduser("~"), *sys.path, *_temporary()])
        self._temporary = frozenset(map(os.path.realpath, _temporary()))
        for path in done.packages:
            owner = self._distributions.owner(path)
            if owner is not None:
                self.owners.add(owner.name)

    def __call__(self, full: str, each: TracedInput) -> bool:
        path = os.path.normpath(full) if "/." in full or "//" in full else full
        if self._installed.holds(path):
            return self._is_installed(path, each)
        if path in _INTERPRETER or self._is_cache(path) or path in self._given or path.startswith(self._below):
            return True
        if each.target in self._above and not each.kinds & ~Kind.STATUS and each.names is None:
            return True
        if is_below(path, self._made_up):
            return True
        if each.effect & Effect.CREATED and each.effect & Effect.REMOVED:
            return os.path.dirname(os.path.realpath(path)) in self._temporary  # a name that was made up
        return False

    def _is_installed(self, path: str, each: TracedInput) -> bool:
        """Python's own library counts with the platform; a package counts as a whole, by its RECORD."""
        if each.state is None or not each.kinds & _READ or self._installed.is_library(path):
            return True
        folder = os.path.dirname(path)
        if folder not in self._folders:
            owner = self._distributions.owner(path)
            self._folders[folder] = None if owner is None else owner.name
        name = self._folders[folder]
        if name is None:
            owner = self._distributions.owner(path)
            name = None if owner is None else owner.name
        if name is not None:
            self.owners.add(name)
        return name is not None


def home_caches() -> list[str]:
    """The folders where programs save time, but for those that the project is in."""
    here = os.path.realpath(os.getcwd())
    return [each for each in map(os.path.realpath, xdg.home_caches(os.environ)) if not is_below(here, [each])]


def _temporary() -> list[str]:
    given = [os.environ.get(name, "") for name in ("TMPDIR", "TMP", "TEMP")]
    return ["/tmp", "/var/tmp", "/dev/shm", *(path for path in given if path.startswith("/"))]


def _folders_above(paths: list[str]) -> frozenset[str]:
    """These folders and all above them, by their real paths."""
    found = {"/"}
    for path in map(os.path.realpath, paths):
        while path not in found:
            found.add(path)
            path = os.path.dirname(path)
    return frozenset(found)
