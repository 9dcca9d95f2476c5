from functools import cached_property
from graphlib import TopologicalSorter


class Graph:
    def __init__(self, needs):
        self.needs = needs

    @cached_property
    def order(self):
        return list(TopologicalSorter(self.needs).static_order())

    @cached_property
    def users(self):
        users = {}
        for name, needs in self.needs.items():
            for need in needs:
                users.setdefault(need, []).append(name)
        return users

    @cached_property
    def depth(self):
        depths = {}
        for name in self.order:
            longest = max((depths[need] for need in self.needs.get(name, [])), default=0)
            depths[name] = longest + 1
        return depths

    def outputs(self):
        return [name for name in self.order if not self.users.get(name)]
