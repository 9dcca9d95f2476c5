import sys

import timm
import torch

import cachec

cache = cachec.Cache()
NAMES = ["resnet10t", "test_vit"]


@cache.stage(tools=["torch", "timm"])
def summary(name: str, classes: int) -> dict[str, int]:
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=classes)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "modules": sum(1 for _ in model.modules()),
    }


@cache.stage(tools=["torch", "timm"])
def logits(name: str, classes: int, size: int, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    model = timm.create_model(name, num_classes=classes).eval()
    with torch.inference_mode():
        return model(torch.linspace(-1, 1, 3 * size * size).reshape(1, 3, size, size)).clone()


def main(names):
    for name in names or NAMES:
        print("RESULT", name, summary(name, 4))
    print("RESULT", [round(v, 2) for v in logits("test_resnet", 3, 32)[0].tolist()])


if __name__ == "__main__":
    main(sys.argv[1:])
