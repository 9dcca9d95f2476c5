"""The random generators that all of a process shares: Python's, numpy's, and those of plugins."""

from __future__ import annotations

import importlib
import os
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType
from typing import Any, Final

from cachec.base.hashing import digest_bytes
from cachec.model import GeneratorState
from cachec.programs.plugin import Plugin
from cachec.programs.random_generator import Generator
from cachec.programs.registry import Plugins

__all__ = [
    "STATES",
    "asked_states",
    "digest",
    "every",
    "find_generator",
    "is_moved",
    "put",
    "shared_generator",
    "snapshot",
]

#: Functions that return the state of a random generator of the process, or put it back.
STATES: Final = {
    "getstate": "random",
    "get_state": "numpy.random",
    **dict.fromkeys(("get_rng_state", "initial_seed", "fork_rng"), "torch"),
}

#: A Mersenne Twister: its words and its position; then whether half of a pair of normal numbers is left, and which.
_TWISTER: Final = struct.Struct("<625I?d")
_WORDS: Final = 624

#: So many blocks of numbers are drawn to find out whether a generator was only moved on: 10 ms.
_BLOCKS: Final = 2000


def every(plugins: Iterable[Plugin]) -> Iterator[Generator]:
    """All generators that are known, with those of some plugins."""
    yield from _OWN
    for plugin in plugins:
        yield from plugin.generators()


def find_generator(plugins: Plugins, name: str) -> Generator | None:
    """The generator of that name; None where no plugin that is installed has it."""
    return next((each for each in every(plugins.all()) if each.name == name), None)


def snapshot(plugins: Iterable[Plugin]) -> dict[str, bytes]:
    """The states of now, by name."""
    importlib.import_module("random")  # of one that comes later, no state from before is known
    return {each.name: state for each in every(plugins) if (state := each.state()) is not None}


def asked_states(executed: Iterable[tuple[CodeType, Mapping[str, Any]]]) -> set[str]:
    """The modules whose generator some code, each with its globals, asks for its state: ``random.getstate()``, and not
    ``own.getstate()``."""
    found = set()
    for code, namespace in executed:
        for function in STATES.keys() & set(code.co_names):
            module = STATES[function]
            package = module.partition(".")[0]
            holders = [held for each in (module, package) if (held := sys.modules.get(each)) is not None]
            values = (namespace.get(name) for name in code.co_names)
            is_held = any(value is holder for value in values for holder in holders)
            if is_held or package in code.co_names or function in namespace:
                found.add(module)
    return found


def is_moved(generator: Generator, before: bytes | None, state: bytes) -> bool:
    """Whether a run in this process drew numbers or set the seed.

    before: the state when the run began; None of one that was imported since, of which only a seed counts: no program
    chose what it draws.
    """
    if before is None:
        return generator.is_seeded(state)
    return generator.counted(state) != generator.counted(before)


def digest(generator: Generator, state: bytes) -> str:
    """What stands for a state in a trace."""
    return digest_bytes(generator.counted(state))


def put(plugins: Plugins, states: Mapping[str, GeneratorState]) -> None:
    """Leave the generators of this process as a run has left its own."""
    for name, each in states.items():
        found = find_generator(plugins, name)
        if found is not None:
            found.put(each.state, seeds=each.seeds)


def shared_generator(value: object) -> tuple[str, str] | None:
    """Where Python or numpy holds a generator, as module and name, if it is their own: ``from random import shuffle``
    is a method of it. None for any other value."""
    for module, name in (("random", "_inst"), ("numpy.random.mtrand", "_rand")):
        if value is not None and getattr(sys.modules.get(module), name, None) is value:
            return module, name
    return None


def _is_twister(state: bytes) -> bool:
    return len(state) == _TWISTER.size and _TWISTER.unpack(state)[_WORDS] <= _WORDS


