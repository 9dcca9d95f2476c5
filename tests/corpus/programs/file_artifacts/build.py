import tempfile
from pathlib import Path

import cachec

cache = cachec.Cache()
SRC = Path(__file__).parent / "src"
MAGIC = "OBJ1"


def object_text(text):
    return "\n".join([MAGIC, *text.split()]) + "\n"


@cache.stage
def compile_source(source: Path) -> cachec.File:
    out = Path(tempfile.mkdtemp()) / source.with_suffix(".o").name
    out.write_text(object_text(source.read_text()))
    return cachec.File(out)


@cache.stage
def link(objects: list[cachec.File]) -> str:
    return "".join(Path(each.path).read_text() for each in objects)


def main():
    objects = [compile_source(source) for source in sorted(SRC.glob("*.src"))]
    print("RESULT", [Path(each.path).read_text() for each in objects])
    print("RESULT", repr(link(objects)))


if __name__ == "__main__":
    main()
