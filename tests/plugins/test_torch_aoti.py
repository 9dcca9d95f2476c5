"""``cachec_torch.compile_aoti`` and what links its libraries. All of it compiles C++, so all of it is long."""

from __future__ import annotations

import copy
import fcntl
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

import cachec
import cachec_torch
from cachec.errors import LinkError, PluginError, UsageError
from cachec.model import Reason
from cachec.testing.conformance import PluginConformance
from cachec_mlir.compilers import file_in_new_folder
from cachec_torch import libraries
from cachec_torch.ambient import settings
from cachec_torch.aoti import REQUIRED
from cachec_torch.native_libraries import library_parts
from cachec_torch.project_modules import ProjectModules
from cachec_torch.runtime import LinkedLibrary, LoadedLibrary
from cachec_torch.trees import built, leaves_of
from tests import pages
from tests.plugins import torch_modules as modules
from tests.plugins.torch_modules import (
    SMALL_TIES,
    as_tensors,
    seeded,
    small_inputs,
    small_program,
    small_weights,
    weights_of,
)
from tests.plugins.torch_stages import QUICK, stages

pytestmark = pytest.mark.long


class Compiled(NamedTuple):
    """``Small`` in the store that all tests share. folder: for other programs that are compiled once."""

    folder: Path
    cache: cachec.Cache
    program: cachec.Program
    artifact: cachec.File


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One of the processes that run tests at a time."""
    with open(folder / "lock", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Compiled:
    """Compiled in a stage, once for all tests of all processes that run them."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "torch"
    folder.mkdir(exist_ok=True)
    with alone(folder):
        cache = cachec.Cache(folder / "cache", log="off", mode="on")
        lower, build = stages(cache)
        before, variables = settings(), dict(os.environ)
        program, _ = cache.call(lower, small_weights(0).placeholders())
        artifact, outcome = cache.call(build, program)
        assert outcome.stored or outcome.reason is Reason.HIT, outcome
        assert (settings(), dict(os.environ)) == (before, variables), "torch is left as it was"
    return Compiled(folder, cache, program, artifact)


def compiled_once(small: Compiled, program: cachec.Program) -> cachec.File:
    """A copy of what was compiled of this program, by whichever process came first."""
    if program.topology == small.program.topology:
        place = small.artifact.path
    else:
        place = small.folder / f"{program.topology}.so"
        with alone(small.folder):
            if not place.exists():
                made = cachec_torch.compile_aoti(program, options=QUICK)
                shutil.copyfile(made.path, place.with_suffix(".new"))
                place.with_suffix(".new").rename(place)
    copied = file_in_new_folder("model.so", kind="torch:aoti", manifest=program.manifest)
    shutil.copyfile(place, copied.path)
    return copied


def close(ours: Any, theirs: Any) -> None:
    """Equal trees, and arrays within the precision of what torch computes."""
    ours, mine = torch.utils._pytree.tree_flatten(ours)
    theirs, yours = torch.utils._pytree.tree_flatten(theirs)
    assert mine == yours
    for each, other in zip(ours, theirs, strict=True):
        if isinstance(other, torch.Tensor):
            expected = other.detach().numpy()
            assert np.asarray(each).dtype == expected.dtype
            np.testing.assert_allclose(np.asarray(each), expected, rtol=1e-5, atol=1e-5 * float(abs(expected).max()))
        else:
            assert (type(each), each) == (type(other), other)


@pytest.mark.parametrize(("seed", "rows"), [(0, 3), (1, 3), (2, 16), (3, 2)])
def test_each_set_of_weights_gives_its_own_numbers(small, seed, rows) -> None:
    """Weights of no axes, of 1, 8 and 9 elements, of which the program computes others; constants; trees; sizes; ties;
    and what it writes to, which are copies of the weights."""
    module, weights = seeded(modules.Small, seed), small_weights(seed)
    args, kwargs = small_inputs(rows, seed)
    run = cachec.link(small.artifact, weights)
    assert isinstance(run, LinkedLibrary)
    for _ in range(2):
        close(run(*args, **kwargs), module(*as_tensors(args), **as_tensors(kwargs)))
    tensors = run.torch()(*as_tensors(args), **as_tensors(kwargs))
    assert isinstance(tensors["y"], torch.Tensor)
    close(tensors, module(*as_tensors(args), **as_tensors(kwargs)))
    assert np.array_equal(weights["seen"].read(), small_weights(seed)["seen"].read()), "the weights stay as they are"


