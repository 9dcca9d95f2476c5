"""A little of gin: parameters of functions come from a file."""

import functools
import inspect
import json

_BINDINGS: dict[str, dict[str, object]] = {}


def parse_file(path):
    with open(path) as f:
        for line in f:
            line = line.partition("#")[0].strip()
            if line:
                name, _, value = line.partition("=")
                function, _, parameter = name.strip().partition(".")
                _BINDINGS.setdefault(function, {})[parameter] = json.loads(value)


def configurable(fn):
    signature = inspect.signature(fn)

    @functools.wraps(fn)
    def bound(*args, **kwargs):
        given = signature.bind_partial(*args, **kwargs).arguments
        extra = {k: v for k, v in _BINDINGS.get(fn.__name__, {}).items() if k not in given}
        return fn(*args, **kwargs, **extra)

    return bound
