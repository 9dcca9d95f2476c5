"""Which files are the project's: those that no installation has put where they are."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterator


class Installed:
    """The folders of what is installed: Python's own library, packages, and cachec itself.

    A path is told by its text, and by where it leads: an environment may be a link.
    """

    def __init__(self) -> None:
        places = {place for folder in _folders() for place in (folder, os.path.realpath(folder))}
        self._prefixes = tuple(sorted(os.path.join(place, "") for place in places if len(place) > 1))
        library = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
        self._library = tuple(os.path.join(place, "") for path in library for place in {path, os.path.realpath(path)})

    def holds(self, path: str) -> bool:
        """Whether an absolute path is one of these folders, or below one."""
        return os.path.join(path, "").startswith(self._prefixes) or "/site-packages/" in path

    def is_library(self, path: str) -> bool:
        """Whether it is of Python's own library, and no package."""
        return path.startswith(self._library) and not path.startswith(self.packages())

    def is_project(self, path: str) -> bool:
        """Whether the file of a module is the project's."""
        return path.startswith("/") and not self.holds(path)

    @staticmethod
    def packages() -> tuple[str, ...]:
        """The folders that packages are installed in, each with a slash at its end."""
        names = {sysconfig.get_path(name) for name in ("purelib", "platlib")} | set(site.getsitepackages())
        return tuple(os.path.join(each, "") for name in names for each in {name, os.path.realpath(name)})


def _folders() -> Iterator[str]:
    for name in ("stdlib", "platstdlib", "purelib", "platlib"):
        yield sysconfig.get_path(name)
    yield from site.getsitepackages()
    yield site.getusersitepackages()
    yield from (path for path in sys.path if os.path.basename(path) in {"site-packages", "dist-packages"})
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    yield here
    if os.path.isdir(plugins := os.path.join(os.path.dirname(here), "plugins")):
        yield from (each.path for each in os.scandir(plugins) if each.name.startswith("cachec_"))
