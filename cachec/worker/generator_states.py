"""The random generators of a worker: which of them a run drew from or seeded, and their final states."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping

from cachec.key import random_generators
from cachec.model import GeneratorState
from cachec.programs.registry import Plugins

__all__ = ["Generators", "import_generators"]


class Generators:
    """The generators of this process, watched during a run.

    Limit: a run that draws and then sets a seed counts as one that sets a seed alone.
    """

    def __init__(self, plugins: Plugins, states: Mapping[str, bytes]) -> None:
        """states: of the caller's process; the run goes on from them."""
        self._plugins = plugins
        self._watched = {}
        for each in random_generators.every(plugins.all()):
            if each.name in states:
                importlib.import_module(each.module)
            if each.state() is not None:
                was_seeded = each.watch()
                if each.name in states:
                    each.put(states[each.name], seeds=False)
                self._watched[each.name] = was_seeded, each.counted(each.state() or b"")
        self._others = [plugin.watch_generators() for plugin in plugins.all()]

    def outcome(self) -> tuple[tuple[str, ...], dict[str, GeneratorState]]:
        """The names of those that were drawn from and not seeded; and how those were left that were either.

        One that the run has imported counts as drawn from, where its state does not say otherwise.
        """
        drawn = [name for watch in self._others for name in watch()]
        final = {}
        for each in random_generators.every(self._plugins.all()):
            state = each.state()
            if state is None:
                continue
            watched = self._watched.get(each.name)
            if watched is None:
                is_seeded, is_moved = False, not each.is_untouched(state)
            else:
                is_seeded, is_moved = watched[0](), each.counted(state) != watched[1]
            if is_seeded or is_moved:
                final[each.name] = GeneratorState(is_seeded, state)
            if is_moved and not is_seeded:
                drawn.append(each.name)
        return tuple(drawn), final


def import_generators() -> None:
    """Import the generators of libraries that are imported: of one that comes later, no state from before is known."""
    if "numpy" in sys.modules:
        importlib.import_module("numpy.random")
