"""Live settings of torch go from one process to another, and what they decide with them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from tests.plugins.settings_processes import Seen, compared

CHANGES = {
    "nothing": "pass",
    "dtype": "torch.set_default_dtype(torch.float64)",
    "device": "torch.set_default_device('meta')",
    "gradients": "torch.set_grad_enabled(False)",
    "context of gradients": "stack.enter_context(torch.no_grad())",
    "inference": "stack.enter_context(torch.inference_mode())",
    "autocast": "stack.enter_context(torch.autocast('cpu', dtype=torch.bfloat16))",
    "deterministic": "torch.use_deterministic_algorithms(True, warn_only=True)",
    "fill": "torch.utils.deterministic.fill_uninitialized_memory = False",
    "precision": "torch.set_float32_matmul_precision('medium')",
    "precision of one backend": "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'",
    "anomalies": "stack.enter_context(torch.autograd.detect_anomaly(check_nan=False))",
    "printing": "torch.set_printoptions(precision=8, sci_mode=False)",
    "files": "torch.serialization.set_crc32_options(False)",
    "sparse": "stack.enter_context(torch.sparse.check_sparse_tensor_invariants())",
    "threads": "torch.set_num_threads(torch.get_num_threads() + 1)",
    "cudnn": "torch.backends.cudnn.benchmark = True; torch.backends.cudnn.deterministic = True",
    "mkldnn": "torch.backends.mkldnn.enabled = False",
    "attention": "torch.backends.cuda.enable_flash_sdp(False)",
    "fast path": "torch.backends.mha.set_fastpath_enabled(False)",
    "denormal": "torch.set_flush_denormal(True)",
    "several": "torch.set_default_dtype(torch.float16); torch.set_grad_enabled(False); torch.set_num_threads(3)",
}

SETUP = "import torch"
PROBE = """[
    str((torch.ones(2) * 0.5).dtype), str(torch.ones(1).device), torch.is_grad_enabled(), torch.get_num_threads(),
    str(torch.mm(torch.ones(2, 2, device="cpu"), torch.ones(2, 2, device="cpu")).dtype),
    torch.ones(1).is_inference(), torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark,
    str(torch.ones(1) / 3), torch.is_anomaly_enabled(), torch.backends.cuda.flash_sdp_enabled(),
]"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """Of each change, what two processes saw."""
    return compared(tmp_path_factory.mktemp("torch"), "cachec_torch", SETUP, PROBE, CHANGES)


@pytest.mark.parametrize("change", CHANGES)
def test_a_setting_goes_to_another_process(seen: dict[str, Seen], change: str) -> None:
    assert seen[change].worker == seen[change].caller
    assert (seen[change].caller[0] == seen["nothing"].caller[0]) == (change == "nothing")
    assert seen[change].after == seen["nothing"].caller[0]


def _python(program: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_options_of_the_compilers_go_to_another_process(tmp_path: object) -> None:
    first = _python(
        "import torch._inductor.config as c, torch._dynamo.config as d, pickle; from cachec_torch import plugin\n"
        "c.max_autotune = True; c.triton.cudagraphs = True; d.cache_size_limit = 77\n"
        "print(pickle.dumps(plugin.ambient_values()).hex(), dict(plugin.ambient()), sep='|')"
    )
    values, _, ambient = first.partition("|")
    second = _python(
        f"import pickle; from cachec_torch import plugin; plugin.set_ambient(pickle.loads(bytes.fromhex({values!r})))\n"
        "print(dict(plugin.ambient()))"
    )
    assert second == ambient
    assert "inductor/max_autotune" in ambient


def test_nothing_is_imported_to_set_nothing() -> None:
    program = "import sys; from cachec_torch import plugin; plugin.set_ambient({}); print('torch' in sys.modules)"
    assert _python(program) == "False\n"


#: What a run does after ``torch.manual_seed(0)``: whether it draws without a seed, and whether it sets one.
MOVES = {
    "pass": (False, False),
    "torch.rand(1)": (True, False),
    "torch.nn.Linear(2, 2)": (True, False),
    "torch.manual_seed(1); torch.rand(1)": (False, True),
    "torch.manual_seed(0)": (False, True),
    "torch.Generator().manual_seed(3).seed()": (False, False),
    "torch.rand(1, generator=torch.Generator())": (False, False),
    "torch.set_rng_state(torch.Generator().manual_seed(3).get_state())": (False, True),
}

_WATCHED = """
import torch
from cachec.key import random_generators
from cachec.programs.registry import installed_plugins
from cachec.worker.generator_states import Generators
plugins = installed_plugins()
"""


def test_generators_that_a_run_moved() -> None:
    program = f"""{_WATCHED}
def moved(run):
    torch.manual_seed(0)
    watched = Generators(plugins, random_generators.snapshot(plugins.all()))
    exec(run)
    drawn, left = watched.outcome()
    return "torch" in drawn, "torch" in left and left["torch"].seeds
print([moved(run) for run in {list(MOVES)!r}])
"""
    assert _python(program).strip() == str(list(MOVES.values()))


def test_a_worker_draws_what_the_caller_would_and_the_caller_goes_on_from_there() -> None:
    program = f"""{_WATCHED}
torch.manual_seed(5); torch.randn(3)
states = random_generators.snapshot(plugins.all())
expected = torch.randn(3), torch.rand(2)
torch.seed()
watched = Generators(plugins, states)
print(torch.equal(torch.randn(3), expected[0]))
_, left = watched.outcome()
torch.manual_seed(5)
random_generators.put(plugins, {{"torch": left["torch"]}})
print(torch.equal(torch.rand(2), expected[1]), torch.initial_seed())
"""
    assert _python(program).split() == ["True", "True", "5"]


@pytest.mark.parametrize(
    ("before", "is_seeded"), [("", False), ("torch.seed()", False), ("torch.manual_seed(3); torch.rand(4)", True)]
)
def test_whether_the_program_has_set_a_seed(before: str, is_seeded: bool) -> None:
    program = f"""{_WATCHED}
{before}
print(random_generators.find_generator(plugins, "torch").is_seeded(random_generators.snapshot(plugins.all())["torch"]))
"""
    assert _python(program).strip() == str(is_seeded)


@pytest.mark.parametrize(("run", "drawn"), [("pass", False), ("torch.rand(1)", True)])
def test_generators_of_a_library_that_the_run_imports(run: str, drawn: bool) -> None:
    program = f"""{_WATCHED.replace("import torch", "")}
watched = Generators(plugins, {{}})
import torch; {run}
print("torch" in watched.outcome()[0])
"""
    assert _python(program).strip() == str(drawn)


def test_compiled_functions_are_described_by_function_and_options() -> None:
    import torch

    from cachec.key.canonical_forms import Forms
    from cachec.key.module_globals import described_by
    from cachec.programs.registry import installed_plugins

    forms = Forms(lambda path: path == __file__, described_by(installed_plugins()))

    def double(x: object) -> object:
        return x

    found = [
        forms.digest(value)
        for value in (
            torch.compile(double),
            torch.compile(double, dynamic=True),
            torch.compile(double, fullgraph=True),
            torch.compile(double, mode="reduce-overhead"),
            torch.compile(lambda x: x, backend="eager"),
            torch.compile(torch.nn.ReLU()),
            torch.compile(torch.nn.Tanh()),
        )
    ]
    assert all(found)
    assert len(set(found)) == len(found)
    assert forms.digest(torch.compile(double)) == found[0]
