import sys
from pathlib import Path

import cachec

cache = cachec.Cache()
TOOL = Path(__file__).parent / "tool" / "assemble.py"


@cache.stage
def assemble(source: Path, *, level: int = 0) -> cachec.File:
    with cachec.scratch() as folder:
        out = folder / "a.bin"
        cachec.run([sys.executable, TOOL, source, "-o", out, f"-O{level}"], outputs=[out])
        return cachec.File(out)


def main():
    for level in (0, 1):
        built = assemble(Path("program.s"), level=level)
        print("RESULT", level, Path(built.path).read_bytes())


if __name__ == "__main__":
    main()
