from pathlib import Path

from . import compile_text
from .compiler import parse_text


def main(argv):
    for line in Path(argv[0]).read_text().split():
        print("RESULT", compile_text(line))
        print("RESULT", parse_text(line))
    return 0
