"""Code of a script that a library calls counts with the values that it reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.stage.conftest import Program

#: How a library comes to call code that reads SCALE, which no name in the stage leads to.
WAYS = {
    "function": "yaml.SafeLoader.add_constructor('!dim', dim)",
    "closure": """\
def made():
    def inner(loader, node):
        return int(node.value) * SCALE
    return inner

yaml.SafeLoader.add_constructor('!dim', made())""",
    "method": """\
class Reader:
    def read(self, loader, node):
        return int(node.value) * SCALE

yaml.SafeLoader.add_constructor('!dim', Reader().read)""",
    "class": """\
class Dim(yaml.YAMLObject):
    yaml_tag = '!dim'
    yaml_loader = yaml.SafeLoader

    @classmethod
    def from_yaml(cls, loader, node):
        return int(node.value) * SCALE""",
}
_SCRIPT = """\
import json
import cachec
import yaml

cache = cachec.Cache()

@cache.stage
def stage(text):
    return yaml.safe_load(text)

def dim(loader, node):
    return int(node.value) * SCALE

{way}

shown = []
SCALE = 2
shown.append([cache.call(stage, "!dim 3")[0], cache.call(stage, "!dim 3")[1].hit])
SCALE = 5
shown.append([cache.call(stage, "!dim 3")[0], cache.call(stage, "!dim 3")[1].hit])
print(json.dumps(shown))
"""


@pytest.mark.parametrize("way", WAYS)
def test_what_it_reads_counts(way: str, tmp_path: Path, program: Program) -> None:
    script = tmp_path / "main.py"
    script.write_text(_SCRIPT.format(way=WAYS[way]))
    for _ in range(2):
        assert json.loads(program(script, CACHEC_DIR=str(tmp_path / "store"))) == [[6, True], [15, True]]
