"""cachec_tvm: programs of torch and modules of Relax, compiled without the bytes of their weights."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachec
import cachec_tvm
from cachec.testing.conformance import PluginConformance
from tests import pages
from tests.needs import Later, need

#: torch and TVM take ten seconds to import.
pytestmark = pytest.mark.long

torch = Later("torch")
modules = Later("tests.plugins.tvm_modules")
shared = Later("tests.plugins.executorch_modules")
others = Later("tests.plugins.torch_modules")


@pytest.fixture(scope="session", autouse=True)
def _tools() -> None:
    need("g++")


@pytest.mark.costly
class TestConformance(PluginConformance):
    plugin = cachec_tvm.plugin
    compilers = ("torch", "tvm", "tvm_ffi", "cachec_tvm.compiler")
    runtimes = ("tvm", "tvm_ffi", "torch")  # tvm_ffi imports torch where there is one
    tolerance = 1e-5

    def stages(self, cache: cachec.Cache) -> tuple[Any, Any]:
        @cache.stage(tools=["torch"])
        def lower(weights: cachec.WeightSet, scale: float) -> cachec.Program:
            from tests.plugins.tvm_modules import program

            return program(weights, scale)

        @cache.stage(tools=["apache-tvm", "apache-tvm-ffi", "torch"])
        def build(program: cachec.Program) -> cachec.File:
            return cachec_tvm.compile(program)

        return lower, build

    def weight_sets(self, folder: Path) -> tuple[cachec.WeightSet, cachec.WeightSet]:
        shapes = {"up.weight": (8, 8), "up.bias": (8,), "norm.weight": (8,), "norm.bias": (8,), "scalar": ()}
        shapes |= {"one": (1,), "eight": (8,), "nine": (9,), "down": (8, 9)}
        sets = []
        for seed in (0, 1):
            random = np.random.default_rng(seed)
            arrays = {name: np.asarray(random.normal(1, 0.5, shape), "f4") for name, shape in shapes.items()}
            arrays["tied.weight"] = arrays["up.weight"]
            sets.append(cachec.WeightSet.from_arrays(arrays, tied=[("tied.weight", "up.weight")]))
        return sets[0], sets[1]

    def inputs(self) -> Sequence[Any]:
        return (np.linspace(-1, 1, 24, dtype="f4").reshape(3, 8),)

    def link(self, artifact: Any, weights: cachec.WeightSet) -> Callable[..., Any]:
        more = {"bias": np.ones(9, "f4"), "rows": np.arange(6).reshape(2, 3)}
        run = cachec.link(artifact, weights)
        return lambda x: run(x, more=more, flag=2)["y"]


@pytest.fixture(scope="module")
def compiled() -> cachec.File:
    return cachec_tvm.compile(modules.program(shared.weights(0).placeholders()))


def close(ours: Any, theirs: Any) -> None:
    """Equal trees, and arrays within 1e-5 of what torch computes."""
    flatten = torch.utils._pytree.tree_flatten
    (ours, mine), (theirs, yours) = flatten(ours), flatten(theirs)
    assert mine == yours
    for each, other in zip(ours, theirs, strict=True):
        if isinstance(other, torch.Tensor):
            assert str(each.dtype).removeprefix("torch.") == str(other.dtype).removeprefix("torch.")
            found, expected = (
                value.detach().double().numpy() if isinstance(value, torch.Tensor) else value.astype("f8")
                for value in (each, other)
            )
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * max(1.0, float(abs(expected).max())))
        else:
            assert (type(each), each) == (type(other), other)


@pytest.mark.parametrize(("seed", "rows"), [(0, 3), (1, 3), (2, 16), (3, 2)])
def test_each_set_of_weights_gives_its_own_numbers(compiled: cachec.File, seed: int, rows: int) -> None:
    module = others.seeded(modules.Mixed, seed)
    args, kwargs = shared.inputs(rows, seed)
    expected = module(*others.as_tensors(args), **others.as_tensors(kwargs))
    run = cachec.link(compiled, shared.weights(seed))
    close(run(*args, **kwargs), expected)
    close(run.torch()(*others.as_tensors(args), **others.as_tensors(kwargs)), expected)


def test_a_fine_tune_hits_and_has_the_numbers_of_a_compile_of_its_own(tmp_path: Path) -> None:
    cache = cachec.Cache(tmp_path / "cache", log="off")

    @cache.stage(tools=["apache-tvm", "apache-tvm-ffi", "torch"])
    def build(weights: cachec.WeightSet) -> cachec.File:
        from tests.plugins.tvm_modules import program

        return cachec_tvm.compile(program(weights))

    (_, first), (file, second) = (cache.call(build, shared.weights(seed)) for seed in (0, 1))
    assert [first.reason.kind, second.reason.kind] == ["miss", "hit"]
    args, kwargs = shared.inputs()
    own = cachec.link(build.uncached(shared.weights(1)), shared.weights(1))(*args, **kwargs)
    np.testing.assert_allclose(cachec.link(file, shared.weights(1))(*args, **kwargs)["y"], own["y"], atol=1e-5)


def test_no_byte_of_a_weight_is_in_a_library(compiled: cachec.File, monkeypatch: pytest.MonkeyPatch) -> None:
    """A persistent buffer is a weight: TVM's own importer takes it by value."""
    marked = {name: weight.private() * 0 + 1234.5678 for name, weight in shared.weights(0).items()}
    weights = cachec.WeightSet.from_arrays(marked, tied=modules.TIES)
    file = cachec_tvm.compile(modules.program(weights))
    assert np.float32(1234.5678).tobytes() not in file.read_bytes()
    assert file.read_bytes() == compiled.read_bytes()
    assert str(file.path.parent).encode() not in file.read_bytes()
    monkeypatch.setattr("cachec_torch.programs.LoadedProgram.touched", lambda self: ["one"])
    with pytest.raises(cachec.PluginError, match="looked at the value of weight 'one'"):
        cachec_tvm.compile(modules.program(weights))


