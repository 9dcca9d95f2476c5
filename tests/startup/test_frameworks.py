"""JAX and torch in programs that know nothing of cachec."""

from __future__ import annotations

import pytest

JAX = """
import jax

@jax.jit
def double(x):
    return x * 2.0

print(double(jax.numpy.ones(3)).sum())
"""

TORCH = """
import torch

@torch.compile
def double(x):
    return x * 2.0 + 1.0

print(double(torch.ones(3)).sum().item())
"""


def last(done) -> str:
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()[-1] if done.stderr else ""


def test_plain_jax(python, run, tmp_path):
    (tmp_path / "program.py").write_text(JAX)
    ours = [run(python, "-m", "cachec", "python", "program.py") for _ in range(2)]
    assert [each.stdout for each in ours] == ["6.0\n", "6.0\n"]
    (misses, hits) = map(last, ours)
    assert misses.startswith("cachec: 0 hits, ")
    count = misses.split()[3]
    assert hits.startswith(f"cachec: {count} hits, 0 misses; saved "), hits


def test_the_limit_of_jax_stays_where_the_user_has_set_it(python, run):
    assert last(run(python, "-c", JAX, CACHEC_INSTALL="jax", JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="3600")) == ""


def test_what_the_program_installs_wins(python, run, tmp_path):
    program = f"import cachec, cachec_jax\ncachec_jax.install(cachec.Cache({str(tmp_path / 'own')!r}))\n{JAX}"
    assert last(run(python, "-c", program, CACHEC_INSTALL="jax")).startswith("cachec: 0 hits, ")
    assert (tmp_path / "own").exists()
    assert not (tmp_path / "store").exists()


def test_a_stage_that_compiles_with_jax_hits(python, run, tmp_path):
    """JAX is imported, and its plugin installed, while the stage is recorded."""
    (tmp_path / "program.py").write_text("""
import sys
import cachec

cache = cachec.Cache()

@cache.stage(tools=["jax", "jaxlib"], isolated="isolated" in sys.argv)
def compiled(n: int) -> float:
    import jax

    return float(jax.jit(lambda x: x * 2.0)(jax.numpy.ones(n)).sum())

print(compiled(3), "jax" in sys.modules)
""")
    for words in ([], ["isolated"]):
        store = str(tmp_path / f"store {words}")
        for expected in ("0 hits, ", "1 hit, 0 misses;"):
            done = run(python, "program.py", *words, CACHEC_INSTALL="jax", CACHEC_DIR=store)
            assert last(done).startswith(f"cachec: {expected}"), done.stderr
            assert "bypass" not in done.stderr
        assert done.stdout == "6.0 False\n"


def test_torch_alone_records_operations_and_imports_no_inductor(python, run):
    program = """
import sys
import torch
from cachec_torch.kernel_recorder import installed_recorder

library = torch.library.Library("mine", "FRAGMENT")
library.define("double(Tensor x) -> Tensor")
library.impl("double", lambda x: x * 2, "CPU")
recorder = installed_recorder()
print([each.key for each in recorder.kernels()], list(recorder.definers), "torch._inductor" in sys.modules)
import torch._inductor.compile_fx, torch._inductor.cpp_builder as builder
library.impl("double", lambda x: x * 2, "Meta")
kernels = [each.key for each in builder._run_compile_cmd.recorder.kernels() if each.key.startswith("mine/")]
print(builder._run_compile_cmd.recorder is recorder, kernels)
"""
    done = run(python, "-c", program, CACHEC_INSTALL="torch")
    first = "['mine/double/CPU'] ['mine::double'] False"
    assert done.stdout.splitlines() == [first, "True ['mine/double/CPU', 'mine/double/Meta']"], done.stderr
    assert done.stderr == ""


@pytest.mark.costly
def test_plain_torch(python, run, tmp_path):
    (tmp_path / "program.py").write_text(TORCH)
    ours = [
        run(python, "-m", "cachec", "python", "program.py", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / folder))
        for folder in ("one", "two")
    ]
    assert [each.stdout for each in ours] == ["9.0\n", "9.0\n"]
    assert " 0 misses; saved " in last(ours[1])


@pytest.mark.costly
def test_torchrun(python, run, framework, tmp_path):
    (tmp_path / "program.py").write_text("import os, toy\ntoy.compile(os.environ['RANK'])\n")
    line = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "program.py"]
    done = run(*line, CACHEC_INSTALL="toy,torch", OMP_NUM_THREADS="1", PYTHONPATH=str(framework))
    assert last(done) == "cachec: 0 hits, 2 misses; saved 0.00 s"
