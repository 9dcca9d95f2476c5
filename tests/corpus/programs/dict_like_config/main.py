import sys

import cachec
from defaults import cfg

cache = cachec.Cache()


@cache.stage
def size():
    return cfg.model.width * cfg.model.layers


@cache.stage
def describe(config):
    return f"{config.name}: {sorted(config.model.items())}"


if __name__ == "__main__":
    for text in sys.argv[1:]:
        cfg.override(text)
    cfg.freeze()
    print("RESULT", size())
    print("RESULT", describe(cfg))
