"""Weights of every form that a text may hold them in: as resources, IREE parameters, externals, undefined symbols."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from cachec.errors import CheckpointError, UsageError
from cachec.weights.dtypes import numpy_dtype
from cachec_mlir import strip
from cachec_mlir.blobs import ELEMENTS
from cachec_mlir.text.dense_elements import parse_elements
from tests.plugins.mlir.conftest import IREE_OPT, PROGRAM, arrays, program, trailer

MLIR_OPT = shutil.which("mlir-opt-19")
X = np.linspace(-1, 1, 32, dtype="f4").reshape(4, 8)


def listed(value: np.ndarray) -> str:
    """Numbers as MLIR prints them, or close to it."""
    if value.ndim:
        return "[" + ", ".join(listed(each) for each in value) + "]"
    if value.dtype.kind == "b":
        return "true" if value else "false"
    return str(int(value)) if value.dtype.kind in "iu" else f"{float(value):.9e}"


def digits(value: np.ndarray) -> str:
    return f'"0x{value.tobytes().hex().upper()}"'


LOCAL = """\
func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> attributes {{a.b = {{c = 1 : i32}}}} {{
{constants}
  %c = arith.constant dense<0.0> : tensor<4x16xf32>
  %h = linalg.matmul ins(%x, %w1 : tensor<4x8xf32>, tensor<8x16xf32>) outs(%c : tensor<4x16xf32>) -> tensor<4x16xf32>
  %t = math.tanh %h : tensor<4x16xf32>
  %d = arith.constant dense<0.0> : tensor<4x8xf32>
  %y = linalg.matmul ins(%t, %w2 : tensor<4x16xf32>, tensor<16x8xf32>) outs(%d : tensor<4x8xf32>) -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}}
