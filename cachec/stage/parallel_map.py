"""``cache.map``: one stage for many inputs. Workers run misses in parallel; one thread does everything else."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import time
from collections.abc import Iterable
from typing import Any

from cachec.base.wait_strategy import Pause, Together, ready
from cachec.errors import UsageError
from cachec.stage.decorator import Stage
from cachec.stage.engine import CallResult, StageCall, step
from cachec.stage.progress import period


class _MapTask:
    """One call, in a context of its own. pause: what it waits for; None once it has ended. error: what it raised."""

    def __init__(self, call: StageCall) -> None:
        self.call = call
        self.pause: Pause | None = None
        self.answer: CallResult | None = None
        self.error: Exception | None = None
        self._context = contextvars.copy_context()
        self._answering = call.engine.answer(call)

    def step(self) -> None:
        """Take it on, to its end or its next pause."""
        self.pause = None
        try:
            found = self._context.run(step, self.call, self._answering)
        except Exception as error:  # noqa: BLE001 - the stage's own, raised at its place
            self.error = error
        else:
            if isinstance(found, Pause):
                self.pause = found
            else:
                self.answer = found

    def end(self, error: BaseException) -> None:
        """End it, and its worker. error: why."""
        with contextlib.suppress(type(error), StopIteration):
            self._context.run(self._answering.throw, error)


class MappedCalls:
    """The calls of one ``cache.map``."""

    def __init__(self, stage: Stage[..., Any], arguments: Iterable[tuple[tuple[Any, ...], dict[str, Any]]]) -> None:
        """arguments: of each call. Hits are answered here."""
        self._engine, self._name = stage.engine, stage.options.name
        self._tasks: list[_MapTask] = []
        #: Those that wait for their turn, and those whose runs have begun.
        self._waiting: list[_MapTask] = []
        self._running: list[_MapTask] = []
        waiter = Together()
        for args, kwargs in arguments:
            task = _MapTask(StageCall(self._engine, stage, args, kwargs, waiter=waiter, shows_progress=False))
            self._tasks.append(task)
            try:
                task.step()
            except BaseException as error:
                self._end(error)
                raise
            if task.error is not None:
                break
            if task.pause is not None:
                self._waiting.append(task)

    def run(self, jobs: int) -> list[Any]:
        """The results, in the order of the inputs. What the first of the inputs raises that raises is raised here: once
        those that had begun have ended, and no other has begun."""
        try:
            with self._engine.progress(lambda: self._words) if self._waiting else contextlib.nullcontext():
                while self._waiting or self._running:
                    self._begin(jobs)
                    self._go_on()
        except BaseException as error:
            self._end(error)
            raise
        for task in self._tasks:
            if task.error is not None:
                raise task.error
        return [task.answer.value for task in self._tasks if task.answer is not None]

    def _begin(self, jobs: int) -> None:
        """Begin runs, of one key at most one at a time: the others of it find what that has stored."""
        while len(self._running) < jobs and (task := self._next()) is not None:
            self._waiting.remove(task)
            self._running.append(task)
            self._step(task)

    def _next(self) -> _MapTask | None:
        keys = {task.call.cache_key.digest for task in self._running}
        return next((task for task in self._waiting if task.call.cache_key.digest not in keys), None)

    def _go_on(self) -> None:
        """Wait until a call can go on."""
        pauses = [task.pause for task in self._running if task.pause is not None]
        if not pauses:
            return
        until = min((pause.until for pause in pauses if pause.until is not None), default=None)
        seconds = None if until is None else max(until - time.monotonic(), 0.0)
        readable = set(ready({fd for pause in pauses for fd in pause.fds}, seconds))
        now = time.monotonic()
        for task in self._running.copy():
            pause = task.pause
            if pause is not None and (not readable.isdisjoint(pause.fds) or (pause.until or now + 1) <= now):
                self._step(task)

    def _step(self, task: _MapTask) -> None:
        task.step()
        if task.pause is None:
            self._running.remove(task)
        if task.error is not None:
            number = self._tasks.index(task)
            self._waiting = [each for each in self._waiting if self._tasks.index(each) < number]

    def _end(self, error: BaseException) -> None:
        """End all that has not ended. An interrupt gives one worker time to end by itself, and so the others."""
        running = self._running
        if running and isinstance(error, KeyboardInterrupt):
            running[0].end(error)
        for task in self._tasks:
            if task.pause is not None and task is not (running[0] if running else None):
                task.end(GeneratorExit())

    def _words(self, seconds: float) -> str:
        done = sum(task.answer is not None for task in self._tasks)
        return f"{self._name}: {done} of {len(self._tasks)}, {len(self._running)} running, {period(seconds)}"


def map_stage(stage: object, inputs: Iterable[Any], jobs: int | None) -> list[Any]:
    """As ``Cache.map``."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    while isinstance(stage, functools.partial):
        args, kwargs, stage = (*stage.args, *args), {**stage.keywords, **kwargs}, stage.func
    if not isinstance(stage, Stage):
        raise UsageError(f"cache.map is given {stage!r}, which is no stage; give a function with @cache.stage")
    if stage.is_asynchronous:
        raise UsageError(
            f"stage {stage.options.name} is an async def, which cache.map does not take: "
            "await asyncio.gather(*map(stage, inputs))"
        )
    if jobs is not None and jobs < 1:
        raise UsageError(f"jobs={jobs} is not accepted; give 1 or more")
    calls = MappedCalls(stage, [((*stage.bound_to, *args, each), kwargs) for each in inputs])
    return calls.run(jobs or len(os.sched_getaffinity(0)))
