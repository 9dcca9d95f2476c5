"""MiniLM from checkpoint to numbers through the cached stages; also a program, for runs in a new process.

usage: python pipeline.py CHECKPOINT SENTENCES.json     (a JSON list; prints JSON)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkpoint import open_checkpoint, tokenize
from model import minilm
from stages import SEGMENT, build, cache, fold_segment, lower

import cachec

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

#: Tokens a sentence is cut or padded to.
LENGTH = 16


@dataclass
class Linked:
    """MiniLM ready to run, and how it came to be. seconds: from the weights to here."""

    outcomes: dict[str, cachec.Outcome]
    seconds: float
    embed: Callable[[Array, Array], Array]


def compiled(
    weights: cachec.WeightSet, batch: int, seq: int = LENGTH, *, fold: bool = False, options: tuple[str, ...] = ()
) -> Linked:
    """MiniLM for ``batch`` sentences of ``seq`` tokens. fold: compile the segment embedding in as a constant."""
    start = time.perf_counter()
    outcomes = {}
    program, outcomes["lower"] = cache.call(lower, minilm, weights, batch, seq)
    if fold:
        program, outcomes["fold_segment"] = cache.call(fold_segment, program, weights)
        weights = weights.select(exclude=[SEGMENT])
    module, outcomes["build"] = cache.call(build, program, options=options)
    embed = cachec.link(module, weights)
    return Linked(outcomes, time.perf_counter() - start, embed)


def compiled_uncached(weights: cachec.WeightSet, batch: int, seq: int = LENGTH) -> Callable[[Array, Array], Array]:
    """The same with every stage run, and nothing looked up or stored."""
    module = build.uncached(lower.uncached(minilm, weights, batch, seq))
    embed: Callable[[Array, Array], Array] = cachec.link(module, weights)
    return embed


def main(checkpoint: Path, sentences: Sequence[str]) -> None:
    """Embed, and print what happened as JSON. linked: when it could have run, by the system's monotonic clock."""
    import json
    import sys

    found = compiled(open_checkpoint(checkpoint), len(sentences))
    linked = time.monotonic()
    report = {
        "outcomes": {stage: [each.reason.value, each.detail] for stage, each in found.outcomes.items()},
        "linked": linked,
        "imported": [name for name in ("jax", "iree.compiler") if name in sys.modules],
        "embeddings": found.embed(*tokenize(sentences, LENGTH)).tolist(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    import json
    import sys

    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
