import atexit
from pathlib import Path

import cachec

cache = cachec.Cache()
log = open("prepare.log", "a")
atexit.register(log.close)

with open(Path(__file__).parent / "words.txt") as f:
    WORDS = f.read().split()

# one count for each word
COUNTS = {}
for word in WORDS:
    COUNTS[word] = COUNTS.get(word, 0) + 1

LIMITS = {}
for n, name in enumerate(sorted(COUNTS), 1):
    LIMITS[name] = n * 10

LONG = [word for word in COUNTS if len(word) > 3]
calls = 0


@cache.stage
def limits(names):
    return {name: (LIMITS[name], COUNTS[name]) for name in names}


@cache.stage
def long_words():
    return LONG


for name in sorted(COUNTS):
    calls += 1
    log.write(f"{calls}: {name}\n")
    print("RESULT", limits([name]))
print("RESULT", long_words())
