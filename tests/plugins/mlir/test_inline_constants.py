"""Two modules that differ only in a constant that stays inline never share a key: with every consumer there is."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cachec
from cachec_mlir import load, program
from cachec_mlir.live.bindings import Bindings
from tests.needs import MLIR_TOOLS, need

#: Each form that a constant can stay in a stripped module in.
CONSTANTS = {
    "splat": ("dense<{0}>", 0.5, 0.75),
    "list": ("dense<[{0}, 1.0, 2.0, 3.0]>", 0.5, 0.75),
    "hexadecimal": ('dense<"0x{0}0000803F0000004000004040">', "0000003F", "0000403F"),
    "splat against list": ("dense<{0}>", 1.0, [1.0, 1.0, 1.0, 1.25]),
}
MODULE = """\
module @m {{
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
    %c = arith.constant {0} : tensor<4xf32>
    %y = arith.mulf %x, %c : tensor<4xf32>
    return %y : tensor<4xf32>
  }}
}}
"""
X = np.arange(1, 5, dtype="f4")


def modules(name: str, text: str = MODULE) -> tuple[str, str]:
    form, one, other = CONSTANTS[name]
    return text.format(form.format(one)), text.format(form.format(other))


def value_of(name: str, number: int) -> np.ndarray:
    values = CONSTANTS[name][1:]
    value = values[number]
    if name == "hexadecimal":
        return np.array([np.frombuffer(bytes.fromhex(value), "f4")[0], 1, 2, 3], "f4")
    return np.broadcast_to(np.array([value, 1, 2, 3] if name == "list" else value, "f4"), 4)


def check(
    cache: cachec.Cache, run: Callable[[Any], np.ndarray], stage: Any, of: Callable[[str], Any], name: str
) -> None:
    """Twice each, in turns: the second look at each is a hit, and each computes with its own constant."""
    texts = modules(name)
    for turn in range(2):
        for number, text in enumerate(texts):
            found, outcome = cache.call(stage, of(text))
            assert (outcome.reason.value == "hit") == (turn == 1), (turn, number)
            np.testing.assert_allclose(run(found), X * value_of(name, number), atol=1e-6)


def as_program(text: str) -> cachec.Program:
    return program(text.encode(), to="parameter").program


def as_bytecode(text: str) -> cachec.Program:
    return program(text.encode(), format="mlir:bytecode", bindings="iree").program


@pytest.mark.parametrize(
    ("of", "name"), [*((as_program, name) for name in CONSTANTS), (as_bytecode, "splat"), (as_bytecode, "list")]
)
@pytest.mark.sampled
def test_iree(cache, name, of):
    import cachec_iree

    @cache.stage(tools=["iree-base-compiler"])
    def build(module: cachec.Program) -> cachec.File:
        return cachec_iree.compile(module, cpu="generic")

    def run(file: cachec.File) -> np.ndarray:
        return cachec.link(file, cachec.WeightSet.from_arrays({}))(X)

    check(cache, run, build, of, name)


@pytest.mark.parametrize("name", CONSTANTS)
@pytest.mark.sampled
def test_live_modules(cache, name):
    """A stage that is given the module itself, and returns one: IREE's bindings."""

    @cache.stage
    def again(module: Any) -> Any:
        return load(program(module).program, bindings="iree")

    for turn in range(2):
        for text in modules(name):
            module = Bindings("iree").parse(text.encode())
            found, outcome = cache.call(again, module)
            assert (outcome.reason.value == "hit") == (turn == 1)
            assert str(found) == str(module)


@pytest.mark.parametrize("name", CONSTANTS)
@pytest.mark.sampled
def test_xla(cache, name):
    """XLA gets its weights as arguments; what stays in StableHLO is a constant."""

    @cache.stage(tools=["jax", "jaxlib"])
    def compute(module: cachec.Program) -> np.ndarray:
        import jax
        from jaxlib import xla_client

        device = jax.local_devices()[0]
        live = load(module, bindings="jax")
        with live.context:
            loaded = device.client.compile_and_load(live, xla_client.DeviceList((device,)), xla_client.CompileOptions())
        return np.asarray(loaded.execute([jax.device_put(X)])[0])

    def of(text: str) -> cachec.Program:
        text = text.replace("arith.constant", "stablehlo.constant").replace("arith.mulf", "stablehlo.multiply")
        return program(text.encode()).program

    check(cache, np.asarray, compute, of, name)


