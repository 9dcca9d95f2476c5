"""What starting a command runs: which files and distributions, found without running anything."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import NamedTuple

from cachec.base import fsio
from cachec.base.distributions import Distribution, Distributions
from cachec.base.elf import ElfError, is_elf
from cachec.base.fsio import Identity
from cachec.base.paths import current_folder
from cachec.errors import UsageError
from cachec.key.tools.elf_dependencies import Loader

#: The kernel follows this many interpreters of interpreters (fs/exec.c).
_MAX_DEPTH = 4

#: Bytes of a script in which the first two lines are looked for (the kernel reads 256).
_HEAD = 4096


class Executable(NamedTuple):
    """Everything that starting a command loads."""

    name: str
    path: str
    #: (label without folders, path), in order of label.
    files: tuple[tuple[str, str], ...]
    #: (console script or empty, name).
    distributions: tuple[tuple[str, str], ...]
    #: What could not be resolved.
    notes: tuple[str, ...]
    #: The loader's library cache as it was.
    cache: tuple[str, Identity] | None
    #: Folders where libraries were looked for.
    searched: tuple[str, ...]


def which(command: str, environ: Mapping[str, str], cwd: str | None = None) -> str | None:
    """The executable file that ``execvpe`` would start, or None. A relative path counts from ``cwd``."""
    base = current_folder() if cwd is None else cwd
    if "/" in command:
        folders = [base]
    else:
        folders = [os.path.join(base, folder) for folder in environ.get("PATH", os.defpath).split(os.pathsep)]
    for folder in folders:
        path = os.path.join(folder, command)
        try:
            is_file = stat.S_ISREG(os.stat(path).st_mode)
        except (OSError, ValueError):  # a NUL in the name, which a script may hold
            continue
        if is_file and os.access(path, os.X_OK):
            return path
    return None


class Finder:
    """Resolves commands: scripts to their interpreters and distributions, ELF files to their libraries."""

    def __init__(self, distributions: Distributions, loader: Loader | None = None) -> None:
        self._distributions = distributions
        self._loader = loader or Loader()

    def program(self, command: str, environ: Mapping[str, str]) -> Executable:
        """What ``command`` runs. Raises UsageError where it is no executable file."""
        path = which(command, environ)
        if path is None:
            where = "is not an executable file" if "/" in command else f"is not in PATH={environ.get('PATH', '')!r}"
            raise UsageError(f"tool {command!r} {where}; install it, or give its path")
        collected = _FileCollection()
        self._add(collected, os.path.basename(path), path, environ, 0)
        cache = self._loader.cache
        return Executable(
            name=os.path.basename(path),
            path=path,
            files=tuple(sorted(collected.files.items())),
            distributions=tuple((script, name) for name, script in sorted(collected.distributions.items())),
            notes=tuple(dict.fromkeys(collected.notes)),
            cache=(cache, fsio.identity(cache)) if os.path.exists(cache) else None,
            searched=tuple(sorted(collected.searched)),
        )

    def _add(self, collected: _FileCollection, label: str, path: str, environ: Mapping[str, str], depth: int) -> None:
        real = os.path.realpath(path)
        with open(real, "rb") as file:
            head = file.read(_HEAD)
        if is_elf(head):
            self._add_elf(collected, label, real, environ)
        elif head[:2] == b"#!":
            self._add_script(collected, label, path, head, environ, depth=depth)
        else:
            collected.files[label] = real
            collected.notes.append(f"{label} is neither ELF nor a #! script: only its content counts")

    def _add_elf(self, collected: _FileCollection, label: str, real: str, environ: Mapping[str, str]) -> None:
        owner = self._owner(real)
        if owner is None or owner.name not in collected.distributions:
            collected.files[label] = real
        if owner is not None:
            collected.distributions.setdefault(owner.name, "")
        try:
            closure = self._loader.closure(real, environ)
        except ElfError as error:
            reason = str(error).removeprefix(f"{real}: ")
            collected.notes.append(f"the libraries of {label} are not resolved ({reason}): only its content counts")
            return
        collected.searched.update(closure.searched)
        for library in closure.libraries:
            lib_owner = self._owner(library.path) if owner is not None else None
            if lib_owner is not None and label.startswith("helper/") and lib_owner.name in collected.distributions:
                continue  # its distribution is in the part already, so this need not be read
            collected.files[f"{label}/{library.name}"] = collected.real(library.path)
        collected.notes += [f"{label} needs {name}, which was not found" for name in closure.missing]

    def _add_script(
        self, collected: _FileCollection, label: str, path: str, head: bytes, environ: Mapping[str, str], *, depth: int
    ) -> None:
        owner = self._distributions.owner(path)
        if owner is not None and owner.name not in collected.distributions:
            collected.distributions[owner.name] = path
            for helper in _same_named(owner, os.path.basename(path)):
                self._add(collected, f"helper/{helper}", os.path.join(owner.root, helper), environ, depth + 1)
        else:
            collected.files[label] = os.path.realpath(path)
            collected.notes.append(f"{label} is a script: what it runs besides its interpreter is not known")
        name = interpreter_name(head)
        interpreter = which(name, environ) if name else None
        if interpreter is None:
            collected.notes.append(f"the interpreter {name!r} of {label} was not found")
        elif depth < _MAX_DEPTH:
            self._add(collected, f"interpreter of {label}", interpreter, environ, depth + 1)

    def _owner(self, path: str) -> Distribution | None:
        owner = self._distributions.owner(path)
        return None if owner is None or owner.editable else owner


#: As many links one after another as the kernel follows.
_MAX_LINKS = 40


class _FileCollection:
    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.distributions: dict[str, str] = {}
        self.notes: list[str] = []
        self.searched: set[str] = set()
        self._folders: dict[str, str] = {}

    def real(self, path: str) -> str:
        """``os.path.realpath`` of a library: most lie in a few folders, behind links to other names there."""
        folder, name = os.path.split(path)
        if folder not in self._folders:
            self._folders[folder] = os.path.realpath(folder)
        for _ in range(_MAX_LINKS):
            place = os.path.join(self._folders[folder], name)
            try:
                name = os.readlink(place)
            except OSError:  # no link
                return place
            if "/" in name or name in {"", os.curdir, os.pardir}:
                break
        return os.path.realpath(path)


def _same_named(owner: Distribution, name: str) -> list[str]:
    """Executable ELF files inside a distribution that a console script of the same name stands for, as RECORD says."""
    record = owner.record()
    executables = []
    for row in record.rows if record is not None else ():
        if row.path.rpartition("/")[2] == name and not row.path.startswith(("../", "/")):
            path = os.path.join(owner.root, row.path)
            if os.access(path, os.X_OK):
                with open(path, "rb") as file:
                    if is_elf(file.read(4)):
                        executables.append(row.path)
    return executables


def interpreter_name(head: bytes) -> str:
    """The program that a ``#!`` line runs, through ``env`` and through pip's form for long paths.

    pip writes ``#!/bin/sh`` and a line ``'''exec' "/long/path/python" "$0" "$@"`` where the path does not fit the
    kernel's line (distlib/scripts.py).
    """
    lines = head.split(b"\n", 2)
    words = os.fsdecode(lines[0][2:]).split()
    if len(lines) > 1 and lines[1].startswith(b"'''exec' "):
        rest = os.fsdecode(lines[1][len(b"'''exec' ") :])
        return rest.partition('"')[2].partition('"')[0] if rest.startswith('"') else rest.split(maxsplit=1)[0]
    if not words:
        return ""
    if os.path.basename(words[0]) == "env":
        named = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        return named[0] if named else ""
    return words[0]
