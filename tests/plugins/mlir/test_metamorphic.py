"""Modules of three MLIRs, changed at random in ways that a program does not see, and in ways that it does.

Both hashes are held to it: that of the text, and that through bindings.
"""

from __future__ import annotations

import random
import re
import subprocess

import pytest

from cachec.errors import CheckpointError
from cachec_mlir import strip, topology
from cachec_mlir.live.bindings import Bindings, generic
from tests.plugins.mlir import test_topology as by_text
from tests.plugins.mlir.conftest import IREE_OPT, program

JAX = """\
module @jit_f attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=2, "y"=1]>
  func.func public @main(%arg0: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
      %arg1: tensor<8x4xf32>) -> (tensor<4x4xf32> {jax.result_info = "result"}) {
    %cst = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
    %splat = stablehlo.constant dense<0.0> : tensor<4x4xf32>
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT]
      : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %1 = stablehlo.broadcast_in_dim %cst, dims = [1] : (tensor<4xf32>) -> tensor<4x4xf32>
    %2 = stablehlo.add %0, %1 : tensor<4x4xf32>
    %3 = stablehlo.maximum %2, %splat : tensor<4x4xf32>
    %4 = call @inner(%3, %2) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    return %4 : tensor<4x4xf32>
  }
  func.func private @inner(%arg0: tensor<4x4xf32>, %arg1: tensor<4x4xf32>) -> tensor<4x4xf32> {
    %c = stablehlo.constant dense<3> : tensor<i32>
    %0:2 = stablehlo.while(%i = %c, %x = %arg0) : tensor<i32>, tensor<4x4xf32>
    cond {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %1 = stablehlo.compare GT, %i, %zero, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %1 = stablehlo.subtract %i, %one : tensor<i32>
      %2 = stablehlo.subtract %x, %arg1 : tensor<4x4xf32>
      stablehlo.return %1, %2 : tensor<i32>, tensor<4x4xf32>
    }
    return %0#1 : tensor<4x4xf32>
  }
}
"""
LOOPS = """\
#map = affine_map<(d0) -> (d0 * 2)>
module attributes {llvm.data_layout = "e-i64:64"} {
  memref.global "private" constant @table : memref<4xf32> = dense<[1.0, 2.0, 3.0, 4.0]>
  func.func private @external(f32) -> f32
  func.func @sum(%n: index, %m: memref<?xf32>) -> f32 {
    %zero = arith.constant 0.0 : f32
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %t = memref.get_global @table : memref<4xf32>
    %sum = scf.for %i = %c0 to %n step %c1 iter_args(%acc = %zero) -> (f32) {
      %k = affine.apply #map(%i)
      %v = memref.load %m[%k] : memref<?xf32>
      %w = memref.load %t[%c0] : memref<4xf32>
      %p = arith.mulf %v, %w : f32
      %next = arith.addf %acc, %p : f32
      scf.yield %next : f32
    }
    %big = arith.cmpf ogt, %sum, %zero : f32
    cf.cond_br %big, ^one(%sum : f32), ^two
  ^one(%a: f32):
    %b = func.call @external(%a) : (f32) -> f32
    return %b : f32
  ^two:
    return %zero : f32
  }
}
"""
#: Results of functions in all notations, values and aliases of equal meaning.
SIGNATURES = """\
#map = affine_map<(d0) -> (d0 * 2)>
#mapb = affine_map<(d0) -> (d0 * 2)>
module {
  func.func private @p(i32) -> tensor<4xi32, "a.b">
  util.func private @q(%a: tensor<4xi32>, %b: tensor<4xi32>) -> %a {
    util.return %a : tensor<4xi32>
  }
  util.func private @q2(%a: tensor<4xi32>, %b: tensor<4xi32>) -> (%b as tensor<4xi32>, tensor<4xi32>)
      attributes {inlining_policy = #util.inline.never} {
    util.return %a, %b : tensor<4xi32>, tensor<4xi32>
  }
  func.func @e(%a: tensor<4xi32, "x">, %b: tensor<4xi32, "x">) -> tensor<4xi32, "x"> {
    return %b : tensor<4xi32, "x">
  }
  func.func @f(%a: tensor<4xi32, {u.v = 1}>, %b: tensor<4xi32, {u.v = 1}>, %n: index) -> tensor<4xi32, {u.v = 1}>
      attributes {x = {y.z = loc("a")}} {
    %k = affine.apply #map(%n)
    %l = affine.apply #mapb(%k)
    %c = arith.cmpi eq, %k, %l : index
    %r = scf.if %c -> (tensor<4xi32, {u.v = 1}>) {
      %q = arith.addi %k, %l : index
      scf.yield %a : tensor<4xi32, {u.v = 1}>
    } else {
      %q = arith.subi %k, %l : index
      scf.yield %b : tensor<4xi32, {u.v = 1}>
    }
    scf.for %i = %k to %l step %n {
      %s = arith.addi %i, %k : index
      scf.for %j = %k to %s step %n {
        %t = arith.addi %j, %i : index
      }
    }
    scf.for %i = %l to %k step %n {
      %s = arith.addi %i, %k : index
    }
    return %r : tensor<4xi32, {u.v = 1}>
  }
}
"""
NAMES = [
    "iree signatures",
    "iree input",
    "iree flow",
    "iree stream",
    "jax",
    "jax minilm",
    "mlir19",
    "mlir19 generic",
    "mlir19 llvm",
]
#: IREE's MLIR has other rules for LLVM's dialect than MLIR 19.
READ = NAMES[:-1]
SEEDS = range(4)


