"""The part of torch's keys that holds what a project registers: each way to register, and each edit of it.

Each project is imported in a process that is forked off this one, in a folder of its own.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import json
import math
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch._functorch._aot_autograd import autograd_cache
from torch._inductor import codecache, remote_cache
from torch.library import Library

import cachec
import cachec_torch
from cachec.base.hashing import digest_bytes
from cachec.model import Reason
from cachec_torch import project_modules
from cachec_torch.kernel_recorder import KernelRecorder
from cachec_torch.operations import OperationsKey
from cachec_torch.project_modules import ProjectModules, UnstorableOperation
from tests.needs import need

ROOT = Path(__file__).parents[2]

#: Files beside ``ops``: the program, what registers nothing, what registered functions call.
PROJECT = {
    "main": "import neutral, ops",
    "neutral": "BATCH = 8",
    "helper": "import deeper\nDTYPE, FACTOR = deeper.DTYPE, 1.0",
    "deeper": "import torch\nDTYPE = torch.float32",
    "bodies": "import helper\ndef double(x):\n    return x * 2.0",
}

HEAD = """
import functools, os, torch, helper
from torch import Tensor, library
FIRST, SECOND, THIRD, FOURTH = (float(os.environ.get(name, 1)) for name in ("FIRST", "SECOND", "THIRD", "FOURTH"))
"""


class Way(NamedTuple):
    """A way to register, as the text of ``ops``. edits: pairs of texts; each pair must change the key."""

    text: str
    edits: tuple[tuple[str, str], ...]


CUSTOM = """
@library.custom_op("kinds::op", mutates_args=())
def op(x: Tensor) -> Tensor:
    return x * 2.0

@op.register_fake
def _(x):
    return torch.empty_like(x, dtype=torch.float32)

def backward(ctx, grad):
    return grad * 3.0

op.register_autograd(backward)
"""

LIBRARY = """
lib = library.Library("kinds", "DEF")
lib.define("op(Tensor x) -> Tensor", tags=(torch.Tag.core,))
"""

FREE = """
library.define("kinds::op", "(Tensor x) -> Tensor")
"""

WAYS = {
    "custom_op": Way(
        CUSTOM,
        (
            ("dtype=torch.float32", "dtype=torch.float64"),
            ("grad * 3.0", "grad * 4.0"),
            ("x * 2.0", "x * 4.0"),
        ),
    ),
    "custom_op without a backward": Way(
        CUSTOM.replace("op.register_autograd(backward)", ""), (("mutates_args=()", 'mutates_args={"x"}'),)
    ),
    "custom_op with tags": Way(
        CUSTOM.replace("mutates_args=()", "mutates_args=(), tags=torch.Tag.core"), (("Tag.core", "Tag.pointwise"),)
    ),
    "custom_op: kernel, vmap, dispatch rule, autocast": Way(
        CUSTOM
        + """
op.register_kernel("cpu")(lambda x: x * 5.0)
op.register_vmap(lambda info, in_dims, x: (op(x) * 6.0, in_dims[0]))
class Mode(torch.utils._python_dispatch.TorchDispatchMode):
    pass
op.register_torch_dispatch(Mode, lambda mode, func, types, args, kwargs: args[0] * 7.0)
op.register_autocast("cpu", torch.bfloat16)
""",
        (("5.0", "5.5"), ("6.0", "6.5"), ("7.0", "7.5"), ("bfloat16", "float16")),
    ),
    "Library: CompositeImplicitAutograd": Way(
        LIBRARY + 'lib.impl("op", lambda x: x * 2.0, "CompositeImplicitAutograd")',
        (("x * 2.0", "x * 4.0"), ("Tag.core", "Tag.pointwise"), ("Tensor x)", "Tensor(a!) x)")),
    ),
    "Library: CPU, Meta, Autograd": Way(
        LIBRARY
        + """
lib.impl("op", lambda x: x * 2.0, "CPU")
lib.impl("op", lambda x: torch.empty_like(x, dtype=torch.float32), "Meta")
lib.impl("op", lambda x: x * 3.0, "Autograd")
""",
        (("2.0", "4.0"), ("float32", "float64"), ("3.0", "5.0")),
    ),
    "library.impl": Way(FREE + 'library.impl("kinds::op", "cpu")(lambda x: x * 2.0)', (("2.0", "4.0"),)),
    "library.register_kernel": Way(
        FREE + 'library.register_kernel("kinds::op", "cpu", lambda x: x * 2.0)', (("2.0", "4.0"),)
    ),
    "library.register_fake": Way(
        FREE + 'library.register_fake("kinds::op", lambda x: torch.empty_like(x, dtype=torch.float32))',
        (("float32", "float64"),),
    ),
    "library.register_autograd": Way(
        FREE + 'library.register_autograd("kinds::op", lambda ctx, grad: grad * 3.0)', (("3.0", "4.0"),)
    ),
    "library.register_vmap": Way(
        FREE + 'library.register_vmap("kinds::op", lambda info, in_dims, x: (x * 6.0, in_dims[0]))', (("6.0", "6.5"),)
    ),
    "library.register_torch_dispatch": Way(
        FREE
        + """
