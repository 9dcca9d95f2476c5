"""What a person sees while stages run: one by its name, for how long, and how long it took last time.

On a terminal one line that is written over each second and gone at the end, in a notebook the same, in CI (``CI`` is
set) a line a minute; else nothing. It is written by a thread, which begins before the run does, so that a run that
records does not see it.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType

from cachec.base.display_text import clean

#: Seconds from one line to the next: where it is written over, and in a log.
_OVER, _LINES = 1.0, 60.0

_ERASE = "\r\x1b[K"  # ECMA-48, EL: to the end of the line


class Progress:
    """A context manager around a run."""

    def __init__(self, show: Callable[[str], None], every: float, words: Callable[[float], str]) -> None:
        """show: writes the line in place of the one before; of an empty one nothing is left. words: what it says after
        so many seconds."""
        self._show = show
        self._every = every
        self._words = words
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cachec-progress", daemon=True)

    def _run(self) -> None:
        started = time.monotonic()
        while not self._over.wait(self._every):
            self._show(f"cachec: {clean(self._words(time.monotonic() - started))}")

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        self._show("")


def run_words(stage: str, last: float | None) -> Callable[[float], str]:
    """What is said of one run. last: how many seconds it took last time."""
    before = "" if last is None else f", last time {period(last)}"
    return lambda seconds: f"{stage} runs for {period(seconds)}{before}"


def way_to_show(tell: Callable[[str], None], environ: Mapping[str, str]) -> tuple[Callable[[str], None], float] | None:
    """How lines are shown here, and how many seconds apart; None where nobody looks. tell: prints a line for good."""
    stream = sys.stderr
    if type(stream).__module__.startswith("ipykernel."):
        return _over_in_a_notebook, _OVER
    try:
        fd = stream.fileno()
        is_terminal = os.isatty(fd) and environ.get("TERM") != "dumb"
    except (AttributeError, OSError, ValueError):  # there is none, it is closed, or it is no file
        return None
    if is_terminal:
        return (lambda line: _over_on_a_terminal(fd, line)), _OVER
    if environ.get("CI", "").lower() in {"1", "true"}:
        return (lambda line: tell(line) if line else None), _LINES
    return None


def _over_on_a_terminal(fd: int, line: str) -> None:
    """Past the buffer of ``sys.stderr``, whose lock a stage that forks would find taken. What the stage itself writes
    begins at the line's beginning."""
    try:
        columns = os.get_terminal_size(fd).columns or 80
        os.write(fd, f"{_ERASE}{line[: columns - 1]}\r".encode(errors="replace") if line else b"\x1b[K")
    except OSError:
        return  # the terminal is gone, and the run goes on


def _over_in_a_notebook(line: str) -> None:
    width = shutil.get_terminal_size().columns - 1
    sys.stderr.write(f"\r{line[:width]:{width}}\r")
    sys.stderr.flush()


def period(seconds: float) -> str:
    """A time, for a person."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.{0 if seconds >= 10 else 1}f} s"
