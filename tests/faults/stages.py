"""Stages whose results hold one of everything that a store keeps; none of them asks the system for anything."""

from __future__ import annotations

import dataclasses
import enum
import math
from pathlib import Path
from typing import Any

import cachec


class Colour(enum.Enum):
    """A result may be a member of an enumeration."""

    RED = "red"


@dataclasses.dataclass(frozen=True)
class Pair:
    """Or a record."""

    left: int
    right: tuple[float, str]


def plain(n: int) -> dict[str, Any]:
    """What is stored by value and as artifacts; it reaches no package."""
    return {
        "n": n,
        "bytes": b"%d " % n * 2000,
        "text": f"{n} é" * 2000,
        "pair": Pair(n, (math.pi, "x")),
        "colour": Colour.RED,
        "numbers": [n, 1 << 70, -0.5, math.inf, None, True, (1, 2)],
    }


def scaled(weights: cachec.WeightSet, factor: int) -> cachec.Program:
    """A program with a manifest."""
    return cachec.Program(f"module {factor} {sorted(weights)}", format="text", manifest=weights.manifest)


def doubled(weights: cachec.WeightSet) -> tuple[cachec.WeightSet, Any]:
    """Weights of its own, and an array; numpy is not named, of which 1,300 installed files would be looked at."""
    return cachec.WeightSet.from_arrays({"two": weights["a"].read() * 2}), weights["b"].read()[:300]


def folder(n: int, made: Path) -> cachec.Dir:
    """A folder with a link, made beforehand."""
    del n
    return cachec.Dir(made)


def foreign(n: int) -> bytes:
    """What is put under a key that was made elsewhere."""
    return b"made elsewhere %d " * 400 % ((n,) * 400)


def stages(cache: cachec.Cache) -> dict[str, Any]:
    """The stages of a cache, by name."""
    return {
        each.__name__: cache.stage(name=each.__name__, version="1", ignore=["made"] if each is folder else [])(each)
        for each in (plain, scaled, doubled, folder)
    }
