"""What strace says of the same command: an independent account of lookups, to compare with."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from cachec.tracing.accesses import Accesses, Kind
from tests.strace import Calls, SystemCall, descriptor_path, string

#: All that the filter reports of files, and what is needed to follow the current folder.
_CALLS = "%file,?getdents64,fchdir,?clone,?clone3,?fork,?vfork,?inotify_add_watch,connect"

#: Calls that use one path, with its position, that of the descriptor (None: there is none), and the kind.
_LOOKUPS: dict[str, tuple[int | None, int, int]] = {
    **dict.fromkeys(("stat", "lstat", "statfs", "access", "readlink", "chdir"), (None, 0, Kind.STATUS)),
    **dict.fromkeys(("newfstatat", "statx", "faccessat", "faccessat2", "readlinkat"), (0, 1, Kind.STATUS)),
    "inotify_add_watch": (None, 1, Kind.STATUS),
    **dict.fromkeys(("getxattr", "lgetxattr", "listxattr", "llistxattr"), (None, 0, Kind.ATTRIBUTES)),
    "execve": (None, 0, Kind.CONTENT | Kind.EXECUTED),
}
_OPENS: dict[str, tuple[int | None, int]] = {"open": (None, 0), "openat": (0, 1), "openat2": (0, 1), "creat": (None, 0)}

#: Calls that make, remove or change a name: positions of descriptor and path, and whether they make it.
_CHANGES: dict[str, tuple[tuple[int | None, int, bool], ...]] = {
    **dict.fromkeys(("mkdir", "mknod"), ((None, 0, True),)),
    **dict.fromkeys(("mkdirat", "mknodat"), ((0, 1, True),)),
    "symlink": ((None, 1, True),),
    "symlinkat": ((1, 2, True),),
    **dict.fromkeys(("rename", "link"), ((None, 0, False), (None, 1, True))),
    **dict.fromkeys(("renameat", "renameat2", "linkat"), ((0, 1, False), (2, 3, True))),
    **dict.fromkeys(("unlink", "rmdir", "truncate", "chmod"), ((None, 0, False),)),
    **dict.fromkeys(("unlinkat", "fchmodat", "utimensat"), ((0, 1, False),)),
}


@dataclass
class Account:
    """Lookups as (absolute path, kind). required: an input each, unless the run made the path; allowed: may be one."""

    required: set[tuple[str, int]] = field(default_factory=set)
    allowed: set[tuple[str, int]] = field(default_factory=set)
    #: Paths that the run made, or took away.
    made: set[str] = field(default_factory=set)


def strace(
    command: Sequence[str],
    folder: Path,
    log: Path,
    before: Mapping[str, tuple[int, ...]],
    links: Mapping[str, str] = MappingProxyType({}),
) -> Account:
    """Run the command under strace. before: a snapshot of what was there. links: names of links in it, and texts.

    Links that the command makes itself are not followed.
    """
    line = ["strace", "-f", "-y", "-qq", "-s", "20000", "-e", f"trace={_CALLS}", "-o", str(log), *command]
    subprocess.run(
        line, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60
    )
    reader = _Reader(str(folder), before, links)
    with log.open(errors="surrogateescape") as lines:
        calls = Calls(lines)
        for call in calls:
            reader.take(call)
    assert not calls.strange, calls.first_strange
    return reader.account


class _Reader:
    def __init__(self, start: str, before: Mapping[str, tuple[int, ...]], links: Mapping[str, str]) -> None:
        self._links = links
        self.account = Account()
        self._start = start
        self._before = before
        self._folders: dict[int, str] = {}

    def take(self, call: SystemCall) -> None:
        if call.name in {"clone", "clone3", "fork", "vfork"}:
            if match := re.match(r"\d+", call.result):
                # A child of vfork(2) has already changed its folder when that call ends for the parent.
                self._folders.setdefault(int(match[0]), self._folder(call.pid))
        elif call.name == "fchdir":
            if not call.failed:
                self._folders[call.pid] = descriptor_path(call.arguments[0]) or ""
        elif call.name == "getdents64":
            path = descriptor_path(call.arguments[0])
            if path is not None:
                self._require(path, Kind.LISTING)
        elif call.name == "connect":
            if match := re.search(r'sun_path="([^"]*)"', ", ".join(call.arguments)):
                self._require(normal(os.path.join(self._folder(call.pid), match[1])), Kind.STATUS)
        elif call.name in _OPENS:
            self._open(call, *_OPENS[call.name])
        elif call.name in _LOOKUPS:
            descriptor, position, kind = _LOOKUPS[call.name]
            path = self._path(call, descriptor, position)
            if path is not None:
                is_folder = call.name == "execve" and self._is_folder(path)
                self._require(path, Kind.EXECUTED | Kind.STATUS if is_folder else kind)
                if call.name == "chdir" and not call.failed:
                    self._folders[call.pid] = os.path.realpath(path)
        elif call.name in _CHANGES:
            for descriptor, position, makes in _CHANGES[call.name]:
                self._change(call, self._path(call, descriptor, position), makes)

    def _folder(self, pid: int) -> str:
        return self._folders.get(pid, self._start)

    def _path(self, call: SystemCall, descriptor: int | None, position: int) -> str | None:
        path = string(call.arguments[position])
        if not path:
            return None
        folder: str | None = self._folder(call.pid)
        if descriptor is not None:
            given = descriptor_path(call.arguments[descriptor])
            if not call.arguments[descriptor].startswith("AT_FDCWD"):
                folder = given
            elif given:  # a child may be seen before the call that made it has returned
                folder = self._folders[call.pid] = given
        if folder is None and not path.startswith("/"):
            return None
        path = os.path.join(folder or "/", path)
        if path.startswith("/proc/self/cwd/"):
            path = os.path.join(self._folder(call.pid), path.removeprefix("/proc/self/cwd/").lstrip("/"))
        elif path.startswith(("/proc/self/", "/dev/fd/")):
            opened = descriptor_path(call.result) if "/fd/" in path else None
            if call.name.startswith("readlink") and call.result != call.arguments[position + 2]:  # the text is whole
                opened = string(call.arguments[position + 1])
            if opened is None or not opened.startswith("/"):
                return None
            path = opened
        return normal(path)

    def _open(self, call: SystemCall, descriptor: int | None, position: int) -> None:
        path = self._path(call, descriptor, position)
        if path is None:
            return
        flags = " ".join(call.arguments[position + 1 :]) + ("O_CREAT|O_TRUNC|O_WRONLY" if call.name == "creat" else "")
        if "O_PATH" in flags:
            self._require(path, Kind.STATUS)
        elif re.search("O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", flags):
            self._allow(path, Kind.STATUS, Kind.CONTENT)
            real = self._resolve(path, follow=True)
            if not call.failed and ("O_TRUNC" in flags or real not in self._before):
                self.account.made |= {path, real}
        else:
            opened = descriptor_path(call.result)
            is_folder = "O_DIRECTORY" in flags or (opened is not None and self._is_folder(opened))
            self._require(path, Kind.STATUS if is_folder else Kind.CONTENT)

    def _is_folder(self, path: str) -> bool:
        """Before the run, for what was there then."""
        path = self._resolve(path, follow=True)
        if path in self._before:
            return stat.S_ISDIR(self._before[path][1])
        return not path.startswith(f"{self._start}/") and os.path.isdir(path)

    def _change(self, call: SystemCall, path: str | None, makes: bool) -> None:
        if path is None:
            return
        self._allow(path, Kind.STATUS, Kind.CONTENT, Kind.LISTING)
        for place in (path, self._resolve(path, follow=True)):  # the folder decides where that is
            self._allow(os.path.dirname(place), Kind.STATUS)
            self._allow(place, Kind.LISTING)
        if not call.failed and (makes or call.name.startswith(("unlink", "rename", "rmdir"))):
            self.account.made |= {path, self._resolve(path, follow=False)}

    def _resolve(self, path: str, *, follow: bool) -> str:
        """Where a path leads by the links that were there, unless the run has changed them."""
        for link, target in self._links.items():
            at = f"{self._start}/{link}"
            if at not in self.account.made and ((path == at and follow) or path.startswith(at + "/")):
                return f"{self._start}/{target}" + path.removeprefix(at)
        return path

    def _require(self, path: str, kind: int) -> None:
        texts = (path, self._resolve(path, follow=True))
        if any(text == made or text.startswith(made + "/") for made in self.account.made for text in texts):
            self._allow(path, kind)
            return
        self.account.required.update((path, each) for each in _bits(kind))

    def _allow(self, path: str, *kinds: int) -> None:
        self.account.allowed.update((path, each) for kind in kinds for each in _bits(kind))


def _bits(kinds: int) -> list[int]:
    return [bit for bit in (1 << number for number in range(kinds.bit_length())) if kinds & bit]


def normal(path: str) -> str:
    """The path as text, without what does not change where it leads if there are no links."""
    return "/" + os.path.normpath(path).lstrip("/")


def inputs(accesses: Accesses) -> set[tuple[str, int]]:
    """The inputs of a traced run, as strace's account has them."""
    return {
        (normal(os.path.join(each.folder, each.path)), kind) for each in accesses.inputs for kind in _bits(each.kinds)
    }


def snapshot(folder: Path) -> dict[str, tuple[int, ...]]:
    """What is in a folder: an independent account of changes, by what matters of each path."""
    found = {}
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(parent, name)
            status = os.lstat(path)
            is_folder = name in folders and not os.path.islink(path)
            times = () if is_folder else (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            found[path] = (status.st_ino, status.st_mode, *times)
    return found
