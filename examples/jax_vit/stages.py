"""What is compiled: through XLA, through IREE, and a step of training. A hit traces nothing."""

from __future__ import annotations

import functools
from typing import Any

from config import Config

import cachec

cache = cachec.Cache()


@cache.stage(tools=["jax", "jaxlib"])
def build(config: Config, weights: cachec.WeightSet, batch: int) -> cachec.File:
    """Inference by XLA."""
    import vit

    import cachec_jax

    return cachec_jax.compile_xla(functools.partial(vit.forward, config), weights.placeholders(), images(config, batch))


@cache.stage(tools=["jax", "jaxlib"])
def lower(config: Config, weights: cachec.WeightSet, batch: int) -> cachec.Program:
    """Inference for other compilers."""
    import vit

    import cachec_jax

    return cachec_jax.to_stablehlo(
        functools.partial(vit.forward, config), weights.placeholders(), images(config, batch)
    )


@cache.stage(tools=["iree-base-compiler"])
def build_iree(program: cachec.Program) -> cachec.File:
    """Inference by IREE."""
    import cachec_iree

    return cachec_iree.compile(program)


@cache.stage(tools=["jax", "jaxlib"])
def build_training(config: Config, batch: int) -> Any:
    """A step of training by XLA, which changes its parameters and moments in place."""
    import jax
    import vit

    params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), vit.init(config, 0))
    labels = jax.ShapeDtypeStruct((batch,), "int32")
    step = jax.jit(functools.partial(vit.train_step, config), donate_argnums=(0, 1))
    return step.lower(params, params, images(config, batch), labels).compile()


def images(config: Config, batch: int) -> Any:
    """Their type."""
    import jax

    return jax.ShapeDtypeStruct((batch, config.image, config.image, config.channels), "float32")
