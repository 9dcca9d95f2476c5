from pathlib import Path

import cachec
from tree import Node, parse

cache = cachec.Cache()


@cache.stage
def load(path: Path) -> Node:
    return parse(path.read_text())


def size(node: Node) -> int:
    return 1 + sum(size(child) for child in node.children)


@cache.stage
def measure(node: Node) -> tuple[int, int]:
    deepest = max((child.notes["depth"] for child in node.children), default=0)
    return size(node), deepest


@cache.stage
def flatten(node: Node) -> list[Node]:
    return [Node(child.tag, [], child.notes) for child in node.children]


if __name__ == "__main__":
    tree = load(Path("page.txt"))
    print("RESULT", tree)
    print("RESULT", measure(tree))
    print("RESULT", flatten(tree))