@pytest.mark.parametrize("name", CONSTANTS)
@pytest.mark.parametrize("of", [as_program, None], ids=["program", "file"])
@pytest.mark.sampled
def test_mlir_opt(cache, name, of, mlir_opt, tmp_path):
    """mlir-opt-19 on a program, and on a file that nothing was stripped from."""

    @cache.stage(tools=["mlir-opt-19"])
    def canonicalise(module: Any) -> str:
        data = module.ir if isinstance(module, cachec.Program) else module.read_bytes()
        return cachec.run(["mlir-opt-19", "--canonicalize", "-"], stdin=data).stdout.decode()

    def file(text: str) -> cachec.File:
        path = tmp_path / "m.mlir"
        path.write_text(text)
        return cachec.File(path)

    printed = []
    for turn in range(2):
        for text in modules(name):
            found, outcome = cache.call(canonicalise, (of or file)(text))
            assert (outcome.reason.value == "hit") == (turn == 1)
            assert found == mlir_opt(text.encode(), "--canonicalize").decode()
            printed.append(found)
    assert printed[0] != printed[1]


NATIVE = """\
memref.global "private" constant @c : memref<4xf32> = {0}
func.func @main(%x: memref<4xf32>, %out: memref<4xf32>) attributes {{llvm.emit_c_interface}} {{
  %c = memref.get_global @c : memref<4xf32>
  linalg.mul ins(%x, %c : memref<4xf32>, memref<4xf32>) outs(%out : memref<4xf32>)
  return
}}
"""


@pytest.mark.parametrize("name", CONSTANTS)
@pytest.mark.long
def test_native(cache, name):
    """mlir-opt, mlir-translate and clang, each a stage; the constant is in what each of them makes."""
    need(*MLIR_TOOLS)
    import cachec_native as native

    @cache.stage
    def lower(module: cachec.Program) -> cachec.Program:
        return native.to_llvm_dialect(module)

    @cache.stage
    def translate(module: cachec.Program) -> cachec.Program:
        return native.to_llvm_ir(module)

    @cache.stage
    def build(module: cachec.Program) -> cachec.File:
        return native.to_library(module, cpu="x86-64" if os.uname().machine == "x86_64" else "generic")

    kinds = [("float32", (4,))]
    for turn in range(2):
        for number, text in enumerate(modules(name, NATIVE)):
            made, outcomes = program(text.encode(), to="undefined").program, []
            for stage in (lower, translate, build):
                made, outcome = cache.call(stage, made)
                outcomes.append(outcome.reason.value == "hit")
            assert outcomes == [turn == 1] * 3, (turn, number)
            linked = cachec.link(made, cachec.WeightSet.from_arrays({}))
            found = linked.function("main", inputs=kinds, outputs=kinds)(X)
            np.testing.assert_allclose(found, X * value_of(name, number), atol=1e-6)


def test_a_constant_that_is_large_enough_is_no_part_of_the_key_only_where_it_was_lifted():
    values = [np.random.default_rng(seed).random(256).astype("f4").tobytes().hex() for seed in (0, 1)]
    texts = [f'module {{ util.global private @w = dense<"0x{each}"> : tensor<256xf32> }}' for each in values]
    lifted = {program(each.encode()).program.topology for each in texts}
    assert len(lifted) == 1
    inline = {program(each.encode(), minimum=2048).program.topology for each in texts}
    assert len(inline) == 2
    assert inline.isdisjoint(lifted)
    # where nobody takes a reference of that kind, it stays, and counts
    other = {program(each.encode(), to="undefined").program.topology for each in texts}
    assert len(other) == 2
