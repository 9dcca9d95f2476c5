"""What a command writes: held by one launcher at a time, and looked at before the command runs and after."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from cachec.base import fsio
from cachec.base.fsio import Identity, identity_if_there
from cachec.base.hashing import FileDigests, digest_bytes
from cachec.errors import StoreFault
from cachec.launcher.command import Output
from cachec.model import Reason
from cachec.recording import Recorder
from cachec.store.locks import KeyLock, is_ancestor
from cachec.store.store import Store


def lock_of(store: Store, output: Output) -> KeyLock:
    """The lock of an output, not yet taken. The direct road looks whether its file is there."""
    return store.lock(digest_bytes(b"output\0" + os.fsencode(os.path.realpath(output.path))))


@contextmanager
def outputs_held(
    store: Store,
    outputs: Sequence[Output],
    timeout: float,
    on_wait: Callable[[int, float], None],
) -> Iterator[tuple[Reason, str] | None]:
    """Keep other launchers from writing to the outputs; None, or why that could not be had.

    Two command lines that write one file at the same time are a mistake in a build, but no reason to store what one
    wrote as the result of the other. Locks are taken in one order, and before that of the key.
    """
    with ExitStack() as stack:
        locks = {lock.key: lock for lock in (lock_of(store, output) for output in outputs)}
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


def check_stored(recorder: Recorder, outputs: Sequence[Output]) -> None:
    """Have the result kept out where an output changes between now and when it is in the store."""
    after = {path: state for output in outputs for path, state in _states(output.path)}

    def check() -> None:
        for path, before in after.items():
            if fsio.identity_if_there(path) != before:
                recorder.keep_out(Reason.UNDESCRIBED, f"{path} was written to after the command had ended")

    recorder.check_before_storing(check)


class _Before(NamedTuple):
    status: os.stat_result
    digest: str


class Untouched:
    """The output files of a command as they are before it runs."""

    def __init__(self, outputs: Sequence[Output], digests: FileDigests, *, restat: bool) -> None:
        """restat: a file that the run writes again with the same content keeps its time stamp, as on a hit: where a
        comment in the model changed, a build that looks at time stamps again stops there."""
        self._digests = digests
        self._restat = restat
        self._before: dict[str, _Before] = {}
        for output in outputs:
            try:
                status = os.stat(output.path)
                if stat.S_ISREG(status.st_mode):
                    self._before[output.path] = _Before(status, digests.of_path(output.path) if restat else "")
            except OSError:
                continue  # it is not there, or not to be read: then there is nothing to keep

    def put_back(self) -> None:
        """Set the time stamp again of each file that has the content that it had, with ``restat``. Raises OSError."""
        for path, (before, digest) in self._before.items() if self._restat else ():
            try:
                status = os.stat(path)
            except FileNotFoundError:
                continue
            is_new = stat.S_ISREG(status.st_mode) and status.st_mtime_ns != before.st_mtime_ns
            if is_new and status.st_size == before.st_size and self._digests.of_path(path) == digest:
                os.utime(path, ns=(status.st_atime_ns, before.st_mtime_ns))

    def has_old_mode(self, path: str, status: os.stat_result) -> bool:
        """Whether an output is the file that was there before, written again, with the mode that this had: one that
        somebody else may have chosen."""
        before = self._before.get(path)
        return before is not None and _place(before.status) == _place(status)


def _place(status: os.stat_result) -> tuple[int, int, int]:
    """Which file it is, and its mode."""
    return status.st_dev, status.st_ino, status.st_mode


def _states(path: str) -> Iterator[tuple[str, Identity | None]]:
    """Of the file, or of every file below the folder; nothing where neither is there."""
    if not os.path.isdir(path):
        now = identity_if_there(path)
        if now is not None:
            yield path, now
        return
    for where, _, names in os.walk(path):
        for name in names:
            place = os.path.join(where, name)
            yield place, identity_if_there(place)
