import random

import cachec

cache = cachec.Cache()


@cache.stage
def sample(n):
    return [random.randrange(1000) for _ in range(n)]


random.seed(42)
for step in range(3):
    print("RESULT", sample(3))
print("RESULT", random.random())
