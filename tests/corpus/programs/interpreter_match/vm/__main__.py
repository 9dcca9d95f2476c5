from pathlib import Path

import cachec

from .assembler import assemble, encode
from .machine import Machine

cache = cachec.Cache()


@cache.stage
def build(path: Path):
    return list(assemble(path.read_text()))


@cache.stage
def execute(program):
    return Machine().run(program)


@cache.stage
def image(program):
    return encode(program)


for path in sorted((Path(__file__).parent / "samples").glob("*.asm")):
    program = build(path)
    print("RESULT", path.name, execute(program), image(program))
