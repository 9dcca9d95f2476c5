"""The composition root: one opened cache, for the stages of a ``Cache`` and for the commands of the launcher."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cachec.base.hashing import Known
from cachec.config import Settings
from cachec.events import EventLog
from cachec.model import Digest, Fault, Outcome
from cachec.store.store import Store
from cachec.store.store_size import Usage

if TYPE_CHECKING:  # of stages: slow to import, and what only keeps the bytes of others has none
    from cachec.key.key_builder import KeyBuilder
    from cachec.key.trace_validation import Dependencies
    from cachec.programs.registry import Plugins
    from cachec.remote.chain import Remotes
    from cachec.stage.engine import Engine
    from cachec.stage.trace_builder import TraceBuilder
    from cachec.weights import WeightSet


#: Where the store of a cache without a folder would be: no process has the number 0, so nobody can make this folder.
_NOWHERE = Path("/proc/0/cachec")


class CacheContext:
    """The store and the log of one cache. Nothing is read or made before something is asked of them."""

    def __init__(self, settings: Settings, known: Known | None = None) -> None:
        """known: digests of files that this process knows, of what it opened before."""
        self.settings = settings
        export = _exporter() if settings.telemetry == "otel" else None
        folder = settings.store_folder
        self.events = EventLog(folder, log=settings.log, stats_file=settings.stats_file, export=export)
        self.store = Store(
            folder or _NOWHERE, settings.namespace, fsync=settings.fsync, on_fault=self.events.note_fault, known=known
        )
        self.store.refuse_foreign(settings.shared)
        self.store.keep_bound(_size_limiter(settings.max_size, self.events.note_fault), settings.max_size)
        self.remotes = self._remotes() if settings.remote and folder is not None else None

    def _remotes(self) -> Remotes:
        from cachec.remote.chain import Remotes

        helped = _with_helper if self.settings.server == "auto" else None
        return Remotes(self.settings.remote, self.store, self.events.note_fault, on_offer=helped)

    def close(self) -> None:
        """Write what is still to be remembered, and let go of files, connections and what was handed out."""
        self.store.close()
        self.store.release()
        if self.remotes is not None:
            self.remotes.close()

    def engine(
        self,
        key_builder: KeyBuilder,
        plugins: Plugins,
        dependencies: Dependencies,
        digest_of: Callable[[WeightSet, str], Digest | None],
        observing: TraceBuilder | None = None,
    ) -> Engine:
        """The engine. digest_of: of a weight, by name. observing: what becomes of observations and paths; None where
        commands are run, which tell what they read."""
        from cachec.stage.engine import Engine
        from cachec.stage.lookup import EngineServices, EntryFinder

        finder = EntryFinder(self.store, plugins, dependencies, digest_of, observing)
        tools = EngineServices(self.store, self.store.digests, key_builder, plugins, finder, observing)
        return Engine(self.settings, tools, self.events, self.remotes)


def _exporter() -> Callable[[Outcome], None]:
    from cachec.telemetry import exporter  # where it is asked for

    return exporter()


def _with_helper(remotes: Remotes) -> None:
    from cachec.remote.helper import start  # after a miss only

    start(remotes)


def _size_limiter(max_size: int, on_fault: Callable[[Fault, str], None]) -> Callable[[Store, Usage | None], None]:
    """What a publication calls, so that the store stays within its size. It holds no store: that would be a cycle."""

    def keep(store: Store, usage: Usage | None) -> None:
        from cachec.store.store_size import is_over  # after a miss only

        if usage is not None and not is_over(usage, max_size, store.folder):
            return
        from cachec.maintain.maintainer import Maintainer  # takes milliseconds to import

        Maintainer(store, max_size=max_size, on_fault=on_fault).keep_bound(usage)

    return keep
