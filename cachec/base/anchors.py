"""Paths that mean the same place on two machines: kept from a named folder, resolved by whoever looks.

A path below an anchor is kept as ``project:src/table.json``; every other as it is, absolute. A relative path stands for
what is there in the current folder of each look, and stays relative.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import lru_cache

#: What makes a folder a project's: the nearest one above a source file that has one of these.
PROJECT_MARKS = ("cachec.toml", "pyproject.toml", ".git")

_NAMES = ("base_dir", "project", "prefix", "home")


def project_folder(path: str) -> str | None:
    """The folder of the project that the file ``path`` belongs to; None where no folder above it is marked as one."""
    folder = os.path.dirname(os.path.abspath(path))
    while True:
        if any(os.path.lexists(os.path.join(folder, mark)) for mark in PROJECT_MARKS):
            return folder
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above


class Anchors:
    """The anchors of one look: which folder each name stands for here. Immutable.

    folders: name -> absolute folder. Of two that hold a path the deeper one is kept; of two that are one folder, the
    first in the order ``base_dir``, ``project``, ``prefix``, ``home``.
    """

    __slots__ = ("_folders", "_order")

    def __init__(self, folders: Mapping[str, str | None]) -> None:
        unknown = folders.keys() - set(_NAMES)
        if unknown:
            raise ValueError(f"anchor {min(unknown)!r} is none of {', '.join(_NAMES)}")
        self._folders = {name: os.path.join(folder, "") for name in _NAMES if (folder := folders.get(name))}
        self._order = sorted(self._folders.items(), key=lambda item: -len(item[1]))

    def keep(self, path: str) -> str:
        """How ``path`` is kept. A relative path that looks like an anchored one is kept behind ``./``."""
        if not path.startswith("/"):
            return os.path.join(".", path) if path.partition(":")[0] in _NAMES else path
        for name, folder in self._order:
            if path.startswith(folder):
                return f"{name}:{path[len(folder) :]}"
        return path

    def resolve(self, kept: str) -> str | None:
        """The path that a kept one stands for here; None where its anchor is no folder here."""
        name, colon, rest = kept.partition(":")
        if not colon or name not in _NAMES:
            return kept
        folder = self._folders.get(name)
        return None if folder is None else folder + rest


@lru_cache(maxsize=256)
def anchors_of(source: str, base_dir: str | None, home: str | None) -> Anchors:
    """The anchors of a stage whose source file is ``source`` (``<...>`` where it was typed in).

    base_dir: the setting. home: ``$HOME``.
    """
    typed = source.startswith("<")
    project = project_folder(os.path.join(os.getcwd(), "typed") if typed else source)
    return Anchors({"base_dir": base_dir, "project": project, "prefix": sys.prefix, "home": home or None})
