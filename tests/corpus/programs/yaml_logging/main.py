import logging.config
from pathlib import Path

import yaml

import cachec
from fold import fold

cache = cachec.Cache()


@cache.stage
def fold_all(graph):
    logging.getLogger("compiler").debug("start")
    return [fold(op, args) for op, args in graph.items()]


if __name__ == "__main__":
    logging.config.dictConfig(yaml.safe_load(Path("logging.yaml").read_text()))
    print("RESULT", fold_all({"add": (1, None), "mul": (2, 3)}))
