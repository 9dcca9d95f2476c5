"""Differences of modules: what they name, where, and that they stay readable and quick."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from cachec.errors import UsageError
from cachec_mlir.explain.module_diff import OperationChange, difference
from cachec_mlir.explain.readable_text import cut_literals, make_readable, operations
from tests.plugins.mlir.conftest import IREE_OPT, arrays, program, trailer

BASE = program(0)


def kinds(found) -> list[tuple[str, str | None, str | None]]:
    return [(each.kind, each.old, each.new) for each in found.operations]


def compare(old: str, new: str, **options):
    return difference(old.encode(), new.encode(), **options)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.replace("%h", "%other"),
        lambda t: t.replace("math.tanh %h", "math.tanh   %h // fast\n     "),
        lambda t: t.replace("math.tanh %h : tensor<4x16xf32>", 'math.tanh %h : tensor<4x16xf32> loc("x":1:2)'),
        lambda t: program(3),
        lambda t: t.replace("\n  func", "\n\n\n  func"),
    ],
)
def test_no_difference(change) -> None:
    found = compare(BASE, change(BASE))
    assert found.same
    assert found.old == found.new
    assert (found.operations, found.weights) == ((), ())


def test_a_changed_operation_with_its_place() -> None:
    found = compare(BASE, BASE.replace("dense<0.0> : tensor<4x16xf32>", "dense<1.0> : tensor<4x16xf32>"))
    (change,) = found.operations
    assert (change.kind, change.function, change.old_line, change.new_line) == ("changed", "main", 7, 7)
    assert change.old == "%c = arith.constant dense<0.0> : tensor<4x16xf32>"
    assert change.new == "%c = arith.constant dense<1.0> : tensor<4x16xf32>"
    assert change.after.startswith("%w2 = util.global.load @w2")
    assert not found.same


def test_added_and_removed_operations() -> None:
    extra = "    %z = math.exp %t : tensor<4x16xf32>\n    %d ="
    found = compare(BASE, BASE.replace("    %d =", extra))
    assert kinds(found) == [("added", None, "%z = math.exp %t : tensor<4x16xf32>")]
    assert found.operations[0].new_line == 10
    back = compare(BASE.replace("    %d =", extra), BASE)
    assert kinds(back) == [("removed", "%z = math.exp %t : tensor<4x16xf32>", None)]


def test_another_operand_is_told_as_connected_otherwise() -> None:
    found = compare(BASE, BASE.replace("return %y", "return %d"))
    (change,) = found.operations
    assert change.kind == "connected"
    assert change.old != change.new
    assert not found.same


def test_weights_by_their_specs() -> None:
    w = arrays(0)
    text = BASE.partition("{-#")[0]
    found = compare(text + trailer({"w1": w["w1"]}), text + trailer(w, alignment=64))
    assert [(each.kind, each.name) for each in found.weights] == [("changed", "w1"), ("added", "w2")]
    assert found.weights[0].old == "tensor<8x16xf32>, 512 bytes, alignment 16"
    values = compare(BASE, program(1), values=True)
    assert [(each.kind, each.name) for each in values.weights] == [("values", "w1"), ("values", "w2")]
    assert not values.same
    assert compare(BASE, program(1)).same
    assert compare(BASE, program(0), values=True).same


def test_a_constant_that_stays_inline_is_told_by_its_digest_not_its_digits() -> None:
    one, other = (f'module attributes {{a.b = "0x{data * 4000}"}} {{\n}}\n' for data in ("00", "01"))
    found = compare(one, other)
    (change,) = found.operations
    assert change.kind == "changed"
    assert "4000 bytes" in (change.old or "")
    assert change.old != change.new
    assert len(change.old or "") < 250


def test_text_against_bytecode_through_one_mlir(tmp_path: Path) -> None:
    import subprocess

    (tmp_path / "a.mlir").write_text(BASE)
    (tmp_path / "c.mlir").write_text(BASE.replace("tanh", "exp"))
    for name in "ac":
        subprocess.run([IREE_OPT, "--emit-bytecode", f"{name}.mlir", "-o", f"{name}.mlirbc"], check=True, cwd=tmp_path)
    assert difference(tmp_path / "a.mlir", tmp_path / "a.mlirbc", bindings="iree", values=True).same
    found = difference(tmp_path / "a.mlir", tmp_path / "c.mlirbc", bindings="iree")
    assert found.notation == "iree"
    # the two share no name, so one is removed and one added
    assert {each.kind for each in found.operations} == {"added", "removed"}
    assert any("math.tanh" in (each.old or "") for each in found.operations)
    assert not difference(tmp_path / "a.mlirbc", tmp_path / "c.mlirbc").same
    with pytest.raises(UsageError, match="--bindings"):
        difference(tmp_path / "a.mlir", tmp_path / "a.mlirbc")


def lines_of(count: int, seed: int) -> list[str]:
    r = random.Random(seed)
    out = []
    for number in range(count):
        name = r.choice(["add", "mul", "sub"])
        out.append(f"    %{number} = arith.{name}f %a, %a {{tag = {r.randrange(count)} : i64}} : f32")
    return out


def module_of(lines: list[str]) -> str:
    return "func.func @f(%a: f32) {\n" + "\n".join(lines) + "\n    return\n}\n"


def test_every_edit_is_found_and_nothing_else() -> None:
    r = random.Random(5)
    for seed in range(20):
        old = lines_of(120, seed)
        new = list(old)
        removed = {new.pop(r.randrange(len(new))) for _ in range(r.randrange(3))}
        added = [f"    %x{n} = math.sqrt %a {{mark = {n} : i64}} : f32" for n in range(r.randrange(1, 4))]
        for line in added:
            new.insert(r.randrange(len(new)), line)
        found = compare(module_of(old), module_of(new))
        assert sorted(each.new for each in found.operations if each.kind == "added") == sorted(map(str.strip, added))
        assert sorted(each.old for each in found.operations if each.kind == "removed") == sorted(
            map(str.strip, removed)
        )
        assert len(found.operations) == len(added) + len(removed)


@pytest.mark.long
def test_large_modules_are_told_apart_in_seconds() -> None:
    old = lines_of(20_000, 1)
    new = list(old)
    new[10_000] = "    %n = math.sqrt %a : f32"
    started = time.monotonic()
    found = compare(module_of(old), module_of(new))
    assert time.monotonic() - started < 20
    assert len(found.operations) == 2
    # and two with nothing in common
    started = time.monotonic()
    other = [f"    %{n} = math.exp %a {{k = {n} : i64}} : f32" for n in range(5_000)]
    assert len(compare(module_of(old[:5_000]), module_of(other)).operations) == 10_000
    assert time.monotonic() - started < 20


def test_functions_and_names() -> None:
    found = operations(BASE.partition("{-#")[0])
    assert [each.function for each in found if each.name == "math.tanh"] == ["main"]
    assert [each.function for each in found if each.name == "util.global"] == ["", ""]
    assert [each.name for each in found if each.number == 1] == ["builtin.module"]
    generic = make_readable(BASE.encode(), "iree")
    assert [each.function for each in operations(generic.text) if each.name == "math.tanh"] == ["main"]
    assert generic.notation == "iree"


def test_cut_literals_of_different_content_look_different() -> None:
    texts = [f'"a.b"() {{x = "0x{data * 100}"}} : () -> ()\n'.encode() for data in ("00", "01")]
    (one, cut), (other, _) = map(cut_literals, texts)
    assert cut == 1
    assert one != other
    assert len(one) < 100


def test_a_change_is_data() -> None:
    change = OperationChange("added", "f", None, 1, None, "x")
    assert change == OperationChange("added", "f", None, 1, None, "x", "")
