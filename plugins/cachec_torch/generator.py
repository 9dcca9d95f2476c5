"""torch's random generator of the CPU."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Any, Final

from cachec.programs.random_generator import Generator
from cachec_torch.ambient import is_imported

#: The seed, the numbers that are left of a block, whether there is a seed, and the place in the block: how a state
#: begins (``CPUGeneratorImplStateLegacy``).
_HEAD: Final = struct.Struct("<QiiQ")
_SIZE: Final = 5056
_WORDS: Final = 624

#: A process whose program has set no seed has one of 64 random bits; programs set small ones.
_MOST: Final = 2**48

#: What takes the place of the seed in a worker: a seed that is set replaces it. No number that is drawn depends on it.
_MARK: Final = 2**48 - 0xCAC4EC


class CpuGenerator(Generator):
    """What ``torch.manual_seed`` seeds, and most of torch draws from."""

    name = module = "torch"

    def state(self) -> bytes | None:
        torch: Any = sys.modules.get("torch")
        return bytes(torch.default_generator.get_state().tolist()) if is_imported(torch) else None

    def put(self, state: bytes, *, seeds: bool) -> None:
        torch: Any = sys.modules.get("torch")
        if not is_imported(torch):
            return
        if not seeds:
            state = _with_seed(state, torch.initial_seed())
        torch.default_generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))

    def is_state(self, state: bytes) -> bool:
        if len(state) != _SIZE:
            return False
        _, left, has_seed, place = _HEAD.unpack_from(state)
        is_whole: bool = has_seed == 1 and 0 < left <= _WORDS and place <= _WORDS
        return is_whole

    def is_seeded(self, state: bytes) -> bool:
        return _seed(state) < _MOST

    def watch(self) -> Callable[[], bool]:
        self.put(_with_seed(self.state() or b"", _MARK), seeds=True)
        return lambda: _seed(self.state() or b"") != _MARK

    def counted(self, state: bytes) -> bytes:
        return state[8:]  # all but the seed that it began with

    def is_untouched(self, state: bytes) -> bool:
        place: int = _HEAD.unpack_from(state)[3]
        return place == 0


def _seed(state: bytes) -> int:
    seed: int = _HEAD.unpack_from(state)[0]
    return seed


def _with_seed(state: bytes, seed: int) -> bytes:
    return seed.to_bytes(8, "little") + state[8:]
