"""Anchored paths, which mean the same place on two machines: stored relative to a named folder, and resolved on use.

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

#: The anchor of the folder of the stage's project.
PROJECT = "project"
_NAMES = ("base_dir", PROJECT, "prefix", "home")
#: Anchors of one call, each with its owner: a path argument, by number, or a module outside of the project.
ARGUMENT, MODULE = _MOVING = ("argument ", "module ")


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
    """The anchors of one lookup: name -> folder on this machine. Immutable.

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
        """Return the stored form of ``path``. A relative path that looks like an anchored one gets a ``./``."""
        if not path.startswith("/"):
            return os.path.join(".", path) if is_anchored(path) else path
        for name, folder in self._order:
            if os.path.join(path, "").startswith(folder):
                return anchored_path(name, folder, path)
        return path

    def folder(self, name: str) -> str | None:
        """The folder of an anchor here, without a slash at its end; None where it is no folder here."""
        folder = self._folders.get(name)
        return None if folder is None else folder[:-1] or folder

    def hold(self, folder: str) -> bool:
        """Whether ``folder`` is an anchor's, or one above."""
        return any(each.startswith(os.path.join(folder, "")) for each in self._folders.values())

    def folders(self) -> list[str]:
        """The folders themselves, the deepest ones first."""
        return [folder.rstrip("/") or "/" for _, folder in self._order]

    def resolve(self, anchored: str) -> str | None:
        """Return the path of a stored one on this machine; None if its anchor is no folder here."""
        name, colon, rest = anchored.partition(":")
        if not colon or name not in _NAMES:
            return anchored
        folder = self._folders.get(name)
        return None if folder is None else os.path.join(folder, rest) if rest else folder[:-1] or folder


def is_anchored(anchored: str) -> bool:
    """Whether a stored path starts with an anchor: a named folder, an argument's (``argument 0:``), a module's."""
    name, colon, _ = anchored.partition(":")
    return bool(colon) and (name in _NAMES or name.startswith(_MOVING))


def anchored_path(name: str, folder: str, path: str) -> str:
    """Return the stored form of a path in an anchor's folder, or of the folder itself."""
    return f"{name}:{path[len(os.path.join(folder, '')) :]}"


@lru_cache(maxsize=256)
def anchors_of(source: str, base_dir: str | None, home: str | None) -> Anchors:
    """The anchors of a stage whose source is the file ``source``, or that was typed in the folder where it would be.

    base_dir: the setting. home: ``$HOME``, which counts where it is an absolute path.
    """
    own = home if home is not None and home.startswith("/") else None
    return Anchors({"base_dir": base_dir, "project": project_of(source), "prefix": sys.prefix, "home": own})


def project_of(source: str) -> str:
    """The folder that moves as one with a source file: its project's, or else the one that its package is in."""
    if (found := project_folder(source)) is not None:
        return found
    folder = os.path.dirname(os.path.abspath(source))
    while os.path.lexists(os.path.join(folder, "__init__.py")):
        folder = os.path.dirname(folder)
    return folder
