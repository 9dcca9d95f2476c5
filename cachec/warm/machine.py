"""What runs on a machine of a Dask cluster, as a task and a plugin of its Dask workers; see ``cluster``."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import msgspec
from distributed import WorkerPlugin, get_worker

from cachec.warm.model import Result, Row, Status, Task
from cachec.warm.pool import WorkerPool
from cachec.warm.run import run_task

if TYPE_CHECKING:
    from distributed import Worker

#: Where a machine has the project; by default where whoever warms has it.
FOLDER = "CACHEC_WARM_FOLDER"


class TaskWorkers(WorkerPlugin):
    """What a Dask worker has for one warming: worker processes of cachec's own, which keep what they have imported."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._carried = dict(environ)

    def setup(self, worker: Worker) -> None:
        """Called by Dask on each worker, those that come later too."""
        self.environ = {**self._carried, **os.environ}
        self.pool = WorkerPool(worker.state.nthreads, self.environ)

    def teardown(self, worker: Worker) -> None:
        """Called by Dask when the worker ends."""
        self.pool.shutdown(wait=False, cancel_futures=True)


def run_there(body: bytes, folder: str, name: str) -> bytes:
    """Run a row as it is on this machine. What it stores is at the remotes before it counts as compiled."""
    workers = cast("TaskWorkers", get_worker().plugins[name])
    task = msgspec.json.decode(body, type=Task)
    return msgspec.json.encode(_run(task, folder, workers))


def _run(task: Task, folder: str, workers: TaskWorkers) -> Result:
    row = relocate_row(task.row, folder, workers.environ.get(FOLDER, folder))
    if not os.path.isdir(row.folder):
        message = f"this machine has no folder {row.folder}; set {FOLDER} to where it has the project"
        return Result(id=row.id, status=Status.FAILED, error=message)
    result = workers.pool.submit(run_task, msgspec.structs.replace(task, row=row)).result()
    if result.status is Status.COMPILED and (pending := _push_pending(workers.environ, row.folder)):
        return msgspec.structs.replace(result, status=Status.FAILED, error=pending)
    return result


def relocate_row(row: Row, folder: str, there: str) -> Row:
    """A row of a project in ``folder``, for a machine that has it ``there``."""

    def place(path: str) -> str:
        inside = os.path.relpath(path, folder)
        return path if inside.startswith(os.pardir) else os.path.normpath(os.path.join(there, inside))

    return msgspec.structs.replace(row, folder=place(row.folder), path=tuple(place(each) for each in row.path))


def _push_pending(environ: Mapping[str, str], folder: str) -> str:
    """Send what waits for the remotes; why some of it still waits, or nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "cachec", "push", "--json"],
        env=dict(environ),
        cwd=folder,
        capture_output=True,
        check=False,
    )
    if not done.returncode:
        return ""
    message = done.stderr.decode(errors="replace").strip()
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        message = ", ".join(json.loads(done.stdout)["faults"]) or message
    return f"compiled, but no remote has it: {message or f'cachec push ended with {done.returncode}'}"
