"""Submodules are imported when a name of theirs is asked for."""

import importlib

_WHERE = {"l1_norm": ".norms", "l2_norm": ".norms", "lowered": ".lowering"}

__all__ = sorted(_WHERE)


def __getattr__(name):
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return __all__
