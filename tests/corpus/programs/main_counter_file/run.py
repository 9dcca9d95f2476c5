import os
import sys

import cachec

# the next number
number = 1
if os.path.exists("runs.txt"):
    with open("runs.txt") as f:
        number = int(f.read()) + 1
with open("runs.txt", "w") as f:
    f.write(str(number))
print("run", number, file=sys.stderr)

cache = cachec.Cache()
BASE = 5


@cache.stage
def multiples(n):
    return [BASE * i for i in range(n)]


print("RESULT", multiples(3))
print("RESULT", multiples(3) == multiples(3), os.path.exists("runs.txt"))
