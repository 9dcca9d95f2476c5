# Features of a frozen backbone.
import timm
import torch

import cachec
from transforms import normalize, to_batch

torch.manual_seed(0)
backbone = timm.create_model("test_convnext", num_classes=0)
backbone.eval().requires_grad_(False)

cache = cachec.Cache()


@cache.stage(tools=["torch", "timm"])
def features(images: torch.Tensor) -> torch.Tensor:
    return backbone(normalize(images))


@cache.stage(tools=["torch"])
def load(seeds: list[int], size: int) -> torch.Tensor:
    return to_batch(seeds, size)


images = load([1, 2], 32)
f = features(images)
print("RESULT", tuple(f.shape), [round(v, 2) for v in f[-1, :4].tolist()])
