import cachec
from graph import Graph

cache = cachec.Cache()


@cache.stage
def analyse(graph):
    return {"depth": sorted(graph.depth.items()), "outputs": graph.outputs()}


if __name__ == "__main__":
    graph = Graph({"conv": ["x", "w"], "relu": ["conv"], "add": ["relu", "x"], "pool": ["relu"]})
    print(len(graph.order), "nodes")
    print("RESULT", analyse(graph))
