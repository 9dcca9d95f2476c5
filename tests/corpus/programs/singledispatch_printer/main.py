import cachec
from printer import show

import extra

cache = cachec.Cache()


@cache.stage
def attributes(values):
    return {name: show(value) for name, value in values.items()}


if __name__ == "__main__":
    print("RESULT", attributes({"n": 3, "eps": 1e-5, "on": True, "axes": [0, 1], "name": "x"}))
