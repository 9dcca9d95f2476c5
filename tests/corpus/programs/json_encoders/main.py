import json

import numpy as np

import cachec
from serial import Encoder, Shape, hook

cache = cachec.Cache()


@cache.stage
def dump(graph):
    return json.dumps(graph, cls=Encoder, indent=1, sort_keys=True)


@cache.stage
def shapes(text):
    graph = json.loads(text, object_hook=hook)
    return {name: repr(value) for name, value in graph.items()}


if __name__ == "__main__":
    text = dump({"w": np.arange(3, dtype=np.int16), "x": Shape(2, 3)})
    print("RESULT", text.replace("\n", " "))
    print("RESULT", shapes(text))
