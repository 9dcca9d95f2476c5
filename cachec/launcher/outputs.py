"""What a command writes: held by one launcher at a time, and looked at before the command runs and after."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from cachec.base import fsio
from cachec.base.hashing import digest_bytes
from cachec.errors import StoreFault
from cachec.launcher.arguments import Output
from cachec.model import Reason
from cachec.recording import Recorder
from cachec.store.locks import KeyLock
from cachec.store.store import Store

State = fsio.Identity | None


def lock_of(store: Store, output: Output) -> KeyLock:
    """The lock of an output, not yet taken. The direct road looks whether its file is there."""
    return store.lock(digest_bytes(b"output\0" + os.fsencode(os.path.realpath(output.path))))


@contextmanager
def outputs_held(
    store: Store,
    outputs: Sequence[Output],
    timeout: float,
    on_wait: Callable[[int, float], None],
) -> Iterator[bool]:
    """Keep other launchers from writing to the outputs; whether that could be had.

    Two command lines that write one file at the same time are a mistake in a build, but no reason to store what one
    wrote as the result of the other. Locks are taken in one order, and before that of the key.
    """
    with ExitStack() as stack:
        locks = {lock.key: lock for lock in (lock_of(store, output) for output in outputs)}
        is_held = True
        try:
            for _, lock in sorted(locks.items()):
                if lock.try_acquire() or (not _is_ancestor(lock.holder()) and lock.acquire(timeout, on_wait)):
                    stack.callback(lock.release)
                elif not _is_ancestor(lock.holder()):
                    is_held = False
        except StoreFault:  # a store that can't be written: what is stored there is handed out all the same
            is_held = False
        yield is_held


def _is_ancestor(pid: int) -> bool:
    """Whether a process waits for this one, as a launcher does that runs a whole build: it will not let go before."""
    mine = os.getpid()
    while pid and mine > 1:
        if mine == pid:
            return True
        try:
            with open(f"/proc/{mine}/stat", encoding="utf-8", errors="replace") as file:
                mine = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return False


class Before:
    """The outputs as they were before the command was started."""

    def __init__(self, outputs: Sequence[Output]) -> None:
        self._states = {path: state for output in outputs for path, state in _states(output.path)}

    def untouched(self, output: Output) -> str | None:
        """A file at the place of an output, or in its folder, that was there before and was not written."""
        return next((path for path, state in _states(output.path) if self._states.get(path) == state), None)


def check_stored(recorder: Recorder, outputs: Sequence[Output]) -> None:
    """Have the result kept out where an output changes between now and when it is in the store."""
    after = {path: state for output in outputs for path, state in _states(output.path)}

    def check() -> None:
        for path, found in after.items():
            if state(path) != found:
                recorder.keep_out(Reason.UNDESCRIBED, f"{path} was written to after the command had ended")

    recorder.check_before_storing(check)


def state(path: str) -> State:
    """The identity of what a path leads to, None where nothing is there."""
    try:
        return fsio.identity(path)
    except OSError:
        return None


def _states(path: str) -> Iterator[tuple[str, State]]:
    """Of the file, or of every file below the folder."""
    if not os.path.isdir(path):
        found = state(path)
        if found is not None:
            yield path, found
        return
    for where, _, names in os.walk(path):
        for name in names:
            place = os.path.join(where, name)
            yield place, state(place)
