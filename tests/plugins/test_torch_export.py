"""``cachec_torch.to_exported``: which programs are one, and that no value of a weight gets into any."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import cachec
import cachec_torch
from cachec.errors import PluginError, UsageError
from cachec_torch.calls import SizeForm
from cachec_torch.describing import described_call
from cachec_torch.programs import FORMAT, LoadedProgram, _bytes_of
from tests.plugins import torch_modules as modules
from tests.plugins.torch_modules import seeded, weights_of

X = (torch.ones(2, 8),)

#: The weights of a module that has but a linear layer ``a``.
OF_A = weights_of(nn.ModuleDict({"a": nn.Linear(8, 8)}))


def program_of(make, args=X, *, weights=None, tied=(), **how) -> cachec.Program:
    return cachec_torch.to_exported(make, weights_of(make(), tied) if weights is None else weights, args, **how)


def batches(name: str, most: int):
    return ({0: Dim(name, min=2, max=most)},)


#: Made like the base program, in another way.
SAME = {
    "real weights": lambda: program_of(modules.Base, weights=weights_of(seeded(modules.Base, 3))),
    "meta weights": lambda: program_of(modules.Base, weights=weights_of(modules.Base()).placeholders()),
    "a live module": lambda: cachec_torch.to_exported(seeded(modules.Base, 4), weights_of(modules.Base()), X),
    "another class, names, order": lambda: program_of(modules.Renamed),
    "another example": lambda: program_of(modules.Base, (torch.randn(2, 8),)),
    "an example without memory": lambda: program_of(modules.Base, (torch.empty(2, 8),)),
    "the device of the factory": lambda: program_of(on_meta(modules.Base), weights=weights_of(modules.Base())),
}

#: No two of these are one program, nor the base. Each as if it were typed anew: made twice it is the same.
DIFFERENT = {
    "scalar": lambda: program_of(lambda: modules.Base(1.0)),
    "integer scalar": lambda: program_of(lambda: modules.Base(2)),
    "operation": lambda: program_of(lambda: modules.Base(act=nn.functional.gelu)),
    "shape of an input": lambda: program_of(modules.Base, (torch.ones(3, 8),)),
    "shape of a weight": lambda: program_of(lambda: modules.Base(width=4)),
    "dtype": lambda: program_of(lambda: modules.Base().double(), (torch.ones(2, 8).double(),)),
    "name of an input": lambda: program_of(modules.InputRenamed),
    "input by keyword": lambda: program_of(modules.Base, (), kwargs={"x": X[0]}),
    "dynamic": lambda: program_of(modules.Base, dynamic_shapes=({0: Dim("n")},)),
    "range 16": lambda: program_of(modules.Base, dynamic_shapes=batches("n", 16)),
    "range 64": lambda: program_of(modules.Base, dynamic_shapes=batches("n", 64)),
    "constant 1": lambda: program_of(lambda: modules.Constant(1.0)),
    "constant 1.5": lambda: program_of(lambda: modules.Constant(1.5)),
    "buffer 1e4": lambda: program_of(lambda: modules.Buffer(1e4)),
    "buffer 5e5": lambda: program_of(lambda: modules.Buffer(5e5)),
    "persistent buffer": lambda: program_of(lambda: modules.Buffer(1e4, persistent=True)),
    "evaluation": lambda: program_of(modules.Norm),
    "training": lambda: program_of(modules.Norm, training=True),
    "tied": lambda: program_of(modules.Tied, tied=[("a.weight", "b.weight")]),
    "untied": lambda: program_of(lambda: modules.Tied(False)),
    "cond 1": lambda: program_of(lambda: modules.Cond(1.0)),
    "cond 2": lambda: program_of(lambda: modules.Cond(2.0)),
    "scan 1": lambda: program_of(lambda: modules.Scan(1.0)),
    "scan 2": lambda: program_of(lambda: modules.Scan(2.0)),
    "while 3": lambda: program_of(lambda: modules.While(3)),
    "while 4": lambda: program_of(lambda: modules.While(4)),
    "key of an output u": lambda: program_of(lambda: modules.Output("u")),
    "key of an output v": lambda: program_of(lambda: modules.Output("v")),
}


def on_meta(make):
    def made():
        with torch.device("meta"):
            return make()

    return made


@pytest.fixture(scope="module")
def base() -> cachec.Program:
    return program_of(modules.Base)


@pytest.mark.sampled
@pytest.mark.parametrize("how", SAME)
def test_what_makes_no_difference(base, how) -> None:
    assert SAME[how]().topology == base.topology


@pytest.mark.long
def test_the_name_of_a_dimension_makes_no_difference() -> None:
    made = [program_of(modules.Base, dynamic_shapes=batches(name, 16)).topology for name in ("n", "batch")]
    assert made[0] == made[1]


@pytest.mark.long
def test_what_makes_a_difference(base) -> None:
    made = {how: make().topology for how, make in DIFFERENT.items()} | {"base": base.topology}
    assert len(set(made.values())) == len(made), sorted(made.items(), key=lambda each: each[1])
    assert all(
        DIFFERENT[how]().topology == made[how] for how in ("constant 1", "buffer 1e4", "tied", "cond 1", "range 16")
    )


@pytest.mark.long
def test_the_same_in_processes_with_other_hash_seeds(base) -> None:
    program = "from tests.plugins import test_torch_export as t; print(t.program_of(t.modules.Base).topology)"
    for seed in ("0", "7"):
        environ = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == base.topology


@pytest.mark.parametrize("live", [False, True])
def test_no_byte_of_a_weight_is_in_a_program(live) -> None:
    module = seeded(modules.Tied, 1)
    marker = 1234.5678
    with torch.no_grad():
        module.a.weight.fill_(marker)
    made = cachec_torch.to_exported(module if live else modules.Tied, weights_of(module, [("a.weight", "b.weight")]), X)
    assert made.format == FORMAT
    assert np.float32(marker).tobytes() not in made.ir
    assert len(made.ir) < 20_000
    assert all(word not in made.ir for word in (b"pickle", __file__.encode(), b"torch_modules"))
    assert float(module.a.weight[0, 0]) == np.float32(marker), "a module that was given is left as it is"
    assert module.a.weight is module.b.weight
    assert module.a.weight.requires_grad


class Reads(nn.Module):
    """Code that would make the program depend on the value of a weight."""

    def __init__(self, how) -> None:
        super().__init__()
        self.a, self.how = nn.Linear(8, 8), how

    def forward(self, x):
        return self.a(x) * self.how(self.a.weight)


LOOKS = {
    "branch": lambda w: 2.0 if w.sum() > 0 else 1.0,
    "array": lambda w: w.detach().numpy().sum(),
    "bytes": lambda w: len(bytes(w.untyped_storage())),
}


@pytest.mark.sampled
@pytest.mark.parametrize("how", LOOKS)
def test_a_module_that_looks_at_a_weight_is_not_exported(how) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - torch raises what it likes
        program_of(lambda: Reads(LOOKS[how]))
    assert type(caught.value).__module__.partition(".")[0] in {"torch", "builtins"}


@pytest.mark.long
@pytest.mark.parametrize("how", [lambda w: w.sum().item(), lambda w: w[0].tolist()[0]])
def test_a_scalar_that_is_taken_of_a_weight_is_an_operation_of_the_program(how) -> None:
    """As torch exports it: the value is taken when the program runs."""
    assert b"aten.item.default" in program_of(lambda: Reads(how)).ir


def keeps(what):
    """A module that has ``what(self)`` of its own beside a weight, and uses it."""

    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)
            self.kept = what(self)

        def forward(self, x):
            kept = self.kept() if callable(self.kept) else self.kept[0] if isinstance(self.kept, list) else self.kept
            return self.a(x) * kept

    return Keeps


def returns(what):
    """The same, but ``what`` goes out as it is."""

    class Returns(keeps(what)):
        def forward(self, x):
            return self.a(x), self.kept

    return Returns


REFUSED = {
    "a plain tensor on meta": returns(lambda m: torch.ones(8, device="meta")),
    "the same, used": keeps(lambda m: torch.ones(8, device="meta")),
    "a tensor made of a weight": returns(lambda m: m.a.weight.detach()[0] * 2),
    "the same, also used": keeps(lambda m: m.a.weight.detach()[0] * 2),
    "a buffer": lambda: modules.Buffer(2.0, device="meta"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("what", REFUSED)
def test_what_has_no_value_is_refused(what) -> None:
    with pytest.raises((PluginError, RuntimeError)) as caught:
        cachec_torch.to_exported(REFUSED[what], OF_A, X)
    told = "".join((str(caught.value), *getattr(caught.value, "__notes__", ())))
    assert "on meta" in told
    assert "make it on the CPU" in told


class Named(torch.nn.Module):
    def forward(self, x):
        return x * 2, "name"


def test_a_text_that_comes_out_is_refused() -> None:
    with pytest.raises(PluginError, match="output 1 of the module is the text 'name'"):
        cachec_torch.to_exported(Named, cachec.WeightSet.from_arrays({}), X)


def test_a_constant_without_plain_bytes_is_refused() -> None:
    with pytest.raises(PluginError, match="'kept' of the module is a torch"):
        _bytes_of("kept", torch.eye(3).to_sparse())


@pytest.mark.parametrize("what", [lambda m: lambda: m.a.weight[0], lambda m: [m.a.weight.detach()[0]]])
def test_a_live_module_reaches_its_weights_by_name_alone(what) -> None:
    module = keeps(what)()
    with pytest.raises(PluginError, match="by another way than its name"):
        cachec_torch.to_exported(module, weights_of(module), X)


def fits(**arrays):
    held = {name: tensor.numpy() for name, tensor in modules.Base().state_dict().items()} | arrays
    return cachec.WeightSet.from_arrays({name: array for name, array in held.items() if array is not None})


TIES = [("a.weight", "b.weight")]
MISFITS = {
    "missing": (modules.Base, lambda: fits(**{"a.bias": None}), "missing 'a.bias', extra nothing"),
    "extra": (modules.Base, lambda: fits(c=np.ones(1, "f4")), "missing nothing, extra 'c'"),
    "shape": (
        modules.Base,
        lambda: fits(**{"a.bias": np.ones(7, "f4")}),
        r"\[8\], the weights have float32\[7\]",
    ),
    "dtype": (modules.Base, lambda: fits(**{"a.bias": np.ones(8, "f8")}), r"module\.to\(torch\.float64\)"),
    "ties of the module": (modules.Tied, lambda: weights_of(modules.Tied()), r"tie nothing; say tied="),
    "ties of the weights": (
        lambda: modules.Tied(False),
        lambda: weights_of(modules.Tied(), TIES),
        "module ties nothing",
    ),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(8)), lambda: fits(), "lazy parameters"),
}


@pytest.mark.parametrize("what", MISFITS)
def test_weights_that_do_not_fit_are_refused(what) -> None:
    make, weights, words = MISFITS[what]
    with pytest.raises(PluginError, match=words):
        cachec_torch.to_exported(make, weights(), X)


def test_one_tensor_as_two_inputs_is_two_inputs() -> None:
    """torch exports a program that takes the second one for both."""

    class Differs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)

        def forward(self, x, y, *, more):
            return self.a(x) - 2 * y + 3 * more["z"]

    one, others = X[0], [X[0].clone() for _ in range(3)]
    made = program_of(Differs, (one, one), weights=OF_A, kwargs={"more": {"z": one}})
    assert made.topology == program_of(Differs, others[:2], weights=OF_A, kwargs={"more": {"z": others[2]}}).topology


def test_no_module_is_refused() -> None:
    with pytest.raises(UsageError, match="found int"):
        cachec_torch.to_exported(lambda: 3, fits(), X)


@pytest.mark.parametrize("name", ["a.weight", "b.weight"])
def test_a_checkpoint_may_lack_a_tied_name(name) -> None:
    """safetensors keeps one of them."""
    made = program_of(modules.Tied, weights=weights_of(modules.Tied()).select([name]))
    assert set(made.manifest.weights) == {name}
    loaded = LoadedProgram(made)
    assert set(loaded.names.values()) == {name}


def test_another_thread_keeps_its_parameters() -> None:
    """A parameter loses its values in the thread that exports alone."""
    other: list[nn.Module] = []

    class Slow(modules.Base):
        def __init__(self) -> None:
            thread = threading.Thread(target=lambda: other.append(nn.Linear(2, 2)))
            thread.start()
            thread.join()
            super().__init__()

    program_of(Slow, weights=fits())
    assert other
    assert not any(each.weight.is_meta for each in other)
    assert not nn.Linear(2, 2).weight.is_meta


# --- what is stored, as torch gets it back


@pytest.mark.sampled
@pytest.mark.parametrize("how", ["training", "range 16", "tied", "cond 2", "buffer 1e4", "key of an output u"])
def test_a_program_comes_back(how) -> None:
    made = DIFFERENT[how]()
    loaded = LoadedProgram(made)
    assert loaded.touched() == []
    assert {each.data_ptr() for each in loaded.exported.state_dict.values() if each.numel()}
    again = json.loads(made.ir[8 : 8 + int.from_bytes(made.ir[:8], "little")])
    assert set(again["constants"]) == set(loaded.exported.constants)
    assert next(iter(loaded.exported.state_dict.values())).sum() == 0
    assert loaded.touched() != []


@pytest.mark.parametrize("derived", ["2*n", "2*n + 1", "n + 1"])
def test_sizes_that_follow_from_others(derived) -> None:
    """torch.export.load gives a program with such a size that no compiler of torch's takes."""

    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)

        def forward(self, x, y):
            return self.a(x).sum(0) + y.sum()

    n = Dim("n", min=2, max=50)
    size, length = {"2*n": (2 * n, 6), "2*n + 1": (2 * n + 1, 7), "n + 1": (n + 1, 4)}[derived]
    made = program_of(Sized, (torch.ones(3, 8), torch.ones(length)), dynamic_shapes=({0: n}, {0: size}))
    exported = LoadedProgram(made).exported
    assert len(exported.run_decompositions({}).graph_signature.user_inputs) == 2
    _, form = described_call(exported)[0].inputs
    (symbol,) = {str(name) for name in exported.range_constraints}
    assert isinstance(form.sizes[0], SizeForm)
    assert form.sizes[0].symbol == symbol


