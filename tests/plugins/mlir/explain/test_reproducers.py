"""Inputs of mlir-opt in the form that it has for reproducers."""

from __future__ import annotations

import pytest

import cachec_mlir


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("mlir-opt-19", ("--pass-pipeline=builtin.module(cse)", "x"), "builtin.module(cse)"),
        ("iree-opt", ("-pass-pipeline=builtin.module(cse)",), "builtin.module(cse)"),
        ("mlir-opt", ("--cse",), None),
        ("iree-compile", ("--pass-pipeline=builtin.module(cse)",), None),
        ("clang", ("--pass-pipeline=builtin.module(cse)",), None),
    ],
)
def test_pipelines(name: str, args: tuple[str, ...], expected: str | None) -> None:
    command = [name, *args]
    found = cachec_mlir.plugin.reproducer(command, b"module {\n}\n")
    assert (found is not None) == (expected is not None)
    assert cachec_mlir.plugin.reproducer(command, b"ML\xefR bytecode") is None
    if found is not None:
        assert found.data.startswith(b"module {\n}\n\n{-#")
        assert f'pipeline: "{expected}",'.encode() in found.data
        assert (found.suffix, found.option) == (".reproducer.mlir", "--run-reproducer")
        assert cachec_mlir.plugin.reproducer(command, found.data) is None, "it has one already"


def test_a_pipeline_is_quoted_as_mlir_reads_it() -> None:
    found = cachec_mlir.plugin.reproducer(["mlir-opt", '--pass-pipeline=a{b="c\\\n"}'], b"")
    assert found is not None
    assert rb'pipeline: "a{b=\22c\\\0A\22}",' in found.data
