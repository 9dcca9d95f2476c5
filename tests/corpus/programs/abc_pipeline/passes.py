from abc import ABC, abstractmethod


class Pass(ABC):
    @abstractmethod
    def run(self, code):
        ...

    @property
    def name(self):
        return type(self).__name__.lower()


class Rename(Pass):
    def __init__(self, prefix="v"):
        self.prefix = prefix

    def run(self, code):
        names = {}
        return [(self.prefix + str(names.setdefault(name, len(names))), op) for name, op in code]


class Sort(Pass):
    def run(self, code):
        return sorted(code)


class Limit(Pass):
    def __init__(self, count):
        self.count = count

    def run(self, code):
        return code[: self.count]
