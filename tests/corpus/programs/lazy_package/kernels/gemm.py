BLOCK = 64


def gemm(m, n, k):
    return [("gemm", i, j, k) for i in range(0, m, BLOCK) for j in range(0, n, BLOCK)]


def dot(n):
    return ("dot", n, BLOCK)
