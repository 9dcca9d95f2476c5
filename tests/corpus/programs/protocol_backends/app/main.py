import cachec

from .backends import Count, Text
from .protocol import Emitter

cache = cachec.Cache()


def walk(tree: tuple, emitter: Emitter, depth: int = 0) -> None:
    op, *children = tree
    emitter.emit(op, depth)
    for child in children:
        walk(child, emitter, depth + 1)


@cache.stage
def emit(tree: tuple, kind: str) -> str:
    emitter = {"text": Text, "count": Count}[kind]()
    if not isinstance(emitter, Emitter):
        return "no emitter"
    walk(tree, emitter)
    return emitter.finish()


TREE = ("add", ("mul", ("x",), ("y",)), ("x",))

if __name__ == "__main__":
    print("RESULT", repr(emit(TREE, "text")))
    print("RESULT", repr(emit(TREE, "count")))
