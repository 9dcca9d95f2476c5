from copy import deepcopy

BASE = {
    "encoder": {"layers": 12, "dim": 384, "norm": {"kind": "layer", "eps": 1e-5}, "act": "gelu"},
    "decoder": None,
    "tokenizer": {"vocab": 30522, "special": ["[CLS]", "[SEP]"]},
    "targets": {f"t{i}": {"lanes": 2**i, "fma": i > 2} for i in range(6)},
}

MODELS = {name: deepcopy(BASE) for name in ("small", "base")}
MODELS["small"]["encoder"]["layers"] = 4
MODELS["small"]["encoder"]["dim"] = 128
MODELS["base"]["targets"]["t9"] = {"lanes": 512, "fma": True}
