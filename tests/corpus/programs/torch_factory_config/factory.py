import json
import math

from torch import nn

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


def load_config(path):
    with open(path) as f:
        return json.load(f)


def init_weights(module):
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=1 / math.sqrt(module.in_features))
        nn.init.zeros_(module.bias)


def build_model(config):
    widths = [config["in"], *config["hidden"], config["out"]]
    layers = []
    for i, (a, b) in enumerate(zip(widths, widths[1:])):
        layers.append(nn.Linear(a, b))
        if i < len(widths) - 2:
            layers.append(ACTIVATIONS[config["activation"]]())
            if config.get("dropout"):
                layers.append(nn.Dropout(config["dropout"]))
    model = nn.Sequential(*layers)
    model.apply(init_weights)
    return model
