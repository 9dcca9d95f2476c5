"""``cachec weights`` as a user runs it: the real executable, real files, one command after another."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import cachec
from tests import pages

CACHEC = Path(sys.executable).with_name("cachec")


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Run ``cachec --dir <store> weights ...`` in the test's folder."""

    def run(*words: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
        command = [str(CACHEC), "--dir", "store", "weights", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ}, check=False)
        assert done.returncode == expect, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.fixture
def base(tmp_path: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    tensors = {f"l{i}.weight": rng.standard_normal((8, 4)).astype("f4") for i in range(4)}
    save_file(tensors, tmp_path / "base.safetensors")
    save_file({**tensors, "l1.weight": tensors["l1.weight"] + 1}, tmp_path / "tuned.safetensors")
    return tensors


@pytest.mark.long
def test_the_life_of_weights(run: Any, base: dict[str, np.ndarray], tmp_path: Path) -> None:
    run("add", "base.safetensors", "base", "--own")
    run("add", "tuned.safetensors", "tuned", "--own")
    sides = [
        path for path in (tmp_path / "store" / "objects").rglob("*") if path.is_file() and path.stat().st_size >= 128
    ]
    names = {entry["name"] for entry in json.loads(run("ls", "--json").stdout)["weights"]}
    assert names == {"base", "tuned"}
    assert len([path for path in sides if path.stat().st_size == 128]) == 5, "four tensors, and the one that differs"
    changed = run("diff", "base", "tuned", expect=1).stdout
    assert "l1.weight" in changed
    assert "l2.weight" not in changed
    run("diff", "--fit", "base", "tuned")
    run("export", "tuned", "out.safetensors")
    found = load_file(tmp_path / "out.safetensors")
    np.testing.assert_array_equal(found["l1.weight"], base["l1.weight"] + 1)
    run("shard", "base", "shards", "--spec", "l*.weight=0", "--world-size", "2")
    mine = cachec.open_weights(tmp_path / "shards", rank=1, world_size=2)
    np.testing.assert_array_equal(mine["l0.weight"].read(), base["l0.weight"][4:])
    run("verify", "tuned")
    run("rm", "tuned")
    run("show", "tuned", expect=1)
    run("verify", "base")


@pytest.mark.long
def test_every_example_of_the_documentation(
    run: Any, base: dict[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "base.safetensors").rename(tmp_path / "model.safetensors")
    for line in pages.commands("reference/weights.md"):
        run(*shlex.split(line.removeprefix("cachec weights ")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CACHEC_DIR", "store")
    for block in pages.blocks("python", "reference/weights.md"):
        exec(block, {"array": np.ones(3, np.float32)})


def test_damage_is_found_and_named(run: Any, base: dict[str, np.ndarray], tmp_path: Path) -> None:
    run("add", "base.safetensors", "base", "--own")
    target = base["l2.weight"].tobytes()
    [side] = [
        path
        for path in (tmp_path / "store" / "objects").rglob("*")
        if path.is_file() and path.read_bytes().startswith(target)
    ]
    side.chmod(0o600)
    with side.open("r+b") as file:
        file.write(b"damaged!")
    assert "l2.weight" in run("verify", "base", expect=1).stdout


def test_what_does_not_fit_is_said(run: Any, base: dict[str, np.ndarray], tmp_path: Path) -> None:
    save_file({**base, "l3.weight": np.zeros((9, 4), "f4")}, tmp_path / "other.safetensors")
    assert "l3.weight" in run("diff", "--fit", "base.safetensors", "other.safetensors", expect=1).stdout
    assert run("add", "nowhere.safetensors", "x", expect=1).stderr.count("\n") == 1
