"""Whole code keys, of live modules, are the same on all supported Pythons; ``test_syntax.py`` has what they rest on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import cachec
from tests.key.conftest import other_pythons

HERE = Path(__file__).parent / "pythons"


def keys(python: str, folder: Path) -> dict[str, dict[str, str]]:
    folder.mkdir()
    repository = str(Path(cachec.__file__).parents[1])
    words = [python, "-I", str(HERE / "keys.py"), repository, str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{python}: {done.stderr}"
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    return found


@pytest.mark.long
def test_code_keys_are_equal_on_every_supported_python(tmp_path: Path) -> None:
    others = other_pythons()
    if not others:
        pytest.skip("no other supported Python was found on PATH or under pyenv")
    own = keys(sys.executable, tmp_path / "own")
    assert len({parts["digest"] for parts in own.values()}) == len(own), "a key that no program changes tells nothing"
    for number, python in enumerate(others):
        found = keys(python, tmp_path / str(number))
        assert found.keys() == own.keys()
        for name, parts in own.items():
            other = found[name]
            differ = sorted(each for each in parts.keys() | other.keys() if parts.get(each) != other.get(each))
            assert differ == [], f"{python}: {name}"
