"""Scales of a checkpoint by stages, one tensor at a time."""

import numpy as np
import torch

import cachec
from quant import dequantize, quantize, scale_of

cache = cachec.Cache()


@cache.stage(tools=["torch"])
def scales(weights: cachec.WeightSet) -> dict[str, float]:
    found = {}
    for name in sorted(weights.specs):
        if name.endswith(".weight"):
            found[name] = round(scale_of(torch.asarray(weights[name])), 6)
    return found


@cache.stage(tools=["torch"])
def quantized(weights: cachec.WeightSet, names: list[str]) -> cachec.WeightSet:
    def made(name):
        return cachec.ComputedWeight("int8", weights.specs[name].shape, lambda all_: quantize(all_[name].torch()).numpy())

    return weights.derive({name: made(name) for name in names})


@cache.stage(tools=["torch"])
def error(weights: cachec.WeightSet, name: str) -> float:
    w = weights[name].torch()
    return round(float((dequantize(quantize(w), scale_of(w)) - w).abs().max()), 5)


def main():
    weights = cachec.open_weights("model.safetensors")
    found = scales(weights)
    print("RESULT", found)
    small = quantized(weights, list(found))
    print("RESULT", [(n, s.dtype, s.shape) for n, s in sorted(small.specs.items())], int(np.abs(small["fc1.weight"].read()).sum()))
    print("RESULT", error(weights, "fc2.weight"))


if __name__ == "__main__":
    main()
