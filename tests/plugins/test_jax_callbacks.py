"""Programs that call Python back: refused by name, or run and not stored, wherever they could be stored or keyed."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify, io_callback
from jax.experimental.buffer_callback import buffer_callback

import cachec
import cachec_jax
from cachec import Reason
from cachec.errors import ProcessBoundProgram
from cachec.weights import WeightSet
from cachec_jax import compile_xla, to_stablehlo
from cachec_jax.callbacks import refuse_exported
from cachec_jax.lowering import strip
from cachec_jax.program_codec import decode_program, encode_program
from cachec_jax.program_format import parse_program

N = 4
LIKE = jax.ShapeDtypeStruct((N,), "float32")
X = np.arange(N, dtype="float32") + 1
WEIGHTS = WeightSet.from_arrays({"w": np.full(N, 2, "float32")})


def host(x: Any) -> Any:
    return np.asarray(x) * 3


class Caller:
    def __call__(self, x: Any) -> Any:
        return np.asarray(x) * 3

    def method(self, x: Any) -> Any:
        return np.asarray(x) * 3


def told(x: Any, print_: Callable[[Any], object]) -> Any:
    print_(x)
    return x * 3


def copied(_context: Any, out: Any, x: Any) -> None:
    np.asarray(out)[...] = np.asarray(x) * 3


def checked(x: Any) -> Any:
    checkify.check(x[0] > 0, "positive")
    return x * 3


def one(x: Any) -> Any:
    return jax.pure_callback(host, jax.ShapeDtypeStruct((), "float32"), x, vmap_method="sequential")


def mapped_to_devices(x: Any) -> Any:
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("d")
    return jax.shard_map(lambda y: jax.pure_callback(host, LIKE, y), mesh=mesh, in_specs=spec, out_specs=spec)(x)


#: What the function gives is ``x * 3``; what the error names.
WAYS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "pure_callback": (lambda x: jax.pure_callback(host, LIKE, x), "test_jax_callbacks.host"),
    "partial": (lambda x: jax.pure_callback(functools.partial(host), LIKE, x), "test_jax_callbacks.host"),
    "object": (lambda x: jax.pure_callback(Caller(), LIKE, x), "test_jax_callbacks.Caller"),
    "method": (lambda x: jax.pure_callback(Caller().method, LIKE, x), "test_jax_callbacks.Caller.method"),
    "lambda": (lambda x: jax.pure_callback(lambda y: np.asarray(y) * 3, LIKE, x), "<lambda>"),
    "ufunc": (lambda x: jax.pure_callback(np.multiply, LIKE, x, 3.0), "numpy.multiply"),
    "io_callback": (lambda x: io_callback(host, LIKE, x), "test_jax_callbacks.host"),
    "io_callback in order": (lambda x: io_callback(host, LIKE, x, ordered=True), "test_jax_callbacks.host"),
    "buffer_callback": (lambda x: buffer_callback(copied, LIKE)(x), "test_jax_callbacks.copied"),
    "debug.callback": (lambda x: told(x, lambda y: jax.debug.callback(host, y)), "test_jax_callbacks.host"),
    "debug.print": (lambda x: told(x, lambda y: jax.debug.print("the value {}", y)), "jax.debug.print('the value {}')"),
    "debug.print in order": (lambda x: told(x, lambda y: jax.debug.print("{}", y, ordered=True)), "jax.debug.print"),
    "inspect_array_sharding": (
        lambda x: told(x, lambda y: jax.debug.inspect_array_sharding(y, callback=str)),
        "effect Debug",
    ),
    "check": (checked, "calls Python back"),
    "in scan": (lambda x: jax.lax.scan(lambda c, r: (c, one(r)), 0.0, x)[1], "test_jax_callbacks.host"),
    "in while": (
        lambda x: jax.lax.while_loop(
            lambda c: c[0] < 1, lambda c: (c[0] + 1, jax.pure_callback(host, LIKE, c[1])), (0, x)
        )[1],
        "test_jax_callbacks.host",
    ),
    "in cond": (
        lambda x: jax.lax.cond(x[0] > 0, lambda: jax.pure_callback(host, LIKE, x), lambda: x),
        "test_jax_callbacks.host",
    ),
    "in vmap": (jax.vmap(one), "test_jax_callbacks.host"),
    "in grad": (
        jax.grad(lambda x: (told(x, lambda y: jax.debug.print("inside {}", y))).sum()),
        "jax.debug.print('inside {}')",
    ),
    "in jit": (lambda x: jax.jit(lambda y: jax.pure_callback(host, LIKE, y))(x), "test_jax_callbacks.host"),
    "in shard_map": (mapped_to_devices, "test_jax_callbacks.host"),
    "in remat": (jax.checkpoint(lambda x: jax.pure_callback(host, LIKE, x)), "test_jax_callbacks.host"),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[tuple[Callable[[Any], Any], str]]:
    with jax._src.config.xla_runtime_errors(request.param == "check"):
        yield WAYS[request.param]


def expected(way: str) -> Any:
    return np.full(N, 3, "float32") if way == "in grad" else X * 3


def refused(call: Callable[[], Any], name: str) -> None:
    with pytest.raises(ProcessBoundProgram) as caught:
        call()
    message = str(caught.value)
    assert name in message
    assert "calls Python back" in message
    assert "Take the callback out to cache it" in message


def test_what_makes_a_program_or_a_file_refuses_it(way: tuple[Callable[[Any], Any], str]) -> None:
    function, name = way

    def weighted(weights: Any, x: Any) -> Any:
        return function(x) * weights["w"]

    refused(lambda: to_stablehlo(weighted, WEIGHTS.placeholders(), LIKE), name)
    refused(lambda: compile_xla(weighted, WEIGHTS.placeholders(), LIKE), name)
    lowered = jax.jit(weighted).lower({"w": LIKE}, LIKE)
    refused(lambda: strip(lowered, WEIGHTS), name)
    refused(lambda: encode_program(lowered), name)
    refused(lambda: encode_program(lowered.compile()), "calls Python back" if name.startswith("effect") else name)


def test_jit_runs_it_and_stores_nothing(
    way: tuple[Callable[[Any], Any], str], cache: cachec.Cache, request: pytest.FixtureRequest
) -> None:
    function, _ = way
    name = request.node.callspec.params["way"]
    cachec_jax.install(cache)
    try:
        for jit in (cachec_jax.jit, jax.jit):
            for _ in range(2):
                jax.clear_caches()
                np.testing.assert_array_equal(jit(lambda x: function(x))(X), expected(name))
        jax.effects_barrier()
    finally:
        cachec_jax.uninstall()
    if name != "inspect_array_sharding":  # for one device JAX calls it as it lowers, which every process does
        assert reasons(cache) == {"bypass:process-bound"}


def reasons(cache: cachec.Cache) -> set[str]:
    """Of all that was counted."""
    lines = [line for file in sorted((cache.dir / "log").iterdir()) for line in file.read_text().splitlines()]
    return {line["reason"] for line in map(json.loads, lines) if "reason" in line}


@pytest.mark.sampled
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["pure_callback", "debug.print", "io_callback in order", "in scan"])
def test_a_stage_returns_it_and_stores_nothing(name: str, compiled: bool, cache: cachec.Cache) -> None:
    function, words = WAYS[name]

    @cache.stage
    def make(count: int) -> Any:
        lowered = jax.jit(lambda x: function(x) + count).lower(LIKE)
        return (lowered.compile() if compiled else lowered), count

    for _ in range(2):
        (program, _count), outcome = cache.call(make, 0)
        assert (outcome.reason, outcome.stored) == (Reason.PROCESS_BOUND, False)
        assert words in outcome.detail
        run = program if compiled else program.compile()
        np.testing.assert_array_equal(run(X), X * 3)


@pytest.mark.parametrize("compiled", [False, True])
def test_given_to_a_stage_it_is_in_no_key(compiled: bool, cache: cachec.Cache) -> None:
    """Programs that call different functions have the same text."""

    @cache.stage
    def run(program: Any) -> list[float]:
        return [float(each) for each in (program if compiled else program.compile())(X)]

    for factor in (2, 5):
        lowered = jax.jit(lambda x, f=factor: jax.pure_callback(lambda y: np.asarray(y) * f, LIKE, x)).lower(LIKE)
        value, outcome = cache.call(run, lowered.compile() if compiled else lowered)
        assert value == [float(each) for each in X * factor]
        assert outcome.reason is Reason.PROCESS_BOUND
        assert run.check(lowered).reason is Reason.PROCESS_BOUND


def test_an_exported_program_has_none() -> None:
    """JAX exports none itself; what came from elsewhere is told by its text."""
    with pytest.raises(NotImplementedError):
        jax.export.export(jax.jit(WAYS["pure_callback"][0]))(LIKE)
    lowered = jax.jit(WAYS["pure_callback"][0]).lower(LIKE)
    text = str(lowered.compiler_ir())
    refused(lambda: refuse_exported(types.SimpleNamespace(mlir_module=lambda: text)), "xla_ffi_python_cpu_callback")
    refuse_exported(jax.export.export(jax.jit(jnp.sin))(LIKE))


def test_ordinary_calls_of_functions_by_name_are_stored() -> None:
    """LAPACK's are called by their names, which mean the same in each process."""
    square = jax.ShapeDtypeStruct((N, N), "float32")
    for function in (jnp.linalg.qr, jnp.linalg.cholesky, jnp.linalg.svd):
        lowered = jax.jit(function).lower(square)
        for program in (lowered, lowered.compile()):
            form, data = parse_program(encode_program(program))
            assert all(target.startswith("lapack_") for target in form.targets)
            decode_program(form, data)


