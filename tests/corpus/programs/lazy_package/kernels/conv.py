def conv(size):
    return ("conv", size)


def dot(n):
    return ("dot-as-conv", n)
