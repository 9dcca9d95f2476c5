from typing import NamedTuple


class Op(NamedTuple):
    name: str
    kind: str


def parse(line):
    name, kind = line.split(" ", 1)
    return Op(name, kind.strip())
