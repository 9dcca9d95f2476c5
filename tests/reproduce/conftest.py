"""A small project whose stages run commands, and a shell to make and run reproducers of them."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cachec
from cachec.cli import main

PROJECT = '''
"""Stages for the tests of reproducers."""

import os
import sys
from pathlib import Path

import cachec

cache = cachec.Cache()

UPPER = "import sys; text = open(sys.argv[1]).read(); open(sys.argv[2], 'w').write(text.upper())"
FAIL = "import os, sys; sys.stderr.write('bad input: ' + open(sys.argv[1]).read() + os.getcwd() + '/x'); sys.exit(3)"
NOISE = "import os, sys; sys.stderr.write(os.getcwd()); open('o', 'w').write('x')"


@cache.stage(env=["PROJECT_FLAG", "PROJECT_TOKEN"])
def upper(program: cachec.Program, *, flag: str = "x", secret: object = None) -> cachec.File:
    """Two commands, the second on what the first wrote."""
    with cachec.scratch() as folder:
        (folder / "in.mlir").write_bytes(program.ir)
        out = folder / "sub" / "out.txt"
        out.parent.mkdir()
        run = [sys.executable, "-c", UPPER, "in.mlir", "mid.txt"]
        cachec.run(run, cwd=folder, env=["PROJECT_FLAG", "PROJECT_TOKEN"])
        run = [sys.executable, "-c", UPPER, str(folder / "mid.txt"), str(out)]
        cachec.run(run, inputs=[folder / "mid.txt"], outputs=[out], cwd=folder)
        return cachec.File(out)


@cache.stage
def fails(program: cachec.Program) -> cachec.File:
    with cachec.scratch() as folder:
        (folder / "in.mlir").write_bytes(program.ir)
        cachec.run([sys.executable, "-c", FAIL, "in.mlir"], cwd=folder)
        raise AssertionError


@cache.stage
def hangs(number: int) -> cachec.File:
    with cachec.scratch() as folder:
        cachec.run([sys.executable, "-c", "import time; time.sleep(60)"], cwd=folder, timeout=0.2)
        return cachec.File(folder / "o")


@cache.stage
def noisy(number: int) -> cachec.File:
    with cachec.scratch() as folder:
        cachec.run([sys.executable, "-c", NOISE], cwd=folder, outputs=["o"])
        return cachec.File(folder / "o")


@cache.stage
def raises(program: cachec.Program, number: int) -> bytes:
    raise ValueError(f"number {number} of {program.text!r}")


@cache.stage
def total(weights: cachec.WeightSet, names: tuple[str, ...], scale: float, path: Path) -> bytes:
    """Python alone, and it reads a weight."""
    value = sum(float(weights[name].read().sum()) for name in names) * scale
    return f"{value!r} {path.read_text()}".encode()


@cache.stage
def shapes(weights: cachec.WeightSet, options: dict, function=len, left=None) -> dict:
    return {"n": function(list(weights)), "options": options, "shapes": [list(s.shape) for s in weights.specs.values()]}


@cache.stage
def from_stdin(text: bytes) -> cachec.File:
    with cachec.scratch() as folder:
        out = folder / "o"
        code = "import sys; open(sys.argv[1], 'wb').write(sys.stdin.buffer.read()[::-1])"
        cachec.run([sys.executable, "-c", code, str(out)], stdin=text, outputs=[out])
        return cachec.File(out)


@cache.stage
def with_file(source: Path) -> cachec.File:
    with cachec.scratch() as folder:
        out = folder / "o"
        cachec.run([sys.executable, "-c", UPPER, source, out], inputs=[source], outputs=[out])
        return cachec.File(out)


@cache.stage
def with_weights(params: Path) -> cachec.File:
    """The command gets a checkpoint that it never opens."""
    with cachec.scratch() as folder:
        out = folder / "o"
        code = "import sys, os; open(sys.argv[2], 'w').write(str(os.path.getsize(sys.argv[1])))"
        cachec.run([sys.executable, "-c", code, params, out], weights={params: "opened"}, outputs=[out])
        return cachec.File(out)
'''


class Project:
    """The project as a module, its store, and the command line on that store."""

    def __init__(self, folder: Path, module: ModuleType) -> None:
        self.folder = folder
        self.module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def run(self, *args: str, code: int = 0, store: str = "store", stdin: str | None = None) -> Result:
        """``cachec repro ...`` on a store."""
        result = CliRunner().invoke(main, ["--dir", str(self.folder / store), "repro", *args], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    def json(self, *args: str, code: int = 0, store: str = "store") -> Any:
        """The same with ``--json``."""
        return json.loads(self.run(*args, "--json", code=code, store=store).stdout)

    def make(self, outcome: cachec.Outcome, name: str = "bug.zip", *options: str) -> Path:
        """The reproducer of the run that ended so."""
        assert outcome.stored, outcome
        path = self.folder / name
        self.run(outcome.key, "-o", str(path), *options)
        return path


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """The project, imported from a folder of its own, with a fresh store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CACHEC_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("CACHEC_LOG", "off")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setenv("PROJECT_FLAG", "f 1")
    monkeypatch.setenv("PROJECT_TOKEN", "hunter2")
    source = tmp_path / "src"
    source.mkdir()
    (source / "repro_project.py").write_text(PROJECT)
    monkeypatch.syspath_prepend(str(source))
    importlib.invalidate_caches()
    sys.modules.pop("repro_project", None)
    yield Project(tmp_path, importlib.import_module("repro_project"))
    sys.modules.pop("repro_project", None)


@pytest.fixture
def program() -> cachec.Program:
    """A tiny program with two weights."""
    spec = cachec.WeightSpec
    specs = {
        "a": spec(name="a", dtype="float32", shape=(4, 3), nbytes=48),
        "b": spec(name="b", dtype="bfloat16", shape=(2,), nbytes=4),
    }
    return cachec.Program("module {\n}\n", format="mlir:text", manifest=cachec.Manifest.of(specs))
