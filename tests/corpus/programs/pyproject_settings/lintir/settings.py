import tomllib
from pathlib import Path


def find(start):
    for folder in [start, *start.parents]:
        file = folder / "pyproject.toml"
        if file.is_file():
            return tomllib.loads(file.read_text())["tool"]["lintir"]
    return {}
