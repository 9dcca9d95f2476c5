"""The one hit-or-miss decision, for every stage and every mode."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from cachec import recording
from cachec.base import call_hooks, fsio
from cachec.base.cache_bypass import without_cache
from cachec.base.tracer_hiding import unseen
from cachec.base.wait_strategy import Blocking, InLoop, Waiter
from cachec.config import Settings
from cachec.errors import (
    CacheMissError,
    StageFailed,
    StoreFault,
    Uncacheable,
    UnreadableArgument,
    UnresolvedCode,
    UsageError,
)
from cachec.events import EventLog
from cachec.model import Fault, Mode, Outcome, Reason, RemoteFetch, Trace
from cachec.stage.lookup import EngineServices, LookupResult
from cachec.stage.run_hooks import Bracket  # at once: where no descriptor is left, the stage runs all the same
from cachec.store.index import only_looking

if TYPE_CHECKING:  # on a miss only, or of stages
    from cachec.key.key_builder import CacheKey
    from cachec.key.stage_options import CallableStage
    from cachec.remote.chain import LookupReport, Remotes
    from cachec.stage.isolated_run import IsolatedRun
    from cachec.stage.run import FinishedRun, Run
    from cachec.store.locks import KeyLock
    from cachec.worker.messages import StageDone

T = TypeVar("T")

#: Keys that this context is computing right now: a stage that reaches its own key again must not wait for itself.
_computing: ContextVar[frozenset[str]] = ContextVar("cachec_computing", default=frozenset())

#: How long to wait before asking again for a lock that another holds: from the first to the second figure, doubling.
_POLL_SECONDS = (0.005, 0.2)

#: The first wait that is told; then each time that it has doubled.
_TELL_SECONDS = 1.0


class CallResult(msgspec.Struct, frozen=True):
    """How a call was answered."""

    value: Any
    outcome: Outcome
    #: Of the run that the value is of, where it is in the store.
    trace: Trace | None = None


class StageCall:
    """One call of a stage, from its arguments to its outcome."""

    def __init__(
        self,
        engine: Engine,
        stage: CallableStage,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        waiter: Waiter | None = None,
        shows_progress: bool = True,
        on_hit: Callable[[Any], None] | None = None,
    ) -> None:
        """waiter: how it waits; None: it blocks the thread. shows_progress: whether a person sees the run by itself.
        on_hit: takes the value of a hit, which is one only where that raises nothing."""
        self.engine = engine
        self.stage = stage
        self.started = time.perf_counter()
        own: Mode = stage.mode if stage.mode is not None else engine.settings.mode
        self.mode = call_hooks.current().mode_in(engine.settings.store_folder) or own
        self.binding = stage.binding
        self.arguments = self.binding.bind(args, kwargs)
        self.waiter: Waiter = Blocking() if waiter is None else waiter
        self._shows_progress = shows_progress
        self._on_hit = on_hit
        self.stopped: StopIteration | None = None
        self.without: tuple[Reason, str] = (Reason.KEY_UNREADABLE, "")
        self.fetched: RemoteFetch | None = None
        self._cache_key: CacheKey | None = None
        self._fault: Fault | None = None

    @property
    def cache_key(self) -> CacheKey:
        """The key; there is one after ``lookup``."""
        assert self._cache_key is not None
        return self._cache_key

    def lookup(self) -> LookupResult | None:
        """Key the call and look it up. A call that can't be keyed is counted, and raises its UsageError.

        None where there is no folder for a store, the system refuses what the key rests on (no descriptor is free, a
        folder can't be read), a plugin does not know the library that is there, an argument refers to objects of this
        process, or the code reaches something without a stable form. That says nothing against the call, which can
        run without the cache (``without`` says why).
        """
        if self.engine.settings.store_folder is None:
            self.without = (Reason.NO_STORE_FOLDER, self.engine.settings.no_store)
            return None
        try:
            with unseen():
                self._cache_key = self.engine.tools.key_builder.build(self.stage, self.arguments)
        except UnresolvedCode as error:
            self.without = (Reason.UNRESOLVED_CODE, str(error))
            return None
        except UnreadableArgument as error:  # the stage says for itself that a file is not there
            self.without = (Reason.KEY_UNREADABLE, str(error))
            return None
        except UsageError as error:
            self.outcome(Reason.USAGE, detail=str(error))
            raise
        except OSError as error:
            self.note(fsio.fault(error, "making the key"))
            return None
        except Uncacheable as error:
            self.without = (_reason_of(error), str(error))
            return None
        return self.engine.tools.entry_finder.find(self._cache_key)

    def check(self) -> Outcome:
        """What the call would end with here: no remote is asked, and nothing run, decoded, counted or written."""
        if self.mode is Mode.OFF:
            return self.make_outcome(Reason.MODE_OFF)
        if self.engine.settings.store_folder is None:
            return self.make_outcome(Reason.NO_STORE_FOLDER, detail=self.engine.settings.no_store)
        with only_looking():
            try:
                self._cache_key = self.engine.tools.key_builder.build(self.stage, self.arguments)
            except UnresolvedCode as error:
                return self.make_outcome(Reason.UNRESOLVED_CODE, detail=str(error))
            except UnreadableArgument as error:
                return self.make_outcome(Reason.KEY_UNREADABLE, detail=str(error))
            except UsageError as error:
                return self.make_outcome(Reason.USAGE, detail=str(error))
            except OSError as error:
                return self.make_outcome(Reason.KEY_UNREADABLE, detail=fsio.fault(error, "making the key").detail)
            except Uncacheable as error:
                return self.make_outcome(_reason_of(error), detail=str(error))
            lookup = self.engine.tools.entry_finder.find(self._cache_key, decode=False)
            if lookup.trace is not None:
                return self.make_outcome(Reason.HIT, saved=lookup.trace.seconds)
            reason, detail = self.explain(lookup)
            if self.engine.asks_remotes(self.mode):
                detail = f"{detail}; the remotes were not asked" if detail else "the remotes were not asked"
            return self.make_outcome(reason, detail=detail)

    def run(self, *, watched: bool = False) -> Run:
        """A run of the stage, not started. One that can't be guarded is counted, and raises its UsageError."""
        try:
            if self.stage.options.isolated:
                from cachec.stage.isolated_run import IsolatedRun

                return IsolatedRun(self.engine.tools, self.stage, self.cache_key, self.arguments)
            from cachec.stage.run import Run

            return Run(self.engine.tools, self.stage, self.cache_key, self.arguments, watched=watched)
        except UsageError as error:
            self.outcome(Reason.USAGE, detail=str(error))
            raise

    def explain(self, lookup: LookupResult) -> tuple[Reason, str]:
        """Why ``lookup`` missed. Raises nothing and counts nothing: a question may be asked in every mode."""
        return self.engine.tools.entry_finder.explain(self.cache_key, self.stage.options.name, lookup)

    def miss_reason(self, lookup: LookupResult) -> tuple[Reason, str]:
        """The same for a call that goes on without a hit: a fault of the cache is counted, and its user warned."""
        from cachec.stage.argument_warnings import warn_on_miss  # on a miss only

        if lookup.trace is not None:
            reason, detail = Reason.REFRESH, ""
        else:
            reason, detail = self.explain(lookup)
        if lookup.fault is not None:
            self.note(StoreFault(lookup.fault, lookup.detail))
        annotations = getattr(self.stage.__wrapped__, "__annotations__", {})
        warn_on_miss(self.stage.options, self.arguments, self.cache_key.inventory, annotations)
        return reason, detail

    def progress(self, lookup: LookupResult) -> AbstractContextManager[None]:
        """Around the run after ``lookup``: what a person sees of it, where there is one who looks."""
        if not self._shows_progress or _computing.get():
            return nullcontext()  # around a stage in a stage there is one already
        from cachec.stage.progress import run_words  # on a miss only

        return self.engine.progress(
            lambda: run_words(self.stage.options.name, self.engine.tools.entry_finder.last_time(self.cache_key, lookup))
        )

    def note(self, fault: StoreFault) -> None:
        """Count what failed in the cache meanwhile."""
        self._fault = fault.fault
        self.engine.events.note_fault(fault.fault, fault.detail)

    def hit(self, lookup: LookupResult) -> CallResult:
        """The result came from the cache. Raises what ``on_hit`` does."""
        assert lookup.trace is not None
        if self._on_hit is not None:
            self._on_hit(lookup.value)
        if lookup.generators:
            from cachec.key import random_generators  # few runs have moved one

            random_generators.put(self.engine.tools.plugins, lookup.generators)
        return CallResult(lookup.value, self.outcome(Reason.HIT, saved=lookup.trace.seconds), lookup.trace)

    def finish(self, finished: FinishedRun, reason: Reason, detail: str) -> CallResult:
        """The stage ran to its end."""
        if finished.changed:
            reason, detail = finished.refusal_reason, finished.changed
        if finished.fault is not None:
            self.note(StoreFault(finished.fault, finished.detail))
        return CallResult(finished.value, self.outcome(reason, detail=detail, stored=finished.stored), finished.trace)

    def outcome(self, reason: Reason, *, detail: str = "", saved: float = 0.0, stored: bool = False) -> Outcome:
        """Count and log how the call ended."""
        outcome = self.make_outcome(reason, detail=detail, saved=saved, stored=stored)
        call_hooks.report_outcome(outcome, lambda: self.engine.events.emit(outcome))
        return outcome

    def make_outcome(self, reason: Reason, *, detail: str = "", saved: float = 0.0, stored: bool = False) -> Outcome:
        """How the call ended, or would."""
        return Outcome(
            reason=reason,
            stage=self.stage.options.name,
            key=self._cache_key.digest if self._cache_key is not None else "",
            detail=detail,
            seconds=time.perf_counter() - self.started,
            saved=saved,
            stored=stored,
            fault=self._fault,
            time=time.time(),
            remote=self.fetched,
        )


class Engine:
    """Runs calls of stages against one opened cache.

    The decision is written once, as a coroutine. What takes time in it (waiting for a lock, running the stage) blocks
    in the call of a synchronous stage, so that its coroutine ends without ever being suspended.
    """

    def __init__(
        self, settings: Settings, tools: EngineServices, events: EventLog, remotes: Remotes | None = None
    ) -> None:
        self.settings = settings
        self.remotes = remotes
        self.tools = tools
        self.events = events

    def call(
        self,
        stage: CallableStage,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        on_hit: Callable[[Any], None] | None = None,
    ) -> CallResult:
        """Answer one call of a synchronous stage. on_hit: as of ``StageCall``."""
        call = StageCall(self, stage, args, kwargs, on_hit=on_hit)
        answer = step(call, self.answer(call))
        assert isinstance(answer, CallResult), "a synchronous stage was suspended"
        return answer

    async def call_async(self, stage: CallableStage, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallResult:
        """Answer one call of an ``async def`` stage."""
        return await self.answer(StageCall(self, stage, args, kwargs, waiter=InLoop()))

    def check(self, stage: CallableStage, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Outcome:
        """What a call would do, without running or counting anything."""
        return StageCall(self, stage, args, kwargs).check()

    def asks_remotes(self, mode: Mode) -> bool:
        """Whether a miss in this mode asks a remote before it runs."""
        remotes = () if self.remotes is None else self.remotes.all
        return mode not in {Mode.READ_ONLY, Mode.REFRESH} and any(remote.address.is_read for remote in remotes)

    def progress(self, words: Callable[[], Callable[[float], str]]) -> AbstractContextManager[None]:
        """Around runs: what a person sees of them, where there is one who looks. words: makes what is said after so
        many seconds."""
        if self.settings.progress == "off" or self.settings.log == "off":
            return nullcontext()
        from cachec.stage.progress import Progress, way_to_show  # on a miss only

        way = way_to_show(self.events.note_running, os.environ)
        return nullcontext() if way is None else Progress(*way, words())

    # --- the decision

    async def answer(self, call: StageCall) -> CallResult:
        """Answer a call. Whoever takes this on by hand does so by ``step``."""
        if call.mode is Mode.OFF:
            return CallResult(await _plain_result(call), call.outcome(Reason.MODE_OFF))
        lookup = call.lookup()
        if lookup is None:
            if call.mode is Mode.REQUIRE:
                raise _missing_entry_error(call, None)
            return await _run_unkeyed(call)
        if lookup.trace is not None and call.mode not in {Mode.REFRESH, Mode.VERIFY}:
            return call.hit(lookup)
        await call.waiter.turn()
        if lookup.trace is not None and call.mode is Mode.VERIFY:
            return await self._verify(call, lookup)
        if call.mode is Mode.REQUIRE and self.remotes is None:
            raise _missing_entry_error(call, lookup)
        if call.mode is Mode.READ_ONLY:
            return await self._run(call, lookup, store=False)
        lock = await self._lock(call)
        asked: LookupReport | None = None
        try:
            if lock is not None and call.mode is not Mode.REFRESH:
                # Also where there was no wait: another may have published and let go between the look and the lock.
                again = self.tools.entry_finder.find(call.cache_key)
                if again.trace is None and self.remotes is not None:
                    asked = await self._fetch_entry(call, self.remotes)
                    if call.fetched is not None and call.fetched.hit:
                        again = self.tools.entry_finder.find(call.cache_key)
                if again.trace is not None:
                    is_other = call.fetched is not None and call.mode is Mode.VERIFY
                    return await self._verify(call, again) if is_other else call.hit(again)
                if lookup.fault is None:
                    lookup = again
            if call.mode is Mode.REQUIRE:
                raise _missing_entry_error(call, lookup)
            answer = await self._run(call, lookup, store=True, lock=lock)
            if answer.trace is not None and self.remotes is not None:
                self.remotes.offer(call.cache_key.digest, answer.trace, asked)
            return answer
        finally:
            if lock is not None:
                lock.release()
            self.tools.store.settle()

    async def _fetch_entry(self, call: StageCall, remotes: Remotes) -> LookupReport:
        """Ask the remotes for the entry of a call; where one has it, it is in the store from now on."""

        def fetch() -> LookupReport:
            finder, keyed = self.tools.entry_finder, call.cache_key
            return remotes.fetch(
                keyed.digest, lambda place: finder.present_of_other(place, keyed), call.stage.options.name
            )

        asked = await call.waiter.result_of(fetch)
        call.fetched = asked.fetched
        return asked

    async def _run(
        self, call: StageCall, lookup: LookupResult, *, store: bool, lock: KeyLock | None = None
    ) -> CallResult:
        try:
            reason, detail = call.miss_reason(lookup)
            run = call.run()
        except OSError as error:  # what a miss needs is imported, and watched, only then
            call.note(fsio.fault(error, "beginning a run"))
            return await _run_unkeyed(call)
        except Uncacheable as error:
            call.without = (_reason_of(error), str(error))
            return await _run_unkeyed(call)
        if lock is not None:
            lock.note_run(call.stage.options.name, lookup.near or call.cache_key.digest)
        if call.stage.options.isolated:
            return await self._run_isolated(call, cast("IsolatedRun", run), lookup, (reason, detail), store=store)
        finished = await _execute(call, run, lookup, lambda result: run.finish(result, store=store))
        return call.finish(finished, reason, detail)

    async def _run_isolated(
        self, call: StageCall, run: IsolatedRun, lookup: LookupResult, why: tuple[Reason, str], *, store: bool
    ) -> CallResult:
        """Run the stage in a process of its own, or here where that can't be done."""
        from cachec.stage.isolated_run import Fallback
        from cachec.worker.caller import Limits

        token, obstacle = _computing.set(_computing.get() | {call.cache_key.digest}), ""
        try:
            with call.progress(lookup):
                options = call.stage.options
                done = await run.execute(call.waiter, Limits(options.timeout, options.memory))
        except Fallback as fallback:
            obstacle = str(fallback)
        except BaseException as error:
            _count_failure(call, run, error)
            raise
        finally:
            _computing.reset(token)
        if obstacle:  # after the handler: what the stage raises has no context of cachec's
            return await _in_process(call, run, obstacle)
        if call.mode is not Mode.BOTH:  # which runs the stage here, too
            run.put_generators(done)
        if lookup.trace is not None and call.mode is Mode.VERIFY:
            return self._finish_verify(
                call, lookup, run.differs_from(done, lookup), "", run.finish_isolated(done, store=False)
            )
        if call.mode is Mode.BOTH:
            return await _run_and_compare(call, run, done, why)
        return call.finish(run.finish_isolated(done, store=store), *why)

    async def _verify(self, call: StageCall, lookup: LookupResult) -> CallResult:
        """Run although there is a hit, and hold the two results against each other; the fresh one is returned."""
        from cachec.stage.verify_mode import describe_undeclared, difference  # in this mode only

        run = call.run(watched=True)
        if call.stage.options.isolated:
            return await self._run_isolated(call, cast("IsolatedRun", run), lookup, (Reason.VERIFIED, ""), store=False)

        def compare(result: object) -> tuple[str | None, str, FinishedRun]:
            differs = difference(run, self.tools, call.stage.options, result, lookup)
            net, recorded = run.recorder.net, self.settings.record == "auto"
            unsaid = "" if net is None else describe_undeclared(net.observed, run.recorder.reads(), recorded=recorded)
            return differs, unsaid, run.finish(result, store=False)

        return self._finish_verify(call, lookup, *await _execute(call, run, lookup, compare))

    def _finish_verify(
        self, call: StageCall, lookup: LookupResult, differs: str | None, unsaid: str, finished: FinishedRun
    ) -> CallResult:
        if differs is None:
            return CallResult(finished.value, call.outcome(Reason.VERIFIED, detail=unsaid))
        try:
            self.tools.store.quarantine(call.cache_key.digest, differs)
        except StoreFault as fault:
            call.note(fault)
        detail = f"{differs}; {unsaid}" if unsaid else differs
        return CallResult(finished.value, call.outcome(Reason.VERIFY_DIFFERS, detail=detail))

    async def _lock(self, call: StageCall) -> KeyLock | None:
        """The lock of the key; None where there is none to be had, and the stage then runs without."""
        key = call.cache_key.digest
        if key in _computing.get():
            return None  # a stage that reached its own key: waiting for itself would never end
        timeout = call.stage.lock_timeout if call.stage.lock_timeout is not None else self.settings.lock_timeout
        started, pause, tell_at = time.monotonic(), _POLL_SECONDS[0], _TELL_SECONDS
        try:
            lock = self.tools.store.lock(key)
            while not lock.try_acquire():
                waited = time.monotonic() - started
                if pause == _POLL_SECONDS[0] and _waits_for_us(lock.holder()):
                    return None  # as above, by way of a process that it runs
                if waited >= timeout:
                    raise StoreFault(Fault.LOCK_TIMEOUT, f"process {lock.holder()} held {key[:12]} for {waited:.0f} s")
                if waited >= tell_at:
                    self.events.note_waiting(lock.holder(), waited)
                    lock.note_wait(waited)
                    tell_at = max(2 * waited, _TELL_SECONDS)
                await call.waiter.sleep(min(pause, max(timeout - waited, 0.0)))
                pause = min(pause * 2, _POLL_SECONDS[1])
        except StoreFault as fault:
            call.note(fault)
            return None
        return lock


def step(call: StageCall, answering: Coroutine[Any, Any, CallResult]) -> Any:
    """Take a call on, to its answer or to what it yields because it waits. Raises what the stage raises."""
    try:
        return answering.send(None)
    except StopIteration as stop:
        return stop.value
    except RuntimeError:
        if call.stopped is None:
            raise
    raise call.stopped  # the stage's own, which a coroutine can't raise


def _waits_for_us(holder: int) -> bool:
    """Whether a lock is held by a process that runs this one, as a command say."""
    from cachec.store.locks import is_ancestor  # for who waits alone

    return holder != os.getpid() and is_ancestor(holder)


async def _result(call: StageCall, arguments: Mapping[str, Any], bracket: Bracket) -> Any:
    """What the stage itself returns."""
    try:
        with bracket:
            result = call.binding.call(call.stage.__wrapped__, arguments)
    except StopIteration as error:
        call.stopped = error  # Python makes a RuntimeError of it on its way out of a coroutine
        raise
    return await bracket.steps(result) if isinstance(call.waiter, InLoop) else result


def _reason_of(error: Uncacheable) -> Reason:
    from cachec.programs.supported_versions import bypass_reason  # not on a hit

    return bypass_reason(error)


async def _plain_result(call: StageCall) -> Any:
    """The same, where nothing is looked at beside it."""
    with without_cache():
        return await _result(call, call.arguments, Bracket(()))


async def _in_process(call: StageCall, run: IsolatedRun, why: str) -> CallResult:
    """The stage runs here, uncached, as it can't in a process of its own."""
    _keep_out_of_outer(Reason.NOT_ISOLATED, why)
    try:
        value = await _plain_result(call)
    except BaseException as error:
        _count_failure(call, run, call.stopped or error)
        raise
    run.abandon()
    return CallResult(value, call.outcome(Reason.NOT_ISOLATED, detail=why))


async def _run_and_compare(call: StageCall, run: IsolatedRun, done: StageDone, why: tuple[Reason, str]) -> CallResult:
    """Run the stage here as well, and store what came of the worker only where both values are the same."""
    try:
        run.check_process()
        value = await _plain_result(call)
        differs = run.difference(done, value)
    except BaseException as error:
        _count_failure(call, run, call.stopped or error)
        raise
    if differs:
        run.abandon()
        return CallResult(value, call.outcome(Reason.ISOLATION_DIFFERS, detail=differs))
    finished = run.finish_isolated(done, store=True)
    finished.value = value
    return call.finish(finished, *why)


def _keep_out_of_outer(reason: Reason, detail: str) -> None:
    """What this call reads is recorded for nobody, so the stage around it can't be stored either."""
    outer = recording.current()
    if outer is not None and not outer.is_traced:
        outer.refuse_storage(reason, detail)


async def _run_unkeyed(call: StageCall) -> CallResult:
    """The call runs without the cache."""
    reason, detail = call.without
    _keep_out_of_outer(reason, detail)
    return CallResult(await _plain_result(call), call.outcome(reason, detail=detail))


async def _execute(call: StageCall, run: Run, lookup: LookupResult, then: Callable[[object], T]) -> T:
    """Run the stage, and give what ``then`` makes of its result. What either raises is counted and raised."""
    progress = call.progress(lookup)
    token = _computing.set(_computing.get() | {call.cache_key.digest})
    try:
        with progress, recording.recording(run.recorder):
            result = await _result(call, run.arguments, run.bracket)
    except BaseException as error:
        _count_failure(call, run, call.stopped or error)
        raise
    finally:
        _computing.reset(token)
    try:
        return then(result)
    except BaseException as error:  # a weight that the stage derives is made only when it is stored
        _count_failure(call, run, error)
        raise


def _missing_entry_error(call: StageCall, lookup: LookupResult | None) -> CacheMissError:
    """What is raised in place of a run in mode ``require``; it is counted. lookup: None where there is no key."""
    reason, detail = call.without if lookup is None else call.explain(lookup)
    if lookup is not None and lookup.fault is not None:
        call.note(StoreFault(lookup.fault, lookup.detail))
    call.outcome(Reason.REQUIRED, detail=f"{reason.value}: {detail}")
    return CacheMissError(
        f"stage {call.stage.options.name} would miss in mode 'require' ({reason.value}: {detail}); "
        "run it once in mode 'on', or warm the cache"
    )


def _count_failure(call: StageCall, run: Run, error: BaseException) -> None:
    """The stage failed: leave a reproducer where one is wanted, close its handles, count it."""
    if call.engine.settings.repro_dir is not None and isinstance(error, Exception):
        _leave_reproducer(call, run, error)
    run.abandon()
    from cachec.base.unsendable import ForbiddenUseError

    if isinstance(error, KeyboardInterrupt | GeneratorExit | ForbiddenUseError):
        # The program was ended, or other calls with it; or a stage around this one is run in another process again.
        return
    call.outcome(Reason.STAGE_RAISED, detail=f"{type(error).__qualname__}: {error}")


def _leave_reproducer(call: StageCall, run: Run, error: Exception) -> None:
    """Never raises: the stage's own error is the one to be seen."""
    from cachec.reproduce.failures import leave_reproducer

    events, folder = call.engine.events, call.engine.settings.repro_dir
    assert folder is not None
    try:
        parts = call.cache_key.parts()
        path = leave_reproducer(folder, call.cache_key.digest, parts, call.stage, call.arguments, run.recorder, error)
    except Exception as problem:  # noqa: BLE001 - told, and less than what is on its way to the caller
        events.note_reproducer(f"no reproducer of the failure could be written: {problem}")
    else:
        if isinstance(error, StageFailed):
            error.reproducer = path
        events.note_reproducer(f"a reproducer of the failure is in {path}")
