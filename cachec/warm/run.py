"""The run or check of one row, in a worker of cachec, or in an executor's process."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from cachec.base.call_hooks import Oversight, overseen
from cachec.base.distributions import OWN_FOLDER
from cachec.errors import CachecError, CacheMissError, UsageError
from cachec.model import Mode, Outcome, Reason
from cachec.warm.commands import count, run_command
from cachec.warm.model import Result, Row, Status, Task

#: The number of characters of a traceback in a result, from its end, which has the exception.
_TRACEBACK = 8000
#: The number of characters of an error in a result, from its start.
_ERROR = 2000


def run_task(task: Task) -> Result:
    """Run a row, or with ``check`` only look if it would miss. What the target raises is in the result.

    A check of a function runs it in mode ``require``: its first miss raises CacheMissError, so nothing is compiled.
    A stage named as the entry point is called the same way. Its outcomes are logged where the task is ``counted`` and
    everything hit.
    """
    started = time.perf_counter()
    heard: list[Outcome] = []
    hooks: list[Callable[[], None]] = []
    error = output = ""
    missed = False
    try:
        if task.row.command:
            heard += run_command(task)
            if not task.needed:  # else it was run, which counts by itself
                hooks += [partial(count, outcome) for outcome in heard]
        else:
            checking = Oversight(heard.append, Mode.REQUIRE, hooks.append)
            with overseen(checking if task.check else Oversight(heard.append)):
                _call(task.row)
    except CacheMissError as miss:
        missed = True
        error = "" if any(each.reason is Reason.REQUIRED for each in heard) else str(miss)
    except _EntryPointError as refused:
        error = str(refused)
    except (Exception, SystemExit) as raised:  # noqa: BLE001 - the target's own; it is reported, the others go on
        if task.row.command and isinstance(raised, CachecError):
            error = str(raised)  # which says all that there is to say
        else:
            error = _words_of(raised)
            output = _end_of(_traceback(raised))
    result = _result(task, heard, error, output, missed=missed, seconds=time.perf_counter() - started)
    if task.check and task.counted and result.status is Status.HIT:
        for emit in hooks:
            emit()
    return result


def _result(task: Task, heard: list[Outcome], error: str, output: str, *, missed: bool, seconds: float) -> Result:
    # A target may catch CacheMissError and continue: the outcomes of its stages count.
    missed = missed or any(each.reason is Reason.REQUIRED for each in heard)
    unstored = [each for each in heard if not each.hit and not each.stored and each.reason.kind != "error"]
    if task.check and missed:
        status, error, output = Status.WOULD_MISS, "", ""
    elif error or missed:
        status = Status.FAILED
    elif not heard:
        status, error = (
            Status.FAILED,
            (f"{task.row.call or task.row.command[0]} called no stage; a target is a stage, or calls stages"),
        )
    elif unstored:
        fault = unstored[0].fault.value if unstored[0].fault else unstored[0].reason.value
        status, error = Status.FAILED, f"{unstored[0].stage} ran, but its result is not stored ({fault})"
    else:
        status = Status.HIT if all(each.hit for each in heard) else Status.COMPILED
    return Result(id=task.row.id, status=status, seconds=seconds, outcomes=tuple(heard), error=error, output=output)


class _EntryPointError(Exception):
    """The entry point can't be had, or not be called in this way; the message says why."""


def _call(row: Row) -> None:
    function = entry_point(row)
    try:
        inspect.signature(function).bind(**row.arguments)
    except TypeError as error:
        raise _EntryPointError(
            f"{row.call} does not take the arguments of {row.id}: {error}; its parameters are "
            f"{inspect.signature(function)}, the row gives {', '.join(row.arguments) or 'none'}"
        ) from None
    except ValueError:
        pass  # a callable that tells no signature: calling it will tell
    answer = function(**row.arguments)
    if inspect.isawaitable(answer):
        asyncio.run(_await(answer))


async def _await(answer: Any) -> Any:
    return await answer


def entry_point(row: Row) -> Callable[..., Any]:
    """Import the object that ``call`` names. Raises _EntryPointError for an unknown one."""
    module_name, _, qualname = row.call.partition(":")
    for place in reversed(row.path):
        if place not in sys.path:
            sys.path.insert(0, place)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            places = ", ".join(row.path) or "none"
            raise _EntryPointError(
                f"no module {error.name!r} for {row.call}; the folders of `path` are: {places}"
            ) from None
        raise
    target: object = module
    for name in qualname.split("."):
        if not hasattr(target, name):
            where = getattr(module, "__file__", None) or "a namespace package"
            raise _EntryPointError(f"module {module_name!r} ({where}) has no {qualname!r}")
        target = getattr(target, name)
    if not callable(target):
        raise _EntryPointError(f"{row.call} is a {type(target).__name__}, which can't be called")
    function: Callable[..., Any] = target
    return function


def prepare(row: Row) -> None:
    """Make this process a place for the row: its current folder, which modules are imported from too.

    Only a worker of ours does this; other executors share a process with their owner. Raises UsageError where the
    folder is gone.
    """
    if not row.folder:
        return
    try:
        os.chdir(row.folder)
    except OSError as error:
        raise UsageError(f"the folder of {row.id}, {row.folder}, can't be entered: {error.strerror}") from error
    if row.folder not in sys.path:
        sys.path.insert(0, row.folder)


def _words_of(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception as other:  # noqa: BLE001 - an exception that can't say what it is
        message = f"(its text can't be had: {type(other).__qualname__})"
    words = f"{type(error).__qualname__}: {message}"
    return words if len(words) <= _ERROR else words[: _ERROR - 1] + "…"


def _traceback(error: BaseException) -> str:
    """The traceback without the frames of cachec itself."""
    whole = traceback.TracebackException.from_exception(error)
    errors = [whole]
    while errors:
        each = errors.pop()
        frames = [frame for frame in each.stack if not frame.filename.startswith(OWN_FOLDER)]
        each.stack = traceback.StackSummary.from_list(frames)
        errors += [other for other in (each.__cause__, each.__context__, *(each.exceptions or ())) if other is not None]
    return "".join(whole.format())


def _end_of(text: str) -> str:
    return text if len(text) <= _TRACEBACK else "[...]\n" + text[-_TRACEBACK:]
