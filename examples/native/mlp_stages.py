"""MLIR to native code as cached stages: mlir-opt -> mlir-translate -> clang; weights are bound when it is loaded."""

from __future__ import annotations

from mlp import mlp

import cachec

cache = cachec.Cache()


@cache.stage
def describe(weights: cachec.WeightSet, batch: int, threshold: float = 0.0) -> cachec.Program:
    """The module, made from the specs of the weights; no byte of them is looked at."""
    specs = weights.placeholders("describe").specs
    return cachec.Program(mlp(specs, batch, threshold=threshold), format="mlir:text", manifest=weights.manifest)


@cache.stage
def lower(program: cachec.Program) -> cachec.Program:
    """mlir-opt: linalg to the LLVM dialect."""
    import cachec_native as native  # imported on a miss only

    return native.to_llvm_dialect(program)


@cache.stage
def translate(program: cachec.Program) -> cachec.Program:
    """mlir-translate: to LLVM IR."""
    import cachec_native as native

    return native.to_llvm_ir(program)


@cache.stage
def build(program: cachec.Program, *, level: int = 2) -> cachec.File:
    """clang: a shared library whose weights are undefined symbols."""
    import cachec_native as native

    return native.to_library(program, options=[f"-O{level}"])
