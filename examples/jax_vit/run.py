"""One process: ``run.py ROAD SEED``, with ROAD one of plain, jit, xla, iree, plain-train, train.

Prints, as JSON, how each stage ended, the first numbers and the time to the first result.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from config import load

import cachec

BATCH = 8

started = time.perf_counter()
config = load(Path(__file__).with_name("config.yaml"))
outcomes: list[str] = []


def called(stage: Any, *args: Any) -> Any:
    from stages import cache

    value, outcome = cache.call(stage, *args)
    outcomes.append(outcome.reason.value)
    return value


def inference(road: str, params: Any, images: Any) -> Any:
    """Logits."""
    if road == "plain":
        import jax
        import vit

        return jax.jit(functools.partial(vit.forward, config))(params, images)
    if road == "jit":
        import vit

        import cachec_jax

        cache = cachec_jax.install()
        logits = cachec_jax.jit(lambda images: vit.forward(config, params, images))(images)
        outcomes.append("hit" if cache.events.counts[cachec.Reason.HIT] else "miss:first-run")
        return logits
    import stages

    weights = cachec.WeightSet.from_tree(params)
    if road == "xla":
        return cachec.link(called(stages.build, config, weights, BATCH), weights)(images)
    return cachec.link(called(stages.build_iree, called(stages.lower, config, weights, BATCH)), weights)(images)


def training(road: str, params: Any, images: Any, labels: Any) -> Any:
    """Losses and parameters of three steps."""
    import jax

    if road == "train":
        import stages

        step = called(stages.build_training, config, BATCH)
    else:
        import vit

        step = jax.jit(functools.partial(vit.train_step, config), donate_argnums=(0, 1))
    moments = jax.tree.map(np.zeros_like, params)
    losses = []
    for _ in range(3):
        params, moments, loss = step(params, moments, images, labels)
        losses.append(float(loss))
    return losses, np.asarray(params["head"]["kernel"])


def main() -> None:
    road, seed = sys.argv[1], int(sys.argv[2])
    from vit import init

    params = init(config, seed)
    draw = np.random.default_rng(7)
    images = draw.normal(size=(BATCH, config.image, config.image, config.channels)).astype("f4")
    if "train" in road:
        losses, kernel = training(road, params, images, draw.integers(0, config.classes, BATCH).astype("i4"))
        numbers = [*losses, *kernel[0].tolist()]
    else:
        numbers = np.asarray(inference(road, params, images)).ravel().tolist()
    took = time.perf_counter() - started
    print(json.dumps({"outcomes": outcomes, "numbers": numbers, "seconds": took}))


if __name__ == "__main__":
    main()
