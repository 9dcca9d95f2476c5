import sys
from pathlib import Path

import cachec
from fmt.find import settings

cache = cachec.Cache()


@cache.stage
def format_file(path: Path) -> str:
    indent = settings(path)["indent"]
    return "\n".join(" " * (indent * depth) + line for depth, line in enumerate(path.read_text().splitlines()))


if __name__ == "__main__":
    print("RESULT", repr(format_file(Path(sys.argv[1]))))
