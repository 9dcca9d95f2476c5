"""The loop of ``cachec watch``: wait for a change, let it settle, look at the targets again by their keys, say what is
stale, and with ``warm`` compile it. A newer change ends what runs and begins anew.

Each look is made in a new worker process, as Python does not forget a module that it imported. The next one waits,
with cachec imported, for its turn.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from cachec import config
from cachec.errors import CachecError, UsageError
from cachec.warm import DeclaredTargets, Listener, Result, Row, Status, Summary, Warmer, load
from cachec.warm.pool import WorkerPool
from cachec.warm.rows import select, with_dependents, with_needed
from cachec.warm.schedule import environment
from cachec.watch.file_events import Notices
from cachec.watch.files import Files

#: Seconds without an event after which a change has settled.
DEBOUNCE = 0.1
#: A change that goes on and on is looked at after this many seconds all the same.
_LONGEST = 2.0
#: Seconds between looks at the files that no event asked for; at those of installed packages, each n-th time.
_POLL = 2.0
_INSTALLED_EVERY = 5


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something to tell.

    kind: ``watching`` (files: how many), ``changed`` (paths), ``stale``, ``warm``, ``failed`` or ``compiled`` (target,
    why, seconds since the change had settled), ``cancelled`` by a newer change, ``error`` (why: the configuration).
    """

    kind: str
    target: str = ""
    why: str = ""
    paths: tuple[str, ...] = ()
    files: int = 0
    seconds: float = 0.0


