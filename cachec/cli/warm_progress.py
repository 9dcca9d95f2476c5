"""How ``cachec warm`` shows where it is: a table on a terminal, else one line a row that needed work."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import click

from cachec import report
from cachec.cli.screen import cell_width, cut
from cachec.cli.session import clean
from cachec.warm import Listener, Result, Row, Status

#: Seconds between two pictures of the table.
_REFRESH = 0.25
#: Characters of a reason in a line.
_WHY = 400
#: The width of a row without its name and its reason.
_COLUMNS_WIDTH = len("  would-miss  10.0 min  ")
#: Rows that ended, shown under those that run.
_ENDED_SHOWN = 8

_STYLES = {
    Status.HIT: "green",
    Status.COMPILED: "cyan",
    Status.WOULD_MISS: "yellow",
    Status.FAILED: "red",
    Status.SKIPPED: "yellow",
    Status.CANCELLED: "dim",
}


class Lines(Listener):
    """Plain lines, for logs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._total = self._done = 0

    def on_plan(self, rows: Sequence[Row], hits: int, estimate: float | None) -> None:
        self._total = len(rows)
        self._done = 0
        if rows:
            guess = "unknown" if estimate is None else f"about {report.period(estimate)}"
            self._say(f"{len(rows)} to run, {hits} hit; time: {guess}")

    def on_finish(self, row: Row, result: Result) -> None:
        if result.status is Status.HIT and not self._total:
            return
        self._done += 1
        place = f"[{self._done}/{self._total}] " if self._total else ""
        why = clean(result.why())
        why = why if len(why) <= _WHY else why[: _WHY - 1] + "…"
        self._say(
            f"{place}{result.status.value} {clean(row.id)} ({report.period(result.seconds)})"
            + (f": {why}" if why else "")
        )

    def _say(self, words: str) -> None:
        click.echo(f"cachec: {words}", file=self._stream)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class ProgressTable(Listener):
    """A table that is drawn again on each change: running rows, rows that ended last, and the progress."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console
        from rich.live import Live

        self._clock = clock
        self._began = clock()
        self._running: dict[str, float] = {}
        self._ended: list[Result] = []
        self._counts: Counter[Status] = Counter()
        self._total = 0
        self._estimate: float | None = None
        self._live = Live(
            console=Console(file=stream),
            get_renderable=self.picture,
            refresh_per_second=1 / _REFRESH,
            transient=True,
        )

    def on_plan(self, rows: Sequence[Row], hits: int, estimate: float | None) -> None:
        self._total = len(rows) + hits
        self._estimate = estimate
        self._began = self._clock()

    def on_start(self, row: Row) -> None:
        self._running[row.id] = self._clock()

    def on_finish(self, row: Row, result: Result) -> None:
        self._running.pop(row.id, None)
        self._counts[result.status] += 1
        if result.status is not Status.HIT:
            self._ended = [*self._ended, result][-_ENDED_SHOWN:]

    def picture(self) -> Any:
        """The table as it is now."""
        from rich.table import Table as Grid
        from rich.text import Text

        now = self._clock()
        grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=False)
        grid.add_column("target", overflow="fold", min_width=self._widest())
        grid.add_column("result", no_wrap=True)
        grid.add_column("took", justify="right", no_wrap=True)
        grid.add_column("why", overflow="ellipsis", no_wrap=True)
        other_columns = self._widest() + _COLUMNS_WIDTH
        for result in self._ended:
            style = _STYLES[result.status]
            status_text = Text(result.status.value, style=style)
            why = cut(clean(result.why()), other_columns, self._live.console.width)
            grid.add_row(Text(clean(result.id)), status_text, report.period(result.seconds), Text(why, style="dim"))
        for name, began in list(self._running.items()):
            grid.add_row(Text(clean(name)), Text("running", style="bold"), report.period(round(now - began)), "")
        grid.caption = Text(self._caption(now))
        grid.caption_justify = "left"
        return grid

    def _widest(self) -> int:
        """Return the width of the longest shown name: names are not cut, because they identify rows."""
        names = [*(result.id for result in self._ended), *self._running]
        return max((cell_width(clean(name)) for name in names), default=len("target"))

    def _caption(self, now: float) -> str:
        done = self._counts.total()
        status_text = ", ".join(f"{count} {status.value}" for status, count in self._counts.items())
        words = f"{done}/{self._total}" if self._total else f"{done} looked at"
        words += f"  {status_text}" if status_text else ""
        if self._estimate is not None:
            words += f"  about {report.period(max(0.0, round(self._estimate - (now - self._began))))} left"
        return words

    def __enter__(self) -> ProgressTable:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


def progress(stream: TextIO) -> Lines | ProgressTable:
    """The listener for a stream. A context manager."""
    return ProgressTable(stream) if stream.isatty() else Lines(stream)
