from fractions import Fraction
from functools import cache as memoize

import cachec

cache = cachec.Cache()

# matrices are rows by columns
DIMS = (10, 30, 5, 60, 8)


@memoize
def best(i, j):
    if j - i == 1:
        return 0, f"M{i}"
    options = []
    for k in range(i + 1, j):
        left, a = best(i, k)
        right, b = best(k, j)
        options.append((left + right + DIMS[i] * DIMS[k] * DIMS[j], f"({a} {b})"))
    return min(options)


@memoize
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


@cache.stage
def order():
    return best(0, len(DIMS) - 1)


@cache.stage
def ratio(n):
    return str(Fraction(fib(n + 1), fib(n)) + Fraction(1, 3))


print("RESULT", order())
print("RESULT", ratio(30))
print("RESULT", ratio(31))
