from contextlib import contextmanager
from contextvars import ContextVar

_dtype = ContextVar("dtype", default="float32")


def current():
    return _dtype.get()


@contextmanager
def dtype(name):
    token = _dtype.set(name)
    try:
        yield
    finally:
        _dtype.reset(token)
