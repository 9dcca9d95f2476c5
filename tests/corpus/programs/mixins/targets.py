class Base:
    lanes = 4

    def features(self):
        return ["sse"]


class Wide:
    lanes = 16

    def features(self):
        return [*super().features(), "avx512"]


class Fma:
    def features(self):
        return [*super().features(), "fma"]


class Laptop(Fma, Base):
    pass


class Server(Wide, Fma, Base):
    pass
