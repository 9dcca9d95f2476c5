def clip(a, b):
    return min(a, b)
