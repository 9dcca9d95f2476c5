"""Link: references become bytes again, or are bound to a file that is used in place; nothing that does not fit."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from cachec.errors import LinkError, UsageError
from cachec.programs.program import Program
from cachec.weights import WeightSet, from_arrays, open_weights
from cachec.weights.manifest import Manifest
from cachec_mlir import link, load, refer, strip
from cachec_mlir.module_input import open_input
from cachec_mlir.text.references import references
from tests.plugins.mlir.conftest import BLOBS, Builder, arrays, program, trailer
from tests.plugins.mlir.text.test_weight_forms import (
    FORMS,
    MEMREF,
    MLIR_OPT,
    PRINT_ALL,
    X,
    compiled,
    digits,
    listed,
    mlir_opt,
)

NEEDS_MLIR_OPT = pytest.mark.skipif(MLIR_OPT is None and not os.environ.get("CI"), reason="mlir-opt-19 not installed")


def expected(seed: int) -> np.ndarray:
    values = arrays(seed)
    return np.tanh(X @ values["w1"]) @ values["w2"]


@pytest.mark.parametrize("form", ["global list", "arith digits", "tosa custom list"])
@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.sampled
def test_parameters_become_bytes_again(form, inline, tmp_path):
    from cachec_iree.runtime import LinkedModule

    stripped = strip(FORMS[form](0).encode(), to="parameter")
    names = dict(zip(stripped.resources, arrays(1), strict=True))
    out = tmp_path / "linked.mlir"
    link(
        stripped.ir,
        from_arrays(arrays(1)),
        out,
        references="parameter",
        names=names,
        inline=list(names) if inline else (),
        alignment=16,
    )
    assert out.read_bytes().count(b"dense<" if inline else b"dense_resource<") == (4 if inline else 2)
    assert b"#flow.parameter" not in out.read_bytes()
    np.testing.assert_allclose(LinkedModule(compiled(out.read_bytes(), tmp_path / "m"), {})(X), expected(1), atol=1e-5)


def test_a_scope_of_its_own(tmp_path):
    stripped = strip(program(0).encode(), to="parameter", scope="adapter")
    weights = from_arrays(arrays(0))
    with pytest.raises(LinkError, match="no bytes"):
        link(stripped.ir, from_arrays({}), tmp_path / "out", references="parameter", scope="adapter")
    link(stripped.ir, weights, tmp_path / "out", references="parameter", scope="adapter")
    other = link(stripped.ir, weights, tmp_path / "other", references="parameter", scope="model")
    assert other.unused == ("w1", "w2")
    assert (tmp_path / "other").read_bytes() == stripped.ir


@NEEDS_MLIR_OPT
@pytest.mark.parametrize("generic", [False, True])
def test_undefined_symbols_become_bytes_again(generic, tmp_path):
    text = MEMREF.format(
        w1=f"dense<{digits(arrays(0)['w1'])}>",
        w2=f"dense<{listed(arrays(0)['w2'])}>",
        strided=listed(np.arange(64, dtype="f4")),
    )
    stripped = strip(text.encode(), to="undefined").ir
    if generic:
        stripped = mlir_opt(stripped, "--mlir-print-op-generic", *PRINT_ALL)
    for inline in ((), ("w1", "w2")):
        link(stripped, from_arrays(arrays(1)), tmp_path / "out", references="undefined", inline=inline, alignment=16)
        printed = mlir_opt((tmp_path / "out").read_bytes())
        again = strip(printed, to="undefined")
        assert mlir_opt(again.ir) == mlir_opt(stripped)
        for name, value in arrays(1).items():
            np.testing.assert_array_equal(again.resources.weights()[name].read(), value)
    wrong = from_arrays({"w1": arrays(0)["w2"], "w2": arrays(0)["w2"]})
    with pytest.raises(LinkError, match=r"'w1'.*tensor<8x16xf32>.*float32 \[16, 8\]"):
        link(stripped, wrong, tmp_path / "wrong", references="undefined")
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.sampled
def test_externals_become_bytes_again(generic, iree_opt, tmp_path):
    """Also where the printer made an alias of them."""
    text = "module {\n" + "".join(
        f"  ml_program.global private @{name}(dense<{listed(value)}> : {kind}) : {kind}\n"
        for (name, value), kind in zip(arrays(0).items(), ("tensor<8x16xf32>", "tensor<16x8xf32>"), strict=True)
    )
    text += "  ml_program.global private @mine(#ml_program.extern : tensor<2xf32>) : tensor<2xf32>\n}\n"
    stripped = strip(text.encode(), to="external").ir
    printed = iree_opt(stripped, *(["--mlir-print-op-generic"] if generic else []))
    weights = from_arrays(arrays(1) | {"mine": np.ones(2, "f4")})
    for module in (stripped, printed):
        link(module, weights, tmp_path / "out", references="external", inline=["mine", "w1", "w2"])
        found = iree_opt((tmp_path / "out").read_bytes(), *PRINT_ALL)
        assert b"extern" not in found.replace(b"#extern", b"").split(b"module", 1)[1]
        again = strip(found, to="external")
        assert sorted(again.resources) == ["w1", "w2"]
        for name, value in arrays(1).items():
            np.testing.assert_array_equal(again.resources.weights()[name].read(), value)


def test_references_in_comments_and_strings_are_none():
    module = open_input(b"")
    text = b'// #flow.parameter.named<"model"::"a">\n"#flow.parameter.named<\\"model\\"::"\n'
    text += b"// memref.global @a : memref<1xf32>\n"
    for kind in ("resource", "parameter", "external", "undefined"):
        assert references(module, text, kind, "model") == []


# --- manifests


@pytest.mark.parametrize("form", ["text", "bytecode"])
def test_weights_are_checked_against_the_manifest(form, tmp_path):
    good = from_arrays({"a": np.arange(4, dtype="f4"), "b": np.arange(6, dtype="i2").reshape(2, 3)})
    if form == "text":
        ir = b'"op"() {a = dense_resource<a> : tensor<4xf32>, b = dense_resource<b> : tensor<2x3xi16>} : () -> ()\n'
    else:
        ir = Builder().finish([("a", None), ("b", None)])
    out = tmp_path / "out"
    link(ir, good, out, manifest=good.manifest)
    out.unlink()
    for changed, words in (
        ({"a": np.arange(5, dtype="f4")}, r"'a'.*expected|'a'.*takes 16 bytes"),
        ({"b": np.arange(6, dtype="i2")}, r"'b'.*(shape expected|expected tensor)"),
        ({"b": np.arange(6, dtype="u2").reshape(2, 3)}, r"'b'.*(dtype expected|expected tensor)"),
        ({"more": np.arange(1, dtype="u1")}, "extra 'more'"),
    ):
        with pytest.raises(LinkError, match=words):
            link(ir, overlaid(good, changed), out, manifest=good.manifest)
    with pytest.raises(LinkError, match="no bytes for 1 resources of the module, first 'b'"):
        link(ir, good.select(["a"]), out, manifest=good.manifest)
    # By other names, and resources, which have no types in bytecode.
    renamed = good.rename({"a": "x", "b": "y"})
    link(ir, renamed, out, names={"a": "x", "b": "y"}, manifest=good.manifest)
    with pytest.raises(LinkError, match="extra 'z'"):
        link(ir, overlaid(renamed, {"z": np.zeros(1)}), out, names={"a": "x", "b": "y"}, manifest=good.manifest)
    again = strip(out).resources
    link(ir, again, tmp_path / "again", manifest=good.manifest)
    short = strip(Builder().finish([("a", bytes(12)), ("b", bytes(12))])).resources
    with pytest.raises(LinkError, match="'a'"):
        link(ir, short, tmp_path / "short", manifest=good.manifest)
    assert sorted(os.listdir(tmp_path)) == ["again", "out"]


TIED = b'"op"() {a = dense_resource<a> : tensor<4xf32>, b = dense_resource<b> : tensor<4xf32>} : () -> ()\n'


@pytest.mark.parametrize("form", ["text", "bytecode", "load"])
def test_ties_are_checked_against_the_manifest(form, tmp_path):
    """A compiler may use one of two tied weights for both: two different ones would be linked and be wrong."""
    one, other = np.arange(4, dtype="f4"), np.arange(4, 8, dtype="f4")
    tied = from_arrays({"a": one, "b": one}, tied=[("a", "b")])
    apart = from_arrays({"a": one, "b": other})
    ir = TIED if form != "bytecode" else Builder().finish([("a", None), ("b", None)])
    out = tmp_path / "out"

    def bind(weights: object, names: dict[str, str] | None, manifest: Manifest) -> None:
        if form == "load":
            load(Program(ir, format="mlir:text", manifest=manifest), weights, bindings="iree", names=names)
        else:
            link(ir, weights, out, names=names, manifest=manifest)

    bind(tied, None, tied.manifest)
    bind(apart, None, apart.manifest)
    bind(tied.rename({"a": "x", "b": "w"}), {"a": "x", "b": "w"}, tied.manifest)
    bind(tied.select(["a"]), {"b": "a"}, tied.manifest)  # one weight for both is tied too
    equal = from_arrays({"a": one, "b": one})  # ties are stated, never inferred
    for weights, names, manifest in (
        (apart, None, tied.manifest),
        (equal, None, tied.manifest),
        (tied, None, apart.manifest),
        (apart.rename({"a": "x", "b": "w"}), {"a": "x", "b": "w"}, tied.manifest),
        (tied.select(["a"]), {"b": "a"}, apart.manifest),
    ):
        with pytest.raises(LinkError, match="alias expected"):
            bind(weights, names, manifest)


@pytest.mark.parametrize("form", ["text", "bytecode"])
def test_ties_of_resources_and_weights_that_the_ir_does_not_use(form, tmp_path):
    value = np.arange(4, dtype="f4")
    ir = TIED if form == "text" else Builder().finish([("a", None), ("b", None)])
    out = tmp_path / "out"
    tied = from_arrays({"a": value, "b": value}, tied=[("a", "b")])
    old = strip(Builder().finish([("a", value.tobytes()), ("b", value.tobytes())])).resources
    with pytest.raises(LinkError, match="alias expected"):  # two resources, and nothing says that they are one
        link(ir, old, out, manifest=tied.manifest)
    only = strip(Builder().finish([("a", value.tobytes())])).resources
    link(ir, only, out, names={"b": "a"}, manifest=tied.manifest)
    more = from_arrays({"a": value, "b": value, "unused": np.zeros((2, 3), "i2"), "c": value}, tied=[("b", "c")])
    link(ir, more, out, manifest=more.manifest)
    with pytest.raises(LinkError, match="'unused'"):
        link(ir, overlaid(more, {"unused": np.zeros(6, "i2")}), out, manifest=more.manifest)
    with pytest.raises(LinkError, match=r"'c'.*alias expected 'b'"):
        link(ir, overlaid(more, {"c": value}), out, manifest=more.manifest)
    with pytest.raises(LinkError, match="binds 'b' to 'a', and a weight 'b' was offered too"):
        link(ir, tied, out, names={"b": "a"}, manifest=tied.manifest)


def overlaid(weights: WeightSet, more: dict[str, np.ndarray]) -> WeightSet:
    return WeightSet.from_weights({**weights, **from_arrays(more)})


def test_what_link_refuses(tmp_path):
    with pytest.raises(UsageError, match="references expected one of"):
        link(b"", from_arrays({}), tmp_path / "x", references="file")
    with pytest.raises(UsageError, match="are for text"):
        link(Builder().finish(BLOBS), from_arrays({}), tmp_path / "x", references="parameter")
    assert not os.listdir(tmp_path)


# --- by reference


def test_a_checkpoint_is_used_in_place(tmp_path):
    """IREE runs the module with the file of the weights itself; the next file needs no compile."""
    text = FORMS["arith list"](0)
    outputs = []
    for seed in (0, 1):
        values = arrays(seed)
        named = {"layers.0": values["w1"], "layers.1": values["w2"], "unused": np.zeros(3)}
        path = tmp_path / f"w{seed}.safetensors"
        from_arrays(named).save(path)
        stripped = strip(text.encode(), to="parameter")
        weights = open_weights(path)
        names = dict(zip(stripped.resources, named, strict=False))
        done = refer(stripped.ir, weights, tmp_path / f"m{seed}.mlir", names=names)
        assert (done.archive, done.written, done.unused) == (path, False, ("unused",))
        assert done.nbytes == (tmp_path / f"m{seed}.mlir").stat().st_size
        outputs.append((tmp_path / f"m{seed}.mlir").read_bytes())
    assert outputs[0] == outputs[1]
    assert b'#flow.parameter.named<"model"::"layers.0">' in outputs[0]
    vmfb = compiled(outputs[0], tmp_path / "m")
    for seed in (0, 1):
        np.testing.assert_allclose(run(vmfb, tmp_path / f"w{seed}.safetensors", tmp_path), expected(seed), atol=1e-5)


def run(vmfb, archive, folder) -> np.ndarray:
    """By iree-run-module, which opens the archive by itself."""
    import subprocess

    np.save(folder / "x.npy", X)
    command = [Path(sys.executable).with_name("iree-run-module"), "--device=local-task", "--function=main"]
    command += [f"--module={vmfb}", f"--parameters=model={archive}"]
    command += [f"--input=@{folder / 'x.npy'}", f"--output=@{folder / 'y.npy'}"]
    done = subprocess.run(command, capture_output=True)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[:2000]
    return np.load(folder / "y.npy")


def test_weights_of_no_such_file_get_an_archive(tmp_path):
    stripped = strip(program(0).encode(), to="parameter")
    in_memory = from_arrays(arrays(1))
    done = refer(stripped.ir, in_memory, tmp_path / "m.mlir")
    assert (done.archive, done.written) == (tmp_path / "m.mlir.irpa", True)
    vmfb = compiled((tmp_path / "m.mlir").read_bytes(), tmp_path / "m")
    np.testing.assert_allclose(run(vmfb, done.archive, tmp_path), expected(1), atol=1e-5)
    # A file, but asked for otherwise; two files; a rename of the set only, which the file does not have.
    in_memory.save(tmp_path / "w.safetensors")
    weights = open_weights(tmp_path / "w.safetensors")
    done = refer(stripped.ir, weights, tmp_path / "m.mlir", archive=tmp_path / "own.irpa")
    assert (done.archive, done.written) == (tmp_path / "own.irpa", True)
    from_arrays({"w2": arrays(1)["w2"]}).save(tmp_path / "second.safetensors")
    second = open_weights(tmp_path / "second.safetensors")
    two = WeightSet.from_weights({"w1": weights["w1"], "w2": second["w2"]})
    assert refer(stripped.ir, two, tmp_path / "m.mlir").written
    renamed = weights.rename({"w1": "a", "w2": "b"})
    done = refer(stripped.ir, renamed, tmp_path / "m.mlir", names={"w1": "a", "w2": "b"})
    assert (done.archive, done.written) == (tmp_path / "w.safetensors", False)
    assert b'named<"model"::"w1">' in (tmp_path / "m.mlir").read_bytes()


@pytest.mark.long
def test_resources_without_bytes_become_references(tmp_path):
    """Of a stripped module of the other kind: globals and constants."""
    for form in ("global list", "arith list"):
        stripped = strip(FORMS[form](0).encode())
        named = dict(zip(stripped.resources, arrays(0), strict=True))
        done = refer(stripped.ir, from_arrays(arrays(1)), tmp_path / "m.mlir", names=named)
        vmfb = compiled((tmp_path / "m.mlir").read_bytes(), tmp_path / "m")
        np.testing.assert_allclose(run(vmfb, done.archive, tmp_path), expected(1), atol=1e-5)


def test_symbols_are_checked_and_stay(tmp_path):
    text = f"memref.global constant @w1 : memref<8x16xf32> = dense<{digits(arrays(0)['w1'])}>\n"
    ir = strip(text.encode(), to="undefined").ir
    done = refer(ir, from_arrays(arrays(1)), tmp_path / "m.mlir", to="undefined")
    assert (done.archive, done.written, done.unused) == (None, False, ("w2",))
    assert (tmp_path / "m.mlir").read_bytes() == ir
    with pytest.raises(LinkError, match=r"'w1'"):
        refer(ir, from_arrays({"w1": arrays(0)["w2"]}), tmp_path / "n.mlir", to="undefined")
    with pytest.raises(LinkError, match="'w1'"):
        refer(ir, from_arrays({"w": arrays(0)["w1"]}), tmp_path / "n.mlir", to="undefined")
    assert os.listdir(tmp_path) == ["m.mlir"]


def test_what_can_not_be_referred_to(tmp_path, monkeypatch):
    good = from_arrays(arrays(0))
    out = tmp_path / "out"
    with pytest.raises(UsageError, match="refers to nothing"):
        refer(b"module {}", good, out, to="resource")
    with pytest.raises(LinkError, match="has bytes of 'w1' itself"):
        refer(program(0).encode(), good, out)
    with pytest.raises(LinkError, match="resource 'w1' at byte 15 stands where no parameter can"):
        refer(b'"op"() {a = 1, dense_resource<w1> : tensor<8x16xf32>} : () -> ()', good, out)
    ir = strip(program(0).encode(), to="parameter").ir
    with pytest.raises(LinkError, match="no bytes for 1 resources"):
        refer(ir, good.select(["w1"]), out)
    with pytest.raises(LinkError, match="extra 'w3'"):
        refer(ir, overlaid(good, {"w3": np.zeros(1)}), out, manifest=good.manifest)
    assert not os.listdir(tmp_path)
    # The archive is written, the IR can't be: neither stays.
    import cachec_mlir.linking.weight_references as module

    def fails(*unused, **also):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write", fails)
    with pytest.raises(OSError, match="No space"):
        refer(ir, good, out)
    assert not os.listdir(tmp_path)


def test_an_archive_that_was_there_stays(tmp_path, monkeypatch):
    """It was replaced by a complete one; removing it would lose a file."""
    ir = strip(program(0).encode(), to="parameter").ir
    refer(ir, from_arrays(arrays(0)), tmp_path / "m.mlir")
    shutil.copy(tmp_path / "m.mlir", tmp_path / "before")
    import cachec_mlir.linking.weight_references as module

    def fails(*unused, **also):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write", fails)
    with pytest.raises(OSError, match="No space"):
        refer(ir, from_arrays(arrays(1)), tmp_path / "m.mlir")
    assert sorted(os.listdir(tmp_path)) == ["before", "m.mlir", "m.mlir.irpa"]
    assert (tmp_path / "m.mlir").read_bytes() == (tmp_path / "before").read_bytes()


def test_a_kept_trailer_keeps_its_place(tmp_path):
    """Bytes that stay are copied as they are, in the order of the text."""
    ir = b'{-# dialect_resources: {torch: {t: "0x0400000001"}} #-}\n'
    ir += b'"op"() {a = dense_resource<w1> : tensor<8x16xf32>} : () -> ()\n'
    link(ir, from_arrays({"w1": arrays(0)["w1"]}), tmp_path / "out")
    assert (tmp_path / "out").read_bytes().startswith(ir)
    assert strip(tmp_path / "out").ir.rstrip() == ir.rstrip()
    assert trailer({"w1": arrays(0)["w1"]}, 4).encode().splitlines()[3].lower().split()[1] in (
        (tmp_path / "out").read_bytes().lower()
    )
