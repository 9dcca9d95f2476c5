"""Whose the store is, and who can write it."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator, Sequence
from functools import partial

from cachec.base import file_ownership, fsio
from cachec.base.display_text import number_of
from cachec.doctor.case import Case, Finding
from cachec.model import Mode
from cachec.store import sharing
from cachec.store.store import PARTS

#: Folders whose inner ones are looked at too, and files that are written in place.
_SHARDED, _WRITTEN = ("objects", "locks", "direct", "weights", "remote"), ("index", "log")

#: Paths that the plan of a repair names.
_SHOWN = 4

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def rights(case: Case) -> Iterator[Finding]:
    """Owner, modes, links, and whether this user can write."""
    folder = os.fspath(case.folder)
    if not case.folder.is_dir():
        if not os.access(case.place, os.W_OK | os.X_OK, effective_ids=True):
            yield Finding("place", f"{folder} can't be made: this user can't write {case.place}", _ANOTHER)
        return
    for path, status in _inside(folder):
        if os.path.dirname(path) == folder and not stat.S_ISDIR(status.st_mode):
            yield Finding(
                "part",
                f"{path} is no folder, or a link to one: the store is refused",
                f"remove it: rm {shlex.quote(path)}",
            )
    yield from _of_group(case, folder) if case.is_shared else _of_one_user(case, folder)
    if _is_read_only(case) and case.settings.mode not in {Mode.READ_ONLY, Mode.REQUIRE, Mode.OFF}:
        yield Finding(
            "read-only",
            f"{folder} is on a file system that is mounted read-only: what is made is not kept",
            "set CACHEC_MODE=read-only where that is meant, or CACHEC_DIR to another folder",
        )


_ANOTHER = "set CACHEC_DIR to a folder that this user can write"


def _of_one_user(case: Case, folder: str) -> Iterator[Finding]:
    """What is wrong with the rights of a store that is no group's."""
    above = file_ownership.why_distrusted(folder)
    if above and not above.startswith(f"{folder} "):
        yield Finding(
            "folder-above",
            f"{above}, and can replace what lies below: the store is refused",
            "chmod go-w that folder, or set CACHEC_DIR to one in a folder that only you can write",
        )
    foreign_ones, open_ones = [], []
    for path, status in _parts_inside(folder):
        why = file_ownership.why_foreign(status)
        if not why:
            if not _is_writable(case, path):
                foreign_ones.append((path, "can't be written by this user"))
        elif status.st_uid != os.geteuid():
            foreign_ones.append((path, why))
        else:
            open_ones.append((path, why))
    if foreign_ones:
        yield Finding(
            "owner",
            f"{_describe_paths(foreign_ones)}: what is there is refused, or can't be changed",
            f'sudo chown -R "$(id -un)" {shlex.quote(folder)}, and chmod u+w what is not writable',
        )
    if open_ones:
        paths = [path for path, _ in open_ones]
        # Who relies on writing here has written: then it is not for this user alone to take that away.
        is_own = not foreign_ones and _has_one_owner(folder)
        yield Finding(
            "mode",
            f"{_describe_paths(open_ones)}, so others decide what a hit is: the store is refused",
            f"chmod go-w {shlex.join(paths)}",
            partial(_close, paths) if is_own else None,
            f"take the right to write from group and others: {_first_paths(paths)}",
        )


