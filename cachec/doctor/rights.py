"""Whose the store is, and who can write it."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator, Sequence
from functools import partial

from cachec.base import foreign, fsio
from cachec.doctor.case import Case, Finding
from cachec.model import Mode
from cachec.store.store import PARTS

#: Folders whose inner ones are looked at too, and files that are written in place.
_SHARDED, _WRITTEN = ("objects", "locks", "direct"), ("index", "log")

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def rights(case: Case) -> Iterator[Finding]:
    """Owner, modes, links, and whether this user can write."""
    folder = os.fspath(case.folder)
    if not case.folder.is_dir():
        if not os.access(case.place, os.W_OK | os.X_OK, effective_ids=True):
            yield Finding("place", f"{folder} can't be made: this user can't write {case.place}", _ANOTHER)
        return
    if not case.is_shared:
        above = foreign.why_distrusted(folder)
        if above and not above.startswith(f"{folder} "):
            yield Finding(
                "folder-above",
                f"{above}, and can replace what lies below: the store is refused",
                "chmod go-w that folder, or set CACHEC_DIR to one in a folder that only you can write",
            )
    foreign_ones, open_ones = [], []
    for path, status in _inside(folder):
        if os.path.dirname(path) == folder and not stat.S_ISDIR(status.st_mode):
            yield Finding(
                "part",
                f"{path} is no folder, or a link to one: the store is refused",
                f"remove it: rm {shlex.quote(path)}",
            )
        elif case.is_shared or not (why := foreign.why_foreign(status)):
            if not os.access(path, os.W_OK, effective_ids=True) and not _is_read_only(case):
                foreign_ones.append((path, "can't be written by this user"))
        elif status.st_uid != os.geteuid():
            foreign_ones.append((path, why))
        else:
            open_ones.append((path, why))
    if foreign_ones:
        yield Finding(
            "owner",
            f"{_told(foreign_ones)}: what is there is refused, or can't be changed",
            f'sudo chown -R "$(id -un)" {shlex.quote(folder)}, and chmod u+w what is not writable',
        )
    if open_ones:
        yield Finding(
            "mode",
            f"{_told(open_ones)}, so others decide what a hit is: the store is refused",
            f"chmod go-w {shlex.join(path for path, _ in open_ones)}",
            partial(_close, [path for path, _ in open_ones]),
        )
    if _is_read_only(case) and case.settings.mode not in {Mode.READ_ONLY, Mode.REQUIRE, Mode.OFF}:
        yield Finding(
            "read-only",
            f"{folder} is on a file system that is mounted read-only: what is made is not kept",
            "set CACHEC_MODE=read-only where that is meant, or CACHEC_DIR to another folder",
        )


_ANOTHER = "set CACHEC_DIR to a folder that this user can write"


def _inside(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """The store, its parts, and what is in them as far as that is made or written in place."""
    yield folder, os.lstat(folder)
    for name in PARTS:
        part = os.path.join(folder, name)
        try:
            status = os.lstat(part)
        except FileNotFoundError:
            continue
        yield part, status
        if stat.S_ISDIR(status.st_mode) and name in (*_SHARDED, *_WRITTEN):
            with os.scandir(part) as entries:
                yield from (
                    (entry.path, entry.stat(follow_symlinks=False))
                    for entry in entries
                    if entry.is_dir(follow_symlinks=False) == (name in _SHARDED)
                )


def _is_read_only(case: Case) -> bool:
    return bool(case.space(case.folder).f_flag & os.ST_RDONLY)


def _told(found: list[tuple[str, str]]) -> str:
    path, why = found[0]
    more = "" if len(found) == 1 else f" (and {len(found) - 1} more files and folders like it)"
    return f"{path} {why}{more}"


def _close(paths: Sequence[str]) -> None:
    """Take the right to write from all but the owner."""
    for path in paths:
        with fsio.closing(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as fd:
            os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) & ~_OTHERS)
