"""The one hit-or-miss decision, for every stage and every mode."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cachec.base import oversight
from cachec.config import Settings
from cachec.errors import CacheMissError, StoreFault, UnstorableResult, UsageError
from cachec.events import EventLog
from cachec.key.request import Request
from cachec.model import Fault, Mode, Outcome, Reason
from cachec.recording import recording
from cachec.stage.binding import Binding
from cachec.stage.look import Look
from cachec.stage.run import Finished, Run, Tools
from cachec.store.locks import KeyLock

if TYPE_CHECKING:
    from cachec.stage.verify import Audit

#: Keys that this context is computing right now: a stage that reaches its own key again must not wait for itself.
_computing: ContextVar[frozenset[str]] = ContextVar("cachec_computing", default=frozenset())

#: How long to wait before asking again for a lock that another holds: from the first to the second figure, doubling.
_POLL_SECONDS = (0.005, 0.2)

#: The first wait that is told; then each time that it has doubled.
_TELL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Wait:
    """An effect of the decision: let ``seconds`` pass."""

    seconds: float


@dataclass(frozen=True, slots=True)
class _Execute:
    """An effect of the decision: run the stage and send its result back, or throw what it raised."""

    run: Run
    key: str
    audit: Audit | None = None


_Steps = Generator[_Wait | _Execute, Any, tuple[Any, Outcome]]


class Call:
    """One call of a stage, from its arguments to its outcome."""

    def __init__(self, engine: Engine, stage: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.engine = engine
        self.stage = stage
        self.started = time.perf_counter()
        own: Mode = stage.mode if stage.mode is not None else engine.settings.mode
        self.mode = oversight.current().mode or own
        self.binding: Binding = stage.binding
        self.arguments = self.binding.bind(args, kwargs)
        self._request: Request | None = None
        self._fault: Fault | None = None

    @property
    def keyed(self) -> Request:
        """The request; there is one after ``look``."""
        assert self._request is not None
        return self._request

    def look(self, *, counted: bool = True) -> Look:
        """Key the call and look it up. A call that can't be keyed is counted, and raises its UsageError."""
        try:
            self._request = self.engine.tools.requests.request(self.stage, self.arguments)
        except UsageError as error:
            if counted:
                self.outcome(Reason.USAGE, detail=str(error))
            raise
        return self.engine.tools.looker.look(self._request)

    def run(self) -> Run:
        """A run of the stage, not started. One that can't be guarded is counted, and raises its UsageError."""
        try:
            return Run(self.engine.tools, self.stage, self.keyed, self.arguments)
        except UsageError as error:
            self.outcome(Reason.USAGE, detail=str(error))
            raise

    def explain(self, look: Look) -> tuple[Reason, str]:
        """The reason of a miss; in mode ``require`` it is raised instead."""
        reason, detail = self.engine.tools.looker.explain(self.keyed, self.stage.options.name, look)
        if look.fault is not None:
            self.note(StoreFault(look.fault, look.detail))
        if self.mode is Mode.REQUIRE:
            self.outcome(Reason.REQUIRED, detail=f"{reason.value}: {detail}")
            raise CacheMissError(
                f"stage {self.stage.options.name} would miss in mode 'require' ({reason.value}: {detail}); "
                "run it once in mode 'on', or warm the cache"
            )
        return reason, detail

    def note(self, fault: StoreFault) -> None:
        """Count what failed in the cache meanwhile."""
        self._fault = fault.fault
        self.engine.events.note_fault(fault.fault, fault.detail)

    def hit(self, look: Look) -> tuple[Any, Outcome]:
        """The result came from the cache."""
        assert look.trace is not None
        return look.value, self.outcome(Reason.HIT, saved=look.trace.seconds)

    def ran(self, finished: Finished, reason: Reason, detail: str) -> tuple[Any, Outcome]:
        """The stage ran to its end."""
        if finished.changed:
            reason, detail = finished.kept_out, finished.changed
        if finished.fault is not None:
            self.note(StoreFault(finished.fault, finished.detail))
        return finished.value, self.outcome(reason, detail=detail, stored=finished.stored)

    def outcome(self, reason: Reason, *, detail: str = "", saved: float = 0.0, stored: bool = False) -> Outcome:
        """Count and log how the call ended."""
        outcome = self.described(reason, detail=detail, saved=saved, stored=stored)
        overseer = oversight.current()
        if overseer.defer is None:
            self.engine.events.emit(outcome)
        else:
            overseer.defer(lambda: self.engine.events.emit(outcome))
        if overseer.on_outcome is not None:
            overseer.on_outcome(outcome)
        return outcome

    def described(self, reason: Reason, *, detail: str = "", saved: float = 0.0, stored: bool = False) -> Outcome:
        """How the call ended, or would."""
        return Outcome(
            reason=reason,
            stage=self.stage.options.name,
            key=self._request.digest if self._request is not None else "",
            detail=detail,
            seconds=time.perf_counter() - self.started,
            saved=saved,
            stored=stored,
            fault=self._fault,
            time=time.time(),
        )


