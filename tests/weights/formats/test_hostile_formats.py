"""Every hostile file of tests/hostile/formats is refused in little memory; the message says what is wrong and where."""

from __future__ import annotations

import json
import runpy
import tracemalloc
from pathlib import Path

import pytest

from cachec.errors import CheckpointError
from cachec.weights import open_weights
from tests.weights.formats.test_hostile import refuse_maps

HOSTILE = Path(__file__).parent.parent.parent / "hostile"
FOLDER = HOSTILE / "formats"
EXPECTED = json.loads((FOLDER / "formats.json").read_text())


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where the code in some of them would leave a file
    if name.endswith(".pt"):
        import torch  # noqa: F401  (its import is no memory of the reader, and it maps the file by itself)
    refuse_maps(monkeypatch)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError) as error:
            open_weights(FOLDER / name)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert EXPECTED[name] in str(error.value)
    assert name in str(error.value)
    assert peak < 8 << 20
    assert not list(tmp_path.iterdir())


def test_files_are_what_the_generator_writes(tmp_path: Path) -> None:
    runpy.run_path(str(HOSTILE / "make_formats.py"))["write"](tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in FOLDER.iterdir()}
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (FOLDER / path.name).read_bytes(), path.name
