"""What runs in a store now, by the locks that its processes hold."""

from __future__ import annotations

import os
from typing import Any

from cachec.base import fsio
from cachec.errors import StoreFault
from cachec.store.store import Store


def running(store: Store, now: float) -> list[dict[str, Any]]:
    """The stages that run, longest first, as ``cachec top --json`` says them. Raises StoreFault.

    A run has no lock where nothing will be stored (other modes, foreign caches): it is not seen.
    """
    with fsio.faults(f"looking at the locks of {store.folder}"):
        locks = store.locks.running()
    return [
        {
            "stage": each.stage,
            "key": each.key,
            "pid": each.pid,
            "since": each.since,
            "seconds": max(now - each.since, 0.0),
            "last": _last(store, each.near),
            "waiting": [
                {"pid": pid, "seconds": max(now - since, 0.0)}
                for pid, since in sorted(each.waiting.items())
                if _is_alive(pid)
            ],
        }
        for each in locks
    ]


def _last(store: Store, near: str) -> float | None:
    """Return the seconds of the newest run under a key, or None."""
    try:
        entry = store.lookup(near)
    except StoreFault:
        return None
    newest = max(entry.traces if entry else (), key=lambda trace: trace.created, default=None)
    return None if newest is None else newest.seconds


def _is_alive(pid: int) -> bool:
    """Who was killed waits no more, and could not say so."""
    return os.path.exists(f"/proc/{pid}")
