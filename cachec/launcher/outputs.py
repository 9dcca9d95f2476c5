"""The outputs of a command: allowed places, locked by one launcher at a time, and checked before and after the run."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from typing import Any

from cachec.base import fsio, xdg
from cachec.base.hashing import FileDigests, digest_bytes
from cachec.errors import StoreFault
from cachec.launcher.command import CommandSpec, DeclaredOutput
from cachec.launcher.direct import default_folder
from cachec.launcher.path_map import PathMap
from cachec.launcher.restore import check_folder, check_place, mode_of
from cachec.model import Reason
from cachec.programs.artifact import File
from cachec.recording import ReadRecorder
from cachec.store.locks import KeyLock, is_ancestor
from cachec.store.store import Store

#: What separates words in an argument that may hold paths: of a shell's ``-c``, of ``--out=PATH``, of lists.
_WORDS = re.compile(r"[\s=,;:|&<>(){}\"']+")

#: Longer arguments are no paths (PATH_MAX).
_MAX_NAME = 4096


class AllowedOutputs:
    """The places that a command may write to: below the current folder, paths in arguments, and declared outputs."""

    def __init__(self, command: CommandSpec, environ: Mapping[str, str]) -> None:
        self._cwd = os.path.realpath(command.cwd)
        here = glob.escape(self._cwd)
        self._patterns = [os.path.normpath(os.path.join(here, each)) for each in command.options.patterns]
        self._named = {os.path.realpath(output.path) for output in command.outputs}
        self._arguments = command.argv[1:]
        caches = xdg.home_caches(environ)
        store = default_folder(dict(environ), command.cwd)  # of a cachec inside of the command
        caches += [store] if store else []
        caches += [each for each in command.options.cache_folders if "/" in each]
        self._cache_names = {*xdg.CACHE_NAMES, *command.options.cache_folders}
        self._caches = [path for path in map(os.path.realpath, caches) if not _is_below(self._cwd, [path])]

    @cached_property
    def _argument_paths(self) -> set[str]:
        """Where an argument points."""
        found = set()
        for arg in self._arguments:
            if len(arg) > _MAX_NAME:
                continue
            for word in {arg, arg[arg.find("/") :] if "/" in arg else "", arg[2:], *_WORDS.split(arg)}:
                path = os.path.realpath(os.path.join(self._cwd, word)) if word and "\0" not in word else "/"
                if path != "/" and not f"{self._cwd}/".startswith(f"{path}/"):
                    found.add(path)
        return found

    def is_cache(self, path: str) -> bool:
        """Whether a path is below a folder in which programs keep what they can make again."""
        if self.is_named(path) or _is_below(path, self._argument_paths):
            return False
        names = path.removeprefix(f"{self._cwd}/").split("/")
        return not self._cache_names.isdisjoint(names) or _is_below(path, self._caches)

    def is_named(self, path: str) -> bool:
        """Whether a real path is a declared output."""
        matches = (fnmatch.fnmatchcase(path, each) or fnmatch.fnmatchcase(path, f"{each}/*") for each in self._patterns)
        return _is_below(path, self._named) or any(matches)

    def allows(self, path: str) -> bool:
        """Whether a real path is a place for outputs."""
        return _is_below(path, [self._cwd]) or self.is_named(path) or _is_below(path, self._argument_paths)


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in folders)


def outputs_of(
    command: CommandSpec, environ: Mapping[str, str], places: PathMap, value: Mapping[str, Any]
) -> list[str]:
    """The paths of a stored result's outputs here. Raises OSError for one that is in no place for outputs."""
    allowed = AllowedOutputs(command, environ)
    found = []
    for where, stored, word in zip(value["paths"], value["outputs"], value["modes"], strict=True):
        path = places.to_absolute(where)
        folder, name = os.path.split(path)
        real = os.path.join(os.path.realpath(folder), name)
        if name in {"", ".", ".."} or not allowed.allows(real) or allowed.is_cache(real):
            raise PermissionError(1, "the stored result has an output there, where the command may write none", path)
        if isinstance(stored, File | bytes):
            check_place(path, mode_of(word), hardlink=command.options.hardlink)
        elif stored is None:
            check_folder(path, mode_of(word))
        found.append(path)
    return found


def lock_of(store: Store, path: str) -> KeyLock:
    """The lock of an output, not yet taken. The direct road looks whether its file is there."""
    return store.lock(digest_bytes(b"output\0" + os.fsencode(os.path.realpath(path))))


@contextmanager
def lock_outputs(
    store: Store,
    outputs: Sequence[DeclaredOutput],
    timeout: float,
    on_wait: Callable[[int, float], None],
) -> Iterator[tuple[Reason, str] | None]:
    """Keep other launchers from writing to the outputs; None, or why that could not be had.

    Two command lines that write one file at the same time are a mistake in a build, but no reason to store what one
    wrote as the result of the other. Locks are taken in one order, and before that of the key.
    """
    with ExitStack() as stack:
        locks = {lock.key: lock for lock in (lock_of(store, output.path) for output in outputs)}
        without: tuple[Reason, str] | None = None
        try:
            for _, lock in sorted(locks.items()):
                if lock.try_acquire() or (not is_ancestor(lock.holder()) and lock.acquire(timeout, on_wait)):
                    stack.callback(lock.release)
                elif not is_ancestor(lock.holder()):
                    without = Reason.UNDESCRIBED, f"its outputs could not be held against process {lock.holder()}"
        except StoreFault as fault:  # a store that can't be written: what is stored there is handed out all the same
            without = Reason.STORE_UNAVAILABLE, fault.detail
        yield without


def check_stored(recorder: ReadRecorder, files: Sequence[str]) -> None:
    """Refuse to store the result if one of its files changes before it is in the store."""
    after = {path: fsio.identity_if_there(path) for path in files}

    def check() -> None:
        for path, before in after.items():
            if fsio.identity_if_there(path) != before:
                recorder.refuse_storage(Reason.UNDESCRIBED, f"{path} was written to after the command had ended")

    recorder.check_before_storing(check)


class PreservedTimestamps:
    """The output files of a command as they are before it runs, with ``restat``: one that it writes again with the same
    content keeps its time stamp, as on a hit. A build that looks at time stamps again stops there."""

    def __init__(self, outputs: Sequence[DeclaredOutput], digests: FileDigests) -> None:
        self._digests = digests
        self._before: dict[str, tuple[os.stat_result, str]] = {}
        for output in outputs:
            with suppress(OSError):  # it is not there, or not to be read: then there is nothing to keep
                status = os.stat(output.path)
                if stat.S_ISREG(status.st_mode):
                    self._before[output.path] = status, digests.of_path(output.path)

    def restore(self) -> None:
        """Set the time stamp again of each file that has the content that it had. Raises OSError."""
        for path, (before, digest) in self._before.items():
            try:
                status = os.stat(path)
            except FileNotFoundError:
                continue
            is_new = stat.S_ISREG(status.st_mode) and status.st_mtime_ns != before.st_mtime_ns
            if is_new and status.st_size == before.st_size and self._digests.of_path(path) == digest:
                os.utime(path, ns=(status.st_atime_ns, before.st_mtime_ns))
