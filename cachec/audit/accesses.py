"""What a command did to files, out of its system calls."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from cachec.audit.strace import SystemCall, descriptor_path, string

_OPENS = frozenset({"open", "openat", "openat2", "creat"})
_LOOKS = frozenset(
    {"stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "readlink", "readlinkat"}
)
_MAKES = frozenset({"mkdir", "mkdirat", "mknod", "mknodat", "truncate"})
_REMOVES = frozenset({"rmdir", "unlink", "unlinkat"})
_ONE_PATH = _OPENS | _LOOKS | _MAKES | _REMOVES | {"execve", "execveat", "chdir"}

#: Calls whose path begins at a folder: a descriptor, which is the argument in front of it.
_AT_FOLDER = re.compile(r"statx|newfstatat|(?:open|execve|faccess|readlink|mkdir|mknod|unlink)at2?")

#: Calls with two paths, (descriptor of a folder or None, path) each: the one that goes or is meant, and the one that is
#: made.
_PAIRS: dict[str, tuple[tuple[int | None, int], tuple[int | None, int]]] = {
    **dict.fromkeys(("rename", "link", "symlink"), ((None, 0), (None, 1))),
    **dict.fromkeys(("renameat", "renameat2", "linkat"), ((0, 1), (2, 3))),
    "symlinkat": ((None, 0), (1, 2)),
}

_STARTS = frozenset({"clone", "clone3", "fork", "vfork"})
_MISSING = frozenset({"ENOENT", "ENOTDIR"})
_CHANGES = re.compile(r"O_WRONLY|O_RDWR|O_TRUNC|O_CREAT")


@dataclass
class Accesses:
    """Absolute paths, each once, in the order of their first use; as they were asked for.

    read: files that were opened for reading, and not made by the command itself before. executed: programs that were
    started. listed: folders whose names were read. missed: what was looked for and not there. written: files and
    folders that were made or changed and not removed again. removed: what was there before and is not any more.
    servers: addresses that were connected to. is_hidden: it may have done more by io_uring, which strace does not see.
    """

    read: dict[str, None] = field(default_factory=dict)
    executed: dict[str, None] = field(default_factory=dict)
    listed: dict[str, None] = field(default_factory=dict)
    missed: dict[str, None] = field(default_factory=dict)
    written: dict[str, None] = field(default_factory=dict)
    removed: dict[str, None] = field(default_factory=dict)
    servers: dict[str, None] = field(default_factory=dict)
    is_hidden: bool = False


def accesses(calls: Iterable[SystemCall], cwd: str) -> Accesses:
    """What the calls of a command that was started in ``cwd`` amount to."""
    folder = _Folder(cwd)
    for call in calls:
        folder.take(call)
    return folder.accesses


class _Folder:
    """Folds calls, one by one. cwd: where relative paths start, a process."""

    def __init__(self, cwd: str) -> None:
        self.accesses = Accesses()
        self._start = cwd
        self._cwd: dict[int, str] = {}
        self._made: set[str] = set()

    def take(self, call: SystemCall) -> None:
        name = call.name
        if name in _STARTS:
            child = re.match(r"(\d+)", call.result)
            if child is not None:
                self._cwd[int(child[1])] = self._where(call.pid)
        elif name == "fchdir" and not call.failed:
            self._cwd[call.pid] = descriptor_path(call.arguments[0]) or self._where(call.pid)
        elif name in {"getdents64", "getdents"}:
            path = descriptor_path(call.arguments[0])
            if path is not None and path not in self._made:
                self.accesses.listed.setdefault(path)
        elif name == "connect":
            self._connect(call)
        elif name == "io_uring_setup":
            self.accesses.is_hidden = self.accesses.is_hidden or not call.failed
        elif name in _PAIRS:
            self._pair(call)
        elif name in _ONE_PATH:
            path = self._path(call, *((0, 1) if _AT_FOLDER.fullmatch(name) else (None, 0)))
            if path is not None:
                self._one(call, path)

    def _where(self, pid: int) -> str:
        return self._cwd.get(pid, self._start)

    def _path(self, call: SystemCall, base: int | None, at: int) -> str | None:
        if at >= len(call.arguments):
            return None
        path = string(call.arguments[at])
        if not path:
            return None  # a descriptor alone (AT_EMPTY_PATH)
        if base is None:
            return os.path.normpath(os.path.join(self._where(call.pid), path))
        folder = descriptor_path(call.arguments[base])
        if call.arguments[base].startswith("AT_FDCWD"):
            folder = folder or self._where(call.pid)
            self._cwd[call.pid] = folder
        if folder is None and not path.startswith("/"):
            return None  # relative to a folder that is gone
        return os.path.normpath(os.path.join(folder or "/", path))

    def _one(self, call: SystemCall, path: str) -> None:
        seen, name = self.accesses, call.name
        if call.failed:
            is_search = name in _OPENS or name in _LOOKS or name == "execve"
            if is_search and call.failed in _MISSING and path not in self._made and path not in seen.removed:
                seen.missed.setdefault(path)
            return
        if name == "chdir":
            self._cwd[call.pid] = path
        elif name.startswith("execve"):
            seen.executed.setdefault(path)
        elif name in _OPENS:
            self._open(call, path)
        elif name in _MAKES:
            self._write(path)
        elif name in _REMOVES:
            self._remove(path)

    def _open(self, call: SystemCall, path: str) -> None:
        flags = " ".join(call.arguments[1:])
        if "O_TMPFILE" in flags or "O_PATH" in flags:
            return
        if call.name == "creat" or _CHANGES.search(flags):
            is_new = call.name == "creat" or "O_TRUNC" in flags or "O_EXCL" in flags or path in self.accesses.missed
            if "O_RDWR" in flags and not is_new and path not in self._made:
                self.accesses.read.setdefault(path)
            self._write(path)
        elif "O_DIRECTORY" not in flags and path not in self._made:
            opened = descriptor_path(call.result)
            if opened is None or not os.path.isdir(opened):
                self.accesses.read.setdefault(path)

    def _write(self, path: str) -> None:
        self._made.add(path)
        self.accesses.missed.pop(path, None)
        self.accesses.removed.pop(path, None)  # it was replaced
        self.accesses.written.setdefault(path)

    def _remove(self, path: str) -> None:
        was_made = self.accesses.written.pop(path, self) is None
        if not was_made and path not in self._made:
            self.accesses.removed.setdefault(path)

    def _pair(self, call: SystemCall) -> None:
        if call.failed:
            return
        old, new = _PAIRS[call.name]
        made = self._path(call, *new)
        gone = self._path(call, *old)
        if call.name.startswith("rename") and gone is not None:
            self._remove(gone)
        elif call.name.startswith("link") and gone is not None and gone not in self._made:
            self.accesses.read.setdefault(gone)
        if made is not None:
            self._write(made)

    def _connect(self, call: SystemCall) -> None:
        text = ", ".join(call.arguments)
        if call.failed not in {"", "EINPROGRESS"}:
            return
        place = re.search(r'sun_path=@?"([^"]*)"', text)
        address = re.search(r'inet_(?:addr\(|pton\(AF_INET6, )"([^"]*)"', text)
        port = re.search(r"port=htons\((\d+)\)", text)
        if place is not None:
            self.accesses.servers.setdefault(place[1])
        elif address is not None and port is not None:
            self.accesses.servers.setdefault(f"{address[1]}:{port[1]}")