# --- two processes

#: Each entry point with a callback that says which process it is of; no run may give what another process's gives.
PROCESSES = """
import os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import cachec, cachec_jax
from cachec.errors import ProcessBoundProgram

cache = cachec.Cache(sys.argv[1])
cachec_jax.install(cache)
LIKE = jax.ShapeDtypeStruct((4,), "float32")
X = np.ones(4, "float32")
MINE = X * os.getpid()

def host(x):
    return np.asarray(x) * np.float32(os.getpid())

def function(x):
    return jax.pure_callback(host, LIKE, x)

@custom_partitioning
def split(x):
    return x * 1

split.def_partition(
    partition=lambda mesh, args, result: (mesh, lambda x: x * os.getpid(), result.sharding, (args[0].sharding,)),
    infer_sharding_from_operands=lambda mesh, args, result: args[0].sharding,
    sharding_rule="i -> i",
)
PLACED = NamedSharding(jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,)), PartitionSpec("d"))

@cache.stage
def lowered():
    return jax.jit(function).lower(LIKE)

@cache.stage
def compiled():
    return jax.jit(function).lower(LIKE).compile()

@cache.stage(version="1")
def partitioned():
    return jax.jit(split, in_shardings=PLACED).lower(LIKE)

@cache.stage
def given(program):
    return np.asarray(program.compile()(X))

@cache.stage
def exported():
    return jax.export.export(jax.jit(function))(LIKE)

@cache.stage
def stablehlo(weights):
    return cachec_jax.to_stablehlo(lambda w, x: function(x), weights.placeholders(), LIKE)

@cache.stage
def file(weights):
    return cachec_jax.compile_xla(lambda w, x: function(x), weights.placeholders(), LIKE)

def same(value):
    np.testing.assert_array_equal(np.asarray(value), MINE)

for stage, run in ((lowered, lambda p: p.compile()(X)), (compiled, lambda p: p(X))):
    value, outcome = cache.call(stage)
    same(run(value))
    assert outcome.reason.value == "bypass:process-bound", outcome
value, outcome = cache.call(partitioned)
same(value.compile()(jax.device_put(X, PLACED)))
assert outcome.reason.value == "bypass:process-bound", outcome
value, outcome = cache.call(given, jax.jit(function).lower(LIKE))
same(value)
assert outcome.reason.value == "bypass:process-bound", outcome
for stage, error in ((stablehlo, ProcessBoundProgram), (file, ProcessBoundProgram)):
    try:
        cache.call(stage, cachec.WeightSet.from_arrays({"w": X}))
    except error:
        continue
    raise AssertionError(stage)
try:
    exported()
except NotImplementedError:
    pass
else:
    raise AssertionError("exported")
for jit in (jax.jit, cachec_jax.jit):
    jax.clear_caches()
    same(jit(function)(X))
    seen = []

    def inspected(x):
        jax.debug.inspect_array_sharding(x, callback=seen.append)
        return x * 1

    jit(inspected, in_shardings=PLACED)(X)
    assert seen, "inspected"
    same(jit(split, in_shardings=PLACED)(X))
"""


