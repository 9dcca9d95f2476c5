from dataclasses import dataclass, field


@dataclass
class Text:
    indent: int = 2
    lines: list[str] = field(default_factory=list)

    def emit(self, op: str, depth: int) -> None:
        self.lines.append(" " * (self.indent * depth) + op)

    def finish(self) -> str:
        return "\n".join(self.lines)


class Count:
    def __init__(self) -> None:
        self.ops: dict[str, int] = {}

    def emit(self, op: str, depth: int) -> None:
        self.ops[op] = self.ops.get(op, 0) + 1

    def finish(self) -> str:
        return " ".join(f"{op}={count}" for op, count in sorted(self.ops.items()))
