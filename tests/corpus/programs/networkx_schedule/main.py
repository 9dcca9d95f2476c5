import networkx as nx

import cachec
import schedule

cache = cachec.Cache()


def build():
    graph = nx.DiGraph()
    for source, target, cost in [("a", "b", 2), ("a", "c", 5), ("b", "d", 1), ("c", "d", 7), ("b", "e", 2)]:
        graph.add_edge(source, target, us=cost)
    return graph


@cache.stage
def plan(edges):
    graph = nx.DiGraph()
    graph.add_edges_from(edges)
    return schedule.order(graph)


@cache.stage
def critical_path(graph):
    return nx.dag_longest_path(graph, weight="us")


if __name__ == "__main__":
    graph = build()
    print("RESULT", plan(list(graph.edges(data=True))))
    print("RESULT", critical_path(graph))
