"""A ViT of transformers, exported with its weights outside."""

import hashlib

import torch
from torch import nn
from transformers import ViTConfig, ViTModel

import cachec

cache = cachec.Cache()
SIZES = {"image_size": 8, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


class Encoder(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.vit = ViTModel(ViTConfig(**sizes, attn_implementation="eager"), add_pooling_layer=False)

    def forward(self, pixels):
        return self.vit(pixels).last_hidden_state[:, 0]


@cache.stage(tools=["torch", "transformers"])
def export(sizes: dict, weights: cachec.WeightSet, batch: int) -> cachec.Program:
    import cachec_torch

    side = sizes["image_size"]
    return cachec_torch.to_exported(lambda: Encoder(sizes), weights, (torch.zeros(batch, 3, side, side),))


def main():
    for seed in (0, 1):
        torch.manual_seed(seed)
        weights = cachec.WeightSet.from_arrays(Encoder(SIZES).state_dict())
        program = export(SIZES, weights, 2)
        print("RESULT", seed, len(program.manifest.weights), hashlib.sha256(program.ir).hexdigest()[:10])


if __name__ == "__main__":
    main()