def test_no_weight_is_taken_by_value(small) -> None:
    """With another value of one weight alone the numbers are those of the module."""
    args, kwargs = small_inputs()

    def numbers(module: nn.Module) -> Any:
        return module(*as_tensors(args), **as_tensors(kwargs))

    before = torch.cat([each.flatten() for each in floats_of(numbers(seeded(modules.Small, 0)))])
    for name in sorted(small_weights(0)):
        module = seeded(modules.Small, 0)
        with torch.no_grad():
            module.state_dict(keep_vars=True)[name].mul_(-0.5)
        weights, expected = weights_of(module, SMALL_TIES), numbers(copy.deepcopy(module))
        assert float(abs(torch.cat([each.flatten() for each in floats_of(expected)]) - before).max()) > 1e-4, name
        close(cachec.link(small.artifact, weights)(*args, **kwargs), expected)


def floats_of(tree: Any) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(tree)
    return [each.detach() for each in leaves if isinstance(each, torch.Tensor) and each.is_floating_point()]


def held(**changed: Any) -> dict[str, Any]:
    arrays = {name: weight.read() for name, weight in small_weights(0).items()} | changed
    return {name: array for name, array in arrays.items() if array is not None}


def tied(**changed: Any) -> cachec.WeightSet:
    return cachec.WeightSet.from_arrays(held(**changed), tied=SMALL_TIES)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (lambda: tied(one=None), "missing 'one'"),
        (lambda: tied(more=np.ones(1, "f4")), "extra 'more'"),
        (lambda: tied(w=np.ones((15, 9), "f4")), "shape expected"),
        (lambda: tied(w=np.ones((9, 16), "f4")), "shape expected"),
        (lambda: tied(w=np.ones((16, 9), "f2")), "dtype expected"),
        (lambda: cachec.WeightSet.from_arrays(held()), "alias expected"),
        (lambda: cachec.WeightSet.from_arrays(held(), tied=[*SMALL_TIES, ("l.bias", "kept")]), "alias expected None"),
        (lambda: tied(w=np.ones((9, 16), "f4").T), "row-major"),
        (lambda: tied(w=np.ones((16, 18), "f4")[:, ::2]), "row-major"),
    ],
)
def test_weights_that_do_not_fit_are_refused(small, weights, words) -> None:
    with pytest.raises(cachec.CachecError, match=words):
        cachec.link(small.artifact, weights())


def test_the_library_is_asked_too_what_it_wants(small, monkeypatch) -> None:
    """Where the manifest says nothing: AOTInductor would take any memory."""
    for changed in ({"w": np.ones((12, 9), "f4")}, {"w": np.ones((16, 9), "f2")}, {"one": None}):
        with pytest.raises(LinkError, match="the library"):
            cachec_torch.plugin.link(cachec.File(small.artifact.path, kind="torch:aoti"), tied(**changed))


