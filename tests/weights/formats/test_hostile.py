"""Every hostile checkpoint of tests/hostile is refused, and the message says what is wrong and where."""

from __future__ import annotations

import json
import mmap
import os
import runpy
from pathlib import Path

import pytest

from cachec.base import fsio
from cachec.errors import CheckpointError
from cachec.weights import open_weights

FOLDER = Path(__file__).parent.parent.parent / "hostile"
EXPECTED = json.loads((FOLDER / "safetensors.json").read_text())


def refuse_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader validates before it maps."""
    for name in ("map_read", "map_untracked", "map_private"):
        monkeypatch.setattr(fsio, name, lambda *_: pytest.fail("mapped before it was validated"))
    monkeypatch.setattr(mmap, "mmap", lambda *_, **__: pytest.fail("mapped before it was validated"))


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_maps(monkeypatch)
    with pytest.raises(CheckpointError) as error:
        open_weights(FOLDER / name)
    assert EXPECTED[name] in str(error.value)
    assert name in str(error.value)


def test_files_are_what_the_generator_writes(tmp_path: Path) -> None:
    runpy.run_path(str(FOLDER / "make_safetensors.py"))["write"](tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {
        p.name for p in FOLDER.iterdir() if p.suffix != ".py" and p.is_file()
    }
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (FOLDER / path.name).read_bytes(), path.name


def test_a_pipe_and_a_folder_are_no_checkpoints(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(CheckpointError, match="regular file"):
        open_weights(tmp_path / "pipe.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(CheckpointError, match="regular file"):
        open_weights([tmp_path / "folder.safetensors"])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        open_weights(tmp_path / "folder.safetensors")


def test_a_good_file_cut_at_every_byte_is_refused(tmp_path: Path) -> None:
    text = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  '
    whole = len(text).to_bytes(8, "little") + text + bytes(8)
    path = tmp_path / "cut.safetensors"
    path.write_bytes(whole)
    assert open_weights(path)["a"].shape == (2,)
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"cut\.safetensors"):
            open_weights(path)
