import argparse
import importlib
from pathlib import Path

import cachec

cache = cachec.Cache()


@cache.stage
def execute(command: str, path: Path, by: str):
    module = importlib.import_module(f"mlt.commands.{command}")
    return module.run(path.read_text().splitlines(), by=by)


def main():
    parser = argparse.ArgumentParser(prog="mlt")
    parser.add_argument("command", choices=["count", "show"])
    parser.add_argument("path", type=Path)
    parser.add_argument("--by", default="name")
    args = parser.parse_args()
    print("RESULT", execute(args.command, args.path, args.by))
