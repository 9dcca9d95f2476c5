scale = 3


def fma(x, y):
    return x * y + 1.0


def scaled(x):
    return x * scale