@pytest.fixture(scope="module")
def texts(mlir_opt, minilm, tmp_path_factory) -> dict[str, str]:
    """As each tool prints them."""
    found = {"iree signatures": SIGNATURES, "jax": JAX, "jax minilm": minilm[0]}
    path = tmp_path_factory.mktemp("phases") / "m.mlir"
    path.write_text(program(0))
    for phase in ("input", "flow", "stream"):
        command = [IREE_OPT.with_name("iree-compile"), f"--compile-to={phase}", "--iree-hal-target-device=local"]
        command += ["--iree-hal-local-target-device-backends=llvm-cpu", path.name, "-o", "-"]
        done = subprocess.run(command, capture_output=True, cwd=path.parent, check=True)
        found[f"iree {phase}"] = done.stdout.decode()
    loops = LOOPS.encode()
    found["mlir19"] = mlir_opt(loops).decode()
    found["mlir19 generic"] = mlir_opt(loops, "--mlir-print-op-generic").decode()
    lowered = ("--lower-affine", "--convert-scf-to-cf", "--convert-arith-to-llvm", "--finalize-memref-to-llvm")
    lowered += ("--convert-func-to-llvm", "--convert-cf-to-llvm", "--reconcile-unrealized-casts")
    found["mlir19 llvm"] = mlir_opt(loops, *lowered).decode()
    # `spaces` would join what follows to the comments that are there.
    return {name: re.sub(r"(?m) +// .*$", "", text) for name, text in found.items()}


def bindings_for(name: str) -> str:
    return "jax" if name.startswith("jax") else "iree"


def one_function(text: str, r: random.Random) -> str:
    """Of a large module one function at a time: what is tested is quick then."""
    if len(text) < 20_000:
        return text
    pieces = [p for p in re.findall(r"(?ms)^  func\.func private.*?^  }\n", text) if "call @" not in p]
    return "module {\n" + r.choice(pieces) + "}\n"


# --- what does not count


@pytest.mark.sampled
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", NAMES)
def test_neutral_changes(texts, name, seed):
    r = random.Random(f"{name} {seed}")
    text = one_function(texts[name], r)
    changed = text
    for change in by_text.SAME:  # spaces come last
        if r.random() < 0.6:
            changed = change(changed, r)
    assert topology(changed.encode()) == topology(text.encode())
    through = bindings_for(name)
    if "#loc7" not in changed and read(Bindings(through), text) is not None:
        # MLIR looks for the end of a dialect's attribute by its brackets and quotes, those of comments included.
        changed = changed.replace('// a "comment { (', "// a comment")
        assert topology(changed.encode(), bindings=through) == topology(text.encode(), bindings=through)