def given(**changed: Any) -> tuple[Any, Any]:
    (x,), kwargs = small_inputs()
    more = kwargs["more"] | {name: value for name, value in changed.items() if name in kwargs["more"]}
    return (changed.get("x", x),), {"more": changed.get("more", more), "flag": changed.get("flag", 2)}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"x": np.ones((1, 8), "f4")}, r"from 2 to 16\), 8\], found float32\[1, 8\]"),
        ({"x": np.ones((17, 8), "f4")}, r"found float32\[17, 8\]"),
        ({"x": np.ones((3, 7), "f4")}, r"found float32\[3, 7\]"),
        ({"x": np.ones(8, "f4")}, r"found float32\[8\]"),
        ({"x": np.ones((3, 8))}, r"found float64\[3, 8\]"),
        ({"x": np.ones((3, 8), ">f4")}, "array of >f4"),
        ({"rows": np.ones((2, 3), "i4")}, r"input 1 expected int64\[2, 3\], found int32"),
        ({"flag": 3}, "input 3 is 3; the program was made for 2"),
        ({"flag": True}, "input 3 is True"),
        ({"more": {}}, r"arguments\[1\]\['more'\] expected a dict with keys"),
        ({"more": [1, 2]}, "found list of 2"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(small, changed, words) -> None:
    run = cachec.link(small.artifact, small_weights(0))
    args, kwargs = given(**changed)
    with pytest.raises(UsageError, match=words):
        run(*args, **kwargs)
    if not str(getattr(changed.get("x"), "dtype", "")).startswith(">"):
        with pytest.raises(UsageError):
            run.torch()(*as_tensors(args), **as_tensors(kwargs))


def test_inputs_may_lie_in_any_order(small) -> None:
    run = cachec.link(small.artifact, small_weights(0))
    (x,), kwargs = small_inputs()
    expected = run(x, **kwargs)
    for other in (np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2], x[::-1][::-1]):
        close(
            torch.utils._pytree.tree_map(torch.from_numpy, run(other, **kwargs)["y"]), torch.from_numpy(expected["y"])
        )
        tensor = torch.from_numpy(np.ascontiguousarray(x)).t().contiguous().t()
        close(run.torch()(tensor, **as_tensors(kwargs))["y"], torch.from_numpy(expected["y"]))


def test_results_are_copies(small) -> None:
    run = cachec.link(small.artifact, small_weights(0))
    args, kwargs = small_inputs()
    first = run(*args, **kwargs)
    kept = first["y"].copy()
    first["y"][:] = 0
    assert np.array_equal(run(*args, **kwargs)["y"], kept)


NEW_PROCESS = """
import json, sys
started = []
sys.addaudithook(lambda event, args: event == "subprocess.Popen" and started.append(args[0]))
import numpy as np
import cachec
from tests.plugins.torch_stages import stages
cache = cachec.Cache(sys.argv[1], log="off", mode="on")
lower, build = stages(cache)
weights = cachec.open_weights(sys.argv[2], tied=json.loads(sys.argv[3]))
program, first = cache.call(lower, weights)
artifact, second = cache.call(build, program)
run = cachec.link(artifact, weights)
random = np.random.default_rng(0)
x, bias = random.normal(size=(3, 8)).astype("f4"), random.normal(size=9).astype("f4")
y = run(x, more={"rows": np.arange(6).reshape(2, 3), "bias": bias}, flag=2)["y"]
told = [first.reason.value, first.detail, second.reason.value, second.detail, "torch" in sys.modules, len(started)]
print(json.dumps([*told, y.tolist()]))
"""


def test_a_hit_in_a_new_process_imports_no_torch_and_starts_nothing(small, tmp_path) -> None:
    module = seeded(modules.Small, 1)
    save_file({name: np.array(tensor) for name, tensor in module.state_dict().items()}, tmp_path / "w.safetensors")
    place = [str(small.folder / "cache"), str(tmp_path / "w.safetensors"), json.dumps(SMALL_TIES)]
    command, root = [sys.executable, "-c", NEW_PROCESS, *place], Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *told, y = json.loads(done.stdout.splitlines()[-1])
    assert told == ["hit", "", "hit", "", False, 0]
    args, kwargs = small_inputs()
    expected = module(*as_tensors(args), **as_tensors(kwargs))["y"].detach().numpy()
    np.testing.assert_allclose(np.array(y), expected, rtol=1e-4, atol=1e-5 * float(abs(expected).max()))


def test_the_compiler_and_the_processor_are_recorded(small, monkeypatch, tmp_path) -> None:
    _, build = stages(small.cache)
    assert build.check(small.program).reason is Reason.HIT
    with monkeypatch.context() as patch:
        for place in ("cachec.key.trace_validation.processor_digest", "cachec.commands.run.processor_digest"):
            patch.setattr(place, lambda: "0" * 64)
        assert build.check(small.program).reason is Reason.DEPENDENCY_CHANGED
    other = tmp_path / "g++"
    other.write_text('#!/bin/sh\nexec /usr/bin/g++ "$@"\n')
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert build.check(small.program).reason is Reason.DEPENDENCY_CHANGED


