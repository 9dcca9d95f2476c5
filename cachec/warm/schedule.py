"""Warming: look which rows would miss, run those in dependency order, keep going when one fails."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait

import msgspec

from cachec import config
from cachec.base.display_text import to_type
from cachec.errors import StoreFault, UsageError
from cachec.model import Mode
from cachec.warm.history import History
from cachec.warm.model import Result, Row, Status, Target, Task
from cachec.warm.pool import RowExecutor, WorkerPool
from cachec.warm.rows import expand
from cachec.warm.run import run_task
from cachec.warm.summary import Summary

#: Another worker is worth its start where the looks that are left would take one alone longer than this, in seconds,
#: and longer than the first look did.
_WORTH_A_WORKER = 0.8
#: Seconds between two looks whether the run was cancelled.
_POLL_SECONDS = 0.1

_GOOD = (Status.HIT, Status.COMPILED)


class Listener:
    """A base class for listeners, which are called in the thread that warms. Its methods do nothing."""

    def on_plan(self, rows: Sequence[Row], hits: int, estimate: float | None) -> None:
        """These rows are to be run; ``hits`` hit. estimate: seconds, None where no earlier run tells."""

    def on_start(self, row: Row) -> None:
        """A row runs."""

    def on_finish(self, row: Row, result: Result) -> None:
        """What came of a row; of each exactly once."""


def warm(
    targets: Iterable[Target | Row],
    *,
    check: bool = False,
    materialize: bool = False,
    jobs: int | None = None,
    executor: Executor | None = None,
    settings: config.Settings | None = None,
    listener: Listener | None = None,
    source: str = "",
) -> Summary:
    """Run what would miss of ``targets``, each after what it comes after; one failure does not stop the others.

    check: run nothing, only say what would miss. materialize: put in place what commands write, also where they hit.
    jobs: rows at a time, by default one a processor, or as many as a cluster runs. executor: where rows run, by
    default in worker processes of cachec's own; its owner shuts it down. settings: of the store. source: what the
    figures of earlier runs are kept under, the path of the configuration file. Raises UsageError where the targets
    can't be ordered, ConfigError where the mode of the cache stores nothing.
    """
    return Warmer(
        targets,
        check=check,
        materialize=materialize,
        jobs=jobs,
        executor=executor,
        settings=settings,
        listener=listener,
        source=source,
    ).run()


class Warmer:
    """One warming. ``cancel`` may be called from another thread; ``summary`` at any time, also after an interrupt."""

    def __init__(
        self,
        targets: Iterable[Target | Row],
        *,
        check: bool = False,
        materialize: bool = False,
        jobs: int | None = None,
        executor: Executor | None = None,
        settings: config.Settings | None = None,
        listener: Listener | None = None,
        source: str = "",
        files: bool = False,
        pool: WorkerPool | None = None,
    ) -> None:
        """materialize: put in place what commands write, also where they hit. files: find out what each row depends
        on. pool: workers that may be running already, and are used up; see ``warm`` for the rest."""
        self.rows = _rows(list(targets))
        self._needed = {row.id for row in self.rows} if materialize else {n for row in self.rows for n in row.after}
        self._check = check
        self.settings = settings if settings is not None else config.load()
        if not check:
            _storing(self.settings)
        self._own_executor = executor is None
        self._jobs = jobs
        self._executor = executor
        self._pool = pool
        if executor is not None and not isinstance(executor, RowExecutor):
            _fits(self.rows)
        self._listener = listener or Listener()
        self._history = History(self.settings.dir, source)
        self._files = files
        self._results: dict[str, Result] = {}
        self._misses: dict[str, Result] = {}
        self._cancelled = threading.Event()
        self._began = time.perf_counter()
        self._estimate: float | None = None
        self.fault: StoreFault | None = None

    def run(self) -> Summary:
        """Warm, or check. On KeyboardInterrupt the workers end, and it is raised again; finished rows count."""
        self._began = time.perf_counter()
        executor = self._executor or self._pool or WorkerPool(self._width(), environment(self.settings))
        try:
            self._find_misses(executor)
            if not self._check and not self._cancelled.is_set():
                self._compile(executor)
        except BaseException:
            self._cancelled.set()
            raise
        finally:
            if self._own_executor:
                executor.shutdown(wait=True, cancel_futures=self._cancelled.is_set())
            for row in self.rows:
                if row.id not in self._results:
                    self._finish(row, Result(id=row.id, status=Status.CANCELLED))
            self._save()
        return self.summary()

    def cancel(self) -> None:
        """End soon: running rows are stopped, finished rows count."""
        self._cancelled.set()

    def summary(self) -> Summary:
        """What came of it, so far."""
        results = tuple(self._results[row.id] for row in self.rows if row.id in self._results)
        return Summary(
            results=results,
            check=self._check,
            seconds=time.perf_counter() - self._began,
            estimate=self._estimate,
        )

    # --- the two passes

    def _width(self) -> int:
        """Rows at a time."""
        if self._jobs is not None:
            return self._jobs
        return self._executor.width if isinstance(self._executor, RowExecutor) else os.cpu_count() or 1

    def _find_misses(self, executor: Executor) -> None:
        """Find the rows that would miss. A row after one that would miss is checked only after that one has run."""
        if not self._check and self.settings.mode in {Mode.REFRESH, Mode.VERIFY}:
            return  # everything runs
        omitted: set[str] = set()
        taken: list[float] = []

        def width(count: int) -> int:
            # The first look imports the user's modules; each further worker would do that again.
            if len(taken) < 2:
                return 1
            each = sum(taken[1:]) / (len(taken) - 1)
            return max(1, min(self._width(), 1 + int(each * count / max(_WORTH_A_WORKER, taken[0]))))

        def ready(row: Row) -> bool | None:
            if self._check:
                return all(name in self._results for name in row.after)
            for name in row.after:
                if name in self._misses or name in omitted:
                    omitted.add(row.id)
                    return None
                before = self._results.get(name)
                if before is None:
                    return False
                if before.status is not Status.HIT:
                    omitted.add(row.id)
                    return None
            return True

        def ended(row: Row, result: Result) -> None:
            taken.append(result.seconds)
            if result.status is Status.WOULD_MISS:
                self._misses[row.id] = result
                if self._check:
                    self._finish(row, result)
            elif not (self._check and result.status is Status.FAILED):
                self._finish(row, result)
            elif missing := sorted(self._misses.keys() & set(row.after)):
                # It may have failed for want of what the row before it makes.
                message = f"comes after {', '.join(missing)}; {result.error}"
                late = msgspec.structs.replace(result, status=Status.WOULD_MISS, error=message)
                self._misses[row.id] = late
                self._finish(row, late)
            else:
                self._finish(row, self._with_hint(row, result))

        self._drive(executor, self.rows, ready, width, ended, check=True)

    def _with_hint(self, row: Row, result: Result) -> Result:
        """A look restores nothing: a row may fail for want of files that a command before it writes when it hits."""
        commands = [each.id for each in self.rows if each.command and each.id in row.after]
        if not commands:
            return result
        hint = f"comes after {', '.join(commands)}, which hits; `{to_type('warm')}` puts in place what it writes"
        return msgspec.structs.replace(result, error=f"{result.error}; {hint}")

    def _compile(self, executor: Executor) -> None:
        rows = [row for row in self.rows if row.id not in self._results]
        missed = {name: result.missed[0] for name, result in self._misses.items() if result.missed}
        if rows:
            self._estimate = self._history.estimate(rows, missed, self._width(), time.time())
        hits = sum(result.status is Status.HIT for result in self._results.values())
        self._listener.on_plan(rows, hits, self._estimate)

        def ready(row: Row) -> bool | None:
            before = [self._results.get(name) for name in row.after]
            bad = next((each for each in before if each is not None and each.status not in _GOOD), None)
            if bad is not None:
                words = f"comes after {bad.id}, which {bad.status.value}"
                self._finish(row, Result(id=row.id, status=Status.SKIPPED, error=words))
                return None
            return all(each is not None for each in before)

        self._drive(executor, rows, ready, lambda _count: self._width(), self._finish, check=False)

    def _drive(
        self,
        executor: Executor,
        rows: Sequence[Row],
        ready: Callable[[Row], bool | None],
        width: Callable[[int], int],
        ended: Callable[[Row, Result], None],
        *,
        check: bool,
    ) -> None:
        """Keep ``width`` rows in the executor. ready: whether a row may start now; None: not in this pass."""
        waiting = list(rows)
        running: dict[Future[Result], Row] = {}
        while (waiting or running) and not self._cancelled.is_set():
            still: list[Row] = []
            for at, row in enumerate(waiting):
                if len(running) >= width(len(waiting)):
                    still += waiting[at:]
                    break
                may = ready(row)
                if may:
                    running[self._submit(executor, row, check=check)] = row
                    if not check:
                        self._listener.on_start(row)
                elif may is False:
                    still.append(row)
            if not running:
                if still and len(still) == len(waiting):
                    raise UsageError(f"rows wait for each other: {', '.join(row.id for row in still)}")
                waiting = still
                continue
            waiting = still
            for future in wait(running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED).done:
                row = running.pop(future)
                ended(row, _outcome_of(row, future))
        if self._own_executor or not running:
            return
        for future in running:
            future.cancel()
        for future in wait(running).done:  # another's executor: what runs there can only be waited for
            if not future.cancelled():
                ended(running[future], _outcome_of(running[future], future))

    def _submit(self, executor: Executor, row: Row, *, check: bool) -> Future[Result]:
        store = str(self.settings.dir) if self._files else ""
        task = Task(
            row=row,
            check=check,
            counted=not self._check,
            needed=row.id in self._needed,
            files=self._files,
            store=store,
            namespace=self.settings.namespace,
        )
        try:
            return executor.submit(run_task, task)
        except RuntimeError as error:  # shut down, or broken by a worker that died
            failed: Future[Result] = Future()
            failed.set_exception(error)
            return failed

    def _finish(self, row: Row, result: Result) -> None:
        self._results[row.id] = result
        self._history.note(result)
        self._listener.on_finish(row, result)

    def _save(self) -> None:
        try:
            self._history.save()
        except StoreFault as fault:
            self.fault = fault  # the estimate of the next run is lost, no more


def environment(settings: config.Settings) -> dict[str, str]:
    """The variables of a worker that is to use the same store."""
    environ = dict(os.environ)
    if settings.origins["dir"] == "argument":
        environ["CACHEC_DIR"] = str(settings.dir)
    return environ


def _rows(given: Sequence[Target | Row]) -> list[Row]:
    rows = [each for each in given if isinstance(each, Row)]
    targets = [each for each in given if isinstance(each, Target)]
    if rows and targets:
        raise UsageError("give targets or rows, not both")
    if targets:
        return expand(targets)
    there = {row.id for row in rows}
    return [msgspec.structs.replace(row, after=tuple(name for name in row.after if name in there)) for row in rows]


def _storing(settings: config.Settings) -> None:
    if settings.mode in {Mode.OFF, Mode.READ_ONLY, Mode.REQUIRE}:
        raise UsageError(
            f"mode {settings.mode.value!r} ({settings.origins['mode']}) stores nothing, so nothing can be warmed; set "
            "mode = 'on' for this run, or only check"
        )


def _fits(rows: Sequence[Row]) -> None:
    """Refuse rows that need a process of their own if an executor runs them."""
    for row in rows:
        for asked, name in ((row.env, "env"), (row.isolated, "isolated")):
            if asked:
                raise UsageError(f"{row.id} has `{name}`, which needs cachec's own workers; leave out executor=")


def _outcome_of(row: Row, future: Future[Result]) -> Result:
    error = future.exception()
    if error is None:
        return future.result()
    return Result(id=row.id, status=Status.FAILED, error=f"{type(error).__qualname__}: {error}")


__all__ = ["Listener", "Warmer", "warm"]
