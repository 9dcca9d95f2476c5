"""Reproducers of real compilers: IREE, with a small model and with MiniLM, and mlir-opt's own reproducers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import cachec
from cachec.cli import main
from cachec.reproduce.reader import load

EXAMPLE = Path(__file__).parents[2] / "examples" / "minilm"
BAR = 1_000_000


def repro(cache: cachec.Cache, *args: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["--dir", str(cache.dir), "repro", *args])
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


def mlp(w, x):
    import jax.numpy as jnp

    return jnp.tanh(x @ w["up"]) @ w["down"]


def weights(seed: int) -> cachec.WeightSet:
    r = np.random.default_rng(seed)
    return cachec.WeightSet.from_arrays(
        {"up": r.normal(size=(4, 512)).astype("f4"), "down": r.normal(size=(512, 2)).astype("f4")}
    )


@pytest.fixture
def lowered() -> cachec.Program:
    import jax

    from cachec_jax import to_stablehlo

    return to_stablehlo(mlp, weights(0).placeholders(), jax.ShapeDtypeStruct((3, 4), np.float32))


@pytest.mark.long
def test_an_iree_stage_is_compiled_again_to_the_same_module(
    cache: cachec.Cache, lowered: cachec.Program, tmp_path: Path
) -> None:
    @cache.stage(tools=["iree-base-compiler"])
    def build(program: cachec.Program, options: tuple[str, ...] = ()) -> cachec.File:
        from cachec_iree import compile

        return compile(program, options=options)

    file, outcome = build.call(lowered)
    bug = tmp_path / "bug.zip"
    repro(cache, outcome.key, "-o", str(bug))
    assert bug.stat().st_size < 50_000
    found = json.loads(repro(cache, "run", str(bug), "--json"))
    assert found["same"]
    assert any(each["found"] == load(bug).about.expected[0].digest for each in found["artifacts"])
    with zipfile.ZipFile(bug) as made:
        everything = b"".join(map(made.read, made.namelist()))
    for seed in (0, 1):
        assert weights(seed)["up"].read().tobytes()[:64] not in everything
    assert file.read_bytes() not in everything

    # a late option makes other code: the reproducer of that run is another one, and says so
    _, other = build.call(lowered, ("--iree-opt-level=O3",))
    late = tmp_path / "late.zip"
    repro(cache, other.key, "-o", str(late))
    assert "--iree-opt-level=O3" in json.loads(repro(cache, "show", str(late), "--json"))["commands"][-1]
    assert json.loads(repro(cache, "run", str(late), "--json"))["same"]


def test_a_program_that_iree_refuses_leaves_a_reproducer(
    tmp_path: Path, lowered: cachec.Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHEC_REPRO_DIR", str(tmp_path / "repros"))
    cache = cachec.Cache(tmp_path / "cache", log="off")

    @cache.stage(tools=["iree-base-compiler"])
    def build(program: cachec.Program) -> cachec.File:
        from cachec_iree import compile

        return compile(program)

    broken = cachec.Program(
        lowered.text.replace("stablehlo.tanh", "stablehlo.no_such_op"), format=lowered.format, manifest=lowered.manifest
    )
    with pytest.raises(subprocess.CalledProcessError):
        build(broken)
    (bug,) = (tmp_path / "repros").iterdir()
    found = json.loads(repro(cache, "run", str(bug), "--run-code", "--json"))
    assert found["same"]
    assert "no_such_op" in found["failure"]


@pytest.mark.sampled
@pytest.mark.parametrize("tool", ["iree-opt", "mlir-opt-19"])
def test_the_pipeline_is_inside_where_the_tool_reads_one(
    cache: cachec.Cache, tmp_path: Path, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    found = shutil.which(tool)
    if found is None:
        if os.environ.get("CI"):
            raise AssertionError(f"{tool} is not installed; apt-get install mlir-19-tools")
        pytest.skip(f"{tool} is not installed")

    @cache.stage
    def simplify(source: Path) -> cachec.File:
        with cachec.scratch() as folder:
            out = folder / "out.mlir"
            pipeline = "--pass-pipeline=builtin.module(func.func(cse,canonicalize))"
            cachec.run([found, source, pipeline, "-o", out], inputs=[source], outputs=[out])
            return cachec.File(out)

    source = tmp_path / "in.mlir"
    source.write_text(
        "func.func @f(%a: i32) -> i32 {\n  %x = arith.addi %a, %a : i32\n  %y = arith.addi %a, %a : i32\n"
        "  %z = arith.muli %x, %y : i32\n  return %z : i32\n}\n"
    )
    file, outcome = simplify.call(source)
    bug = tmp_path / "bug.zip"
    repro(cache, outcome.key, "-o", str(bug))
    with zipfile.ZipFile(bug) as made:
        made.extractall(tmp_path / "by hand")
    (inside,) = (tmp_path / "by hand").rglob("*.reproducer.mlir")
    done = subprocess.run([found, "--run-reproducer", str(inside)], capture_output=True, text=True, check=True)
    assert done.stdout.partition("{-#")[0].strip() == file.read_bytes().decode().strip()
    assert done.stdout.count("arith.addi") == 1
    assert f"{tool} --run-reproducer" in (tmp_path / "by hand" / "README.md").read_text()
    assert json.loads(repro(cache, "run", str(bug), "--json"))["same"]


@pytest.mark.long
def test_minilm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """90 MB of weights: a reproducer under 1 MB, whose replay gives the same artifact digest."""
    store = tmp_path / "store"
    code = (
        "import pipeline, checkpoint; found = pipeline.compiled(checkpoint.open_checkpoint(), 3);"
        "print(found.outcomes['build'].key)"
    )
    environ = {**os.environ, "CACHEC_DIR": str(store), "PYTHONPATH": str(EXAMPLE)}
    key = subprocess.run([sys.executable, "-c", code], env=environ, check=True, capture_output=True, text=True).stdout
    cache = cachec.Cache(store)
    bug = tmp_path / "minilm.zip"
    repro(cache, key.strip(), "-o", str(bug))
    found = load(bug)
    assert sum(spec.nbytes for spec in found.specs.values()) > 90_000_000
    assert bug.stat().st_size < BAR
    assert json.loads(repro(cache, "run", str(bug), "--json"))["same"]
