import cachec
from optimizer.driver import optimize

cache = cachec.Cache()


@cache.stage
def run(ops):
    return optimize(ops)


print("RESULT", run([("const", 1), ("const", 2), ("add",), ("const", 0), ("const", 3), ("mul",)]))
