import weakref


class Type:
    _pool = weakref.WeakValueDictionary()

    def __new__(cls, kind, width):
        made = cls._pool.get((kind, width))
        if made is None:
            made = super().__new__(cls)
            made.kind, made.width = kind, width
            cls._pool[kind, width] = made
        return made

    def __reduce__(self):
        return Type, (self.kind, self.width)

    def size(self):
        return self.width // 8

    def __repr__(self):
        return f"{self.kind}{self.width}"