"""
HOLDERS = {
    "arith": "  %{name} = arith.constant {value} : {type}",
    "stablehlo": "  %{name} = stablehlo.constant {value} : {type}",
    "tosa": '  %{name} = "tosa.const"() <{{values = {value} : {type}}}> : () -> {type}',
    "tosa custom": "  %{name} = tosa.const  values({value} : {type}) : () -> {type}",
    "generic": '  %{name} = "arith.constant"() <{{value = {value} : {type}}}> : () -> {type}',
}
TYPES = {"w1": "tensor<8x16xf32>", "w2": "tensor<16x8xf32>"}


def local_program(seed: int, holder: str, form: Callable[[np.ndarray], str], *, module: bool = True) -> str:
    """Two matmuls whose weights are constants of the function."""
    lines = "\n".join(
        HOLDERS[holder].format(name=name, value=f"dense<{form(value)}>", type=TYPES[name])
        for name, value in arrays(seed).items()
    )
    text = LOCAL.format(constants=lines)
    return (
        f"module @m attributes {{x.y = 1 : i32}} {{\n{text}}}\n"
        if module
        else f"#map = affine_map<(d0) -> (d0)>\n{text}"
    )


def global_program(seed: int, form: Callable[[np.ndarray], str]) -> str:
    return PROGRAM.format(**{name: f"dense<{form(value)}>" for name, value in arrays(seed).items()})


FORMS: dict[str, Callable[[int], str]] = {
    "global list": lambda seed: global_program(seed, listed),
    "global digits": lambda seed: global_program(seed, digits),
    "global resource": program,
    "local without a module": lambda seed: local_program(seed, "arith", listed, module=False),
    **{
        f"{holder} {name}": lambda seed, holder=holder, form=form: local_program(seed, holder, form)
        for holder in HOLDERS
        for name, form in (("list", listed), ("digits", digits))
    },
}


def weights_in(stripped) -> list[np.ndarray]:
    found = stripped.resources.weights()
    return [found[name].read() for name in stripped.resources]


@pytest.mark.parametrize("to", ["resource", "parameter"])
@pytest.mark.parametrize("form", FORMS)
def test_weights_are_taken_out_of_every_form(form, to):
    one, other = (strip(FORMS[form](seed).encode(), to=to) for seed in (0, 1))
    assert one.ir == other.ir
    assert len(one.ir) < 2200
    for found, expected in zip(weights_in(one), arrays(0).values(), strict=True):
        np.testing.assert_array_equal(found, expected)
    names = list(one.resources)
    assert names == (["w1", "w2"] if form.startswith("global") else ["main.8x16xf32.0", "main.16x8xf32.0"])
    assert list(one.lifted) == ([] if form == "global resource" else names)
    for name in names:
        reference = f'#flow.parameter.named<"model"::"{name}">' if to == "parameter" else f"dense_resource<{name}>"
        assert one.ir.count(reference.encode()) == 1
    assert strip(one.ir, to=to).ir == one.ir


# Of a constant in a function, digits and a list are the same text when stripped.
@pytest.mark.parametrize("form", [form for form in FORMS if form.startswith("global") or not form.endswith("digits")])
@pytest.mark.sampled
def test_iree_compiles_it_once_for_all_weights(form, tmp_path):
    """With parameters of either set it computes what the module with those weights inside does, and what numpy does."""
    from cachec_iree.runtime import LinkedModule

    inside = LinkedModule(compiled(FORMS[form](0).encode(), tmp_path / "inside"), {})(X)
    stripped = strip(FORMS[form](0).encode(), to="parameter")
    vmfb = compiled(stripped.ir, tmp_path / "stripped")
    for seed in (0, 1):
        source = strip(FORMS[form](seed).encode(), to="parameter")
        weights = source.resources.weights()
        found = LinkedModule(vmfb, {name: weight.raw() for name, weight in weights.items()})(X)
        values = arrays(seed)
        np.testing.assert_allclose(found, np.tanh(X @ values["w1"]) @ values["w2"], atol=1e-5)
        if seed == 0:
            np.testing.assert_allclose(found, inside, atol=1e-5)


def compiled(module: bytes, stem: Path) -> Path:
    source, out = stem.with_suffix(".mlir"), stem.with_suffix(".vmfb")
    source.write_bytes(module)
    flags = ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx"]
    done = subprocess.run([IREE_OPT.with_name("iree-compile"), *flags, source, "-o", out], capture_output=True)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[:3000]
    return out


def test_generic_notation_of_iree(iree_opt):
    text = iree_opt(FORMS["global list"](0).encode(), "--mlir-print-op-generic", *PRINT_ALL)
    assert b'"util.global"() <{' in text
    for to in ("resource", "parameter"):
        stripped = strip(text, to=to)
        assert list(stripped.resources) == ["w1", "w2"]
        again = iree_opt(stripped.ir)
        assert again.count(b"dense_resource<" if to == "resource" else b"#flow.parameter.named<") == 2
    local = iree_opt(FORMS["arith list"](0).encode(), "--mlir-print-op-generic", *PRINT_ALL)
    stripped = strip(local, to="parameter")
    assert list(stripped.resources) == ["main.8x16xf32.0", "main.16x8xf32.0"]
    assert iree_opt(stripped.ir).count(b"util.global.load immutable") == 2


PRINT_ALL = ("--mlir-print-elementsattrs-with-hex-if-larger=-1",)

# --- elements


def number_text(r: np.random.Generator, kind: str) -> str:
    if "f" in kind:
        picks = (
            f"{r.uniform(-100, 100)!r}",
            f"{r.uniform(-1, 1) * 2.0 ** r.integers(-20, 6):.17e}",
            f"{(r.integers(0, 1023) / 256 + 2**-9) * (1 + r.choice([0, 1e-16, -1e-16])):.20f}",
            f"{r.integers(1, 300) * 2.0 ** -r.integers(1, 20):.25f}",
            f"-{r.integers(0, 9)}.0",
            f"{2.0 ** -r.integers(10, 160) * r.random():.17e}",
        )
        return str(r.choice(picks))
    info = np.iinfo(ELEMENTS[kind])
    picks = (int(info.min), int(info.max), 0, int(r.integers(info.min, info.max, dtype=info.dtype)))
    return str(picks[r.integers(len(picks))])


@pytest.mark.sampled
@pytest.mark.parametrize(
    "kind",
    [
        "f64",
        "f32",
        "f16",
        "bf16",
        "f8E4M3FN",
        "f8E5M2",
        "f8E5M2FNUZ",
        "i8",
        "i16",
        "i32",
        "i64",
        "ui8",
        "si16",
        "ui64",
        "index",
    ],
)
def test_numbers_become_what_mlir_makes_of_them(kind, iree_opt):
    r = np.random.default_rng(list(kind.encode()))
    rows = ["[" + ",  ".join(number_text(r, kind) for _ in range(7)) + "]" for _ in range(60)]
    text = "[" + ",\n ".join(rows) + "]"
    module = f'"a.b"() {{value = dense<{text}> : tensor<60x7x{kind}>}} : () -> ()\n'
    printed = iree_opt(module.encode(), "--allow-unregistered-dialect")
    expected = bytes.fromhex(printed.partition(b'"0x')[2].partition(b'"')[0].decode())
    assert parse_elements(text.encode(), 0, len(text), ELEMENTS[kind], (60, 7)) == expected
    stripped = strip(module.encode())
    weight = stripped.resources.weights()["module.60x7x" + kind + ".0"]
    assert (weight.dtype, weight.shape, bytes(weight.raw())) == (ELEMENTS[kind], (60, 7), expected)


def test_complex_numbers_and_booleans_and_bit_patterns():
    r = np.random.default_rng(0)
    pairs = r.normal(size=(70, 2)).astype("f4")
    text = "[" + ", ".join(f"({a:.9e},{b:.9e})" for a, b in pairs) + "]"
    assert parse_elements(text.encode(), 0, len(text), "complex64", (70,)) == pairs.tobytes()
    flags = r.random(100) < 0.5
    text = listed(flags)
    assert parse_elements(text.encode(), 0, len(text), "bool", (100,)) == flags.tobytes()
    text = "[0x7FC00001, 1.0, -2.5, 0xFF800000]"
    assert parse_elements(text.encode(), 0, len(text), "float32", (4,)) == bytes.fromhex(
        "0100c07f0000803f000020c0000080ff"
    )
    text = "[0x7F, 1, -128, 18, 0x0]"
    assert parse_elements(text.encode(), 0, len(text), "int8", (5,)) == b"\x7f\x01\x80\x12\x00"
    text = "[18446744073709551615, 0, 0xFFFFFFFFFFFFFFFF]"
    assert parse_elements(text.encode(), 0, len(text), "uint64", (3,)) == b"\xff" * 8 + bytes(8) + b"\xff" * 8


def test_lists_longer_than_a_step():
    value = np.random.default_rng(0).normal(size=(3, 70_001)).astype("f4")
    text = listed(value).encode()
    assert len(text) > 3 << 20
    assert parse_elements(text, 0, len(text), "float32", value.shape) == value.tobytes()
    pairs = value[:, :70_000].copy().view("c8")
    text = "[" + ", ".join("[" + ", ".join(f"({z.real:.9e}, {z.imag:.9e})" for z in row) + "]" for row in pairs) + "]"
    assert parse_elements(text.encode(), 0, len(text), "complex64", pairs.shape) == pairs.tobytes()


@pytest.mark.parametrize(
    ("text", "dtype", "shape"),
    [
        ("[1.0, 2.0]", "float32", (3,)),
        ("[1.0, 2.0]", "float32", (2, 1)),
        ("[[1.0], [2.0, 3.0]]", "float32", (2, 2)),
        ("[[1.0, 2.0], 3.0]", "float32", (2, 2)),
        ("[1.0, 2.0", "float32", (2,)),
        ("[1.0,, 2.0]", "float32", (3,)),
        ("[1.0, 2.0,]", "float32", (2,)),
        ("[1, 2]", "float32", (2,)),  # MLIR refuses it
        ("[1.0, 2.0]", "int32", (2,)),
        ("[1 0, 2]", "int32", (2,)),
        ("[- 1, 2]", "int32", (2,)),
        ("[300, 2]", "int8", (2,)),
        ("[-1, 2]", "uint8", (2,)),
        ("[0x1FF, 2]", "int8", (2,)),
        ("[99999999999999999999, 2]", "int64", (2,)),
        ("[0x1FFFFFFFF, 2.0]", "float32", (2,)),
        ("[1.0e39, 2.0]", "float32", (2,)),
        ("[1.0e5, 2.0]", "float16", (2,)),
        ("[500.0, 2.0]", "float8_e4m3fn", (2,)),
        ("[1.0e999, 2.0]", "float64", (2,)),
        ("[nan, 2.0]", "float32", (2,)),
        ("[1_0.0, 2.0]", "float32", (2,)),
        ("[+1.0, 2.0]", "float32", (2,)),
        ("[.5, 2.0]", "float32", (2,)),
        ("[(1.0, 2.0), 3.0]", "complex64", (2,)),
        ("[1.0, 2.0]", "complex64", (1,)),
        ("[true, 1]", "bool", (2,)),
        ("[1.0, 2.0]", "float8_e8m0fnu", (2,)),
        ("[1.0, // c\n 2.0]", "float32", (2,)),
        ("[]", "float32", (0,)),
        ("[" * 3000 + "1.0" + "]" * 3000, "float32", (1,)),
    ],
)
def test_lists_that_are_not_certain_stay(text, dtype, shape):
    assert parse_elements(text.encode(), 0, len(text), dtype, shape) is None


def test_every_double_rounds_once(iree_opt):
    """bfloat16 of doubles that lie by a hair beside the middle of two: through float32 they would round twice."""
    middles = (np.arange(1, 200, 2, dtype="f8") / 256 + 1).repeat(3)
    values = middles * (1 + np.tile([0, 2.0**-40, -(2.0**-40)], 100))
    text = "[" + ", ".join(f"{v:.17e}" for v in values) + "]"
    expected = iree_opt(
        f'"a.b"() {{v = dense<{text}> : tensor<300xbf16>}} : () -> ()'.encode(), "--allow-unregistered-dialect"
    )
    raw = bytes.fromhex(expected.partition(b'"0x')[2].partition(b'"')[0].decode())
    assert parse_elements(text.encode(), 0, len(text), "bfloat16", (300,)) == raw
    assert values.astype("f4").astype(ml_dtypes.bfloat16).tobytes() != raw


# --- what stays


@pytest.mark.parametrize(
    "operation",
    [
        '"op"() {padding = VALUE : tensor<100xi64>} : () -> ()',
        '"op"() <{replica_groups = VALUE : tensor<100xi64>}> : () -> ()',
        "%0 = foo.conv %a, %b {window = {stride = VALUE : tensor<100xi64>}} : tensor<4xf32>",
        "#alias = VALUE : tensor<100xi64>",
        '"op"() {value = VALUE : !some.type} : () -> ()',
        '"op"() {value = VALUE} : () -> ()',
    ],
)
def test_settings_stay_and_count(operation):
    for values in (range(100), np.arange(100, dtype="i8")):
        value = f"dense<{listed(np.asarray(values))}>" if isinstance(values, range) else f"dense<{digits(values)}>"
        data = operation.replace("VALUE", value).encode()
        for to in ("resource", "parameter", "external", "undefined"):
            assert strip(data, to=to).ir == data
            assert not strip(data, to=to).resources


@pytest.mark.parametrize("beside", ['{u = "a//b"}', '{u = "dense<[1]>"}', '{u = "\\22//"}'])
def test_a_text_beside_a_weight_is_a_text(beside):
    text = FORMS["global list"](0).replace("@w1 =", f"@w1 {beside} =")
    assert beside in text
    assert list(strip(text.encode()).lifted) == ["w1", "w2"]


def test_small_constants_and_splats_stay():
    text = local_program(0, "arith", listed).encode()
    assert strip(text, minimum=513).ir == text
    assert strip(text, minimum=512).lifted == ("main.8x16xf32.0", "main.16x8xf32.0")
    for to in ("resource", "parameter"):
        assert strip(text, to=to).ir.count(b"dense<0.0>") == 2


PLACES = """\
module {{
  util.func private @f(%a: tensor<4xf32> {{some.attr = "a {{"}}) -> (tensor<64xf32> {{b.c}}) {{
    %0 = arith.constant {value} : tensor<64xf32>
    util.return %0 : tensor<64xf32>
  }}
  func.func @g(%p: i1) -> tensor<64xf32> {{
    %0 = scf.if %p -> tensor<64xf32> {{
      %1 = arith.constant {value} : tensor<64xf32>
      scf.yield %1 : tensor<64xf32>
    }} else {{
      %2 = arith.constant {value} : vector<64xf32>
      scf.yield %2 : tensor<64xf32>
    }}
    %3 = arith.constant {{kept = 1 : i32}} {value} : tensor<64xf32>
    return %0 : tensor<64xf32>
  }}
  hal.executable private @e {{
    builtin.module {{
      func.func @h() {{
        %0 = arith.constant {value} : tensor<64xf32>
        return
      }}
    }}
  }}
}}
"""


def test_a_parameter_stands_only_where_a_global_can_be_loaded():
    value = np.arange(64, dtype="f4")
    text = PLACES.format(value=f"dense<{listed(value)}>").encode()
    stripped = strip(text, to="parameter")
    assert stripped.lifted == ("f.64xf32.0",)
    assert stripped.ir.count(b"arith.constant dense<[") == 3
    assert b"{kept = 1 : i32} dense<[" in stripped.ir
    assert stripped.ir.startswith(
        b'module {\n  util.global private @f.64xf32.0 = #flow.parameter.named<"model"::"f.64xf32.0"> : tensor<64xf32>\n'
    )
    assert b"%0 = util.global.load immutable @f.64xf32.0 : tensor<64xf32>\n    util.return" in stripped.ir
    assert strip(text).lifted == ("f.64xf32.0", "g.64xf32.0", "g.64xf32.1", "g.64xf32.2", "h.64xf32.0")


def test_a_resource_that_is_needed_in_place_stays_as_a_whole():
    """Used by a global and by an operation that takes no parameter: its bytes stay, so they count."""
    text = (
        "module {\n  util.global private @a = dense_resource<w1> : tensor<8x16xf32>\n"
        "  util.global private @b = dense_resource<w2> : tensor<16x8xf32>\n"
        '  "some.op"() {value = dense_resource<w1> : tensor<8x16xf32>} : () -> ()\n}\n' + trailer(arrays(0))
    ).encode()
    stripped = strip(text, to="parameter")
    assert list(stripped.resources) == ["w2"]
    assert stripped.ir.count(b"dense_resource<w1>") == 2
    assert b'w1: "0x10000000' in stripped.ir
    assert b"w2: " not in stripped.ir
    other = text.replace(b'w1: "0x10000000', b'w1: "0x20000000')
    assert strip(other, to="parameter").ir != stripped.ir


def test_one_resource_of_two_constants_is_one_parameter():
    text = (
        "module {\n  func.func @main() {\n"
        "    %0 = arith.constant dense_resource<w1> : tensor<8x16xf32>\n"
        "    %1 = arith.constant dense_resource<w1> : tensor<8x16xf32>\n    return\n  }\n}\n"
        + trailer({"w1": arrays(0)["w1"]})
    ).encode()
    stripped = strip(text, to="parameter")
    assert list(stripped.resources) == ["w1"]
    assert stripped.lifted == ()
    assert stripped.ir.count(b"#flow.parameter.named") == 1
    assert stripped.ir.count(b"util.global.load immutable @w1 : ") == 2


def test_names_are_kept_stable_and_never_taken_twice():
    value = np.arange(64, dtype="f4")
    constant = f"dense<{listed(value)}> : tensor<64xf32>"
    base = f"module {{\n  func.func @f() {{\n    %a = arith.constant {constant}\n    return\n  }}\nMORE\n}}\n"
    alone = strip(base.replace("MORE", "").encode()).lifted
    assert alone == ("f.64xf32.0",)
    # Another function in front, another type, another operation: the same name.
    other = base.replace(
        "module {\n", f"module {{\n  func.func @e() {{\n    %a = arith.constant {constant}\n    return\n  }}\n"
    )
    assert strip(other.encode()).lifted == ("e.64xf32.0", "f.64xf32.0")
    wide = base.replace(
        "    %a", f"    %b = arith.constant dense<{listed(value.reshape(8, 8))}> : tensor<8x8xf32>\n    %a"
    )
    assert strip(wide.encode()).lifted == ("f.8x8xf32.0", "f.64xf32.0")
    # Names that are there: a resource's, a symbol's.
    taken = base.replace("MORE", "  util.global private @g = dense_resource<f.64xf32.0> : tensor<4xf32>")
    taken += trailer({"f.64xf32.0": np.zeros(4, "f4")})
    assert strip(taken.encode()).lifted == ("f.64xf32.0.2",)
    symbol = base.replace("MORE", "  util.global private @f.64xf32.0 : tensor<4xf32>")
    stripped = strip(symbol.encode(), to="parameter")
    assert stripped.lifted == ("f.64xf32.0",)
    assert b"util.global.load immutable @f.64xf32.0.2 : " in stripped.ir
    # Two modules in one text, whose globals have one name.
    twice = "".join(f"module @m{i} {{\n  util.global private @w = {constant}\n}}\n" for i in range(2))
    assert strip(twice.encode(), to="parameter").lifted == ("w", "w.2")


def test_a_name_of_a_parameter_that_is_there_is_taken():
    constant = f"dense<{listed(np.arange(64, dtype='f4'))}> : tensor<64xf32>"
    there = '  util.global private @a = #flow.parameter.named<"model"::"w"> : tensor<64xf32>\n'
    text = f"module {{\n{there}  util.global private @w = {constant}\n}}\n".encode()
    assert strip(text, to="parameter").lifted == ("w.2",)
    assert strip(text, to="parameter", scope="other").lifted == ("w",)


@pytest.mark.parametrize("value", ["dense<{}>", "dense_resource<key>"])
def test_a_symbol_that_two_modules_declare_is_no_reference(value):
    """A linker would have one of them for both: they keep their bytes."""
    numbers = np.arange(64, dtype="f4")
    module = f"module @m%d {{\n  memref.global constant @w : memref<64xf32> = {value.format(listed(numbers))}\n}}\n"
    text = (module % 0 + module % 1 + (trailer({"key": numbers}) if "key" in value else "")).encode()
    stripped = strip(text, to="undefined")
    assert not stripped.resources
    assert stripped.ir == text


def test_a_resource_of_the_name_of_a_parameter_is_refused():
    """Two weights would be one."""
    text = 'util.global private @a = #flow.parameter.named<"model"::"w"> : tensor<4xf32>\n'
    text += "util.global private @b = dense_resource<w> : tensor<4xf32>\n"
    for each in (text, text + trailer({"w": np.ones(4, "f4")})):
        with pytest.raises(UsageError, match=r"'w'.*another scope="):
            strip(each.encode(), to="parameter")
        assert strip(each.encode(), to="parameter", scope="other").ir.count(b'"other"::"w"') == 1
        assert strip(each.encode()).ir.count(b"dense_resource<w>") == 1


def test_quoted_symbols_are_names():
    constant = f"dense<{listed(np.arange(64, dtype='f4'))}> : tensor<64xf32>"
    text = f'module {{\n  util.global private @"layers/0.w" = {constant}\n}}\n'.encode()
    assert strip(text, to="parameter").lifted == ("layers/0.w",)
    assert b'#flow.parameter.named<"model"::"layers/0.w">' in strip(text, to="parameter").ir
    assert b'dense_resource<"layers/0.w">' in strip(text).ir
    assert b'named<"a \\22b"::' in strip(text, to="parameter", scope='a "b').ir


# --- other consumers


def test_ml_program_globals_become_external(iree_opt):
    value = arrays(0)["w1"]
    text = (
        f"module {{\n  ml_program.global private @w1(dense<{listed(value)}> : tensor<8x16xf32>) : tensor<8x16xf32>\n"
        "  ml_program.global private mutable @state(dense<0.0> : tensor<4xf32>) : tensor<4xf32>\n"
        "  ml_program.global public @w2(dense_resource<key> : tensor<16x8xf32>) : tensor<16x8xf32>\n}\n"
        + trailer({"key": arrays(0)["w2"]})
    )
    for module in (text.encode(), iree_opt(text.encode(), "--mlir-print-op-generic", *PRINT_ALL)):
        stripped = strip(module, to="external")
        assert sorted(stripped.resources) == ["w1", "w2"]
        found = stripped.resources.weights()
        for name, expected in arrays(0).items():
            np.testing.assert_array_equal(found[name].read(), expected)
        printed = iree_opt(stripped.ir)
        assert printed.count(b"ml_program.extern") == 2
        assert b"@state(dense<0.0" in printed
        assert b"mutable" in printed


MEMREF = """\
module {{
  memref.global "private" constant @w1 : memref<8x16xf32> = {w1} {{alignment = 64 : i64}}
  memref.global @w2 : memref<16x8xf32> = {w2}
  memref.global "private" constant @small : memref<2xf32> = dense<[1.0, 2.0]>
  memref.global "private" @strided : memref<64xf32, 1> = dense<{strided}>
}}
"""


@pytest.mark.skipif(MLIR_OPT is None and not os.environ.get("CI"), reason="mlir-opt-19 is not installed")
@pytest.mark.parametrize("form", ["list", "digits", "resource"])
@pytest.mark.parametrize("generic", [False, True])
def test_memref_globals_become_undefined_symbols(form, generic):
    values = arrays(0)
    write = {"list": lambda n: f"dense<{listed(values[n])}>", "digits": lambda n: f"dense<{digits(values[n])}>"}
    filled = {name: write.get(form, "dense_resource<{}>".format)(name) for name in values}
    text = MEMREF.format(**filled, strided=listed(np.arange(64, dtype="f4")))
    text += trailer(values) if form == "resource" else ""
    if generic:
        text = mlir_opt(text.encode(), "--mlir-print-op-generic", *PRINT_ALL).decode()
        assert '"memref.global"()' in text
    stripped = strip(text.encode(), to="undefined")
    assert list(stripped.resources) == ["w1", "w2"]
    for found, expected in zip(weights_in(stripped), values.values(), strict=True):
        np.testing.assert_array_equal(found, expected)
    printed = mlir_opt(stripped.ir)
    assert b"memref.global constant @w1 : memref<8x16xf32> {alignment = 64 : i64}\n" in printed
    assert b"memref.global @w2 : memref<16x8xf32>\n" in printed
    assert b'memref.global "private" constant @small : memref<2xf32> = dense<[1.0' in printed
    assert b"memref<64xf32, 1> = dense<" in printed
    lowered = mlir_opt(stripped.ir, "--finalize-memref-to-llvm")
    assert b"llvm.mlir.global external constant @w1()" in lowered


def mlir_opt(module: bytes, *options: str) -> bytes:
    done = subprocess.run([MLIR_OPT or "mlir-opt-19", *options, "-"], input=module, capture_output=True)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[:2000]
    return done.stdout


def test_what_is_not_a_target():
    with pytest.raises(UsageError, match="to expected one of resource, parameter, external, undefined, found 'file'"):
        strip(b"module {}", to="file")
    from tests.plugins.mlir.conftest import BLOBS, Builder

    with pytest.raises(UsageError, match="to='parameter' is for text"):
        strip(Builder().finish(BLOBS), to="parameter")


def test_elided_constants_are_lost(iree_opt, tmp_path):
    """All of them have one key, so they must never become one weight."""
    from cachec.errors import LinkError
    from cachec.weights import from_arrays
    from cachec_mlir import link, mark, refer

    text = iree_opt(FORMS["arith list"](0).encode(), "--mlir-elide-elementsattrs-if-larger=8")
    assert text.count(b"dense_resource<__elided__>") == 2
    assert strip(text).ir == text
    for to in ("parameter", "external", "undefined"):
        with pytest.raises(CheckpointError, match=f"byte {text.index(b'__elided__')}: a constant was elided"):
            strip(text, to=to)
    weights = from_arrays({"__elided__": np.zeros((8, 16), "f4")})
    for work in (lambda: link(text, weights, tmp_path / "out"), lambda: mark(text)):
        with pytest.raises(LinkError, match="elided"):
            work()
    with pytest.raises(CheckpointError, match="elided"):
        refer(text, weights, tmp_path / "out")
    assert not os.listdir(tmp_path)


def test_a_nul_is_no_text():
    with pytest.raises(CheckpointError, match="byte 9: text expected, found a NUL"):
        strip(b"module {}\0")


def test_dtypes_of_lists_are_all_known():
    assert all(numpy_dtype(dtype).itemsize for dtype in ELEMENTS.values())


def test_closed_over_weights_of_jax(tmp_path):
    """What JAX bakes into its main function, and those that it calls, becomes parameters: one module for all seeds."""
    import jax
    import jax.numpy as jnp

    from cachec_iree.runtime import LinkedModule

    def module(seed: int) -> bytes:
        w = arrays(seed)

        @jax.jit
        def second(h):
            return h @ w["w2"]

        return jax.jit(lambda x: second(jnp.tanh(x @ w["w1"]))).lower(X).as_text().encode()

    stripped = [strip(module(seed), to="parameter") for seed in (0, 1)]
    assert stripped[0].ir == stripped[1].ir
    assert len(stripped[0].lifted) == 2
    assert b"stablehlo.constant" not in stripped[0].ir
    vmfb = compiled(stripped[0].ir, tmp_path / "m")
    for seed in (0, 1):
        weights = stripped[seed].resources.weights()
        found = LinkedModule(vmfb, {name: weight.raw() for name, weight in weights.items()})(X)
        values = arrays(seed)
        np.testing.assert_allclose(found, np.tanh(X @ values["w1"]) @ values["w2"], atol=1e-5)