def test_other_types() -> None:
    program = modules.exported(modules.Types, torch.ones(4), torch.tensor([1, 5]))
    module = others.seeded(modules.Types, 3)
    x, index = np.array([-1.5, 2, 3, -4], "f4"), np.array([2, 4])
    run = cachec.link(cachec_tvm.compile(program), modules.weights_of(module))
    expected = module(torch.from_numpy(x), torch.from_numpy(index))
    close(run(x, index), expected)
    close(run.torch()(torch.from_numpy(x), torch.from_numpy(index)), expected)


def test_convolutions_and_attention() -> None:
    module, x = others.seeded(modules.Convolved, 0), torch.randn(2, 3, 6, 6)
    run = cachec.link(cachec_tvm.compile(modules.exported(modules.Convolved, x)), others.weights_of(module))
    close(run(x.numpy()), module(x))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"x": np.ones((1, 8), "f4")}, r"from 2 to 16\), 8\], found float32\[1, 8\]"),
        ({"x": np.ones((17, 8), "f4")}, r"found float32\[17, 8\]"),
        ({"x": np.ones((3, 8))}, r"found float64\[3, 8\]"),
        ({"flag": 3}, "made for 2, which is part of it"),
        ({"more": {}}, "expected a dict with keys"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(compiled: cachec.File, changed: dict[str, Any], words: str) -> None:
    (x,), kwargs = shared.inputs()
    given = {"x": x, **kwargs} | changed
    with pytest.raises(cachec.UsageError, match=words):
        cachec.link(compiled, shared.weights(0))(given.pop("x"), **given)


def test_what_is_refused() -> None:
    for program, words in (
        (shared.program(shared.weights(0)), r"writes to 'calls' \(1 such\)"),
        (modules.exported(others.Norm, torch.ones(3, 8), training=True), r"writes to 'n\.num_batches_tracked' \(3"),
    ):
        with pytest.raises(cachec.PluginError, match=words):
            cachec_tvm.compile(program)


def test_damaged_files_are_refused(compiled: cachec.File, tmp_path: Path) -> None:
    data, weights = compiled.read_bytes(), shared.weights(0)
    path = tmp_path / "x"
    other = data.replace(b'"tvm":"0.', b'"tvm":"9.')
    for content in (b"", data[:-1], data[-60:], data[3000:], other):
        path.write_bytes(content)
        with pytest.raises(cachec.LinkError, match="x"):
            cachec_tvm.plugin.link(cachec.File(path, kind=compiled.kind), weights)
    with pytest.raises(cachec.LinkError, match="needs 'one', and there is no such weight"):
        cachec_tvm.plugin.link(cachec.File(compiled.path, kind=compiled.kind), weights.select(exclude=["one"]))


# --- modules of Relax

#: What makes another module, each beside what is alike.
EDITS: dict[str, dict[str, Any]] = {
    "shape": {"rows": 3},
    "dynamic": {"rows": "n"},
    "attribute 1": {"attributes": {"num_input": 1}},
    "attribute 2": {"attributes": {"num_input": 2}},
    "scalar 1.5": {"scale": 1.5},
    "next scalar": {"scale": float(np.nextafter(np.float32(1.5), np.float32(2)))},
}


def relaxed(**how: Any) -> cachec.Program:
    return cachec_tvm.strip(modules.chain(**how), modules.chain_weights(0))


def test_names_of_locals_and_weights_make_no_difference() -> None:
    base = relaxed()
    assert relaxed(local="hidden").topology == base.topology
    assert relaxed(weights_first=True).topology == base.topology
    renamed = modules.chain(names=("input", "a", "b"))
    names = {"a": "up.weight", "b": "down"}
    assert cachec_tvm.strip(renamed, modules.chain_weights(1).placeholders(), names=names).topology == base.topology


def test_each_edit_makes_a_difference() -> None:
    relu = {"operation": Later("tvm").relax.op.nn.silu}
    made = {how: relaxed(**edit).topology for how, edit in {**EDITS, "operation": relu, "nothing": {}}.items()}
    assert len(set(made.values())) == len(made), made
    swapped = cachec_tvm.strip(
        modules.chain(names=("x", "b", "a")),
        cachec.WeightSet.from_arrays({"b": np.ones((8, 16), "f4"), "a": np.ones((16, 8), "f4")}),
    )
    assert swapped.topology not in made.values()


def test_the_same_in_a_process_with_another_hash_seed() -> None:
    code = "from tests.plugins.test_tvm_torch import relaxed; print(relaxed(scale=1.5).topology)"
    environ = os.environ | {"PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == relaxed(scale=1.5).topology


@pytest.mark.parametrize("how", ["nothing", *EDITS])
def test_modules_of_relax_run_with_any_weights(how: str) -> None:
    edit = EDITS.get(how, {})
    file = cachec_tvm.compile(relaxed(**edit, weights_first=True))
    rows = edit.get("rows", 2)
    x = np.random.default_rng(0).normal(size=(5 if rows == "n" else rows, 8)).astype("f4")
    for seed in (1, 2):
        weights = modules.chain_weights(seed)
        up, down = (weights[name].read() for name in ("up.weight", "down"))
        expected = np.maximum(x @ up, 0) @ down * np.float32(edit.get("scale", 1))
        np.testing.assert_allclose(cachec.link(file, weights)(x), expected, rtol=1e-4, atol=1e-4)


def test_modules_that_are_refused() -> None:
    weights = modules.chain_weights(0)
    for module, given, words in (
        (3, weights, "with a function 'main'"),
        (modules.chain(function="other"), weights, "with a function 'main'"),
        (modules.chain(names=("x", "up.weight", "other")), weights, r"is weight 'down' \(1 such\)"),
        (modules.chain(rows=2), cachec.WeightSet.from_arrays({"down": np.ones((16, 4), "f4")}), "main has float32"),
        (modules.chain(rows="n", names=("w", "up.weight", "down")), cachec.WeightSet.from_arrays(
            {"w": np.ones((2, 8), "f4")}), "expected a tensor of known sizes"),
        (modules.chain(constant=np.ones((2, 8))), weights, r"a constant of shape \[2, 8\]"),
    ):  # fmt: skip
        with pytest.raises(cachec.PluginError, match=words):
            cachec_tvm.strip(module, given)
    with pytest.raises(cachec.PluginError, match="have the same weight"):
        cachec_tvm.strip(modules.chain(), weights, names={"x": "down"})


@pytest.mark.costly
def test_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    pages.scripts("reference/frameworks.md", tmp_path, "## PyTorch")
    lines = [line.replace("aoti", "tvm") for line in pages.commands("reference/frameworks.md", "## PyTorch")]
    first, second, stats = pages.outputs(lines, tmp_path)
    assert (first.split()[0], second.split()[0]) == ("512.0", "1024.0")
    assert re.search(r"tvm .*50", stats), stats
