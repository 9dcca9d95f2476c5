import cachec
from passes import Limit, Pass, Rename, Sort

cache = cachec.Cache()

PIPELINES = {"fast": [Rename()], "full": [Sort(), Rename(), Limit(2)]}


@cache.stage
def optimize(code: list, pipeline: list[Pass]):
    for one in pipeline:
        code = one.run(code)
    return code, [one.name for one in pipeline]


CODE = [("y", "mul"), ("x", "add"), ("y", "neg")]

if __name__ == "__main__":
    for name in ("fast", "full"):
        print("RESULT", name, optimize(CODE, PIPELINES[name]))
