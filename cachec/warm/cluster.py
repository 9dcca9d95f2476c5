"""Rows on the machines of a Dask cluster: ``dask://host:port`` (distributed.dask.org).

Each machine has a store of its own; what one compiles reaches the others, and whoever warms, through the remote that
all of them use. A row is a task of Dask that hands it to worker processes of cachec's own on that machine, see
``machine``, so all that holds for rows here holds there. What goes over the wire is a Task or a Result as JSON, which
the reader validates.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, ParamSpec, TypeVar, cast

import msgspec

from cachec import config
from cachec.base.display_text import is_secret
from cachec.errors import UsageError
from cachec.warm.model import Result, Task
from cachec.warm.pool import RowExecutor
from cachec.warm.run import run_task

P = ParamSpec("P")
T = TypeVar("T")

SCHEME = "dask://"
#: Settings of one machine. A machine's own values have precedence.
_LOCAL = frozenset({"CACHEC_DIR", "CACHEC_STATS_FILE", "CACHEC_LOG", "CACHEC_BASE_DIR", "CACHEC_TRUSTED"})
#: Seconds to wait for the scheduler, and seconds for which its list of workers is valid.
_CONNECT, _BELIEVED = 10.0, 1.0


class Cluster(RowExecutor):
    """Runs ``run_task`` on the workers of a Dask scheduler, those that come later included.

    A row that is lost with its machine runs again on another, as often as Dask's ``allowed-failures`` says.
    """

    def __init__(self, url: str, folder: str, settings: config.Settings) -> None:
        """folder: the project; rows are in it, or in the folder of the same path there. Raises UsageError where Dask is
        not installed, no scheduler answers, or there is no remote."""
        if not settings.remote:
            raise UsageError(
                "each machine of a cluster has a store of its own, and no remote is configured that would bring what "
                "one compiles to the others; set CACHEC_REMOTE (see docs/reference/remotes.md)"
            )
        try:
            from distributed import Client

            from cachec.warm.machine import TaskWorkers, run_there
        except ImportError as error:
            raise UsageError(f"{url} needs Dask, which is not installed: pip install 'cachec[dask]'") from error
        self._folder = os.path.abspath(folder)
        address = "tcp://" + url.removeprefix(SCHEME)
        try:
            make: Any = Client
            self._client = make(address, timeout=_CONNECT, set_as_default=False)
        except (OSError, ValueError) as error:
            raise UsageError(f"no Dask scheduler answers at {address}: {str(error).strip() or 'timed out'}") from error
        # Of this warming alone: another may warm on the same cluster.
        self._name = f"cachec-warm {os.uname().nodename} {os.getpid()} {time.time_ns():x}"
        self._client.register_plugin(TaskWorkers(_portable_settings(settings)), name=self._name)
        self._run_there = run_there
        self._threads = (0.0, 1)

    @property
    def width(self) -> int:
        """Rows that the cluster runs at a time now."""
        now = time.monotonic()
        if now - self._threads[0] > _BELIEVED:
            self._threads = now, max(1, sum(self._client.nthreads().values()))
        return self._threads[1]

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a task. Raises TypeError for anything but ``run_task``."""
        if fn is not run_task or kwargs or len(args) != 1:
            raise TypeError("a cluster runs run_task(task) and nothing else")
        task = cast("Task", args[0])
        future_result: Future[Result] = Future()
        there = self._client.submit(
            self._run_there,
            msgspec.json.encode(task),
            self._folder,
            self._name,
            pure=False,
            key=_key(task),
        )
        there.add_done_callback(lambda future: _copy_result(future, future_result))
        future_result.add_done_callback(lambda future: there.cancel() if future.cancelled() else None)
        return cast("Future[T]", future_result)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the cluster, which goes on; rows that run there are given up. Its worker processes end with it."""
        with contextlib.suppress(OSError, TimeoutError):  # the scheduler may be gone
            self._client.unregister_worker_plugin(self._name)
        self._client.close(timeout=_CONNECT)


def _portable_settings(settings: config.Settings) -> dict[str, str]:
    """What the settings of whoever warms say to other machines: no key, no secret, no place of this machine."""
    carried = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("CACHEC_") and name not in _LOCAL and not is_secret(name)
    }
    carried.setdefault("CACHEC_REMOTE", " ".join(settings.remote))
    carried.setdefault("CACHEC_NAMESPACE", settings.namespace)
    return carried


def _key(task: Task) -> str:
    """The name that Dask's own pages show, of which no two are alike."""
    return f"{'look' if task.check else 'warm'} {task.row.id} {time.time_ns():x}"


def _copy_result(future: Any, future_result: Future[Result]) -> None:
    """Hand on what came of a task of Dask."""
    if not future_result.set_running_or_notify_cancel():
        return
    try:
        future_result.set_result(msgspec.json.decode(future.result(), type=Result))
    except CancelledError:
        future_result.set_exception(RuntimeError("the cluster gave the row up"))
    except Exception as error:  # noqa: BLE001 - Dask's own, and what it tells of a worker that was lost
        future_result.set_exception(error)
