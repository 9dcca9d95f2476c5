"""The commands of docs/reference/frameworks.md for native code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cachec
from tests import pages

ROOT = Path(__file__).parents[3]


@pytest.mark.long
def test_the_commands_run_and_the_second_weights_hit(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    _, first, second = pages.outputs(pages.commands("reference/frameworks.md", "## Native code"), tmp_path)
    assert [each.splitlines()[0].split(" ")[-1].partition(":")[0] for each in (first, second)] == ["miss", "hit"]


def test_the_weights_of_the_example_need_nothing_beside_cachec(tmp_path):
    """The environment of ``make demo`` has no safetensors."""
    code = "import sys, runpy; sys.modules['safetensors'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    command = [sys.executable, "-c", code, str(ROOT / "examples" / "native" / "make_weights.py")]
    subprocess.run(command, cwd=tmp_path, check=True)
    with cachec.open_weights(tmp_path / "first.safetensors") as weights:
        assert {name: weights[name].shape for name in weights} == {"w1": (512, 2048), "b1": (2048,), "w2": (2048, 512)}