class _PythonGenerator(Generator):
    """That of ``random``, which can't tell whether a seed was set: its state is compared with an earlier one."""

    name = module = "random"
    is_inherited = False  # ``random`` itself gives a forked child another state
    tells_seed = False

    def was_seeded(self, before: bytes, state: bytes) -> bool:
        return not _has_drawn(before, state)

    def __init__(self) -> None:
        self._keep()
        os.register_at_fork(after_in_child=self._keep)

    def _keep(self) -> None:
        self._earlier = self.state()

    def state(self) -> bytes | None:
        random: Any = sys.modules.get("random")
        if not hasattr(random, "getstate"):  # not half imported
            return None
        _, words, next_gauss = random.getstate()
        return _TWISTER.pack(*words, next_gauss is not None, next_gauss or 0.0)

    def put(self, state: bytes, *, seeds: bool) -> None:
        import random

        *words, has_gauss, states = _TWISTER.unpack(state)
        own: Any = random._inst
        was_seeded = vars(own).get("was_seeded")
        random.setstate((3, tuple(words), states if has_gauss else None))
        if was_seeded is not None:  # it is watched
            own.was_seeded = was_seeded or seeds

    def is_state(self, state: bytes) -> bool:
        return _is_twister(state)

    def is_seeded(self, state: bytes) -> bool:
        return self._earlier is not None and not _has_drawn(self._earlier, state)

    def watch(self) -> Callable[[], bool]:
        import random

        class WatchedRandom(random.Random):
            """``seed`` and ``setstate`` set an attribute last, wherever they were imported to."""

            __module__, __qualname__ = "random", "Random"  # as code sees it

            def __setattr__(self, name: str, value: Any) -> None:
                super().__setattr__(name, value)
                if name == "gauss_next" and sys._getframe(1).f_code.co_name in {"seed", "setstate"}:
                    vars(self)["was_seeded"] = True

        def end_watch() -> bool:
            own.__class__ = random.Random
            return bool(vars(own).pop("was_seeded"))

        own: Any = random._inst
        own.__class__ = WatchedRandom
        own.was_seeded = False
        return end_watch


class _NumpyGenerator(Generator):
    """That of ``numpy.random``, whose source of a seed goes where a program sets another."""

    name = module = "numpy.random"

    def was_seeded(self, before: bytes, state: bytes) -> bool:
        return not _has_drawn(before, state)

    def __init__(self) -> None:
        self._is_watched = False

    def state(self) -> bytes | None:
        numpy: Any = sys.modules.get(self.module)
        if not hasattr(numpy, "get_bit_generator"):  # not half imported
            return None
        state = numpy.get_state(legacy=False)
        if state["bit_generator"] != "MT19937":
            return None
        words = (*state["state"]["key"].tolist(), state["state"]["pos"])
        return _TWISTER.pack(*words, bool(state["has_gauss"]), state["gauss"])

    def put(self, state: bytes, *, seeds: bool) -> None:
        if "numpy" not in sys.modules:
            return
        numpy = importlib.import_module(self.module)
        *words, has_gauss, states = _TWISTER.unpack(state)
        if seeds:
            numpy.seed(0)
        numpy.set_state(("MT19937", words[:_WORDS], words[_WORDS], has_gauss, states))

    def is_state(self, state: bytes) -> bool:
        return _is_twister(state)

    def is_seeded(self, state: bytes) -> bool:
        return self._is_watched or sys.modules[self.module].get_bit_generator().seed_seq is None

    def watch(self) -> Callable[[], bool]:
        numpy = sys.modules[self.module]
        numpy.set_bit_generator(numpy.MT19937())
        self._is_watched = True
        return lambda: numpy.get_bit_generator().seed_seq is None


def _has_drawn(before: bytes, after: bytes) -> bool:
    """Whether a twister comes from one state to the other by drawing numbers, at most ``_BLOCKS`` blocks of them."""
    import random

    ours, theirs = random.Random(), random.Random()
    words = _TWISTER.unpack(before)[:_WORDS], _TWISTER.unpack(after)[:_WORDS]
    if words[0] == words[1]:
        return True
    ours.setstate((3, (*words[0], _WORDS), None))
    theirs.setstate((3, (*words[1], 0), None))
    sought = theirs.getrandbits(32 * _WORDS)
    return any(ours.getrandbits(32 * _WORDS) == sought for _ in range(_BLOCKS))


#: Made where the first isolated stage is defined: a seed that is set later is known as such.
_OWN: Final = (_PythonGenerator(), _NumpyGenerator())