@pytest.mark.long
def test_no_process_gets_what_calls_another(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROCESSES)
    for _ in range(2):
        run(tmp_path)
    cache = cachec.Cache(tmp_path / "store")
    assert reasons(cache) == {"bypass:process-bound", "error:stage-raised"}
    assert not any(path.is_file() for path in (tmp_path / "store" / "objects").rglob("*"))


def run(folder: Path, *args: str) -> str:
    command = [sys.executable, "program.py", "store", *args]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, "CACHEC_LOG": "all"})
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


#: Registers a function of the project, to be called by its name.
REGISTERING = """
import ctypes

@ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_float), ctypes.POINTER(ctypes.POINTER(ctypes.c_float)))
def scale(out, inputs):
    for i in range(4):
        out[i] = inputs[0][i] * factor

jax.ffi.register_ffi_target(
    "cachec_test_scale", jax.ffi.pycapsule(ctypes.cast(scale, ctypes.c_void_p)), platform="cpu", api_version=0
)
"""

BY_NAME = """
import sys
import numpy as np
import jax
import cachec, cachec_jax

KEPT = {"jax": jax, "factor": float(sys.argv[2])}
if KEPT["factor"]:
    exec(sys.argv[3], KEPT)

cache = cachec.Cache(sys.argv[1], record="off")
X = np.ones(4, "float32")
LIKE = jax.ShapeDtypeStruct((4,), "float32")

def scaled(x):
    return jax.ffi.ffi_call("cachec_test_scale", LIKE, custom_call_api_version=1)(x)

@cache.stage(version="1", tools=["jax", "jaxlib"])
def lowered():
    return jax.jit(scaled).lower(LIKE)

@cache.stage(version="1", tools=["jax", "jaxlib"])
def compiled():
    return jax.jit(scaled).lower(LIKE).compile()

@cache.stage(version="1", tools=["jax", "jaxlib"])
def file(weights):
    return cachec_jax.compile_xla(lambda w, x: scaled(x) * w["w"], weights.placeholders(), LIKE)

weights = cachec.WeightSet.from_arrays({"w": X})
for stage in (lowered, compiled, file):
    given = [weights] if stage is file else []
    reason = stage.check(*given).reason.value
    try:
        value, outcome = cache.call(stage, *given)
        reason = outcome.reason.value
        run = value.compile() if stage is lowered else cachec.link(value, weights) if stage is file else value
        print(reason, np.asarray(run(X))[0])
    except (cachec.LinkError, jax.errors.JaxRuntimeError) as error:
        print(reason, type(error).__name__, "cachec_test_scale" in str(error))
"""


@pytest.mark.long
def test_a_function_by_name_is_the_one_that_this_process_has_registered(tmp_path: Path) -> None:
    """Where it has none, nothing is a hit that would not run, and the error is that of JAX, or names the function."""
    (tmp_path / "program.py").write_text(BY_NAME)
    assert run(tmp_path, "2", REGISTERING).splitlines() == ["miss:first-run 2.0"] * 3
    assert run(tmp_path, "7", REGISTERING).splitlines() == ["hit 7.0"] * 3
    lowered, compiled, file = run(tmp_path, "0").splitlines()
    assert lowered.startswith("miss:unusable-here ")
    assert lowered.endswith(" JaxRuntimeError True")
    assert compiled.endswith(" JaxRuntimeError True")
    assert file == "hit LinkError True"
