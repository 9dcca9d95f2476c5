from pathlib import Path

import cachec

from .rules import RULES
from .settings import find

cache = cachec.Cache()


def parse(text):
    for line in text.splitlines():
        name, _, rest = line.partition(" = ")
        body, _, rank = rest.partition(" : ")
        op, *args = body.split()
        yield name, op, args, int(rank)


@cache.stage
def check(path: Path) -> list[str]:
    settings = find(Path.cwd())
    program = list(parse(path.read_text()))
    return [text for name in settings["select"] for text in RULES[name](program, settings)]
