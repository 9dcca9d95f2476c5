"""``cachec_torch.aot``: hits trace nothing, in a new process either; weights are live; torch.compile does the rest."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

import cachec
import cachec_torch
from cachec.errors import CachecWarning, PluginError
from cachec.model import Reason
from cachec_torch import ahead_of_time
from cachec_torch.ahead_of_time import AotFunction
from cachec_torch.module_state import ModuleState
from tests.plugins import torch_served
from tests.plugins.torch_served import Branches, Served, served
from tests.plugins.torch_stages import QUICK

X = torch.linspace(-1, 1, 24).reshape(3, 8)
ROOT = Path(__file__).parents[2]

NEW_PROCESS = """
import json, sys
import torch
import cachec, cachec_torch
from cachec.model import Reason
from tests.plugins.test_torch_aot import compiled_by
from tests.plugins.torch_served import served

cache = cachec.Cache(sys.argv[1], log="off", mode="on")
module = served(int(sys.argv[2]))
run = compiled_by(module, cache)
with torch.no_grad():
    found = run(torch.linspace(-1, 1, 40).reshape(5, 8), 7)
heavy = [name for name in ("sympy", "torch._dynamo", "torch._inductor") if name in sys.modules]
print(json.dumps([cache.events.counts[Reason.HIT], heavy, found["y"].tolist(), module.calls.item()]))
"""


def compiled_by(module: Served, cache: cachec.Cache, **options):
    """In a checkout, what this package remembers of a loaded library counts: then a process compiles once more."""
    shapes = {"x": {0: ("batch", 2, 16)}, "flag": None}
    return cachec_torch.aot(module, (torch.ones(3, 8), 7), shapes, options=QUICK, cache=cache, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A store in which ``Served`` is compiled, once for all processes that run these tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "torch-aot"
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not (folder / "cold").exists():
            (folder / "cold").write_text(in_new_process(folder, 0))
    return folder


def in_new_process(folder: Path, seed: int) -> str:
    command = [sys.executable, "-c", NEW_PROCESS, str(folder / "store"), str(seed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.dumps([*json.loads(done.stdout.splitlines()[-1]), "traced" in done.stderr])


@pytest.fixture
def cache(folder) -> cachec.Cache:
    return cachec.Cache(folder / "store", log="off", mode="on")


def without_compiler(run: AotFunction) -> AotFunction:
    """What ``torch.compile`` would be given says so. torch itself stays as it is: a change of it counts."""
    run.compiler = lambda function: lambda *args, **kwargs: ("torch.compile", function)
    return run


def same(ours, theirs) -> None:
    for name in ("y", "plain"):
        torch.testing.assert_close(ours[name], theirs[name])
    assert ours["flag"] == theirs["flag"]


@pytest.mark.long
def test_a_hit_in_a_new_process_traces_nothing_and_gives_the_numbers_of_the_cold_run(folder) -> None:
    hits, _, cold, calls, is_traced = json.loads((folder / "cold").read_text())
    assert (hits, calls, is_traced) == (0, 1, True)
    assert json.loads(in_new_process(folder, 0)) == [1, [], cold, 1, False]
    hits, heavy, other, _, is_traced = json.loads(in_new_process(folder, 1))
    assert (hits, heavy, is_traced) == (1, [], False)
    with torch.no_grad():
        torch.testing.assert_close(torch.tensor(other), served(1)(torch.linspace(-1, 1, 40).reshape(5, 8))["y"])


@pytest.mark.long
def test_weights_are_those_of_the_live_module(cache) -> None:
    """After any kind of swap the numbers are those of a program that was linked to these weights anew, bit for bit."""
    module = served(0)
    run = without_compiler(compiled_by(module, cache))

    def swapped() -> None:
        with torch.no_grad():
            found, other = run(X, 7), compiled_by(module, cache)(X, 7)
            same(found, module(X, 7))
        assert torch.equal(found["y"], other["y"])
        earlier.append(found["y"])

    earlier: list[torch.Tensor] = []
    swapped()
    with torch.no_grad():
        module.a.weight.mul_(2)
    swapped()
    module.a.bias.data = torch.randn(8)
    swapped()
    module.b.bias = nn.Parameter(torch.randn(8))
    swapped()
    module.shift = torch.randn(8)
    swapped()
    module.load_state_dict({name: tensor * 3 for name, tensor in module.state_dict().items()}, assign=True)
    module.b.weight = module.a.weight
    swapped()
    assert all(not torch.equal(one, other) for one, other in pairwise(earlier))


@pytest.mark.long
def test_what_the_program_writes_to_is_the_buffer_of_the_module(cache) -> None:
    module = served(0)
    run = without_compiler(compiled_by(module, cache))
    with torch.no_grad():
        assert [run(X, 7)["calls"].item() for _ in range(3)] == [1, 2, 3]
        module.calls.zero_()
        assert run(X, 7)["calls"].item() == 1
    assert module.calls.item() == 1


@pytest.mark.long
def test_results_are_ones_own(cache) -> None:
    module = served(0)
    run = without_compiler(compiled_by(module, cache))
    with torch.no_grad():
        run(X, 7)["plain"].zero_()
        assert torch.equal(run(X, 7)["plain"], module.plain)


#: What differs from the example, and what the reason says.
CALLS = {
    "dtype": (lambda: ((X.double(), 7), {}), r"input 0 expected float32.*found float64\[3, 8\]"),
    "size out of range": (lambda: ((torch.ones(17, 8), 7), {}), r"from 2 to 16.*found float32\[17, 8\]"),
    "static value": (lambda: ((X, 8), {}), "input 1 is 8; the program was made for 7"),
    "tree": (lambda: ((X,), {}), "expected a tuple of 2, found tuple of 1"),
    "one more input": (lambda: ((X, 7), {"bias": torch.ones(8)}), "expected a dict with keys"),
    "device": (lambda: ((X.to("meta"), 7), {}), "expected a dense tensor on the CPU, found torch.strided on meta"),
}


@pytest.mark.long
@pytest.mark.parametrize("how", CALLS)
def test_other_inputs_are_given_to_torch_compile(cache, how) -> None:
    module = served(0)
    run = without_compiler(compiled_by(module, cache))
    (args, kwargs), words = CALLS[how][0](), CALLS[how][1]
    with torch.no_grad():
        with pytest.warns(CachecWarning, match=f"cachec_torch.aot: .*{words}.*; torch.compile runs such calls"):
            assert run(*args, **kwargs) == ("torch.compile", module)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it is said once
            assert run(*args, **kwargs) == ("torch.compile", module)
        same(run(X, 7), module(X, 7))


@pytest.mark.long
def test_inputs_may_lie_in_any_order_and_rows_may_differ(cache) -> None:
    module = served(0)
    run = without_compiler(compiled_by(module, cache))
    with torch.no_grad():
        for x in (X.t().contiguous().t(), torch.randn(16, 16)[:, ::2], X.requires_grad_(False)[1:]):
            same(run(x, 7), module(x, 7))


def negated(x):
    return -x


#: What is done to a module after it was compiled, and what the reason says.
CHANGES = {
    "value": (lambda m: setattr(m, "scale", 3), "'scale' of the module changed"),
    "type of a value": (lambda m: setattr(m, "scale", 2.0), "'scale' of the module changed"),
    "value in a list": (lambda m: m.settings["more"].__setitem__(0, 2.5), "0 of .*settings.* changed"),
    "mode": (lambda m: m.train(), "'training' of the module changed"),
    "part": (lambda m: setattr(m, "a", nn.Linear(8, 8)), "'a' of the parts of the module changed"),
    "method": (lambda m: setattr(m, "forward", lambda *_: 0), "'forward' of the module changed"),
    "hook": (lambda m: m.b.register_forward_hook(lambda *_: None), "a hook was registered with module 'b'"),
    "dtype of a weight": (lambda m: m.b.bias.__setattr__("data", torch.ones(8).double()), "'b.bias' is torch.float64"),
    "weight that is gone": (lambda m: setattr(m.a, "bias", None), "weights were added or removed"),
    "plain tensor": (lambda m: m.plain.add_(1), "a tensor that is no parameter and no buffer was written to"),
}


@pytest.mark.long
@pytest.mark.parametrize("how", CHANGES)
def test_a_changed_module_is_given_to_torch_compile(cache, how) -> None:
    module = served(0)
    run = without_compiler(compiled_by(module, cache))
    change, words = CHANGES[how]
    with torch.no_grad():
        same(run(X, 7), module(X, 7))
        change(module)
        with pytest.warns(CachecWarning, match=words):
            assert run(X, 7)[0] == "torch.compile"


@pytest.mark.long
@pytest.mark.parametrize(("holder", "name", "value"), [(torch_served, "FACTOR", 2.0), (Served, "forward", nn.Identity)])
def test_code_that_changed_is_given_to_torch_compile(cache, monkeypatch, holder, name, value) -> None:
    module = served(0)
    run = without_compiler(compiled_by(module, cache))
    with torch.no_grad():
        same(run(X, 7), module(X, 7))
        monkeypatch.setattr(holder, name, value)
        with pytest.warns(CachecWarning, match="code of the module"):
            assert run(X, 7)[0] == "torch.compile"


#: The states of torch in which no compiled program is right, and what the reason says.
STATES = {
    "gradients": (torch.enable_grad, "parameters of the module take part in gradients"),
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), "a mode or a transform of torch is on"),
    "device": (lambda: torch.device("meta"), "a mode or a transform of torch is on"),
}


@pytest.mark.long
@pytest.mark.parametrize("how", STATES)
def test_another_state_of_torch_is_torch_compiles(cache, how) -> None:
    module = served(0)
    run = without_compiler(compiled_by(module, cache))
    state, words = STATES[how]
    with torch.no_grad():
        with state(), pytest.warns(CachecWarning, match=words):
            assert run(X, 7)[0] == "torch.compile"
        with torch.inference_mode():
            same(run(X, 7), module(X, 7))


@pytest.mark.long
def test_a_switch_of_torch_and_a_transform_are_guarded(cache) -> None:
    run = without_compiler(compiled_by(served(0), cache))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.compiler = lambda function: lambda x, flag: x + flag
        assert torch.equal(torch.func.vmap(lambda x: run(x, 7))(X[None]), X[None] + 7)
        torch.use_deterministic_algorithms(True)
        try:
            assert torch.equal(run(X, 7), X + 7)
        finally:
            torch.use_deterministic_algorithms(False)
        assert isinstance(run(X, 7), dict)


@pytest.mark.long
def test_a_method_may_stand_in_its_own_place(cache) -> None:
    """As ``model.forward = torch.compile(model.forward)``: calls of the module, hooks and all, run the program."""
    module = served(0)
    shapes = {"x": {0: ("batch", 2, 16)}, "flag": None}
    module.forward = cachec_torch.aot(module.forward, (torch.ones(3, 8), 7), shapes, options=QUICK, cache=cache)
    with torch.no_grad():
        same(module(X, 7), served(0)(X, 7))
        assert cache.events.counts[Reason.HIT] == 1, "the module and its method are one program"


# --- what counts


@pytest.fixture(autouse=True)
def _own_store(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CACHEC_DIR", str(tmp_path / "default"))


def key_of(module, args=(torch.ones(3, 8), 7), shapes=None) -> str:
    made = AotFunction(module, cachec.Cache(log="off", mode="on"), shapes, {}, is_by_example=True)
    with torch.no_grad():
        state = ModuleState(module if isinstance(module, nn.Module) else None, None)
        return made.stage.key(*made.arguments(state, args, {}))


def changed(change) -> Served:
    module = served(0)
    change(module)
    return module


#: No two of these have one key.
DIFFERENT = {
    "the module": lambda: key_of(served(0)),
    "a value": lambda: key_of(changed(lambda m: setattr(m, "scale", 3))),
    "its type": lambda: key_of(changed(lambda m: setattr(m, "scale", 2.0))),
    "in a list": lambda: key_of(changed(lambda m: m.settings["more"].append(1))),
    "a plain tensor": lambda: key_of(changed(lambda m: m.plain.add_(1))),
    "mode": lambda: key_of(changed(lambda m: m.b.train())),
    "a shape": lambda: key_of(Served(4).eval(), (torch.ones(3, 4), 7)),
    "a dtype": lambda: key_of(served(0).double()),
    "no tie": lambda: key_of(changed(lambda m: setattr(m.b, "weight", nn.Parameter(torch.ones(8, 8))))),
    "a part of another class": lambda: key_of(changed(lambda m: setattr(m, "a", Branches()))),
    "an input": lambda: key_of(served(0), (torch.ones(4, 8), 7)),
    "its type of number": lambda: key_of(served(0), (torch.ones(3, 8).double(), 7)),
    "its order": lambda: key_of(served(0), (torch.ones(8, 3).t(), 7)),
    "a static input": lambda: key_of(served(0), (torch.ones(3, 8), 8)),
    "a range": lambda: key_of(served(0), shapes=({0: torch.export.Dim("n", max=16)}, None)),
    "another range": lambda: key_of(served(0), shapes=({0: torch.export.Dim("n", max=32)}, None)),
    "a plain range": lambda: key_of(served(0), shapes=({0: ("n", 2, 16)}, None)),
    "a hint": lambda: key_of(served(0), shapes=({0: torch.export.Dim.AUTO}, None)),
    "a function": lambda: key_of(negated, (X,)),
}


def test_what_counts(monkeypatch) -> None:
    keys = {how: make() for how, make in DIFFERENT.items()}
    assert len(set(keys.values())) == len(keys), sorted(keys.items(), key=lambda each: each[1])
    monkeypatch.setattr(torch_served, "FACTOR", 2.0)
    assert key_of(served(0)) not in keys.values(), "a global that the code reads"


def test_values_of_weights_do_not_count() -> None:
    assert key_of(served(0)) == key_of(served(1)) == key_of(changed(lambda m: m.shift.add_(1)))


def test_what_only_this_process_means_does_not_count() -> None:
    kind = type("GenerationConfig", (), {"__module__": "transformers.generation.configuration_utils"})
    found = []
    for number in (1, 2):
        module = nn.Linear(2, 2)
        module.generation_config = kind()
        module.generation_config.__dict__.update(_original_object_hash=number, length=20)
        found.append(repr(ModuleState(module, None).structure))
    assert found[0] == found[1]
    assert "'length', 20" in found[0] or "'length': 20" in found[0]


# --- what is refused


def test_what_can_not_be_exported_is_torch_compiles_and_is_not_tried_again(tmp_path, capfd) -> None:
    for is_traced in (True, False):
        cache = cachec.Cache(tmp_path / "store", log="off", mode="on")
        run = without_compiler(cachec_torch.aot(Branches(), (X,), cache=cache))
        with pytest.warns(CachecWarning, match=r"cachec_torch\.aot: .*it can't be exported"):
            assert run(X)[0] == "torch.compile"
        assert ("traced" in capfd.readouterr().err) is is_traced


class Sets(nn.Module):
    def forward(self, x):
        self.last = 1
        return x + 1


class Writes(nn.Module):
    def forward(self, x):
        return x.add_(1)


@pytest.mark.parametrize(("module", "words"), [(Sets, "last"), (Writes, r"writes to its input 'x'")])
def test_what_a_program_would_not_do_is_torch_compiles(tmp_path, module, words) -> None:
    cache = cachec.Cache(tmp_path / "store", log="off", mode="on")
    run = without_compiler(cachec_torch.aot(module(), (X,), cache=cache))
    with pytest.warns(CachecWarning, match=words):
        assert run(X)[0] == "torch.compile"


OUTSIDE = nn.Linear(8, 8)


def test_modules_that_are_no_parts_are_refused() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = [nn.Linear(8, 8)]

    with pytest.raises(PluginError, match=r"hidden.* is a module that is no part of the one that is compiled"):
        ModuleState(Holder(), None)
    with pytest.raises(PluginError, match="OUTSIDE is a module that is no part"):
        ModuleState(None, lambda x: OUTSIDE(x))


def test_weights_that_share_memory_are_refused() -> None:
    module = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    module[1].weight = nn.Parameter(module[0].weight.data[:])
    with pytest.raises(PluginError, match=r"'0.weight' and '1.weight' lie in the same memory"):
        ModuleState(module, None)


def test_without_an_example_the_first_call_is_one(tmp_path, monkeypatch) -> None:
    """Up to a number of kinds of inputs; nothing is compiled where gradients are asked for."""
    asked = []

    def compile_(self, args, kwargs):
        asked.append(args)
        self._obstacle = "of the test"

    monkeypatch.setattr(ahead_of_time.AotFunction, "compile", compile_)
    cache = cachec.Cache(tmp_path / "store", log="off", mode="on")
    run = without_compiler(cachec_torch.aot(cache=cache)(served(0)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(X)
        assert not asked
        with torch.no_grad():
            run(X)
    assert asked == [(X,)]
