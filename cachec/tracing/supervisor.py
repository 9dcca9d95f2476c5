"""Runs a command, and answers what the kernel reports of it.

This process is the supervisor, an ancestor of all that it traces (Yama). A keeper holds the listener too: it takes over
where this process is killed, and where a process outlives the command.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from cachec.base.tracer_hiding import HIDE, SHOW
from cachec.tracing.accesses import Accesses, TraceProblem, TraceProblemKind, unseen
from cachec.tracing.filter import assemble
from cachec.tracing.listener import Keeper, SeccompListener
from cachec.tracing.nested import NestedRun, NestedRuns, find_survivors, switch
from cachec.tracing.process import Child, NoListener, Signals, StartedCommand, children, reap_orphans, subreaper
from cachec.tracing.process_paths import (
    BadAddress,
    NestedRunRequest,
    ProcessMemory,
    Unreadable,
    Unresolvable,
    current_folder,
)
from cachec.tracing.recorder import AccessRecorder
from cachec.tracing.syscall_decoder import SyscallDecoder
from cachec.tracing.syscalls import Architecture, architecture

#: How long processes that outlive the command have to end: children that were killed with it take a moment.
_GRACE_SECONDS = 0.1
_GRACE_STEP_MS = 5

_X32 = 0x40000000  # numbers from here on are of another ABI; no other call has one

#: Called where its descriptor has data; returns False once there is no more.
Reader = Callable[[], bool]


def trace(
    command: Sequence[str],
    *,
    program: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    descriptors: Sequence[int] = (),
    readers: Mapping[int, Reader] | None = None,
    ends_with_us: bool = False,
    owns_group: bool = False,
    keeper: Keeper | None = None,
) -> Accesses:
    """Run ``command`` once, and return how it ended and what it looked up and changed.

    Where it can't be traced it runs all the same, and ``problems`` say why. program: what is started, as ``executable``
    of ``subprocess``; None: the first word of the command. stdin, stdout, stderr: descriptors; None: those of this
    process. descriptors: others that the command inherits, of which is told whether it uses one. readers: what takes
    data from descriptors while the command runs. ends_with_us: the command gets SIGTERM where this process is killed;
    and a signal that comes when it can't be passed on ends this process. owns_group: the group of this process has only
    the processes of the command, and signals are passed on to all of them. keeper: one that serves other runs too;
    None: the run has its own. Only the main thread can pass signals on, and ignore those of the terminal. Raises
    OSError where the program, the folder or a descriptor can't be used, and ValueError for words that the kernel does
    not take.
    """
    environ = os.environ if env is None else env
    command_ = StartedCommand.of(command, program, environ, cwd, (stdin, stdout, stderr))
    signals = Signals(ends_with_us=ends_with_us, owns_group=owns_group)
    with signals.set(), subreaper():
        machine = architecture()
        if machine is None:
            problem = TraceProblem(TraceProblemKind.UNSUPPORTED_MACHINE, os.uname().machine)
            accesses = _SupervisedRun(command_, readers or {}, signals).run_bare(problem)
        else:
            accesses = _TracedRun(command_, readers or {}, signals, machine, descriptors, keeper).run()
    signals.end_if_pending()
    if not signals.caught:
        return accesses
    problem = TraceProblem(TraceProblemKind.SIGNAL, signal.Signals(signals.caught).name)
    return accesses._replace(problems=(*accesses.problems, problem))


def trace_call(function: Callable[[], None], readers: Mapping[int, Reader]) -> Accesses:
    """Call ``function`` in a child of this process, which must have one thread, and return what ``trace`` does.

    The child ends by ``os._exit``: with what ``function`` gives it, or else with 1. readers: as for ``trace``.
    """
    command = StartedCommand.of_call(function)
    signals = Signals()
    with signals.set(), subreaper():
        machine = architecture()
        if machine is None:
            problem = TraceProblem(TraceProblemKind.UNSUPPORTED_MACHINE, os.uname().machine)
            return _SupervisedRun(command, readers, signals).run_bare(problem)
        return _TracedRun(command, readers, signals, machine).run()


class _SupervisedRun:
    """One run of a command."""

    def __init__(self, command: StartedCommand, readers: Mapping[int, Reader], signals: Signals) -> None:
        self._command = command
        self._readers = dict(readers)
        self._signals = signals

    def run_bare(self, problem: TraceProblem, child: Child | None = None) -> Accesses:
        """Run the command without the filter, because of ``problem``. child: one that waits for its order."""
        child = child or Child(self._command, self._signals)
        child.go_bare()
        try:
            poller = self._poller()
            while self._readers and not child.has_ended():
                self._poll(poller, _GRACE_STEP_MS)
        finally:
            returncode = child.reap()
        child.raise_if_not_started()
        return unseen(returncode, problem)

    def _poller(self, *fds: int) -> select.poll:
        poller = select.poll()
        for fd in (*fds, *self._readers):
            poller.register(fd, select.POLLIN)
        return poller

    def _poll(self, poller: select.poll, milliseconds: int) -> Sequence[tuple[int, int]]:
        """Return the events that are not for readers."""
        events = poller.poll(milliseconds)
        others = [event for event in events if event[0] not in self._readers]
        for fd in {fd for fd, _ in events} & self._readers.keys():
            self._read(poller, fd)
        return others

    def _read(self, poller: select.poll, fd: int) -> None:
        if not self._readers[fd]():
            poller.unregister(fd)
            del self._readers[fd]


class _TracedRun(_SupervisedRun):
    """One run of a command that is to be traced."""

    def __init__(
        self,
        command: StartedCommand,
        readers: Mapping[int, Reader],
        signals: Signals,
        machine: Architecture,
        descriptors: Sequence[int] = (),
        keeper: Keeper | None = None,
    ) -> None:
        super().__init__(command, readers, signals)
        self._machine = machine
        self._descriptors = descriptors
        self._keeper = keeper
        self._recorder = AccessRecorder()
        self._memory = ProcessMemory()
        given = {0: _status(command.streams[0]), **{fd: _status(fd) for fd in descriptors}}
        self._calls = SyscallDecoder(self._recorder, self._memory, machine.numbers, os.getpid(), given)
        self._notifications = 0
        self._nested = NestedRuns(self._memory, machine.numbers)
        #: Threads whose lookups are not recorded for now: see ``base.tracer_hiding``.
        self._hidden: set[int] = set()

    def run(self) -> Accesses:
        """Run the command to its end."""
        token = int.from_bytes(os.urandom(4), "little") | 1
        program = assemble(self._machine, token, self._descriptors)
        others = children()
        child = Child(self._command, self._signals, self._machine, program, token)
        try:
            refused = self._probe(child, program)
            if refused:
                return self.run_bare(TraceProblem(TraceProblemKind.NO_ACCESS, refused), child)
            try:
                started = child.go_traced()
            except NoListener as error:
                if error.number != errno.EBUSY:
                    return self.run_bare(TraceProblem(TraceProblemKind.NO_LISTENER, str(error)))
                return self._run_nested(others)
            if started is None:
                problem = TraceProblem(TraceProblemKind.NO_LISTENER, "a signal ended the command before it started")
                return unseen(child.reap(), problem)
            fd, self._recorder.is_unprivileged = started
            keeper = self._keeper or Keeper()
            listener = SeccompListener(fd, keeper.page)
            try:
                returncode = self._supervise(listener, child, keeper, others)
            finally:
                listener.close()
                self._nested.close()
        finally:
            child.kill()  # where it has not ended, this has failed
        child.raise_if_not_started()
        inputs, changes = self._recorder.finish()
        problems = tuple(self._recorder.problems)
        return Accesses(
            returncode,
            inputs,
            changes,
            problems,
            self._recorder.may_be_interrupted,
            self._notifications,
            self._recorder.uses_stdin,
            self._recorder.uses_descriptor,
            self._recorder.uses_umask,
            self._recorder.asks_for_terminal,
        )

    def _run_nested(self, others: set[int]) -> Accesses:
        """Run the command inside of another traced run: its supervisor records."""
        from cachec.tracing.codec import DamagedRecord, decode  # only nested runs need JSON

        refused = TraceProblem(TraceProblemKind.NESTED, "another tracer has the listener, and does not serve others")
        try:
            nested = NestedRun(is_call=self._command.function is not None)
        except OSError:
            return self.run_bare(refused)
        try:
            returncode = self.run_bare(refused).returncode
            deadline = time.monotonic() + _GRACE_SECONDS
            while (survivors := find_survivors(others, children())) and time.monotonic() < deadline:
                time.sleep(_GRACE_STEP_MS / 1000)
        finally:
            record = nested.end()
        try:
            accesses = decode(record)
        except DamagedRecord as error:
            return unseen(
                returncode, TraceProblem(TraceProblemKind.NESTED, f"the outer tracer's record is damaged: {error}")
            )
        return accesses._replace(returncode=returncode, problems=(*accesses.problems, *survivors))

    def _probe(self, child: Child, program: bytes) -> str:
        """Return why the child can't be watched, its memory or its entry in /proc read; empty where it can."""
        try:
            os.close(os.pidfd_open(child.pid))
            current_folder(child.pid)
            if self._memory.read(child.pid, child.program_address, 8) == program[:8]:
                return ""
        except (OSError, Unreadable) as error:
            return str(error)
        except (BadAddress, Unresolvable):
            pass  # there is no /proc, or not the one of this namespace
        return "the memory of a child process, or its entry in /proc, can't be read"

    def _supervise(self, listener: SeccompListener, child: Child, keeper: Keeper, others: set[int]) -> int:
        """Answer until all has ended that has the filter, or the keeper has taken over; return the exit status."""
        keeper.hold(listener)
        others = others | {child.pid, keeper.pid}
        has_ended = False
        try:
            self._serve(listener, child)
            returncode = child.reap()
            has_ended = self._serve_rest(listener, others)
        finally:
            if has_ended:
                keeper.let_go()
                if self._keeper is None:
                    keeper.dismiss()
            else:
                keeper.take_over(partial(reap_orphans, others, all_end=True))
        if not has_ended:
            self._recorder.problem(TraceProblemKind.LEFT_BEHIND, self._command.name)()
        return returncode

    def _serve(self, listener: SeccompListener, child: Child) -> None:
        """Answer until the command itself has ended."""
        pidfd = os.pidfd_open(child.pid)
        try:
            poller = self._poller(pidfd, listener.fd)
            while True:
                for fd, event in poller.poll():
                    if fd == listener.fd and event & select.POLLIN:
                        self._answer(listener)
                    elif fd in self._readers:
                        self._read(poller, fd)
                    else:
                        return
        finally:
            os.close(pidfd)

    def _serve_rest(self, listener: SeccompListener, others: set[int]) -> bool:
        """Answer what outlives the command. Return whether all of it has ended soon."""
        poller = self._poller(listener.fd)
        deadline = time.monotonic() + _GRACE_SECONDS
        while time.monotonic() < deadline:
            events = self._poll(poller, _GRACE_STEP_MS)
            for _, event in events:
                if not event & select.POLLIN:
                    return True
                self._answer(listener)
            if not events:
                reap_orphans(others)
        return False

    def _answer(self, listener: SeccompListener) -> None:
        """Receive one report, read what it is about, let the call go on, and record it."""
        report = listener.receive()
        if report is None:
            return
        number = report[3]
        foreign = None
        if report[4] != self._machine.audit or number >= _X32:
            foreign = report[4]
            commit = self._calls.foreign(number, foreign)
        else:
            try:
                commit = self._calls.handle(number, report[1], report[6:])
            except NestedRunRequest as request:
                if request.verb in {HIDE.encode(), SHOW.encode()}:
                    is_ours = not self._nested or self._nested.hide(report[1], request.verb)
                    if is_ours and self._command.function is not None:
                        switch(self._hidden, report[1], request.verb)
                    listener.answer(report[0])
                else:
                    self._nested.answer(listener, report[0], report[1], request, self._recorder.is_unprivileged)
                return
            if report[1] in self._hidden:
                commit = None
        nested = self._nested.handle(number, report[1], report[6:], foreign) if self._nested else ()
        if listener.answer(report[0]):
            self._notifications += 1
            if commit is not None:
                commit()
            for commit in nested:
                commit()


def _status(descriptor: int | None) -> os.stat_result | None:
    """What standard input is; None: that of this process, which may be closed."""
    try:
        return os.fstat(0 if descriptor is None else descriptor)
    except OSError:
        return None
