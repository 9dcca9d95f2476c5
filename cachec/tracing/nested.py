"""Runs inside of a traced run: the kernel gives no second listener, so the outer supervisor records for them too.

The inner supervisor asks by opening paths that do not exist: ``/proc/cachec-tracing/TOKEN/begin`` before it starts its
command, which gives a file, and ``.../end`` when the command has ended: then that file has what was recorded. Without
an outer supervisor of cachec the kernel says ENOENT.

``.../hide`` and ``.../show`` are for a traced process: what its thread looks up between the two is not recorded. One
that tells of its reads by itself, in a better way, asks for that: see ``base.tracer_hiding``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import NamedTuple

from cachec.base.tracer_hiding import HIDE, REQUESTS
from cachec.tracing.accesses import Accesses, TraceProblem, TraceProblemKind
from cachec.tracing.listener import SeccompListener
from cachec.tracing.process_paths import NestedRunRequest, ProcessMemory, is_below, parent_of
from cachec.tracing.recorder import AccessRecorder, Commit
from cachec.tracing.syscall_decoder import SyscallDecoder


class NestedRun:
    """The inner side: one run that an outer supervisor records. Raises FileNotFoundError without one."""

    def __init__(self, *, is_call: bool) -> None:
        """is_call: whether the run is a call in place of a program."""
        self._path = os.path.join(REQUESTS, os.urandom(8).hex())
        self._fd = os.open(f"{self._path}/{'call' if is_call else 'begin'}", os.O_RDONLY | os.O_CLOEXEC)

    def end(self) -> bytes:
        """Return the record of the run, as ``codec`` encodes it, without the exit status."""
        with os.fdopen(self._fd, "rb") as file:
            with contextlib.suppress(FileNotFoundError):  # so it is answered
                os.open(f"{self._path}/end", os.O_RDONLY | os.O_CLOEXEC)
            file.seek(0)
            return file.read()


class _NestedRun(NamedTuple):
    """The outer side of one: all processes below the inner supervisor belong to it."""

    supervisor: int
    is_call: bool
    recorder: AccessRecorder
    calls: SyscallDecoder
    file: int
    #: By process or thread: the inode of its entry in /proc, which says that it is still the same, and whether it
    #: belongs to the run.
    members: dict[int, tuple[int, bool]]
    notifications: list[int]
    #: Threads whose lookups are not recorded for now.
    hidden: set[int]


class NestedRuns:
    """The nested runs that an outer supervisor records."""

    def __init__(self, memory: ProcessMemory, numbers: Mapping[str, int]) -> None:
        self._memory = memory
        self._numbers = numbers
        self._runs: dict[bytes, _NestedRun] = {}

    def answer(
        self, listener: SeccompListener, report: int, thread: int, request: NestedRunRequest, is_unprivileged: bool
    ) -> None:
        """Do what an inner supervisor asks for, and answer its call."""
        if request.verb in {b"begin", b"call"}:
            recorder = AccessRecorder()
            recorder.is_unprivileged = is_unprivileged
            try:
                process, _ = parent_of(thread)
            except OSError:  # it was killed
                listener.answer(report)
                return
            calls = SyscallDecoder(recorder, self._memory, self._numbers, process, {0: None})
            file = os.memfd_create("cachec-tracing")
            self._runs[request.token] = _NestedRun(
                process, request.verb == b"call", recorder, calls, file, {}, [0], set()
            )
            listener.answer_with(report, file)
            return
        run = self._runs.pop(request.token, None)
        if run is not None:
            from cachec.tracing.codec import encode  # only nested runs need JSON

            inputs, changes = run.recorder.finish()
            problems = tuple(run.recorder.problems)
            flags = (
                run.recorder.may_be_interrupted,
                run.notifications[0],
                run.recorder.uses_stdin,
                run.recorder.uses_descriptor,
                run.recorder.uses_umask,
                run.recorder.asks_for_terminal,
            )
            accesses = Accesses(0, inputs, changes, problems, *flags)
            with os.fdopen(run.file, "wb") as result:
                result.write(encode(accesses))
        listener.answer(report)

    def handle(self, number: int, thread: int, arguments: tuple[int, ...], foreign: int | None) -> list[Commit]:
        """Return what the runs of a thread record of a call. foreign: the other architecture that the call is of."""
        commits: list[Commit] = []
        for run in self._runs.values():
            if thread not in run.hidden and self._is_member(run, thread):
                run.notifications[0] += 1
                if foreign is not None:
                    commit: Commit | None = run.calls.foreign(number, foreign)
                else:
                    commit = run.calls.handle(number, thread, arguments)
                if commit is not None:
                    commits.append(commit)
        return commits

    def hide(self, thread: int, verb: bytes) -> bool:
        """Do what a thread asks for by HIDE and SHOW: in its innermost run, and in each around that as long as these
        are calls, of which each tells the one around it what it looked up. Whether it goes on to the outermost run."""
        for run in reversed(self._runs.values()):
            if self._is_member(run, thread):
                if not run.is_call:
                    return False
                switch(run.hidden, thread, verb)
        return True

    def close(self) -> None:
        """Drop the runs of killed supervisors."""
        for run in self._runs.values():
            os.close(run.file)
        self._runs.clear()

    def __bool__(self) -> bool:
        return bool(self._runs)

    def _is_member(self, run: _NestedRun, thread: int) -> bool:
        try:
            inode = os.stat(b"/proc/%d" % thread).st_ino
            known = run.members.get(thread)
            if known is not None and known[0] == inode:
                return known[1]
            is_member = is_below(thread, run.supervisor)
        except OSError:
            return False  # it has ended: its call has no effect
        run.members[thread] = inode, is_member
        return is_member


def switch(hidden: set[int], thread: int, verb: bytes) -> None:
    """Add a thread to those that are hidden, or take it out."""
    if verb == HIDE.encode():
        hidden.add(thread)
    else:
        hidden.discard(thread)


def find_survivors(others: set[int], children: set[int]) -> list[TraceProblem]:
    """Whether any of the children that are not ``others`` is alive."""
    for pid in children - others:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
            if file.read().rpartition(b")")[2].split()[0] not in {b"Z", b"X"}:
                return [TraceProblem(TraceProblemKind.LEFT_BEHIND, str(pid))]
    return []
