"""The name that a module has in its text, by which a miss finds what it is to be compared with."""

from __future__ import annotations

import pytest

from cachec.errors import PluginError
from cachec.programs import ir


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (b"module @jit_step attributes {a.b = 1 : i32} {\n}\n", "jit_step"),
        (b"// a comment\n#map = affine_map<(d0) -> (d0)>\nmodule @main {\n}", "main"),
        (b"  builtin.module @m.n$1-x {", "m.n$1-x"),
        (b'module @"with blanks" {', "with blanks"),
        (b"module {\n  module @inner {\n", "inner"),
        (b"module {\n}", ""),
        (b"func.func @main() { return }", ""),
        (b"ML\xefR\x00module @bytecode", ""),
        (b"", ""),
        (b" " * (1 << 17) + b"\nmodule @late {", ""),
    ],
)
def test_the_name_of_a_module(text: bytes, title: str) -> None:
    for form in ("jax:stablehlo", "mlir:text", "iree:flow"):
        assert ir.title(form, text) == title


def test_a_format_of_no_plugin_has_none() -> None:
    with pytest.raises(PluginError):
        ir.title("nobody:text", b"module @m {")
