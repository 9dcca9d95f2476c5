import sys
from pathlib import Path

import yaml

import cachec
import passes

cache = cachec.Cache()


def deep_update(base, other):
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            deep_update(base[key], value)
        else:
            base[key] = value
    return base


def load(path):
    config = yaml.safe_load(Path(path).read_text()) or {}
    parent = config.pop("inherits", None)
    if parent:
        config = deep_update(load(Path(path).parent / parent), config)
    return config


def override(config, text):
    name, _, value = text.partition("=")
    *parents, last = name.split(".")
    for parent in parents:
        config = config.setdefault(parent, {})
    config[last] = yaml.safe_load(value)


@cache.stage
def load_config(path, overrides):
    config = load(path)
    for text in overrides:
        override(config, text)
    return config


@cache.stage
def compile_graph(config):
    ops = list(config["graph"])
    for name in config["passes"]:
        ops = getattr(passes, name)(ops)
    tiling = config["tiling"]
    return {"ops": ops, "tiles": tiling["m"] * tiling["n"] * tiling["k"]}


if __name__ == "__main__":
    config = load_config(sys.argv[1], sys.argv[2:])
    print("RESULT", sorted(config.items()))
    print("RESULT", compile_graph(config))
