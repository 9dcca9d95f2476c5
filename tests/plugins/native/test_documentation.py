"""docs/native.md: its commands give what it shows, its figures are those of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cachec

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "native.md").read_text()


@pytest.mark.long
def test_every_command_gives_what_is_shown(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environ = {
        **os.environ,
        "CACHEC_DIR": str(tmp_path / "cache"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    shown: list[str] = re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
    assert shown
    for block in shown:
        for command, *lines in (each.splitlines() for each in block.split("$ ") if each):
            done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=tmp_path, env=environ)
            assert done.returncode == 0, done.stderr
            found = done.stdout.splitlines()
            assert len(found) == len(lines), command
            for have, want in zip(found, lines, strict=True):
                assert words(have) == words(want), command
                # Another processor adds in another order.
                assert numbers(have) == pytest.approx(numbers(want), abs=0.05), command


def words(line: str) -> str:
    return re.sub(r"-?\d+\.\d+", "", line)


def numbers(line: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.\d+", line)]


def test_the_number_of_options_that_are_known():
    from cachec_iree.phases import _FIRST

    assert f"is known of {len(_FIRST)} options" in TEXT


def test_the_weights_of_the_example_need_nothing_beside_cachec(tmp_path):
    """The environment of ``make demo``, which the page names, has no safetensors."""
    code = "import sys, runpy; sys.modules['safetensors'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    command = [sys.executable, "-c", code, str(ROOT / "examples" / "native" / "make_weights.py")]
    subprocess.run(command, cwd=tmp_path, check=True)
    with cachec.open_weights(tmp_path / "first.safetensors") as weights:
        assert {name: weights[name].shape for name in weights} == {"w1": (512, 2048), "b1": (2048,), "w2": (2048, 512)}