class Watcher:
    """Watches the declared targets, or those of them that are ``wanted``, until ``stop`` is called.

    tell: gets each event, in the thread of ``run``. warm: compile what is stale. debounce: seconds.
    """

    def __init__(
        self,
        settings: config.Settings,
        tell: Callable[[Event], None],
        *,
        wanted: Sequence[str] = (),
        warm: bool = False,
        jobs: int | None = None,
        debounce: float = DEBOUNCE,
    ) -> None:
        self._settings = settings
        self._emit = tell
        self._wanted = wanted
        self._warm = warm
        self._jobs = jobs
        self._debounce = debounce
        self._woken = threading.Event()
        self._stopped = False
        self._files = Files(settings.dir)
        self._rows: list[Row] = []
        self._declared: DeclaredTargets | None = None
        self._sources: set[str] = set()
        self._of_row: dict[str, frozenset[str]] = {}
        self._known: dict[str, tuple[Status, str]] = {}
        self._last_check = 0.0
        self._checks = 0
        self._busy = False

    def stop(self) -> None:
        """End ``run`` soon. May be called from another thread or a signal handler."""
        self._stopped = True
        self._woken.set()

    def run(self) -> None:
        """Watch. Raises what ``warm.load`` raises when the targets are read first, such as ConfigError."""
        self._read_targets()
        notices = Notices(self._woken.set, self._files.concerns)
        self._notices = notices
        self._standby = self._pool()
        try:
            self._react([], first=True)
            self._emit(Event(kind="watching", files=len(self._files)))
            while not self._stopped:
                changed = self._await_change()
                if changed:
                    self._react(changed)
        finally:
            notices.close()
            self._files.close()
            self._standby.shutdown(cancel_futures=True)

    # --- changes

    def _await_change(self) -> list[str]:
        """Until an event, or the time to look without one; what changed then, once it has settled."""
        woken = self._woken.wait(max(0.0, self._last_check + _POLL - time.monotonic()))
        if self._stopped:
            return []
        if woken:
            self._settle()
        return self._changed_paths(everything=woken)

    def _settle(self, done: Sequence[object] = ()) -> None:
        """Until no event has come for a while; no longer than until something is ``done``."""
        end = time.monotonic() + _LONGEST
        while not done and not self._stopped and time.monotonic() < end:
            self._woken.clear()
            if done or not self._woken.wait(self._debounce):
                return

    def _changed_paths(self, *, everything: bool) -> list[str]:
        self._last_check = time.monotonic()
        self._checks += 1
        # While something is stale, whoever compiles it makes it warm again.
        stale = any(status is Status.WOULD_MISS for status, _ in self._known.values())
        changed = self._files.changed(
            installed=everything or self._checks % _INSTALLED_EVERY == 0,
            entries=stale and not self._busy,
            folders=not self._busy,  # what runs makes files of its own, and is not to end itself by that
        )
        self._notices.follow(self._files.folders())
        return changed

    # --- what follows from them

    def _react(self, changed: list[str], *, first: bool = False) -> None:
        """Look at the targets, newest changes first, until no newer change cut it short."""
        while not self._stopped:
            settled = time.monotonic()
            reported = tuple(path for path in changed if not self._files.is_own(path))
            if reported and not first:
                self._emit(Event(kind="changed", paths=reported))
            if not self._sources.isdisjoint(changed) and not self._read_again():
                return
            newer = self._check(changed, settled)
            if newer is None and self._warm:
                newer = self._compile(settled)
            if newer is None:
                return
            self._emit(Event(kind="cancelled"))
            changed, first = list(dict.fromkeys([*changed, *newer])), False

    def _check(self, changed: list[str], settled: float) -> list[str] | None:
        """Look at every target; those that the changed files belong to come first. What changed meanwhile, or None."""
        touched = {name for name, files in self._of_row.items() if not files.isdisjoint(changed)}
        ahead = with_needed(self._rows, (row.id for row in with_dependents(self._rows, touched)))
        rows = ahead + [row for row in self._rows if row not in ahead]
        since = time.time()
        self._files.accept_store()
        pool, self._standby = self._standby, self._pool()
        warmer = Warmer(
            rows, check=True, jobs=self._jobs, pool=pool, settings=self._settings, source=self._source, files=True,
            listener=_Heard(lambda result: self._report(result, settled)),
        )  # fmt: skip
        summary, newer = self._until_done(warmer)
        self._standby.prestart()
        if summary is None:
            return newer
        for result in summary.results:
            if result.status is not Status.CANCELLED:
                self._of_row[result.id] = frozenset(result.files)
        self._files.ignore({each for result in summary.results for each in result.written})
        late = self._files.learn({each for result in summary.results for each in result.files}, since)
        self._notices.follow(self._files.folders())
        return late or None

    def _compile(self, settled: float) -> list[str] | None:
        stale = [name for name, (status, _) in self._known.items() if status is Status.WOULD_MISS]
        if not stale:
            return None
        rows = with_needed(self._rows, stale)
        warmer = Warmer(
            rows, jobs=self._jobs, settings=self._settings, source=self._source,
            listener=_Heard(lambda result: self._report(result, settled)),
        )  # fmt: skip
        _, newer = self._until_done(warmer)
        self._files.accept_store()
        return newer

    def _until_done(self, warmer: Warmer) -> tuple[Summary | None, list[str] | None]:
        """Run it; a change that comes meanwhile cancels it, and is returned."""
        done: list[Summary | BaseException] = []

        def work() -> None:
            try:
                done.append(warmer.run())
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
                done.append(error)
            self._woken.set()

        thread = threading.Thread(target=work)
        self._busy = True
        thread.start()
        newer: list[str] = []
        while not done:
            self._woken.wait(_POLL)
            if done:
                break
            if not self._stopped:
                self._settle(done)
                if done:
                    break
                newer += self._changed_paths(everything=True)
            if newer or self._stopped:
                warmer.cancel()
                break
            self._woken.clear()
        thread.join()
        self._busy = False
        self._woken.set()  # an event may have come together with the end: look once more
        if isinstance(done[0], BaseException):
            raise done[0]
        return (None, newer) if newer else (done[0], None)

    def _report(self, result: Result, settled: float) -> None:
        """Tell what is another than it was."""
        if result.status in {Status.CANCELLED, Status.SKIPPED}:
            return
        kinds = {
            Status.HIT: "warm",
            Status.WOULD_MISS: "stale",
            Status.FAILED: "failed",
            Status.COMPILED: "compiled",
        }
        status = Status.HIT if result.status is Status.COMPILED else result.status
        why = result.why()
        known = (status, "" if status is Status.HIT else why)
        before = self._known.get(result.id)
        self._known[result.id] = known
        if result.status is Status.COMPILED or known != before:
            self._emit(Event(kind=kinds[result.status], target=result.id, why=why, seconds=time.monotonic() - settled))

    # --- the targets themselves

    @property
    def _source(self) -> str:
        return self._declared.path if self._declared is not None else ""

    def _read_targets(self) -> None:
        declared = load()
        if self._rows and not declared.rows:
            raise UsageError(f"{declared.path or 'the configuration'} declares no targets any more")
        self._rows = select(declared.rows, self._wanted)
        self._declared = declared
        # Those that are not there may come, or come back.
        folders = {os.getcwd(), os.path.dirname(declared.path) or os.getcwd()}
        self._sources |= {os.path.join(folder, name) for folder in folders for name in config.FILES}
        self._files.learn(self._sources, time.time())
        there = {row.id for row in self._rows}
        self._known = {name: known for name, known in self._known.items() if name in there}
        self._of_row = {name: files for name, files in self._of_row.items() if name in there}

    def _read_again(self) -> bool:
        """After a change of the configuration file; one that can't be read is told, and its last state stays."""
        try:
            self._read_targets()
        except CachecError as error:
            self._emit(Event(kind="error", why=str(error)))
            return False
        return True

    def _pool(self) -> WorkerPool:
        return WorkerPool(self._jobs or os.cpu_count() or 1, environment(self._settings))


class _Heard(Listener):
    def __init__(self, report: Callable[[Result], None]) -> None:
        self._report = report

    def on_finish(self, row: Row, result: Result) -> None:
        self._report(result)
