"""The first operations that differ, in words: what ``why`` says of two programs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cachec_iree
import cachec_jax
import cachec_mlir
from cachec.base.display_text import MAX_SHOWN
from cachec.errors import PluginError
from cachec_mlir.explain.operation_diff import MAX_OPERATIONS, difference


def told(before: str, after: str) -> str:
    return difference(before.encode(), after.encode())


@pytest.mark.parametrize("plugin", [cachec_mlir.plugin, cachec_jax.plugin, cachec_iree.plugin])
def test_every_plugin_whose_programs_are_mlir_tells_them_apart(plugin: cachec_mlir.MlirPlugin) -> None:
    assert plugin.difference(b"a.b", b"c.d") == "- a.b; + c.d"
    assert plugin.suffix(f"{plugin.name}:text") == ".mlir"
    assert plugin.suffix(f"{plugin.name}:bytecode") == ".mlirbc"
    with pytest.raises(PluginError, match="cachec mlir diff"):
        plugin.difference(b"ML\xefR", b"a.b")


PROGRAM = """module @jit {
  func.func public @main(%arg0: tensor<3x16xi32>) -> tensor<3x384xf32> {
    %0 = stablehlo.constant dense<"0x3F8000003F8000003F8000003F800000"> : tensor<4xf32>
    %1 = stablehlo.add %arg0, %0 : tensor<3x384xf32>
    %2:2 = stablehlo.multiply %1, %1 : tensor<3x384xf32>
    %3 = stablehlo.tanh %2#1 : tensor<3x384xf32>
    return %3 : tensor<3x384xf32>
  }
}
"""


def test_equal_texts_have_no_difference() -> None:
    assert told(PROGRAM, PROGRAM) == ""


def test_an_inserted_operation_is_not_hidden_by_renumbering() -> None:
    new = PROGRAM.replace(
        "%3 = stablehlo.tanh %2#1", "%3 = stablehlo.negate %2#0 : tensor<3x384xf32>\n %4 = stablehlo.tanh %3"
    )
    new = new.replace("return %3", "return %4").replace("%1 ", "%one ").replace("%1,", "%one,")
    assert told(PROGRAM, new) == "+ stablehlo.negate % : tensor<3x384xf32>"
    assert told(new, PROGRAM) == "- stablehlo.negate % : tensor<3x384xf32>"


def test_a_changed_operation_is_told_with_both_sides() -> None:
    new = PROGRAM.replace("%1, %1 : tensor<3x384xf32>", "%1, %1 : tensor<3x384xf64>")
    assert told(PROGRAM, new) == (
        "stablehlo.multiply %, % : tensor<3x384xf32> -> stablehlo.multiply %, % : tensor<3x384xf64>"
    )


def test_a_repeated_operation_is_told_once_with_its_number() -> None:
    line = "    %9 = stablehlo.sqrt %8 : tensor<f32>\n"
    new = PROGRAM.replace("    return", line * 3 + "    return")
    assert told(PROGRAM, new) == "+ stablehlo.sqrt % : tensor<f32> (x3)"


def test_a_literal_is_compared_in_full_and_shown_cut() -> None:
    blob = "AB" * 4000
    old = PROGRAM.replace("3F8000003F8000003F8000003F800000", blob)
    new = old.replace(blob, blob[:-2] + "AC")
    words = told(old, new)
    assert words == (
        'stablehlo.constant dense<"0xABABABABABABABAB…" (4000 bytes)> : tensor<4xf32> (its literal differs)'
    )
    numbers = ", ".join(["1.0"] * 100)
    words = told(f"x.y dense<[{numbers}]>", f"x.y dense<[{numbers}, 2.0]>")
    assert len(words) < 120
    assert words.endswith("(its literal differs)")


def test_other_connections_are_told_though_the_operations_are_the_same() -> None:
    words = told(PROGRAM, PROGRAM.replace("add %arg0, %0", "add %0, %arg0"))
    assert words.startswith("the same operations, named or connected otherwise, first at line 4: ")
    assert "add %arg0, %0" in words


def test_another_order_is_told() -> None:
    lines = PROGRAM.split("\n")
    lines[3], lines[5] = lines[5], lines[3]
    words = told(PROGRAM, "\n".join(lines))
    assert words == "the same operations in another order, first at line 4: stablehlo.tanh % : tensor<3x384xf32>"


def test_brackets_only() -> None:
    assert told("a.b\n", "a.b\n}\n") == "only empty lines or brackets differ"


def test_few_operations_are_shown_and_the_rest_counted() -> None:
    old = "\n".join(f"x.op{n} : tensor<{n}xf32>" for n in range(40))
    words = told(old, old.replace("f32", "f16"))
    assert words.count(" -> ") == MAX_OPERATIONS
    assert words.endswith("and 34 more operations")
    assert words.startswith("x.op0 : tensor<0xf32> -> x.op0")


def test_a_long_line_is_shown_where_it_differs() -> None:
    args = ", ".join(f"%arg{n}: tensor<{n}xf32>" for n in range(300))
    old = f"func.func @main({args}) -> tensor<f32>"
    words = told(old, old.replace("tensor<200xf32>", "tensor<200xf16>"))
    assert "tensor<200xf32>" in words
    assert "tensor<200xf16>" in words
    assert len(words) < 3 * MAX_SHOWN


def test_large_programs_are_told_apart() -> None:
    old = "\n".join(f"    %{n} = stablehlo.add %{n - 1}, %{n - 2} : tensor<{n}x384xf32>" for n in range(60_000))
    new = old.replace(" tensor<30000x384xf32>", " tensor<30000x385xf32>").replace("    %0 =", "    %zero =")
    words = told(old, new)
    assert words.startswith("stablehlo.add %, % : tensor<30000x384xf32> -> ")
    assert words.count("->") == 1


_LINES = st.lists(st.sampled_from(["%0 = a.b %1", "%7 = a.b %2", "c.d ^bb1", "}", "", "%x = e.f"]), max_size=8)


@settings(max_examples=200, deadline=None)
@given(old=_LINES, new=_LINES)
def test_only_equal_texts_have_no_words(old: list[str], new: list[str]) -> None:
    words = told("\n".join(old), "\n".join(new))
    assert (words == "") == (old == new or "\n".join(old) == "\n".join(new))
