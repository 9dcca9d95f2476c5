from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Node:
    tag: str
    children: list[Node] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self):
        self.tag = self.tag.strip()


def parse(text):
    root = Node("root")
    stack = [(-1, root)]
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        while stack[-1][0] >= depth:
            stack.pop()
        node = Node(line, notes={"depth": depth})
        stack[-1][1].children.append(node)
        stack.append((depth, node))
    return root
