import sys
from pathlib import Path

import cachec

cache = cachec.Cache()
TOOL = Path(__file__).parent / "tool" / "assemble.py"


@cache.stage
def assemble(source: Path, *, level: int = 0) -> bytes:
    with cachec.scratch() as folder:
        out = folder / "a.bin"
        cachec.run([sys.executable, TOOL, source, "-o", out, f"-O{level}"], outputs=[out])
        return out.read_bytes()


def main():
    for level in (0, 1):
        print("RESULT", level, assemble(Path("program.s"), level=level))


if __name__ == "__main__":
    main()
