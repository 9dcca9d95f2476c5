"""Calls as a trace that Perfetto (https://ui.perfetto.dev) and Chrome's own viewer open.

The format: "Trace Event Format" of the Chromium project, complete events (``ph`` X) with times in microseconds. Calls
of a process that overlap, where none is within the other, are in threads of their own: viewers nest by time alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from cachec.model import Outcome
from cachec.views.rows import Bar, by_process


def trace(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """The document. Times count from the begin of the first call, ``began``."""
    processes = by_process(outcomes)
    began = min((bars[0].begin for bars in processes.values()), default=0.0)
    return {
        "traceEvents": [event for pid, bars in processes.items() for event in _events(pid, bars, began)],
        "displayTimeUnit": "ms",
        "otherData": {"began": began, "writer": "cachec"},
    }


def _events(pid: int, bars: list[Bar], began: float) -> Iterator[dict[str, Any]]:
    name = f"cachec, pid {pid}" if pid else "processes that were not recorded"
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
    for row in sorted({bar.row for bar in bars}):
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": row, "args": {"name": f"calls {row + 1}"}}
    for bar in bars:
        outcome = bar.outcome
        begin, end = (round((moment - began) * 1e6) for moment in (bar.begin, bar.end))
        yield {
            "ph": "X",
            "name": outcome.stage,
            "cat": outcome.reason.kind,
            "pid": pid,
            "tid": bar.row,
            "ts": begin,
            "dur": end - begin,
            "args": {
                "outcome": outcome.reason.value,
                "detail": outcome.detail,
                "key": outcome.key,
                "saved": outcome.saved,
                "stored": outcome.stored,
            },
        }