class Engine:
    """Runs calls of stages against one opened cache.

    The decision is written once, as a generator that yields what takes time (waiting for a lock, running the stage);
    ``call`` performs these effects by blocking, ``call_async`` by awaiting.
    """

    def __init__(self, settings: Settings, tools: Tools, events: EventLog) -> None:
        self.settings = settings
        self.tools = tools
        self.events = events

    def call(self, stage: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Outcome]:
        """Answer one call of a synchronous stage."""
        call = Call(self, stage, args, kwargs)
        if call.mode is Mode.OFF:
            value = call.binding.call(stage.__wrapped__, call.arguments)
            return value, call.outcome(Reason.MODE_OFF)
        steps = self._decide(call)
        try:
            effect = next(steps)
            while True:
                try:
                    if isinstance(effect, _Wait):
                        time.sleep(effect.seconds)
                        result = None
                    else:
                        with _running(effect):
                            result = call.binding.call(stage.__wrapped__, effect.run.arguments)
                except BaseException as error:  # noqa: BLE001 - handed to the decision, which raises it again
                    effect = steps.throw(error)
                else:
                    effect = steps.send(result)
        except StopIteration as stop:
            answer: tuple[Any, Outcome] = stop.value
            return answer

    async def call_async(self, stage: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Outcome]:
        """Answer one call of an ``async def`` stage."""
        import asyncio  # slow to import, and whoever awaits this has it

        call = Call(self, stage, args, kwargs)
        if call.mode is Mode.OFF:
            value = await call.binding.call(stage.__wrapped__, call.arguments)
            return value, call.outcome(Reason.MODE_OFF)
        steps = self._decide(call)
        try:
            effect = next(steps)
            while True:
                try:
                    if isinstance(effect, _Wait):
                        await asyncio.sleep(effect.seconds)
                        result = None
                    else:
                        with _running(effect):
                            result = await call.binding.call(stage.__wrapped__, effect.run.arguments)
                except BaseException as error:  # noqa: BLE001 - handed to the decision, which raises it again
                    effect = steps.throw(error)
                else:
                    effect = steps.send(result)
        except StopIteration as stop:
            answer: tuple[Any, Outcome] = stop.value
            return answer

    def check(self, stage: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Outcome:
        """What a call would do, without running or counting anything."""
        call = Call(self, stage, args, kwargs)
        if call.mode is Mode.OFF:
            return call.described(Reason.MODE_OFF)
        look = call.look(counted=False)
        if look.trace is not None:
            return call.described(Reason.HIT, saved=look.trace.seconds)
        reason, detail = self.tools.looker.explain(call.keyed, stage.options.name, look)
        return call.described(reason, detail=detail)

    # --- the decision

    def _decide(self, call: Call) -> _Steps:
        look = call.look()
        if look.trace is not None and call.mode not in {Mode.REFRESH, Mode.VERIFY}:
            return call.hit(look)
        if look.trace is not None and call.mode is Mode.VERIFY:
            return (yield from self._verify(call, look))
        if look.trace is not None:
            reason, detail = Reason.REFRESH, ""
        else:
            reason, detail = call.explain(look)
        from cachec.stage.warn import warn_on_miss  # on a miss only

        warn_on_miss(call.stage.options, call.arguments, call.keyed.found)
        if call.mode is Mode.READ_ONLY:
            return (yield from self._run(call, reason, detail, store=False))
        lock = yield from self._lock(call)
        try:
            if lock is not None and call.mode is not Mode.REFRESH:
                # Also where there was no wait: another may have published and let go between the look and the lock.
                again = self.tools.looker.look(call.keyed)
                if again.trace is not None:
                    return call.hit(again)
            return (yield from self._run(call, reason, detail, store=True))
        finally:
            if lock is not None:
                lock.release()
            self.tools.store.settle()

    def _run(self, call: Call, reason: Reason, detail: str, *, store: bool) -> _Steps:
        run = call.run()
        result = yield from self._result(call, run)
        try:
            finished = run.finish(result, store=store)
        except UnstorableResult as error:
            call.outcome(Reason.USAGE, detail=str(error))
            raise
        except BaseException as error:  # a weight that the stage derives is made only when it is stored
            _raised(call, run, error)
            raise
        return call.ran(finished, reason, detail)

    def _result(self, call: Call, run: Run, audit: Audit | None = None) -> Generator[_Execute, Any, Any]:
        """What the stage itself returns. What it raises is counted and raised."""
        try:
            return (yield _Execute(run, call.keyed.digest, audit))
        except BaseException as error:
            _raised(call, run, error)
            raise

    def _verify(self, call: Call, look: Look) -> _Steps:
        """Run although there is a hit, and hold the two results against each other; the fresh one is returned."""
        assert look.trace is not None
        from cachec.stage.verify import Audit, difference  # in this mode only

        run = call.run()
        audit = Audit(call.stage.options.name)
        result = yield from self._result(call, run, audit)
        try:
            differs = difference(run, self.tools, call.stage.options, result, look)
            undeclared = audit.undeclared(run.recorder.reads()) if call.stage.audited else ""
            finished = run.finish(result, store=False)
        except UnstorableResult as error:
            run.abandon()
            call.outcome(Reason.USAGE, detail=str(error))
            raise
        except BaseException as error:
            _raised(call, run, error)
            raise
        if differs is None:
            return finished.value, call.outcome(Reason.VERIFIED, detail=undeclared)
        try:
            self.tools.store.quarantine(call.keyed.digest, differs)
        except StoreFault as fault:
            call.note(fault)
        detail = f"{differs}; {undeclared}" if undeclared else differs
        return finished.value, call.outcome(Reason.VERIFY_DIFFERS, detail=detail)

    def _lock(self, call: Call) -> Generator[_Wait, None, KeyLock | None]:
        """The lock of the key; None where there is none to be had, and the stage then runs without."""
        key = call.keyed.digest
        if key in _computing.get():
            return None  # a stage that reached its own key: waiting for itself would never end
        timeout = call.stage.lock_timeout if call.stage.lock_timeout is not None else self.settings.lock_timeout
        started, pause, tell_at = time.monotonic(), _POLL_SECONDS[0], _TELL_SECONDS
        try:
            lock = self.tools.store.lock(key)
            while not lock.try_acquire():
                waited = time.monotonic() - started
                if waited >= timeout:
                    raise StoreFault(Fault.LOCK_TIMEOUT, f"process {lock.holder()} held {key[:12]} for {waited:.0f} s")
                if waited >= tell_at:
                    self.events.note_waiting(lock.holder(), waited)
                    tell_at = max(2 * waited, _TELL_SECONDS)
                yield _Wait(min(pause, max(timeout - waited, 0.0)))
                pause = min(pause * 2, _POLL_SECONDS[1])
        except StoreFault as fault:
            call.note(fault)
            return None
        return lock


def _raised(call: Call, run: Run, error: BaseException) -> None:
    """The stage failed: leave a reproducer where one is wanted, close its handles, count it."""
    if call.engine.settings.repro_dir is not None and isinstance(error, Exception):
        _leave_reproducer(call, run, error)
    run.abandon()
    call.outcome(Reason.STAGE_RAISED, detail=f"{type(error).__qualname__}: {error}")


def _leave_reproducer(call: Call, run: Run, error: Exception) -> None:
    """Never raises: the stage's own error is the one to be seen."""
    from cachec.reproduce.failures import leave_reproducer

    events, folder = call.engine.events, call.engine.settings.repro_dir
    assert folder is not None
    try:
        parts = call.keyed.parts()
        path = leave_reproducer(folder, call.keyed.digest, parts, call.stage, call.arguments, run.recorder, error)
    except Exception as problem:  # noqa: BLE001 - told, and less than what is on its way to the caller
        events.note_reproducer(f"no reproducer of the failure could be written: {problem}")
    else:
        events.note_reproducer(f"a reproducer of the failure is in {path}")


@contextmanager
def _running(effect: _Execute) -> Iterator[None]:
    """The context that a stage runs in: its recorder, its key among those being computed, the audit in mode verify."""
    token = _computing.set(_computing.get() | {effect.key})
    try:
        with recording(effect.run.recorder), effect.audit or nullcontext():
            yield
    finally:
        _computing.reset(token)
