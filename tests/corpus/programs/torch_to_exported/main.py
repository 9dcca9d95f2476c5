"""Export with weights outside: a fine-tune hits."""

import hashlib

import torch
from torch import nn

import cachec

cache = cachec.Cache()


class Classifier(nn.Module):
    def __init__(self, dim: int, classes: int = 3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(dim, 8), nn.GELU(), nn.Linear(8, classes))

    def forward(self, x):
        return self.body(x).softmax(-1)


@cache.stage(tools=["torch"])
def export(weights: cachec.WeightSet, dim: int) -> cachec.Program:
    import cachec_torch

    batch = torch.export.Dim("batch", min=2, max=16)
    example = (torch.empty(4, dim),)
    return cachec_torch.to_exported(lambda: Classifier(dim), weights, example, dynamic_shapes=({0: batch},))


def main():
    for seed in (0, 1):
        torch.manual_seed(seed)
        weights = cachec.WeightSet.from_arrays(Classifier(4).state_dict())
        program = export(weights, 4)
        print("RESULT", program.format, sorted(program.manifest.weights), hashlib.sha256(program.ir).hexdigest()[:10])


if __name__ == "__main__":
    main()