class Mode(torch.utils._python_dispatch.TorchDispatchMode):
    pass
library.register_torch_dispatch("kinds::op", Mode, lambda mode, func, types, args, kwargs: args[0] * 7.0)
""",
        (("7.0", "7.5"),),
    ),
    "library.register_autocast": Way(
        FREE + 'library.register_autocast("kinds::op", "cpu", torch.bfloat16)', (("bfloat16", "float16"),)
    ),
    "triton_op": Way(
        """
@library.triton_op("kinds::op", mutates_args=())
def op(x: Tensor) -> Tensor:
    return x * 2.0
""",
        (("2.0", "4.0"), ("mutates_args=()", 'mutates_args={"x"}')),
    ),
    "a kernel of torch's": Way(
        'lib = library.Library("aten", "IMPL")\nlib.impl("relu", lambda x: x * 2.0, "CPU")',
        (("2.0", "4.0"), ('"relu"', '"sigmoid"'), ('"CPU"', '"AutogradCPU"')),
    ),
    "an operation in a namespace of torch's": Way(
        'import bodies\nlib = library.Library("aten", "FRAGMENT")\nlib.define("kinds_op(Tensor x) -> Tensor")\n'
        'lib.impl("kinds_op", bodies.double, "CPU")',
        (("Tensor x)", "Tensor(a!) x)"),),
    ),
    "a backward of torch's operation": Way(
        "from torch._library.custom_ops import OPDEFS\n"
        'OPDEFS["prims::exp"].register_autograd(lambda ctx, grad: grad * 2.0)',
        (("2.0", "4.0"),),
    ),
    "a fallback": Way(
        'lib = library.Library("_", "IMPL")\nlib.fallback(lambda op, *args, **kwargs: 2.0, "PrivateUse3")',
        (("2.0", "4.0"),),
    ),
    "a decomposition": Way(
        """
import torch._decomp
LAST = torch._decomp.decomposition_table.pop(torch.ops.aten.gelu.default, None)
@torch._decomp.register_decomposition(torch.ops.aten.gelu.default)
def gelu(x, approximate="none"):
    return x * 2.0
""",
        (("2.0", "4.0"),),
    ),
    "a decomposition of Inductor": Way(
        """
from torch._inductor import decomposition
@decomposition.register_decomposition(torch.ops.aten.erfinv.default)
def erfinv(x):
    return x * 2.0
""",
        (("2.0", "4.0"),),
    ),
    "another function of torch": Way(
        """
import torch._refs
from torch._inductor.decomposition import decompositions
decompositions[torch.ops.aten.relu.default] = torch._refs.exp
""",
        (("_refs.exp", "_refs.exp2"), ("decompositions[torch.ops.aten.relu.default] = torch._refs.exp", "")),
    ),
    "a lowering": Way(
        """
from torch._inductor import lowering
@lowering.register_lowering(torch.ops.aten.relu.default, type_promotion_kind=None)
def relu(x):
    return lowering.mul(x, 2.0)
""",
        (("2.0", "4.0"),),
    ),
    "a pattern": Way(
        """
from torch._inductor.fx_passes import post_grad
from torch._inductor.pattern_matcher import Arg, CallFunction, register_graph_pattern
@register_graph_pattern(CallFunction(torch.ops.aten.relu.default, Arg()), pass_dict=post_grad.pass_patterns[0])
def relu(match, x):
    return 2.0
""",
        (("2.0", "4.0"),),
    ),
    "py_impl": Way(
        "torch.ops.aten.relu.default.py_impl(torch._C.DispatchKey.CPU)(lambda x: x * 2.0)", (("2.0", "4.0"),)
    ),
    "a fake function of torch's": Way(
        """
from torch._subclasses.fake_impls import register_op_impl
register_op_impl(lambda func: func is torch.ops.aten.relu.default)(lambda mode, func, *a, **k: 2.0)
""",
        (("2.0", "4.0"), ("relu", "sigmoid")),
    ),
    "a higher-order operation": Way(
        """
class Twice(torch._ops.HigherOrderOperator):
    def __init__(self):
        super().__init__("kinds_twice", cacheable=True)
    def __call__(self, x):
        return super().__call__(x)
twice = Twice()
twice.py_impl(torch._C.DispatchKey.CPU)(lambda x: x * 2.0)
""",
        (("2.0", "4.0"),),
    ),
    "a tensor subclass": Way(
        """
class Doubled(Tensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {})) * 2.0
""",
        (("2.0", "4.0"),),
    ),
    "an effect": Way(
        FREE
        + """
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op
_register_effectful_op("kinds::op", _EffectType.ORDERED)
""",
        (('_register_effectful_op("kinds::op", _EffectType.ORDERED)', ""),),
    ),
    "an opaque type": Way(
        """
from torch._library.opaque_object import register_opaque_type
class Scale(torch._opaque_base.OpaqueBase):
    def factor(self):
        return 2.0
register_opaque_type(Scale, typ="reference")
""",
        (("2.0", "4.0"),),
    ),
    "a layout constraint": Way(
        FREE
        + """