# --- what is refused, and what torch's own loader has to do


@pytest.mark.parametrize("option", sorted(REQUIRED))
def test_options_that_would_take_weights_in_are_refused(small, option) -> None:
    with pytest.raises(UsageError, match=option):
        cachec_torch.compile_aoti(small.program, options={option: True})


def test_a_build_that_looks_at_weights_is_refused() -> None:
    program = cachec_torch.to_exported(modules.Base, weights_of(modules.Base()), (torch.ones(2, 8),))
    with pytest.raises(PluginError, match=r"looked at the value of weight .* \(.*freezing"):
        cachec_torch.compile_aoti(program, options={"freezing": True})


class WritesInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x):
        x.add_(1)
        return self.a(x)


class ReturnsSize(WritesInput):
    def forward(self, x):
        return self.a(x), x.shape[0]


@pytest.mark.parametrize(
    ("make", "words"), [(WritesInput, "writes to its input 'x'"), (ReturnsSize, "output 1 is a SymInt")]
)
def test_what_a_library_can_not_do_is_refused(make, words) -> None:
    sizes = ({0: torch.export.Dim("n", min=2)},)
    program = cachec_torch.to_exported(make, weights_of(make()), (torch.ones(3, 8),), dynamic_shapes=sizes)
    with pytest.raises(PluginError, match=words):
        cachec_torch.compile_aoti(program)