@pytest.mark.parametrize("name", NAMES)
def test_a_module_is_the_same_wherever_it_lies(texts, name, tmp_path):
    text = texts[name].encode()
    for folder in ("a", "b/c"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / f"{folder[-1]}.mlir").write_bytes(text)
    found = {topology(tmp_path / "a" / "a.mlir"), topology(tmp_path / "b" / "c" / "c.mlir"), topology(text)}
    assert len(found) == 1


@pytest.mark.parametrize("name", READ)
def test_reading_and_printing_again_is_no_change(texts, name):
    """The same printer, with its own names for everything."""
    through = bindings_for(name)
    bindings = Bindings(through)
    live = bindings.parse(texts[name].encode())
    printed = live.operation.get_asm(binary=True)
    again = bindings.parse(printed).operation.get_asm(binary=True, enable_debug_info=True)
    assert topology(printed) == topology(again)
    assert topology(texts[name].encode(), bindings=through) == topology(printed, bindings=through)
    notation = generic(live)
    assert topology(notation) == topology(generic(bindings.parse(notation)))


# --- what counts

TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|->|[%^#!@]?[\w$.]+|\S')


def mutated(text: str, r: random.Random) -> str:
    """One change at random; most are a program still."""
    lines = text.split("\n")
    tokens = list(TOKEN.finditer(text.partition("{-#")[0]))
    token = r.choice(tokens)
    start, end, word = token.start(), token.end(), token[0]
    kind = r.randrange(10)
    if kind == 0:  # a line less, or twice, or another order
        number = r.randrange(1, len(lines) - 1)
        return "\n".join(lines[:number] + lines[number + 1 :])
    if kind == 1:
        number = r.randrange(1, len(lines) - 2)
        lines[number], lines[number + 1] = lines[number + 1], lines[number]
        return "\n".join(lines)
    if kind == 2:  # another number
        numbers = [m for m in tokens if re.fullmatch(r"\d+", m[0])] or tokens
        token = r.choice(numbers)
        return text[: token.start()] + str(r.randrange(9)) + text[token.end() :]
    if kind == 3:  # another name of the same sort, from anywhere
        same = [m[0] for m in tokens if m[0][0] == word[0] and m[0] != word] or [word]
        return text[:start] + r.choice(same) + text[end:]
    if kind == 4:  # another value
        values = [m for m in tokens if m[0][0] == "%"] or tokens
        token, other = r.choice(values), r.choice(values)
        return text[: token.start()] + other[0] + text[token.end() :]
    if kind == 5:  # another operation
        names = [m for m in tokens if re.fullmatch(r'"?[a-z_]+\.[a-z_.]+"?', m[0])] or tokens
        token, other = r.choice(names), r.choice(names)
        return text[: token.start()] + other[0] + text[token.end() :]
    if kind == 6:  # another type
        types = list(re.finditer(r"\b[fi](?:1|8|16|32|64)\b|(?<=x)[fi](?:8|16|32|64)\b", text))
        if types:
            found = r.choice(types)
            return text[: found.start()] + r.choice(["f32", "f64", "i32", "i8"]) + text[found.end() :]
    if kind == 7:  # an attribute less, or one more
        found = r.choice([*re.finditer(r"[\w.]+ = [^,{}<>\n]+, ", text), token])
        return text[: found.start()] + text[found.end() :]
    if kind == 8 and "attributes {" in text:
        return text.replace("attributes {", f"attributes {{a.x{r.randrange(9)}, ", 1)
    return text[:start] + text[end:]


def read(bindings: Bindings, text: str) -> bytes | None:
    try:
        return generic(bindings.parse(text.encode()))
    except CheckpointError:
        return None


@pytest.mark.parametrize("name", READ)
@pytest.mark.sampled
def test_whatever_mlir_calls_another_program_has_another_hash(texts, name):
    """Any change at random. MLIR itself is the judge: what it prints in generic notation differs, or it does not.

    It is asked where the hash says that two are the same, and about some of the others.
    """
    through = bindings_for(name)
    bindings = Bindings(through)
    r = random.Random(name)
    other = 0
    for count in range(200):
        if count >= 100 and other == 6:
            break
        text = one_function(texts[name], r)
        changed = mutated(text, r)
        if changed == text or changed.partition("{-#")[2] != text.partition("{-#")[2]:
            continue
        try:
            is_same = topology(changed.encode()) == topology(text.encode())
        except CheckpointError:  # no module at all
            continue
        if other == 6 and not is_same:
            continue
        base, now = read(bindings, text), read(bindings, changed)
        assert base is not None
        if now is None:
            continue
        through_bindings = [topology(each.encode(), bindings=through) for each in (text, changed)]
        if now == base:
            assert through_bindings[0] == through_bindings[1]
        else:
            other += 1
            assert not is_same, (text, changed)
            assert through_bindings[0] != through_bindings[1]
    assert other >= 3


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("jax", '[{"x"}, {}]', '[{}, {"x"}]'),  # a sharding
        ("jax", '["x"=2, "y"=1]', '["x"=1, "y"=2]'),  # a mesh
        ("jax", "num_partitions = 2", "num_partitions = 4"),
        ("jax", "public @main", "private @main"),
        (
            "jax",
            "dense<0.0> : tensor<4x4xf32>",
            f"dense<{[[0.0] * 4, [0.0] * 4, [0.0] * 4, [1.0] * 4]}> : tensor<4x4xf32>",
        ),
        ("jax", "dense<[1.0, 2.0, 3.0, 4.0]>", "dense<1.0>"),  # a list against a splat
        ("jax", "precision = [DEFAULT, DEFAULT]", "precision = [HIGHEST, DEFAULT]"),
        ("jax", "compare GT", "compare GE"),
        ("jax", "@inner(%3, %2)", "@inner(%2, %3)"),
        ("jax", "return %0#1", "return %arg1"),
        ("mlir19", "i64:64", "i64:32"),  # the data layout
        ("mlir19", "dense<[1.0", "dense<[1.5"),
        ("mlir19", "(d0 * 2)", "(d0 * 4)"),
        ("mlir19", "^one(%sum : f32), ^two", "^two, ^one(%sum : f32)"),
        ("mlir19", "cmpf ogt", "cmpf oge"),
        ("mlir19", "step %c1", "step %c0"),
        ("mlir19", "@external(f32) -> f32", "@external(f32) -> (f32 {a.b})"),
    ],
)
def test_a_change_by_hand_counts(name, old, new):
    text = {"jax": JAX, "mlir19": LOOPS}[name]
    changed = text.replace(old, new)
    assert changed != text
    assert topology(changed.encode()) != topology(text.encode())
    through = bindings_for(name)
    assert topology(changed.encode(), bindings=through) != topology(text.encode(), bindings=through)


def test_tied_symbols_count():
    """Two uses of one weight, and one use each of two."""
    text = program(0)
    for changed in (text.replace("load @w2", "load @w1"), text.replace("dense_resource<w2>", "dense_resource<w1>")):
        assert changed != text
        assert topology(changed.encode()) != topology(text.encode())
        assert strip(changed.encode()).ir != strip(text.encode()).ir


@pytest.mark.parametrize("seed", SEEDS)
def test_random_weights_do_not_count(seed):
    text, other = program(0).encode(), program(seed).encode()
    for how in ({}, {"bindings": "iree"}):
        assert topology(text, **how) == topology(other, **how)
    lists = re.sub(rb'"0x\w+"', b'"0x1000000000000000"', text)
    assert topology(lists) != topology(text)
