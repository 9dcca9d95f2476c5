from dataclasses import dataclass


class Node:
    pass


@dataclass(frozen=True)
class Const(Node):
    value: int


@dataclass(frozen=True)
class Name(Node):
    id: str


@dataclass(frozen=True)
class Add(Node):
    left: Node
    right: Node
