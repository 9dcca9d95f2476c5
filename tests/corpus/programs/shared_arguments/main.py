import numpy as np

import cachec

cache = cachec.Cache()


def tie(a, b):
    return "tied" if a is b or np.shares_memory(a, b) else "apart"


@cache.stage
def plan(embedding, head):
    return tie(embedding, head), embedding.size + head.size


if __name__ == "__main__":
    table = np.zeros(3)
    print("RESULT", plan(table, table))
    print("RESULT", plan(table, table.copy()))
    print("RESULT", plan(table, table[:]))
