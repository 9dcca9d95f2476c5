"""MiniLM as a chain of blocks: one layer is compiled, and linked under the names of each. Depth compiles nothing.

usage: python blocks.py [DEPTH]     (6 layers as the checkpoint has them; of more, its layers are used again)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from checkpoint import open_checkpoint, tokenize
from layers import inputs
from model import block, embedded, pooled
from pipeline import LENGTH, compiled
from stages import build, cache

import cachec

SENTENCES = ("A cat is sleeping on the warm windowsill.", "The central bank raised interest rates again.")

LAYERS, HIDDEN = 6, 384


@cache.stage(tools=["jax", "jaxlib"])
def lower_front(weights: cachec.WeightSet, batch: int, seq: int) -> cachec.Program:
    """What comes before the first layer."""
    from cachec_jax import to_stablehlo

    return to_stablehlo(embedded, weights.placeholders(), inputs(batch, seq)[0])


@cache.stage(tools=["jax", "jaxlib"])
def lower_block(weights: cachec.WeightSet, batch: int, seq: int) -> cachec.Program:
    """One layer, whose weights go by the names that they have in it: those of each layer are the same."""
    import jax
    import jax.numpy as jnp

    from cachec_jax import to_stablehlo

    def one(weights: dict[str, jax.Array], x: jax.Array, mask: jax.Array) -> jax.Array:
        return block(weights, "layer", x, mask)

    tokens, mask = inputs(batch, seq)
    return to_stablehlo(one, weights.placeholders(), jax.ShapeDtypeStruct((*tokens.shape, HIDDEN), jnp.float32), mask)


@cache.stage(tools=["jax", "jaxlib"])
def lower_end(weights: cachec.WeightSet, batch: int, seq: int) -> cachec.Program:
    """What comes after the last layer, and has no weights."""
    import jax
    import jax.numpy as jnp

    from cachec_jax import to_stablehlo

    def end(_weights: dict[str, jax.Array], x: jax.Array, mask: jax.Array) -> jax.Array:
        return pooled(x, mask)

    tokens, mask = inputs(batch, seq)
    return to_stablehlo(end, weights.placeholders(), jax.ShapeDtypeStruct((*tokens.shape, HIDDEN), jnp.float32), mask)


def layer(weights: cachec.WeightSet, number: int) -> cachec.WeightSet:
    """The weights of one layer, by the names that they have in any."""
    own = f"encoder.layer.{number}."
    return weights.select([own + "*"]).rename(lambda name: "layer." + name.removeprefix(own))


def chained(weights: cachec.WeightSet, depth: int, batch: int) -> Callable[[Any, Any], Any]:
    """MiniLM of ``depth`` layers for ``batch`` sentences, of three modules however many layers there are."""
    front = weights.select(["embeddings.*"])
    first = cachec.link(build(lower_front(front, batch, LENGTH)), front)
    blocks = []
    for number in range(depth):
        own = layer(weights, number % LAYERS)
        blocks.append(cachec.link(build(lower_block(own, batch, LENGTH)), own))
    none = weights.select(exclude=["*"])
    last = cachec.link(build(lower_end(none, batch, LENGTH)), none)

    def embed(ids: Any, mask: Any) -> Any:
        x = first(ids)
        for each in blocks:
            x = each(x, mask)
        return last(x, mask)

    return embed


def _timed(run: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = run()
    return time.perf_counter() - started, result


def main(depth: int) -> None:
    """Compare the chain with the whole model: seconds to compile, seconds to run, numbers."""
    import numpy as np

    weights, tokens = open_checkpoint(), tokenize(SENTENCES, LENGTH)
    seconds, chain = _timed(lambda: chained(weights, depth, len(SENTENCES)))
    print(f"{depth} layers as a chain of one block: {seconds:.2f} s, ", end="")
    print(f"a run {min(_timed(lambda: chain(*tokens))[0] for _ in range(30)) * 1e3:.1f} ms")
    if depth == LAYERS:
        seconds, whole = _timed(lambda: compiled(weights, len(SENTENCES)).embed)
        print(f"the whole model: {seconds:.2f} s, ", end="")
        print(f"a run {min(_timed(lambda: whole(*tokens))[0] for _ in range(30)) * 1e3:.1f} ms; ", end="")
        print(f"largest difference {float(np.abs(chain(*tokens) - whole(*tokens)).max()):.1e}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else LAYERS)
