"""What the examples share: data, a loop of training, and what is printed for whoever compares.

usage: python equinox_mlp.py [--seed N] [--plain]

Run it twice, with another seed the second time: nothing is compiled again. ``--plain`` leaves cachec out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

import cachec_jax

#: Widths of the layers.
WIDTHS = (16, 64, 64, 4)


class Example(NamedTuple):
    """state: of a tree. step: (state, x, y) -> (state, loss). inference: state -> a function of x."""

    state: Any
    step: Callable[[Any, Any, Any], tuple[Any, Any]]
    inference: Callable[[Any], Callable[[Any], Any]]


def main(build: Callable[[Callable[..., Any], int], Example]) -> None:
    """build: gets what it is to jit with, and a seed for its weights."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    cache = None if options.plain else cachec_jax.install()
    example = build(jax.jit if options.plain else cachec_jax.jit, options.seed)
    draw = np.random.default_rng(options.seed)
    x, y = (draw.normal(size=(32, width)).astype("f4") for width in (WIDTHS[0], WIDTHS[-1]))
    before = example.inference(example.state)(x)
    state, losses = example.state, []
    for _ in range(3):
        state, loss = example.step(state, x, y)
        losses.append(float(loss))
    after = example.inference(state)(x)  # the tuned weights: the same program
    digest = hashlib.sha256(b"".join(np.asarray(each).tobytes() for each in (before, after))).hexdigest()
    counts = {} if cache is None else {reason.value: n for reason, n in cache.events.counts.items() if n}
    print(json.dumps({"losses": losses, "predictions": digest, "outcomes": counts}))
