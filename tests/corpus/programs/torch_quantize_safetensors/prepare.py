import torch
from safetensors.torch import save_file

GAIN = 1.0

torch.manual_seed(0)
save_file(
    {"fc1.weight": GAIN * torch.randn(6, 4), "fc1.bias": torch.zeros(6), "fc2.weight": torch.randn(2, 6)},
    "model.safetensors",
)
