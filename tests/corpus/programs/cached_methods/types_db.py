import functools


class Types:
    BITS = {"i8": 8, "f32": 32, "f64": 64}
    _seen = {}

    def __init__(self, default):
        self.default = default

    def __hash__(self):
        return hash(self.default)

    def __eq__(self, other):
        return isinstance(other, Types) and self.default == other.default

    @functools.lru_cache(maxsize=64)
    def bits(self, name):
        return self.BITS.get(name, self.default)

    def size(self, name):
        key = self.default, name
        if key not in self._seen:
            self._seen[key] = self.bytes(name)
        return self._seen[key]

    def bytes(self, name):
        return self.bits(name) // 8