from torch._inductor.lowering import add_layout_constraint
add_layout_constraint(torch.ops.kinds.op.default, lambda node, *args, **options: (args, options))
""",
        (("(args, options)", "(args, {})"),),
    ),
    "a device of Inductor": Way(
        """
from torch._inductor.codegen import common, cpp, wrapper
common.init_backend_registration()
class Wrapper(wrapper.PythonWrapperCodegen):
    SCALE = 2.0
common.register_backend_for_device("cpu", cpp.CppScheduling, Wrapper)
""",
        (("2.0", "4.0"),),
    ),
    "a subclass whose base dispatches": Way(
        """
class Mixin:
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {})) * 2.0
class Doubled(Mixin, Tensor):
    pass
""",
        (("2.0", "4.0"),),
    ),
    "torch functions around one of the project": Way(
        LIBRARY + 'lib.impl("op", torch.func.vmap(torch.compile(lambda x: x * 2.0)), "CPU")', (("2.0", "4.0"),)
    ),
    "a function of torch": Way(LIBRARY + 'lib.impl("op", torch.relu, "CPU")', (("torch.relu", "torch.exp"),)),
    "a partial function": Way(
        LIBRARY + 'lib.impl("op", functools.partial(torch.mul, other=FIRST), "CPU")', (("torch.mul", "torch.add"),)
    ),
    "values in a closure": Way(
        LIBRARY
        + """
import dataclasses, math, numpy
from pathlib import Path
@dataclasses.dataclass(frozen=True)
class Config:
    scale: float
    names: tuple = ("a", Path("b"))
def scaled(*held, more=THIRD):
    def kernel(x):
        return x * held[0].scale
    kernel.scale = FOURTH
    return kernel
