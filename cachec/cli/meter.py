"""Progress of a long command on stderr: a bar with throughput on a terminal, else now and then a line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

import click

from cachec import report

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

#: Seconds between two lines, and between two looks of the bar.
_LINES = 10.0
_POLL_SECONDS = 0.1


class Meter:
    """Called with the bytes done and the bytes in all (0 while unknown). A context manager.

    Bytes done that become fewer begin a new count: the next file, or the copy after a download.
    """

    def __init__(self, title: str, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic):
        """title: what is being done, in a word or two."""
        self._title = title
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._began = self._reported_at = clock()
        self._first = 0
        self._last = -1
        self._progress: Progress | None = None
        self._task_id: TaskID

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if done < self._last or self._last < 0:
            self._restart(done, total, now)
        self._last = done
        if now - self._reported_at < (_LINES if self._progress is None else _POLL_SECONDS) and (
            self._progress is None or done != total
        ):
            return
        self._reported_at = now
        if self._progress is not None:
            self._progress.update(self._task_id, completed=done, total=total or None)
        else:
            self._say(done, total, now)

    def _restart(self, done: int, total: int, now: float) -> None:
        self._began, self._first = now, done
        if self._progress is not None:
            self._progress.reset(self._task_id, completed=done, total=total or None)

    def _say(self, done: int, total: int, now: float) -> None:
        rate = throughput(done - self._first, now - self._began)
        of = f" of {report.size(total)}" if total else ""
        click.echo(f"cachec: {self._title}: {report.size(done)}{of}, {rate}", file=self._stream)

    def __enter__(self) -> Meter:
        if self._stream.isatty():
            from rich import progress
            from rich.console import Console

            columns = (
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.DownloadColumn(binary_units=True),
                progress.TransferSpeedColumn(),
                progress.TimeRemainingColumn(),
            )
            self._progress = progress.Progress(*columns, console=Console(file=self._stream), transient=True)
            self._task_id = self._progress.add_task(self._title, total=None)
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()


def throughput(nbytes: int, seconds: float) -> str:
    """``1.2 GiB/s``; empty work and no time give ``-``."""
    return "-" if seconds <= 0 else f"{report.size(int(nbytes / seconds))}/s"
