"""Writes two checkpoints of one topology, as training left them."""

import numpy as np
from safetensors.numpy import save_file

SCALE = 0.5

for name, seed in (("base", 0), ("tuned", 1)):
    rng = np.random.default_rng(seed)
    save_file(
        {
            "encoder.weight": (SCALE * rng.normal(size=(5, 6))).astype(np.float32),
            "encoder.bias": rng.normal(size=6).astype(np.float32),
            "decoder.weight": rng.normal(size=(6, 5)).astype(np.float32),
        },
        f"{name}.safetensors",
    )
