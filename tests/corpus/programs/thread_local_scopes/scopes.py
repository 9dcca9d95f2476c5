import threading

_local = threading.local()


def stack():
    if not hasattr(_local, "stack"):
        _local.stack = []
    return _local.stack


class scope:
    def __init__(self, name):
        self.name = name

    def __enter__(self):
        stack().append(self.name)
        return self

    def __exit__(self, *exc):
        stack().pop()


def full_name(name):
    return "/".join([*stack(), name])
