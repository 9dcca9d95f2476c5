"""A store of its own for one test, whatever caches the tested code has made before."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from cachec.base.call_hooks import Oversight, current, oversee_process, overseen
from cachec.cache import Cache
from cachec.model import Outcome

if TYPE_CHECKING:
    import pytest


class IsolatedCache:
    """What the fixture ``cachec`` gives. A context manager.

    dir: the empty store. cache: a cache in it. ``CACHEC_DIR`` leads there, so caches that are made while it is in
    force are in it too; one that was made before (at the top of a module, say) is moved there by ``adopt``.
    outcomes: of every call in this process meanwhile, in order.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dir = folder / "store"
        self.outcomes: list[Outcome] = []
        self._monkeypatch = monkeypatch
        self._stack = ExitStack()
        monkeypatch.setenv("CACHEC_DIR", os.fspath(self.dir))
        monkeypatch.setenv("CACHEC_SERVER", "off")  # no process is left behind
        self.cache = Cache(self.dir)

    def adopt(self, cache: Cache) -> Cache:
        """Let a cache, and every stage that it made, use this store until the test ends; returns the cache."""
        for of, own, names in (
            (cache._engine, self.cache._engine, ("settings", "tools", "events")),
            (cache._opened, self.cache._opened, ("settings", "store", "events")),
        ):
            for name in names:
                self._monkeypatch.setattr(of, name, getattr(own, name))
        return cache

    @property
    def hits(self) -> int:
        """Calls that hit."""
        return sum(outcome.hit for outcome in self.outcomes)

    @property
    def misses(self) -> list[Outcome]:
        """Calls that did not."""
        return [outcome for outcome in self.outcomes if not outcome.hit]

    def __enter__(self) -> IsolatedCache:
        outer = current()

        def hear(outcome: Outcome) -> None:
            self.outcomes.append(outcome)
            if outer.on_outcome is not None:
                outer.on_outcome(outcome)

        # In a store that is empty every call would fail in mode require: what the test says of it holds.
        mine = Oversight(hear, outer.mode, outer.defer, self.cache.settings.dir)
        self._stack.enter_context(oversee_process(mine))
        self._stack.enter_context(overseen(mine))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self.cache.close()