def _of_group(case: Case, folder: str) -> Iterator[Finding]:
    """What is wrong with the rights of a store that a group shares. Nothing is taken from the group."""
    status = os.stat(folder)
    group, is_open = status.st_gid, fsio.is_shared(status)
    if case.refusal:
        agreed = sharing.agreed_group(folder)
        fix = "agree once: CACHEC_SHARED=trusted cachec doctor; or use a store of your own: set CACHEC_DIR"
        if agreed is not None:
            fix = "take the right to write from them (chmod o-w, chown), or use a store of your own: set CACHEC_DIR"
        yield Finding("shared", f"this shared store is refused: {case.refusal}", fix)
        return
    if is_open and not _is_read_only(case) and (later := case.store.why_refused("auto")):
        yield from _without_the_setting(folder, later)
    if not is_open:
        if sharing.is_recorded(folder):
            yield Finding(
                "sharing",
                f"{folder} says in its folder shared that it is shared with the group {group}, which can't write it",
                f"chmod g+w {shlex.quote(folder)} where it is to be shared, else chmod g-s {shlex.quote(folder)}",
            )
            return
        group = -1  # the setting alone says that it is shared: which group is not known
    closed, foreign_ones = [], []
    for path, status in _parts_inside(folder):
        if group >= 0 and not _is_of_group(status, group):
            closed.append((path, status))
        elif not _is_writable(case, path):
            foreign_ones.append((path, "can't be written by this user"))
    if closed:
        own = [path for path, status in closed if status.st_uid == os.geteuid()]
        others = sorted({status.st_uid for _, status in closed} - {os.geteuid()})
        who = f"users {', '.join(map(str, others))} own some of them, and " if others else ""
        yield Finding(
            "sharing",
            f"{number_of(len(closed), 'path')} of this shared store can't be written by "
            f"its group {group}, {closed[0][0]} for one",
            f"{who}each owner runs it: chgrp -R {group} {shlex.quote(folder)}, chmod g+ws folders, g+w files",
            partial(_open, own, group) if own else None,
            f"give group {group} the right to write: {_first_paths(own)}",
        )
    if foreign_ones:
        yield Finding(
            "owner",
            f"{_describe_paths(foreign_ones)}: what is there can't be changed",
            "have its owner give the group the right to write (chmod g+w)",
        )


def _without_the_setting(folder: str, why: str) -> Iterator[Finding]:
    """What makes a command without ``CACHEC_SHARED=trusted`` refuse the store, though this one could record it."""
    place = os.path.join(folder, sharing.FOLDER, str(os.geteuid()))
    if sharing.agreed_group(folder) is not None:
        fix = "take the right to write from them (chmod o-w, chown), or use a store of your own: set CACHEC_DIR"
    elif os.path.lexists(place):
        fix = f"have whoever made {place} remove it: rm -r {shlex.quote(place)}; then run this again"
    else:
        fix = f"make {os.path.dirname(place)} a folder that the group can write, then run this again"
    yield Finding("shared", f"only CACHEC_SHARED=trusted opens this shared store: else {why}", fix)


def _parts_inside(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """As ``_inside``, without what is no folder where one has to be."""
    for path, status in _inside(folder):
        if os.path.dirname(path) != folder or stat.S_ISDIR(status.st_mode):
            yield path, status


def _is_writable(case: Case, path: str) -> bool:
    return _is_read_only(case) or os.access(path, os.W_OK, effective_ids=True)


def _is_of_group(status: os.stat_result, group: int) -> bool:
    """Whether a group can write a file, or a folder of which what is made there stays the group's."""
    if not stat.S_ISDIR(status.st_mode):
        return status.st_gid == group and bool(status.st_mode & stat.S_IWGRP)
    return status.st_gid == group and fsio.is_shared(status)


def _has_one_owner(folder: str) -> bool:
    """Whether everything in a store is this user's, or root's."""
    users = {0, os.geteuid()}
    for place, _, files in os.walk(folder):
        if any(os.lstat(os.path.join(place, name)).st_uid not in users for name in (".", *files)):
            return False
    return True


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


def _describe_paths(found: list[tuple[str, str]]) -> str:
    path, why = found[0]
    more = "" if len(found) == 1 else f" (and {len(found) - 1} more files and folders like it)"
    return f"{path} {why}{more}"


def _first_paths(paths: Sequence[str]) -> str:
    """The first paths of many."""
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(paths[:_SHOWN]) + more


def _open(paths: Sequence[str], group: int) -> None:
    """Give a group the right to write."""
    for fd in _open_each(paths):
        status = os.fstat(fd)
        if status.st_gid != group:
            os.fchown(fd, -1, group)
        os.fchmod(fd, 0o2770 if stat.S_ISDIR(status.st_mode) else 0o660)


def _close(paths: Sequence[str]) -> None:
    """Take the right to write from all but the owner."""
    for fd in _open_each(paths):
        os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) & ~_OTHERS)


def _open_each(paths: Sequence[str]) -> Iterator[int]:
    """A descriptor of each file and folder; files of SQLite's come and go."""
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        with fsio.closing(fd):
            yield fd
