"""Watching: what a change makes stale and why, told beside an editor."""

from cachec.watch.loop import Event, Watcher

__all__ = ["Event", "Watcher"]