@torch.library.custom_op("cachec_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.fixed = torch.arange(8.0)

    def forward(self, x, flag=None):
        return {"y": torch.ops.cachec_tests.twice(self.a(x)) + self.fixed, "none": flag}


def test_operations_without_a_c_function_are_run_by_torchs_loader(small) -> None:
    program = cachec_torch.to_exported(Custom, weights_of(Custom()), (torch.ones(2, 8),))
    artifact = compiled_once(small, program)
    for seed in (0, 1):
        module = seeded(Custom, seed)
        with pytest.warns(UserWarning, match="torch's own loader runs this program: it calls operations"):
            run = cachec.link(artifact, weights_of(module))
        assert isinstance(run, LoadedLibrary)
        x = np.linspace(-1, 1, 16, dtype="f4").reshape(2, 8)
        close(run(x), module(torch.from_numpy(x)))
        close(run.torch()(torch.from_numpy(x)), module(torch.from_numpy(x)))
        with pytest.raises(UsageError, match=r"expected float32\[2, 8\], found float32\[3, 8\]"):
            run(np.ones((3, 8), "f4"))
        with pytest.raises(UsageError, match="the tree"):
            run([x])
    registering = dict(library_parts(ProjectModules(math.inf), "/folder/of/inductor"))
    assert not [label for label in registering if "model" in label], "a compiled model registers no operation"


class Boxed(nn.Module):
    """A tree that only torch can build, and no operation that needs its loader."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, box):
        y = self.a(box.content)
        return Box(y), box.content, self.a.weight, y, self.a.weight[0]


@dataclass
class Box:
    content: torch.Tensor


torch.export.register_dataclass(Box, serialized_type_name="cachec_tests.Box")


def test_trees_of_ones_own_classes_are_built_by_torchs_loader(small) -> None:
    """Results are copies there as well: of weights, of inputs, and of what comes out twice."""
    x = torch.linspace(-1, 1, 16).reshape(2, 8)
    artifact = compiled_once(small, cachec_torch.to_exported(Boxed, weights_of(Boxed()), (Box(x),)))
    module = seeded(Boxed, 0)
    with pytest.warns(UserWarning, match="its inputs or outputs have"):
        run = cachec.link(artifact, weights_of(module)).torch()
    for _ in range(2):
        given = x.clone()
        found = run(Box(given))
        close(found, module(Box(x)))
        for each in (found[1], found[2], found[3]):
            each.zero_()
        assert torch.equal(given, x)
        assert found[0].content.any()


# --- the files


@pytest.mark.costly
def test_equal_programs_give_equal_bytes(small) -> None:
    again = cachec_torch.compile_aoti(small.program, options=QUICK)
    assert cachec_torch.plugin.compare(again, small.artifact) is None
    changed = cachec.File(again.path.with_name("other"), kind="torch:aoti")
    changed.path.write_bytes(again.read_bytes()[:-1] + b"x")
    assert "first difference at byte" in (cachec_torch.plugin.compare(again, changed) or "")
    for word in (b"/tmp/cachec-", os.fsencode(Path(torch.__file__).parent)):
        assert word not in again.read_bytes()


def test_files_that_are_no_libraries_are_refused(small, tmp_path) -> None:
    whole = small.artifact.read_bytes()
    for number, data in enumerate((b"", whole[:-1], whole[-200:], libraries.MAGIC, bytes(16) + libraries.MAGIC)):
        path = tmp_path / str(number)
        path.write_bytes(data)
        with pytest.raises(LinkError):
            cachec_torch.plugin.link(cachec.File(path, kind="torch:aoti"), small_weights(0))


def test_another_torch_is_refused(small, monkeypatch) -> None:
    monkeypatch.setattr("cachec_torch.runtime.torch_version", lambda: "2.13.1")
    with pytest.raises(LinkError, match=rf"compiled with torch {re.escape(torch.__version__)}; this one is 2\.13\.1"):
        cachec.link(small.artifact, small_weights(0))


class TestTorch(PluginConformance):
    plugin = cachec_torch.plugin
    compilers = ("torch",)

    @pytest.fixture(autouse=True)
    def _shared(self, small) -> None:
        self.small = small

    def stages(self, cache: cachec.Cache) -> tuple[Any, Any]:
        small = self.small

        @cache.stage(tools=["torch"], version="1")
        def lower(weights: cachec.WeightSet, scale: float) -> cachec.Program:
            return small_program(weights, scale)

        @cache.stage(tools=["torch"], version="1")
        def build(program: cachec.Program) -> cachec.File:
            return compiled_once(small, program)

        return lower, build

    def weight_sets(self, folder: Path) -> tuple[cachec.WeightSet, cachec.WeightSet]:
        return small_weights(0), small_weights(1)

    def link(self, artifact: Any, weights: cachec.WeightSet) -> Any:
        run, (_, kwargs) = cachec.link(artifact, weights), small_inputs()

        def numbers(x: Any) -> Any:
            """Of all outputs in which a weight counts: what the module writes to is in the last."""
            found = run(x, **kwargs)
            return found["y"] + found["counted"][0] + found["counted"][1]

        return numbers

    def inputs(self) -> tuple[Any, ...]:
        return small_inputs()[0]

    @pytest.mark.costly
    def test_compare_tells_artifacts_apart(self, cache: cachec.Cache, sets: Any) -> None:
        super().test_compare_tells_artifacts_apart(cache, sets)

    # What these two ask is asked above, of a program that is compiled again, and in test_torch_export of many more.
    test_a_warm_result_is_the_cold_one = None
    test_a_value_that_no_name_stands_for_is_in_the_key = None
    # Links in new processes are above, too; the suite's own has no fixture, and so nothing that is compiled once.
    test_a_hit_in_a_new_process_imports_no_compiler = None


def test_trees_are_those_of_torch() -> None:
    from collections import OrderedDict, namedtuple

    from cachec_torch.trees import node_of

    pair = namedtuple("pair", "a b")
    tree = ({"x": 1, 2: [3, (4, None)]}, OrderedDict(k=5), pair(6, [7]))
    leaves, spec = torch.utils._pytree.tree_flatten(tree)
    node = node_of(spec)
    assert list(leaves_of(node, tree, "t")) == leaves
    back = built(node, iter(leaves))
    assert back == tree
    assert type(back[1]) is OrderedDict
    assert back[2]._fields == ("a", "b")


@pytest.mark.costly
def test_the_page_runs_as_it_stands(tmp_path) -> None:
    pages.scripts("reference/frameworks.md", tmp_path, "## PyTorch")
    first, second, stats = pages.outputs(pages.commands("reference/frameworks.md", "## PyTorch"), tmp_path)
    assert (first, second) == ("512.0 True\n", "1024.0 False\n")  # a hit imports no torch
    for stage in ("export", "aoti"):
        assert re.search(rf"{stage} .*50", stats), stats
