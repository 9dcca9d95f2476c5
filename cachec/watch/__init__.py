"""Watching: it reports which targets a change makes stale, and why, during editing."""

from cachec.watch.loop import Event, Watcher

__all__ = ["Event", "Watcher"]