held = [Config(FIRST), numpy.float32(SECOND), {"a": [1, {2.0}]}, math, torch.float32, functools.lru_cache(repr)]
lib.impl("op", scaled(*held), "CPU")
lib.impl("op", scaled().__call__.__self__, "CUDA")
""",
        (("x * held", "x + held"),),
    ),
}

#: Values that no file shows, by the variable that they come from.
VALUES = {"a partial function": ("FIRST",), "values in a closure": ("FIRST", "SECOND", "FOURTH")}


#: Other tests of the same process leave operations and classes behind, which count.
ALONE = pytest.mark.skipif(
    os.environ.get("TESTS_ALONE") != "1", reason="run by test_what_needs_a_process_without_other_tests"
)


@pytest.mark.long
def test_what_needs_a_process_without_other_tests() -> None:
    names = " or ".join(name for name, test in globals().items() if ALONE.mark in getattr(test, "pytestmark", ()))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", names, __file__],
        cwd=ROOT, env={**os.environ, "TESTS_ALONE": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.fixture(scope="module")
def recorder() -> Any:
    """What ``install`` puts in place of functions of ``Library``, without the kernels of other tests."""
    recorder = KernelRecorder()
    recorder.earlier = frozenset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Library, "impl", recorder.impl(Library.impl))
        patch.setattr(Library, "define", recorder.define(Library.define))
        patch.setattr(Library, "fallback", recorder.fallback(Library.fallback))
        yield recorder


@pytest.fixture(scope="module")
def key(recorder: KernelRecorder) -> OperationsKey:
    """A key that has seen what torch registers, as forked processes then need not."""
    key = OperationsKey(recorder, ProjectModules(math.inf))
    key.digest()
    list(key._modules.project_parts(set(), "/nowhere"))
    gc.freeze()
    return key


def in_child(folder: Path, files: Mapping[str, str], run: Callable[[], Any], env: Mapping[str, str]) -> Any:
    """What ``run`` returns in a forked process that finds these modules first."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text + "\n")
    read, write = os.pipe()
    child = os.fork()
    if not child:
        answer: Any = None
        gc.disable()
        try:
            os.environ.update(env)
            sys.path.insert(0, str(folder))
            sys.dont_write_bytecode = True
            answer = run()
        except BaseException:
            answer = traceback.format_exc()
        finally:
            sys.stderr.flush()
            os.write(write, json.dumps(answer).encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = json.load(pipe)
    os.waitpid(child, 0)
    return answer


@pytest.fixture
def keyed(key: OperationsKey, tmp_path: Path) -> Callable[..., Any]:
    """The parts of the key of a project."""

    def parts() -> list[Any]:
        import main  # type: ignore[import-not-found]

        del main
        return [[label, digest_bytes(text.encode())] for label, text in key.parts()]

    def keyed(ops: str, files: Mapping[str, str] | None = None, **env: str) -> Any:
        folder = tmp_path / f"project-{len(list(tmp_path.iterdir()))}"
        found = in_child(folder, {**PROJECT, **(files or {}), "ops": HEAD + ops}, parts, env)
        assert isinstance(found, list), found
        return found

    return keyed


#: torch's own function in place of another one counts by its name: no code of the project is reached.
NAMED = "another function of torch"


@pytest.mark.sampled
@pytest.mark.parametrize("name", [name for name in WAYS if name != NAMED])
def test_with_each_way_to_register_all_python_of_the_project_counts(keyed: Callable[..., Any], name: str) -> None:
    """Wherever the project is: the labels hold no path of it."""
    assert {f"file {each}.py" for each in (*PROJECT, "ops")} <= {label for label, _ in keyed(WAYS[name].text)}


def test_an_edit_changes_the_digest_of_its_file(keyed: Callable[..., Any]) -> None:
    first, second = keyed(FREE), keyed(FREE, {"neutral": "BATCH = 16"})
    changed = {label for (label, text), (_, other) in zip(first, second, strict=True) if text != other}
    assert changed == {"file neutral.py"}


def edits() -> Iterator[Any]:
    """Each edit of each way, and each value that no file shows."""
    for name, way in WAYS.items():
        for number, (before, after) in enumerate(way.edits):
            assert before in way.text
            yield pytest.param(
                way.text,
                way.text.replace(before, after),
                {},
                id=f"{name}-{number}",
                marks=[] if name == NAMED else [pytest.mark.long],
            )
        for variable in VALUES.get(name, ()):
            yield pytest.param(way.text, way.text, {variable: "2"}, id=f"{name}-{variable}")


@pytest.mark.sampled
@pytest.mark.parametrize(("first", "second", "env"), list(edits()))
def test_each_edit_of_each_way_changes_the_key(
    keyed: Callable[..., Any], first: str, second: str, env: dict[str, str]
) -> None:
    """Without the files: what was registered under which name counts too, and values that no file shows."""
    assert keyed(first) != keyed(second, **env)


BACKWARD = CUSTOM.replace("    return grad * 3.0", "    %s\n    return grad * factor")

#: What code of the project can reach: ``ops``, more files, the file that is edited, before and after.
REACHED = {
    "an import in a backward": (BACKWARD % "from late import factor", {"late": "factor = 2"}, "late", "factor = 3"),
    "an import by name": (
        'import importlib\nfactor = importlib.import_module("named").factor\n' + BACKWARD % "pass",
        {"named": "factor = 2"},
        "named",
        "factor = 3",
    ),
    "a registry": (
        "from registry import factors\n" + BACKWARD % "factor = factors[0]",
        {
            "registry": "factors = []",
            "main": "import filling, ops",
            "filling": "import registry\nregistry.factors += [2]",
        },
        "filling",
        "import registry\nregistry.factors += [3]",
    ),
    "a global that another module sets": (
        BACKWARD % "pass",
        {"main": "import setting, neutral", "setting": "import ops\nops.factor = 2"},
        "setting",
        "import ops\nops.factor = 3",
    ),
    "the order of two kernels": (
        "",
        {
            **{
                name: "import torch\nlib = torch.library.Library('aten', 'IMPL')\n"
                f"lib.impl('celu', lambda x, alpha=1.0: x * {name[-1]}, 'AutogradCPU')"
                for name in ("by2", "by3")
            },
            "main": "import by2, by3, ops",
        },
        "main",
        "import by3, by2, ops",
    ),
    "a source that its loader rewrites": (
        """
import importlib.machinery, importlib.util
class Loader(importlib.machinery.SourceFileLoader):
    def source_to_code(self, data, path, **options):
        return compile(data.replace(b"unless ", b"if not "), path, "exec")
path = os.path.join(os.path.dirname(__file__), "odd.py")
spec = importlib.util.spec_from_file_location("odd", path, loader=Loader("odd", path))
spec.loader.exec_module(importlib.util.module_from_spec(spec))
""",
        {"odd": "import torch\n" + FREE.replace("library", "torch.library") + "unless 1: pass"},
        "odd",
        "import torch\n" + FREE.replace("library", "torch.library") + "unless 0: pass",
    ),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", REACHED)
def test_what_a_registered_function_can_reach_counts(keyed: Callable[..., Any], name: str) -> None:
    ops, files, file, text = REACHED[name]
    assert keyed(ops, files) != keyed(ops, {**files, file: text})


@ALONE
def test_a_project_without_operations_has_the_key_of_torch_alone(keyed: Callable[..., Any], key: OperationsKey) -> None:
    model = """
import dataclasses
class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x
class Net(torch.nn.Module):
    pass
"""
    assert [label for label, _ in keyed(model)] == [label for label, _ in key.parts()]


@ALONE
def test_the_folder_of_a_package_counts_and_a_large_one_is_refused(tmp_path: Path, key: OperationsKey) -> None:
    def labels(folder: Path, limit: int) -> Any:
        def found() -> Any:
            project_modules.FILE_LIMIT = limit
            import package.ops  # type: ignore[import-not-found]

            del package
            try:
                return [label for label, _ in key.parts() if label.startswith("file package")]
            except UnstorableOperation as error:
                return str(error)

        for name in ("package/__init__", "package/deep/late", "package/.venv/no", "package/env/no", "neutral"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.py").write_text("")
        (folder / "package" / "ops.py").write_text("import torch\n" + FREE.replace("library", "torch.library"))
        (folder / "package" / "env" / "pyvenv.cfg").write_text("")
        return in_child(folder, {}, found, {})

    assert labels(tmp_path / "a", 3) == [f"file package/{name}.py" for name in ("__init__", "deep/late", "ops")]
    assert "put the operations into a package of their own" in labels(tmp_path / "b", 2)


REFUSED = {
    "exec": (
        'exec("def f(x): return x", there := {"__name__": "elsewhere"})\nlib.impl("op", there["f"], "CPU")',
        Reason.UNNAMED_CODE,
        "the function f comes from '<string>', which is no file",
    ),
    "a call from a notebook": (
        'exec(compile("lib.impl(\'op\', torch.relu, \'CPU\')", "<ipython-input-1>", "exec"))',
        Reason.UNNAMED_CODE,
        "registered by code from '<ipython-input-1>', which is no file",
    ),
    "a class of a notebook": (
        """
import sys, types
sys.modules["__main__"] = notebook = types.ModuleType("__main__")
exec("class F:\\n    def __call__(self, x): return x", vars(notebook))
lib.impl("op", notebook.F, "CPU")
""",
        Reason.UNNAMED_CODE,
        "the module '__main__', which has no file",
    ),
    "a project that a notebook uses": (
        """
import sys, types
sys.modules["__main__"], sys.orig_argv = types.ModuleType("__main__"), ["python", "notebook"]
lib.impl("op", lambda x: x, "CPU")
""",
        Reason.UNNAMED_CODE,
        "the module '__main__' has no file (a notebook, a prompt)",
    ),
    "a function of C": (
        'import ctypes\nlib.impl("op", ctypes.CDLL(None).labs, "CPU")',
        Reason.UNNAMED_CODE,
        "kernel kinds/op/CPU: what it registers holds a ctypes",
    ),
    **{
        f"held: {kind}": (
            f"{before}\ndef scaled(scale):\n    return lambda x: x * scale\nlib.impl('op', scaled({value}), 'CPU')",
            Reason.UNNAMED_CODE,
            f"kernel kinds/op/CPU: what it registers holds {words}",
        )
        for kind, before, value, words in (
            ("a tensor", "", "torch.ones(1)", "a torch.Tensor"),
            ("a dict", "class Config(dict): pass", "Config()", "a ops.Config"),
            ("a list", "class Config(list): pass", "Config()", "a ops.Config"),
            ("a number", "class Config(float): pass", "Config(2)", "a ops.Config"),
            ("slots", "class A: __slots__ = ('s',)\nclass Config(A): pass", "Config()", "a ops.Config"),
            ("a lock", "import threading", "threading.Lock()", "a _thread.lock"),
            ("an object", "class Config: pass", "Config()", "a ops.Config"),
            (
                "more than fields",
                "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass Config:\n    a: int = 1\n"
                "config = Config()\nobject.__setattr__(config, 'b', 2)",
                "config",
                "a ops.Config",
            ),
            (
                "a class of a factory",
                "def made(s):\n    class Config:\n        scale = s\n    return Config",
                "made(1.0)",
                "the class made.<locals>.Config, which a function made",
            ),
        )
    },
    **{
        f"in place of a function: {kind}": (
            f'import helper\n{before}\nlib.impl("op", {value}, "CPU")',
            Reason.UNNAMED_CODE,
            f"kernel kinds/op/CPU: what it registers holds a {words}",
        )
        for kind, before, value, words in (
            ("a module", "", "torch.nn.Hardtanh(-9.0, 2.0)", "torch.nn.modules.activation.Hardtanh"),
            ("its method", "", "torch.nn.Hardtanh(-9.0, 2.0).forward", "torch.nn.modules.activation.Hardtanh"),
            ("a graph", "", "torch.fx.symbolic_trace(lambda x: x * 2.0)", "torch.fx.graph_module."),
            (
                "a script",
                "@torch.jit.script\ndef scripted(x: Tensor) -> Tensor:\n    return x * 2.0",
                "scripted",
                "torch.jit.",
            ),
            ("an object", "class F:\n    def __call__(self, x): return x", "F()", "ops.F"),
        )
    },
    "a tensor subclass of a factory": (
        """
def made(scale):
    class Doubled(Tensor):
        factor = scale
    return Doubled
doubled = made(2.0)
""",
        Reason.UNNAMED_CODE,
        "the class made.<locals>.Doubled, which a function made",
    ),
    "a file that was changed": (
        'open(__file__, "a").write("#")\nlib.impl("op", lambda x: x, "CPU")',
        Reason.INPUT_CHANGED,
        "ops.py, or a link in its path, changed after this process started",
    ),
    "a link that was changed": (
        """
import sys
folder = os.path.dirname(__file__)
os.makedirs(folder + "/release")
open(folder + "/release/linked.py", "w").write("def f(x): return x")
os.utime(folder + "/release/linked.py")
os.symlink("release", folder + "/current")
os.symlink("release", folder + "/next")
STARTED()
sys.path.insert(0, folder + "/current")
import linked
os.replace(folder + "/next", folder + "/current")
lib.impl("op", linked.f, "CPU")
""",
        Reason.INPUT_CHANGED,
        "current/linked.py, or a link in its path, changed after this process started",
    ),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", REFUSED)
def test_what_no_key_can_hold_is_refused(key: OperationsKey, tmp_path: Path, name: str) -> None:
    text, reason, message = REFUSED[name]

    def refused() -> list[str]:
        def started() -> None:
            time.sleep(0.03)
            key._modules._started = time.time()
            time.sleep(0.03)

        builtins.STARTED = started  # type: ignore[attr-defined]
        started()
        import main  # type: ignore[import-not-found]

        del main
        try:
            return ["", str(key.parts())]
        except UnstorableOperation as error:
            return [error.reason.value, str(error)]

    found, words = in_child(tmp_path / "project", {**PROJECT, "ops": HEAD + LIBRARY + text}, refused, {})
    assert (found, message in words) == (reason.value, True), words


@pytest.mark.parametrize(
    ("text", "is_known"),
    [
        (CUSTOM, True),
        (FREE + 'library.register_fake("kinds::op", lambda x: x)', True),
        (LIBRARY + 'lib.impl("op", lambda x: x, "CompositeImplicitAutograd")', False),
        (FREE + 'library.impl("kinds::op", "cpu")(lambda x: x)', False),
        (FREE + 'library.register_autograd("kinds::op", lambda ctx, grad: grad)', False),
        (CUSTOM + 'lib = library.Library("kinds", "IMPL")\nlib.impl("op", lambda x: x, "Autograd")', False),
        ('lib = library.Library("aten", "IMPL")\nlib.impl("relu", lambda x: x, "CPU")', False),
        (
            'lib = library.Library("aten", "IMPL")\nlib.impl("relu", lambda x: x, "CPU")\nlib._destroy()',
            True,
        ),
    ],
)
def test_kernels_from_before_the_installation(tmp_path: Path, text: str, is_known: bool) -> None:
    def found() -> str:
        import main  # type: ignore[import-not-found]

        recorder = KernelRecorder()
        del main
        recorder.earlier = frozenset(each for each in recorder.earlier if each.startswith(("kinds/", "aten/relu/")))
        try:
            OperationsKey(recorder, ProjectModules(math.inf)).digest()
        except UnstorableOperation as error:
            return str(error)
        return ""

    words = in_child(tmp_path / "project", {**PROJECT, "ops": HEAD + text}, found, {})
    skip_where_refused(words)
    assert bool(words) is not is_known, words
    if words:
        assert "was registered before cachec_torch.install()" in words


def test_kernels_of_torch_that_are_replaced_later_are_known(tmp_path: Path) -> None:
    """torch has registered kernels of this operation before."""

    def found() -> str:
        recorder = KernelRecorder()
        recorder.earlier = frozenset(each for each in recorder.earlier if each.startswith("aten/relu/"))
        assert recorder.earlier
        Library.impl = recorder.impl(Library.impl)  # type: ignore[method-assign]
        import main  # type: ignore[import-not-found]

        del main
        labels = [label for label, _ in OperationsKey(recorder, ProjectModules(math.inf)).parts()]
        return " ".join(label for label in labels if label.startswith("kernel aten/relu"))

    text = 'lib = library.Library("aten", "IMPL")\n'
    text += 'lib.impl("relu", lambda x: x, "CPU")\nlib.impl("relu", lambda x: x, "Meta")'
    words = in_child(tmp_path / "project", {**PROJECT, "ops": HEAD + text}, found, {})
    skip_where_refused(words)
    assert words == "kernel aten/relu/CPU kernel aten/relu/Meta"


def skip_where_refused(words: str) -> None:
    if "already a kernel registered from python" in words:
        pytest.skip("this release of torch refuses a second kernel for one dispatch key")


@ALONE
def test_an_installed_distribution_counts_by_its_record(keyed: Callable[..., Any], tmp_path: Path) -> None:
    def site(record: str) -> dict[str, str]:
        folder = tmp_path / f"site-{digest_bytes(record.encode())[:8]}"
        (folder / "kinds_ops-1.0.dist-info").mkdir(parents=True, exist_ok=True)
        (folder / "kinds_ops-1.0.dist-info" / "RECORD").write_text(record)
        (folder / "kinds_ops.py").write_text(HEAD.replace(", helper", "") + CUSTOM)
        return {"main": f"import sys\nsys.path.append({str(folder)!r})\nimport kinds_ops"}

    def parts(record: str) -> dict[str, str]:
        return dict(keyed("", site(record)))

    first, second = parts("kinds_ops.py,sha256=a,1\n"), parts("kinds_ops.py,sha256=b,1\n")
    assert first.keys() == second.keys()
    assert {label for label in first if first[label] != second[label]} == {"distribution kinds-ops 1.0"}


def test_a_native_library_counts_by_content(keyed: Callable[..., Any], tmp_path: Path) -> None:
    need("cc")

    def built(number: int) -> str:
        path = tmp_path / f"built-{number}" / "libkinds.so"
        path.parent.mkdir()
        source = path.with_suffix(".c")
        source.write_text(f"int answer(void) {{ return {number}; }}")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(path), str(source)], check=True)
        return str(path)

    def parts(path: str, more: str = "") -> Any:
        return keyed(f"torch.ops.load_library(os.environ['LIBRARY']){more}", LIBRARY=path)

    one, two = built(1), built(2)
    first = parts(one)
    assert any(label == "library libkinds.so" for label, _ in first)
    assert parts(one) == first
    assert parts(two) != first
    replaced = "\nos.replace(os.environ['LIBRARY'], os.environ['LIBRARY'] + '.old')"
    with pytest.raises(AssertionError, match=r"libkinds\.so was replaced or removed after it was loaded"):
        parts(two, replaced)


# --- what install does with it


def test_refusals_are_counted_and_nothing_is_found(tmp_path: Path, caplog: Any) -> None:
    """Each key is another one. The backends neither look for it nor store under it."""

    def refused() -> Any:
        cache = cachec_torch.install(cachec.Cache(tmp_path / "store", log="miss", mode="on"))
        lib = Library("kinds", "DEF")
        lib.define("op(Tensor x) -> Tensor")
        exec("def f(x): return x", there := {})
        lib.impl("op", there["f"], "CPU")
        graph = torch.fx.symbolic_trace(lambda x: x + 1)
        keys = {codecache.compiled_fx_graph_hash(graph, [], {}, [])[0] for _ in range(2)}
        backend = remote_cache.RemoteFxGraphCache.backend_override_cls()
        for key in keys:
            backend._put(key, b"program")
        found = [backend._get(key) for key in keys]
        counts = {reason.value: count for reason, count in cache.events.counts.items()}
        words = sum("kernel kinds/op/CPU: the function f comes from" in each for each in caplog.messages)
        return [len(keys), found, counts, words]

    expected = [2, [None, None], {Reason.UNNAMED_CODE.value: 2}, 1]
    assert in_child(tmp_path / "project", {}, refused, {}) == expected


@pytest.mark.long
def test_install_imports_no_lowerings(tmp_path: Path) -> None:
    code = """
import sys, cachec, cachec_torch
cachec_torch.install(cachec.Cache(sys.argv[1], log="off", mode="on"))
assert not {"cachec_torch.operations", "torch._inductor.lowering", "torch._inductor.pattern_matcher"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "store")], cwd=tmp_path, check=True)


def test_keys_of_torch_hold_the_operations(tmp_path: Path) -> None:
    """Both of its caches make their keys so."""
    assert issubclass(autograd_cache.AOTAutogradCacheDetails, codecache.FxGraphHashDetails)
    assert "__init__" in vars(codecache.FxGraphHashDetails)

    def keys() -> Any:
        graph = torch.fx.symbolic_trace(lambda x: x + 1)

        def made() -> str:
            return codecache.compiled_fx_graph_hash(graph, [], {}, [])[0]

        before = made()
        cachec_torch.install(cachec.Cache(tmp_path / "store", log="off"))
        first = made()
        cachec_torch.install(cachec.Cache(tmp_path / "other", log="off"))
        again = made()
        import ops  # type: ignore[import-not-found]

        del ops
        after = made()
        cachec_torch.uninstall()
        return [before, first, again, after, made()]

    text = HEAD.replace(", helper", "") + LIBRARY + 'lib.impl("op", lambda x: x, "CPU")'
    before, first, again, after, last = in_child(tmp_path / "project", {"ops": text}, keys, {})
    assert first == again
    assert before == last
    assert len({before, first, after}) == 3


PROGRAMS = {
    "the dtype of a fake function": (
        CUSTOM.replace("x * 2.0", "x.to(torch.float32) * 2.0") + "\ndef program(x):\n    return op(x.detach()) + 1\n",
        "float32",
        "float64",
    ),
    "mutates_args": (
        """
@library.custom_op("kinds::op", mutates_args=())
def op(x: Tensor) -> None:
    "nothing"

op.register_fake(lambda x: None)

def program(x):
    y = x.detach() * 1
    op(y)
    return y
""",
        '=())\ndef op(x: Tensor) -> None:\n    "nothing"',
        '={"x"})\ndef op(x: Tensor) -> None:\n    x.mul_(2)',
    ),
    "a composite kernel": (
        LIBRARY
        + """
lib.impl("op", lambda x: x * 2.0, "CompositeImplicitAutograd")
def program(x):
    return torch.ops.kinds.op(x)
""",
        "2.0",
        "3.0",
    ),
    "a decomposition": (
        LIBRARY
        + """
from torch._inductor import decomposition
def op(x):
    return x * 2.0
lib.impl("op", op, "CompositeExplicitAutograd")
decomposition.register_decomposition(torch.ops.kinds.op.default)(op)
def program(x):
    return torch.ops.kinds.op(x.detach())
""",
        "2.0",
        "3.0",
    ),
    "a backward": (CUSTOM + "\ndef program(x):\n    return op(x) + 1\n", "grad * 3.0", "grad * 4.0"),
    "a kernel of torch's": (
        """
lib = library.Library("aten", "IMPL")
lib.impl("relu", lambda x: x * 2.0, "CompositeImplicitAutograd")
lib.impl("relu", lambda x: x * 2.0, "AutogradCPU")
def program(x):
    return torch.relu(x) + 1
""",
        "2.0",
        "3.0",
    ),
}


#: That each edit of each changes the key is shown above, without a compile.
COMPILED = ("a backward",)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [each if each in COMPILED else pytest.param(each, marks=pytest.mark.costly) for each in PROGRAMS]
)
def test_an_edited_operation_is_compiled_again(tmp_path: Path, name: str) -> None:
    """In new processes with an empty folder of Inductor, whose results are those of torch without a compiler."""
    need("c++")
    ops, before, after = PROGRAMS[name]
    assert before in ops

    def results() -> Any:
        cache = cachec_torch.install(cachec.Cache(tmp_path / "store", log="off", mode="on"))
        torch._inductor.config.compile_threads = 1
        torch._inductor.config.cpp.vec_isa_ok = True
        import main  # type: ignore[import-not-found]

        key = torch._inductor.cpp_builder._run_compile_cmd.operations()
        found, parts = [], key.parts()
        for function in (main.ops.program, torch.compile(main.ops.program)):
            x = torch.ones(4, requires_grad=True)
            y = function(x)
            if y.requires_grad:
                y.sum().backward()
            found.append([str(y.dtype), y.tolist(), None if x.grad is None else x.grad.tolist()])
        changed = set(key.parts()) ^ set(parts)
        assert not changed, f"compiling registers nothing that counts: {changed}"
        return [*found, {reason.value: count for reason, count in cache.events.counts.items()}]

    edited = ops.replace(before, after)
    for number, (text, is_hit) in enumerate(((ops, False), (ops, True), (edited, False), (ops, True))):
        files = {**PROJECT, "ops": HEAD + text}
        env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / f"inductor-{number}")}
        found = in_child(tmp_path / f"project-{number}", files, results, env)
        assert isinstance(found, list), found
        eager, compiled, counts = found
        assert compiled == eager
        assert not is_hit or Reason.HIT.value in counts, counts


NATIVE = """
#include <torch/library.h>
#include <ATen/ATen.h>
extern "C" double factor();
static at::Tensor op(const at::Tensor& x) { return x * factor(); }
TORCH_LIBRARY(kinds, m) { m.def("op(Tensor x) -> Tensor", &op); }
"""


@pytest.mark.long
def test_an_operation_of_a_native_library_is_compiled_again(tmp_path: Path) -> None:
    """Its kernel is composite, so it is traced into the program; ctypes loads it, and not torch."""
    need("c++", "cc")
    (tmp_path / "op.cpp").write_text(NATIVE)
    torch_folder = Path(torch.__file__).parent
    include = [f"-I{torch_folder}/include", f"-I{torch_folder}/include/torch/csrc/api/include"]
    subprocess.run(
        ["c++", "-std=c++20", "-O0", "-fPIC", *include, "-c", "op.cpp", "-o", "op.o"], cwd=tmp_path, check=True
    )

    def results() -> Any:
        cachec_torch.install(cachec.Cache(tmp_path / "store", log="off", mode="on"))
        torch._inductor.config.compile_threads = 1
        torch._inductor.config.cpp.vec_isa_ok = True
        ctypes.CDLL(str(tmp_path / os.environ["FACTOR"] / "libkinds.so"))

        def program(x: torch.Tensor) -> torch.Tensor:
            return torch.ops.kinds.op(x) + 1

        return [torch.compile(program)(torch.ones(2)).tolist(), program(torch.ones(2)).tolist()]

    for number, factor in enumerate(("2", "2", "3")):
        folder = tmp_path / factor
        if not folder.exists():
            folder.mkdir()
            (folder / "factor.c").write_text(f"double factor(void) {{ return {factor}; }}")
            link = ["-L", str(torch_folder / "lib"), "-ltorch", "-ltorch_cpu", "-lc10"]
            objects = [str(tmp_path / "op.o"), "factor.c"]
            subprocess.run(["c++", "-shared", "-fPIC", "-x", "none", objects[0], "-x", "c", objects[1], "-x", "none",
                            "-o", "libkinds.so", *link], cwd=folder, check=True)  # fmt: skip
        env = {"FACTOR": factor, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / f"inductor-{number}")}
        expected = [float(factor) + 1] * 2
        assert in_child(tmp_path / f"project-{number}", {}, results, env) == [expected, expected]


@pytest.mark.long
def test_torch_alone_registers_nothing_that_counts(tmp_path: Path) -> None:
    """In a new process, before and after a compile; the table of namespaces is what this torch needs."""
    code = """
import torch, sys
from torch._inductor import compile_fx, codecache
import cachec, cachec_torch
from cachec_torch import operations
cache = cachec_torch.install(cachec.Cache(sys.argv[1], log="off", mode="on"))
key = torch._inductor.cpp_builder._run_compile_cmd.operations()
first = key.parts()
assert all(label.startswith(("python", "table")) for label, _ in first), first
function = torch.compile(lambda x: torch.nn.functional.softmax(torch.nn.functional.gelu(x @ x), -1).cumsum(0))
function(torch.randn(8, 8, requires_grad=True)).sum().backward()
assert key.parts() == first
assert not key._earlier
operations.TORCH_NAMESPACES, known = frozenset(), operations.TORCH_NAMESPACES
used = {operation.partition("::")[0] for _, operation, _ in key.earlier_kernels()}
assert used | {"coor"} == known, (used, known)  # coor: of torch 2.14
"""
    environ = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "store")], cwd=tmp_path, env=environ, check=True)
