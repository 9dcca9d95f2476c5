"""Which files are the project's: those that no installation has put where they are."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator


class InstalledFolders:
    """The folders of what is installed: Python's own library, packages, and cachec itself.

    A path counts by its text and by its real path, because an environment may be a link.
    """

    def __init__(self) -> None:
        self._packages = _prefixes(_packages())
        self._library = _prefixes([*_library(), *_own()])
        self._projects: dict[str, bool] = {}

    def holds(self, path: str) -> bool:
        """Whether an absolute path is one of these folders, or below one."""
        return os.path.join(path, "").startswith((*self._packages, *self._library)) or "/site-packages/" in path

    def is_library(self, path: str) -> bool:
        """Whether it is of Python's own library or of cachec, and in no package."""
        return path.startswith(self._library) and not path.startswith(self._packages)

    def is_package(self, path: str) -> bool:
        """Whether it is of an installed package."""
        return path.startswith(self._packages)

    def is_project(self, path: str) -> bool:
        """Whether the file of a module is the project's. Remembered: each run asks of all modules."""
        known = self._projects.get(path)
        if known is None:
            known = self._projects[path] = path.startswith("/") and not self.holds(path)
        return known


def _packages() -> Iterator[str]:
    yield from map(sysconfig.get_path, ("purelib", "platlib"))
    yield from site.getsitepackages()
    yield site.getusersitepackages()
    yield from (path for path in sys.path if os.path.basename(path) in {"site-packages", "dist-packages"})


def _library() -> Iterator[str]:
    yield from map(sysconfig.get_path, ("stdlib", "platstdlib"))
    # https://docs.python.org/3/library/sys_path_init.html: it is on the path where there is no such file, too
    yield os.path.join(sys.base_prefix, sys.platlibdir, f"python{sys.version_info.major}{sys.version_info.minor}.zip")


def _own() -> Iterator[str]:
    """The packages of cachec, which may run from a checkout."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    yield here
    plugins = os.path.join(os.path.dirname(here), "plugins")
    if os.path.isdir(plugins):
        yield from (each.path for each in os.scandir(plugins) if each.name.startswith("cachec_"))


def _prefixes(folders: Iterable[str]) -> tuple[str, ...]:
    places = {place for folder in folders for place in (folder, os.path.realpath(folder))}
    return tuple(sorted(os.path.join(place, "") for place in places if len(place) > 1))
