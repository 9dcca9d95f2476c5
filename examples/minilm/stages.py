"""The compiler's steps as cached stages: JAX function -> StableHLO -> IREE module."""

from __future__ import annotations

from layers import inputs

import cachec

cache = cachec.Cache()

#: The rows of this weight say which of two sentences a token belongs to; with one sentence the first row is a constant.
SEGMENT = "embeddings.token_type_embeddings.weight"


@cache.stage(tools=["jax", "jaxlib"])
def lower(model, weights: cachec.WeightSet, batch: int, seq: int) -> cachec.Program:
    """Trace ``model`` without allocating a weight."""
    from cachec_jax import to_stablehlo  # imported on a miss only

    return to_stablehlo(model, weights.placeholders(), *inputs(batch, seq))


@cache.stage
def fold_segment(program: cachec.Program, weights: cachec.WeightSet) -> cachec.Program:
    """Make one weight a constant. It is read, so from then on the result depends on its content, and on no other."""
    from cachec_jax import fold

    return fold(program, weights[SEGMENT])


@cache.stage(tools=["iree-base-compiler"])
def build(program: cachec.Program, *, target: str = "llvm-cpu", options: tuple[str, ...] = ()) -> cachec.File:
    """Run iree-compile."""
    from cachec_iree import compile

    return compile(program, target=target, options=options)
