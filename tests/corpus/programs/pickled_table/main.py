import pickle
from pathlib import Path

import cachec

cache = cachec.Cache()


def load():
    with Path(__file__).with_name("table.pkl").open("rb") as f:
        return pickle.load(f)


@cache.stage
def cost(names):
    table = load()
    return sum(table.cost(name) for name in names)


if __name__ == "__main__":
    print("RESULT", cost(["exp", "add"]), cost(["div"]))
