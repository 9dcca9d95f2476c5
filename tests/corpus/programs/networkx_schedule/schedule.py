from heapq import heappop, heappush

import networkx as nx


def order(graph):
    cost = {name: sum(data["us"] for *_, data in graph.out_edges(name, data=True)) for name in graph}
    waiting = {name: graph.in_degree(name) for name in graph}
    ready = []
    for name, count in waiting.items():
        if count == 0:
            heappush(ready, (-cost[name], name))
    result = []
    while ready:
        _, name = heappop(ready)
        result.append(name)
        for user in graph.successors(name):
            waiting[user] -= 1
            if not waiting[user]:
                heappush(ready, (-cost[user], user))
    return result
