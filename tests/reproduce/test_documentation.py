"""The commands of docs/reference/formats.md for MLIR and reproducers, run as they stand there."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

import cachec
from cachec.cli import main
from tests import pages

from .conftest import Project

PAGE = "reference/formats.md"


def run(line: str, *, code: int = 0, store: Path | None = None) -> str:
    words = shlex.split(line, comments=True)
    assert words[0] == "cachec", line
    options = [] if store is None else ["--dir", str(store)]
    result = CliRunner().invoke(main, [*options, *words[1:]])
    assert result.exit_code == code, (line, result.output, result.exception)
    return result.output


MODULE = """\
func.func @f() -> tensor<8x16xf32> {
  %w = arith.constant dense_resource<w0> : tensor<8x16xf32>
  %t = math.tanh %w : tensor<8x16xf32>
  return %t : tensor<8x16xf32>
}
"""


def test_mlir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    w = np.arange(128, dtype="f4").reshape(8, 16)
    trailer = '{-# dialect_resources: { builtin: { w0: "0x10000000' + w.tobytes().hex() + '" } } #-}\n'
    for name in ("big", "a", "b", "old"):
        (tmp_path / f"{name}.mlir").write_text(MODULE + trailer)
    (tmp_path / "new.mlir").write_text(MODULE.replace("math.tanh", "math.exp") + trailer)
    (tmp_path / "lowered.mlir").write_text(MODULE.replace("math.tanh", "math.absf"))
    save_file({"layers.0.weight": w}, "tuned.safetensors")
    for line in pages.commands(PAGE, "## MLIR"):
        run(line, code=1 if " diff " in line else 0)
    for made in ("small", "whole", "tuned", "lowered-whole"):
        assert (tmp_path / f"{made}.mlir").stat().st_size


def test_reproducers(project: Project) -> None:
    w = {"embeddings.a": np.ones((4, 3), "f4"), "other": np.ones(2, "f4")}
    save_file(w, "model.safetensors")
    program = cachec.Program(
        "module {}", format="mlir:text", manifest=cachec.open_weights("model.safetensors").manifest
    )
    key = project.upper.call(program)[1].key
    lines = pages.commands(PAGE, "## Reproducers")
    for line in lines[:-1]:
        output = run(line.replace("KEY", key), store=project.folder / "store")
        assert "not in it" not in output
    assert Path("weights.safetensors").stat().st_size

    (project.folder / "src" / "build.py").write_text(
        "import cachec, repro_project\n"
        "repro_project.fails(cachec.Program('x', format='a:b', manifest=cachec.Manifest.of({})))\n"
    )
    shutil.copy(project.folder / "src" / "build.py", "build.py")
    python = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "PYTHONPATH": "src", "PATH": python}
    assert subprocess.run(["bash", "-c", lines[-1]], env=environ, capture_output=True).returncode == 1
    (bug,) = Path("repros").iterdir()
    assert bug.suffix == ".zip"
