import sys

import cachec

try:
    import orjson_that_nobody_has as json
except ImportError:
    import json

try:
    from fast_hash import digest
except ImportError:
    from slow_hash import digest

if sys.version_info >= (3, 12):
    from itertools import batched
else:

    def batched(items, n):
        items = list(items)
        return [tuple(items[i : i + n]) for i in range(0, len(items), n)]


cache = cachec.Cache()


def encode(graph):
    return json.dumps(graph, sort_keys=True, separators=(",", ":"))


@cache.stage
def fingerprint(graph):
    text = encode(graph)
    return text, digest(text.encode())


@cache.stage
def groups(names):
    return [list(group) for group in batched(names, 2)]


if __name__ == "__main__":
    print("RESULT", fingerprint({"b": [1, 2], "a": 3}))
    print("RESULT", groups(["x", "y", "z"]))
