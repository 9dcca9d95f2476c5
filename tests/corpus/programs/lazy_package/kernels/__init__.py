import importlib

_HOMES = {"gemm": "gemm", "dot": "gemm", "conv": "conv"}

__all__ = list(_HOMES)


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f".{_HOMES[name]}", __name__)
    return getattr(module, name)
