from .cache import cache


@cache.stage
def pack(codes):
    nibbles = [int(code) & 15 for code in codes.ravel()]
    return bytes(low | high << 4 for low, high in zip(nibbles[::2], nibbles[1::2]))
