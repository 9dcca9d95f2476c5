import numpy as np
from safetensors.numpy import save_file

rng = np.random.default_rng(0)
tensors = {f"encoder.{i}.weight": rng.normal(size=(4, 4)).astype(np.float32) for i in range(2)}
save_file({**tensors, "encoder.norm": np.ones(4, np.float32), "head": np.ones((4, 2), np.float32)}, "m.safetensors")
