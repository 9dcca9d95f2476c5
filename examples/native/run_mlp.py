"""Run the perceptron with the weights of a file: python run_mlp.py WEIGHTS.safetensors [LEVEL]

Prints the outcome of each stage, the sum of the result, and which weights were copied to memory instead of mapped.
"""

from __future__ import annotations

import sys

import numpy as np
from mlp import types
from mlp_stages import build, cache, describe, lower, translate

import cachec

BATCH = 8


def main(path: str, level: int = 2) -> None:
    """See above."""
    weights = cachec.open_weights(path)
    program, first = cache.call(describe, weights, BATCH)
    lowered, second = cache.call(lower, program)
    ir, third = cache.call(translate, lowered)
    library, fourth = cache.call(build, ir, level=level)
    linked = cachec.link(library, weights)
    mlp = linked.function("mlp", inputs=types(weights, BATCH), outputs=types(weights, BATCH))
    x = np.ones((BATCH, weights["w1"].shape[0]), "f4")
    print(*(outcome.reason.value for outcome in (first, second, third, fourth)))
    print(f"sum {mlp(x).sum():.3f}, copied {list(linked.copied)}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
