"""What a path leads to, by what links, and what is in a folder: as far as a look can tell that opens nothing."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Sequence
from itertools import takewhile
from posix import access, lstat, readlink  # those of ``os`` may be others while a run is observed
from typing import Any

#: Links that are followed on one way, as by the kernel (path_resolution(7)).
_MOST_LINKS = 40


def current_folder() -> str:
    """The current folder; empty where it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def absolute(path: str) -> str:
    """``path`` from the root, shortened where that means the same file: ``os.path.abspath`` takes ``link/../x`` for
    ``x``, which is another place than beside what the link leads to.

    Raises OSError for a relative path where the current folder is gone.
    """
    whole = path if path.startswith("/") else os.path.join(os.getcwd(), path)
    if "/.." not in whole:
        return os.path.normpath(whole)
    prefix = ""
    for name in whole.split("/"):
        if name == ".." and (not prefix or _is_folder(prefix)):
            prefix = prefix.rpartition("/")[0]
        elif name not in {"", "."}:
            prefix = f"{prefix}/{name}"
    return prefix or "/"


def _is_folder(path: str) -> bool:
    """Whether it is one by itself, and not through a link."""
    try:
        return not path.endswith("/..") and stat.S_ISDIR(lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def relative_to(place: str, folder: str) -> str:
    """An absolute path from a folder without links, such as the current one; ``os.path.relpath`` shortens as above."""
    names, above = place.split("/"), folder.rstrip("/").split("/")
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(names, above, strict=False)))
    return "/".join([".."] * (len(above) - shared) + names[shared:]) or "."


def descriptor_path(fd: int) -> str | None:
    """Return the path of the file or folder of a descriptor; None if it is unknown."""
    try:
        path = readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return None
    return path if path.startswith("/") else None


def descriptors() -> frozenset[int]:
    """Return the descriptors of this process; none if they are unknown."""
    try:
        listed = os.listdir("/proc/self/fd")
    except OSError:
        return frozenset()
    return frozenset([each for each in map(int, listed) if _is_open(each)])  # not this look's own


def _is_open(fd: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_GETFD)
    except OSError:
        return False
    return True


def in_folder(path: Any, dir_fd: object) -> Any:
    """The path that a function of ``os`` means by one relative to a descriptor; as it is without one."""
    if not isinstance(dir_fd, int) or dir_fd < 0 or isinstance(path, int) or path is None:
        return path
    folder = descriptor_path(dir_fd)
    return path if folder is None else os.path.join(folder, os.fsdecode(path))


def links_on(path: str) -> tuple[tuple[str, str], ...]:
    """The symbolic links that are met on the way to ``path``, the last name among them: name and target of each. With
    equal ones a path leads to the same place, wherever the folder is that holds it all."""
    return _follow_links(path)[0]


def resolve_path(path: str, follow: Callable[[str], bool] | None = None) -> str:
    """Resolve as ``os.path.realpath`` does, without audit events. follow: decides for each link; None for all."""
    return _follow_links(path, follow)[1]


def _follow_links(path: str, follow: Callable[[str], bool] | None = None) -> tuple[tuple[tuple[str, str], ...], str]:
    links: list[tuple[str, str]] = []
    here, ahead = "/", absolute(path).split("/")[::-1]
    while ahead and len(links) < _MOST_LINKS:
        name = ahead.pop()
        if name in {"", "."}:
            continue
        if name == "..":
            here = os.path.dirname(here if follow is None else _follow_links(here)[1])
            continue
        if follow is not None and not follow(os.path.join(here, name)):
            here = os.path.join(here, name)
            continue
        try:
            target = readlink(os.path.join(here, name))
        except (OSError, ValueError):
            here = os.path.join(here, name)
        else:
            links.append((name, target))
            here = "/" if target.startswith("/") else here
            ahead += target.split("/")[::-1]
    return tuple(links), here


def access_letters(path: str) -> str:
    """What this user may do with it, as letters of ``rwx``; empty where nothing is there."""
    return "".join(letter for letter, bit in (("r", os.R_OK), ("w", os.W_OK), ("x", os.X_OK)) if access(path, bit))


def entries(folder: str | int) -> list[str]:
    """The names in a folder, by its path or an open descriptor, each with what it is: ``name/`` a folder, ``name/@`` a
    link, ``name/@/`` a link to a folder. Raises OSError."""
    with os.scandir(folder) as found:
        return [entry.name + _mark(entry) for entry in found]


def _mark(entry: os.DirEntry[str]) -> str:
    try:
        return ("/@" if entry.is_symlink() else "") + ("/" if entry.is_dir() else "")
    except OSError:  # a link into a folder that may not be entered
        return "/@"


def is_below(path: str, folders: Sequence[str]) -> bool:
    """Whether a path is one of these folders, or below one."""
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)
