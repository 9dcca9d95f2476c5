"""Against IREE: what it writes is read, it reads what is written here, and modules compute with their weights."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from cachec.weights import WeightSet
from cachec_mlir import Bytecode, link, strip, topology
from tests.plugins.mlir.conftest import IREE_OPT, arrays, inline_program, program

X = np.linspace(-1, 1, 32, dtype="f4").reshape(4, 8)


@pytest.mark.long
def test_iree_reads_what_is_stripped_and_linked(iree_opt, tmp_path):
    """iree-opt wants its input as aligned in memory as the file is; 16 is what its own buffers are."""
    printed = iree_opt(program(0).encode())
    bytecode = iree_opt(program(0).encode(), "--emit-bytecode")
    stripped = strip(bytecode)
    assert list(stripped.resources) == ["w1", "w2"]
    elided = iree_opt(program(0).encode(), "--emit-bytecode", "--elide-resource-data-from-bytecode")
    assert Bytecode(elided).names_without_bytes == Bytecode(stripped.ir).names_without_bytes == ("w1", "w2")
    assert iree_opt(stripped.ir) == iree_opt(elided)
    assert iree_opt(elided).rstrip() == strip(printed).ir.rstrip()
    link(stripped.ir, stripped.resources, tmp_path / "same")
    assert (tmp_path / "same").read_bytes() == bytecode
    other = WeightSet.from_arrays(arrays(1))
    for ir in (stripped.ir, elided):
        link(ir, other, tmp_path / "other", alignment=16)
        assert iree_opt((tmp_path / "other").read_bytes()) == iree_opt(program(1).encode())
    link(strip(printed).ir, other, tmp_path / "text", alignment=16)
    assert iree_opt((tmp_path / "text").read_bytes()) == iree_opt(program(1).encode())


@pytest.mark.long
def test_settings_survive(iree_opt, tmp_path):
    setting = ',\n  external_resources: { mlir_reproducer: { pipeline: "any(cse)", verify_each: false } }\n#-}\n'
    text = program(0).replace("\n#-}\n", setting).encode()
    for module in (text, iree_opt(text, "--emit-bytecode")):
        stripped = strip(module)
        assert b'pipeline: "any(cse)"' in iree_opt(stripped.ir)
        link(stripped.ir, stripped.resources, tmp_path / "out")
        assert iree_opt((tmp_path / "out").read_bytes()) == iree_opt(text)


def test_relink_across_a_stage(iree_opt, tmp_path):
    """The weights of the input go with the IR of a later phase, by the same names."""
    stripped = strip(program(0).encode())
    later = iree_opt(stripped.ir, "--pass-pipeline=builtin.module(canonicalize,cse)", "--emit-bytecode")
    link(later, stripped.resources, tmp_path / "linked")
    whole = iree_opt(program(0).encode(), "--pass-pipeline=builtin.module(canonicalize,cse)")
    assert iree_opt((tmp_path / "linked").read_bytes()) == whole


def test_lifted_constants_are_the_same_program(iree_opt, tmp_path):
    stripped = strip(inline_program(0).encode())
    assert len(stripped.lifted) == 2
    link(stripped.ir, stripped.resources, tmp_path / "back", inline=stripped.lifted)
    assert iree_opt((tmp_path / "back").read_bytes()) == iree_opt(inline_program(0).encode())
    named = dict(zip(stripped.lifted, ("w1", "w2"), strict=True))
    link(stripped.ir, WeightSet.from_arrays(arrays(1)), tmp_path / "other", names=named, inline=stripped.lifted)
    assert iree_opt((tmp_path / "other").read_bytes()) == iree_opt(inline_program(1).encode())


@pytest.mark.sampled
@pytest.mark.parametrize("form", ["text", "bytecode", "lifted"])
def test_compiled_with_other_weights_it_computes_with_them(form, iree_opt, tmp_path):
    from iree import runtime as rt

    source = (inline_program(0) if form == "lifted" else program(0)).encode()
    module = iree_opt(source, "--emit-bytecode") if form == "bytecode" else source
    stripped = strip(module)
    topologies = set()
    for seed in (1, 2):
        path = tmp_path / f"m{seed}.mlir"
        names = dict(zip(stripped.lifted, arrays(0), strict=False))
        link(stripped.ir, WeightSet.from_arrays(arrays(seed)), path, names=names, alignment=16)
        topologies.add(topology(path))
        vmfb = compiled(path)
        config = rt.Config("local-task")
        loaded = rt.load_vm_module(rt.VmModule.mmap(config.vm_instance, str(vmfb)), config)
        found = loaded.main(X).to_host()
        weights = arrays(seed)
        np.testing.assert_allclose(found, np.tanh(X @ weights["w1"]) @ weights["w2"], atol=1e-4)
    assert len(topologies) == 1


def compiled(path: Path) -> Path:
    out = path.with_suffix(".vmfb")
    flags = ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"]
    command = [IREE_OPT.with_name("iree-compile"), *flags, "--iree-llvmcpu-target-cpu=host", path, "-o", out]
    done = subprocess.run(command, capture_output=True)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return out
