import numpy as np
from safetensors.numpy import save_file

rng = np.random.default_rng(0)
save_file(
    {
        "dense.weight": rng.normal(size=(4, 3)).astype(np.float32),
        "dense.bias": np.zeros((3,), np.float32),
        "scale": np.array([0.5, 2.0], np.float32),
    },
    "model.safetensors",
)
