"""Write first.safetensors and second.safetensors into the current folder: the perceptron's weights, twice."""

from __future__ import annotations

import numpy as np

import cachec

WIDTH = 512
HIDDEN = 2048


def main() -> None:
    """See above."""
    for seed, name in enumerate(("first", "second")):
        r = np.random.default_rng(seed)
        shapes = {"w1": (WIDTH, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, WIDTH)}
        arrays = {key: r.normal(0, 0.02, shape).astype("f4") for key, shape in shapes.items()}
        cachec.WeightSet.from_arrays(arrays).save(f"{name}.safetensors")


if __name__ == "__main__":
    main()
