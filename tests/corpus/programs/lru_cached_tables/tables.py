import functools
import json
from pathlib import Path

FOLDER = Path(__file__).with_name("tables")


@functools.lru_cache(maxsize=None)
def load(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


@functools.lru_cache
def cost(op, n):
    return load("costs")[op] * n
