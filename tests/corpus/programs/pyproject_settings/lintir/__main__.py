import sys
from pathlib import Path

from .check import check


def main():
    for path in sorted(Path(sys.argv[1]).glob("*.ir")):
        print("RESULT", path.name, check(path))


main()
