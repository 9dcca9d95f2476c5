import cachec
from schema import Dense

cache = cachec.Cache()


@cache.stage
def encode(sizes):
    return b"".join(Dense(units=units).pack() for units in sizes)


@cache.stage
def encode_one(layer):
    return layer.pack().hex()


if __name__ == "__main__":
    print("RESULT", encode([3, 5]))
    print("RESULT", encode_one(Dense(units=7, scale=2.0)))
