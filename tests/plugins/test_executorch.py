"""cachec_executorch: programs of torch lowered without the bytes of their weights, run with any."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachec
import cachec_executorch
from cachec.testing.conformance import PluginConformance
from tests import pages
from tests.needs import Later, need_packages

#: torch and ExecuTorch take ten seconds to import.
pytestmark = pytest.mark.long

torch = Later("torch")
modules = Later("tests.plugins.executorch_modules")
others = Later("tests.plugins.torch_modules")


@pytest.fixture(scope="session", autouse=True)
def _packages() -> None:
    need_packages("executorch", "flatbuffers", "ruamel.yaml", "tabulate")


@pytest.mark.costly
class TestConformance(PluginConformance):
    plugin = cachec_executorch.plugin
    compilers = ("torch", "executorch", "executorch.exir", "cachec_executorch.lowering")
    runtimes = ("torch", "executorch")
    tolerance = 1e-5

    def stages(self, cache: cachec.Cache) -> tuple[Any, Any]:
        @cache.stage(tools=["torch"])
        def lower(weights: cachec.WeightSet, scale: float) -> cachec.Program:
            from tests.plugins.executorch_modules import program

            return program(weights, scale)

        @cache.stage(tools=["torch", "executorch"])
        def build(program: cachec.Program) -> cachec.File:
            return cachec_executorch.compile(program)

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
def lowered() -> cachec.File:
    return cachec_executorch.compile(modules.program(modules.weights(0).placeholders()))


def close(ours: Any, theirs: Any) -> None:
    """Equal trees, and arrays within the precision of what torch computes."""
    flatten = torch.utils._pytree.tree_flatten
    (ours, mine), (theirs, yours) = flatten(ours), flatten(theirs)
    assert mine == yours
    for each, other in zip(ours, theirs, strict=True):
        if isinstance(other, torch.Tensor):
            expected = other.detach().numpy()
            assert np.asarray(each).dtype == expected.dtype
            np.testing.assert_allclose(
                np.asarray(each), expected, rtol=1e-5, atol=1e-5 * float(abs(expected).max(initial=0))
            )
        else:
            assert (type(each), each) == (type(other), other)


@pytest.mark.parametrize(("seed", "rows"), [(0, 3), (1, 3), (2, 16), (3, 2)])
def test_each_set_of_weights_gives_its_own_numbers(lowered: cachec.File, seed: int, rows: int) -> None:
    module, weights = others.seeded(modules.Lowered, seed), modules.weights(seed)
    args, kwargs = modules.inputs(rows, seed)
    run = cachec.link(lowered, weights)
    for each in (run, run.torch()):  # one after the other, as the program counts its calls
        given = (args, kwargs) if each is run else others.as_tensors((args, kwargs))
        close(each(*given[0], **given[1]), module(*others.as_tensors(args), **others.as_tensors(kwargs)))


def test_the_program_is_that_of_executorch_but_for_the_numbers_of_its_weights(lowered: cachec.File) -> None:
    """Made with their bytes there, it gives the same results."""
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
    from executorch.extension.pybindings import _C

    module, (args, kwargs) = others.seeded(modules.Lowered, 4), others.as_tensors(modules.inputs())
    exported = torch.export.export(module, args, kwargs, dynamic_shapes=modules.sizes())
    whole = to_edge_transform_and_lower(exported).to_executorch(config=ExecutorchBackendConfig())
    flat = [*args, kwargs["more"]["rows"], kwargs["more"]["bias"], 2]
    theirs = _C._load_for_executorch_from_buffer(bytes(whole.buffer)).run_method("forward", flat)
    ours = cachec.link(lowered, modules.weights(4)).torch()(*args, **kwargs)
    assert float((ours["y"] - theirs[0]).abs().max()) <= 1e-5


def test_equal_weights_make_no_other_program() -> None:
    """ExecuTorch itself numbers them by content."""
    weights = modules.weights(0)
    ones = {name: np.ones_like(weight.read()) for name, weight in weights.items()}
    alike = cachec.WeightSet.from_arrays(ones, tied=modules.TIES)
    files = [cachec_executorch.compile(modules.program(each)) for each in (weights, alike)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_what_is_written_for_a_device(lowered: cachec.File, tmp_path: Path) -> None:
    from executorch.extension.pybindings import _C

    weights = modules.weights(5)
    for _ in range(2):
        cachec_executorch.write(lowered, weights, tmp_path / "device", name="net")
    assert sorted(each.name for each in (tmp_path / "device").iterdir()) == ["net.ptd", "net.pte"]
    args, kwargs = others.as_tensors(modules.inputs())
    module = _C._load_for_executorch(str(tmp_path / "device/net.pte"), str(tmp_path / "device/net.ptd"))
    flat = [*args, kwargs["more"]["rows"], kwargs["more"]["bias"], 2]
    expected = others.seeded(modules.Lowered, 5)(*args, **kwargs)
    assert float((module.run_method("forward", flat)[0] - expected["y"]).detach().abs().max()) <= 1e-5
    held = cachec.open_weights(tmp_path / "device/net.ptd")
    assert all(held[name].digest() == weights[name].digest() for name in held)
    with pytest.raises(cachec.LinkError, match="missing 'one'"):
        cachec_executorch.write(lowered, weights.select(exclude=["one"]), tmp_path)


def test_no_byte_of_a_weight_is_read(lowered: cachec.File, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lowered.path.stat().st_size < 16_000
    monkeypatch.setattr("cachec_torch.programs.LoadedProgram.touched", lambda self: ["one"])
    with pytest.raises(cachec.PluginError, match="looked at the value of weight 'one'"):
        cachec_executorch.compile(modules.program(modules.weights(0)))


def given(**changed: Any) -> tuple[Any, Any]:
    (x,), kwargs = modules.inputs()
    more = kwargs["more"] | {name: value for name, value in changed.items() if name in kwargs["more"]}
    return (changed.get("x", x),), {"more": changed.get("more", more), "flag": changed.get("flag", 2)}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"x": np.ones((1, 8), "f4")}, r"from 2 to 16\), 8\], found float32\[1, 8\]"),
        ({"x": np.ones((17, 8), "f4")}, r"found float32\[17, 8\]"),
        ({"x": np.ones((3, 7), "f4")}, r"found float32\[3, 7\]"),
        ({"x": np.ones((3, 8))}, r"found float64\[3, 8\]"),
        ({"flag": 3}, "made for 2, which is part of it"),
        ({"more": {}}, "expected a dict with keys"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(lowered: cachec.File, changed: Any, words: str) -> None:
    args, kwargs = given(**changed)
    with pytest.raises(cachec.UsageError, match=words):
        cachec.link(lowered, modules.weights(0))(*args, **kwargs)


def test_what_is_refused(lowered: cachec.File, tmp_path: Path) -> None:
    program = modules.program(modules.weights(0))
    for config, words in (
        ({"external_constants": True}, "weights stay outside"),
        ({"nonsense": 1}, "has no field 'nonsense'"),
        ({"passes": []}, "expected a number or a boolean, found list"),
    ):
        with pytest.raises(cachec.UsageError, match=words):
            cachec_executorch.compile(program, config=config)
    with pytest.raises(cachec.PluginError, match="torch takes programs of format"):
        cachec_executorch.compile(cachec.Program("x", format="mlir:text", manifest=program.manifest))
    with pytest.raises(cachec.PluginError, match="makes such files"):
        cachec.link(cachec.File(lowered.path, kind="executorch:other", manifest=program.manifest), modules.weights(0))
    norm = others.weights_of(others.Norm())
    example = (torch.ones(3, 8),)
    writing = cachec_torch_exported(others.Norm, norm, example, training=True)
    with pytest.raises(cachec.PluginError, match=r"writes to weight 'n\.num_batches_tracked' \(3 such\)"):
        cachec_executorch.compile(writing)


def cachec_torch_exported(*arguments: Any, **options: Any) -> cachec.Program:
    import cachec_torch

    return cachec_torch.to_exported(*arguments, **options)


def test_damaged_files_are_refused(lowered: cachec.File, tmp_path: Path) -> None:
    data, weights = lowered.read_bytes(), modules.weights(0)
    path = tmp_path / "x"
    other = data.replace(b'"executorch":"1.', b'"executorch":"0.')
    for content in (b"", b"ET12", data[:-1], data[-60:], data[300:], other):
        path.write_bytes(content)
        with pytest.raises(cachec.LinkError, match="x"):
            cachec_executorch.plugin.link(cachec.File(path, kind=lowered.kind), weights)
    with pytest.raises(cachec.LinkError, match="needs 'one', and there is no such weight"):
        cachec_executorch.plugin.link(cachec.File(lowered.path, kind=lowered.kind), weights.select(exclude=["one"]))


def test_a_field_of_the_configuration_counts(tmp_path: Path) -> None:
    program = modules.program(modules.weights(0))
    plain, aligned = (cachec_executorch.compile(program, config=each) for each in ({}, {"segment_alignment": 4096}))
    assert cachec_executorch.plugin.compare(plain, aligned)
    close(
        cachec.link(aligned, modules.weights(1))(*modules.inputs()[0], **modules.inputs()[1])["y"],
        others.seeded(modules.Lowered, 1)(
            *others.as_tensors(modules.inputs()[0]), **others.as_tensors(modules.inputs()[1])
        )["y"],
    )


def test_what_is_returned_of_a_weight_has_its_numbers() -> None:
    """A weight that is an output, as it is or by operations that come to nothing; and what else is computed of it."""

    class Returned(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.s = torch.nn.Parameter(torch.ones(4, 8)), torch.nn.Parameter(torch.ones(()))
            self.tied, self.v = self.w, torch.nn.Parameter(torch.ones(1, 2, 3, 4))
            self.mask = torch.nn.Buffer(torch.tensor([True, False, True]))
            self.gone, self.b = torch.nn.Buffer(torch.ones(0, 3)), torch.nn.Buffer(torch.ones(3))
            self.fixed = torch.nn.Buffer(torch.arange(3.0), persistent=False)

        def forward(self, x):
            same = (self.b.to(torch.float32), self.b.detach(), self.b.reshape(3), self.b.clone())
            parts = {"w": self.w, "tied": self.tied, "row": self.w[0], "first": self.w[0, 0], "sum": x + self.w}
            return parts, same, self.s, self.v.contiguous(), self.v.flatten(), self.mask, self.gone, self.fixed, x

    x = torch.ones(4, 8)
    ties = [("w", "tied")]
    made = [others.seeded(Returned, seed) for seed in (0, 1)]
    file = cachec_executorch.compile(cachec_torch_exported(Returned, others.weights_of(made[0], ties), (x,)))
    for module in made:
        with torch.no_grad():
            close(cachec.link(file, others.weights_of(module, ties))(x.numpy()), module(x))


def test_programs_without_weights_run() -> None:
    class Cosine(torch.nn.Module):
        def forward(self, x):
            return torch.cos(x)

    file = cachec_executorch.compile(cachec_torch_exported(Cosine, cachec.WeightSet.from_arrays({}), (torch.ones(3),)))
    close(cachec.link(file, cachec.WeightSet.from_arrays({}))(np.ones(3, "f4")), torch.cos(torch.ones(3)))


def test_strings_among_the_inputs_are_refused() -> None:
    class Moded(torch.nn.Module):
        def forward(self, x, mode):
            return torch.cos(x) if mode == "cos" else x

    program = cachec_torch_exported(Moded, cachec.WeightSet.from_arrays({}), (torch.ones(3), "cos"))
    with pytest.raises(cachec.PluginError, match="input 1 is 'cos'; ExecuTorch's Python runtime takes no strings"):
        cachec_executorch.compile(program)


def test_convolutions_and_other_types(tmp_path: Path) -> None:
    class Convolved(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c, self.n = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)
            self.gain = torch.nn.Parameter(torch.ones(4, dtype=torch.float16))
            self.table = torch.nn.Buffer(torch.arange(6))

        def forward(self, x, index):
            return self.n(self.c(x)).mean((2, 3)) * self.gain.float() + self.table[index].float()

    weights = others.weights_of(others.seeded(Convolved, 0))
    x, index = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype("f4"), np.array([[1], [5]])
    tensors = tuple(map(torch.from_numpy, (x, index)))
    program = cachec_torch_exported(Convolved, weights, tensors)
    close(cachec.link(cachec_executorch.compile(program), weights)(x, index), others.seeded(Convolved, 0)(*tensors))


@pytest.mark.costly
def test_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    pages.scripts("reference/frameworks.md", tmp_path, "## PyTorch")
    lines = [line.replace("aoti", "executorch") for line in pages.commands("reference/frameworks.md", "## PyTorch")]
    first, second, stats = pages.outputs(lines, tmp_path)
    assert (first.split()[-2], second.split()[-2]) == ("512.0", "1024.0")
    assert re.search(r"executorch .*50", stats), stats