@pytest.mark.parametrize(
    "constant",
    [
        torch.arange(6.0).reshape(2, 3).t(),
        torch.arange(3.0).expand(2, 3),
        torch.arange(12, dtype=torch.bfloat16)[::2],
        torch.zeros(0, 3),
        torch.tensor(True),
        torch.tensor([1 + 2j]).conj(),
    ],
)
def test_constants_keep_their_values_and_strides(constant) -> None:
    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.kept = nn.Linear(8, 8), constant

        def forward(self, x):
            return self.a(x), self.kept + 0

    (back,) = LoadedProgram(program_of(Adds, weights=OF_A)).exported.constants.values()
    assert torch.equal(back, constant)
    assert back.stride() == constant.stride()


def test_malformed_ir_is_refused(base) -> None:
    for ir in (b"", base.ir[:40], b"\xff" * 64):
        broken = cachec.Program(ir, format=FORMAT, manifest=base.manifest)
        with pytest.raises(PluginError, match="malformed"):
            LoadedProgram(broken)
    with pytest.raises(PluginError, match="'jax:stablehlo'"):
        LoadedProgram(cachec.Program(b"", format="jax:stablehlo", manifest=base.manifest))


def test_code_that_torch_makes_of_a_graph_keeps_nothing_out_of_the_store(tmp_path) -> None:
    """It runs in namespaces of no module, and torch leaves its text with linecache."""
    cache = cachec.Cache(tmp_path / "cache", log="off")

    @cache.stage(tools=["torch"], version="1")
    def traced(scale: float) -> float:
        return float(torch.fx.symbolic_trace(modules.Base(scale))(torch.zeros(2, 8)).sum()) * 0

    outcomes = []
    for _ in range(2):
        torch.manual_seed(0)  # a module draws from the generator, whose state counts once anything has seeded it
        outcomes.append(cache.call(traced, 2.0)[1])
    assert [outcome.reason.kind for outcome in outcomes] == ["miss", "hit"], outcomes
