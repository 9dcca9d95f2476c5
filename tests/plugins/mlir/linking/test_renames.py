"""Relink: new IR with the resources of an older file, under names that are certain."""

from __future__ import annotations

import importlib
import os
import re
import subprocess

import numpy as np
import pytest

from cachec.errors import CheckpointError, LinkError, UsageError, WeightsChanged
from cachec.weights import from_arrays, open_weights
from cachec_mlir import (
    Bytecode,
    Renames,
    find_renames,
    link,
    mark,
    relink,
    relink_by_reference,
    strip,
)
from tests.plugins.mlir.conftest import IREE_OPT, Builder, arrays, program, trailer
from tests.plugins.mlir.text.test_weight_forms import X, compiled

COMPILE = (
    IREE_OPT.with_name("iree-compile"),
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=vmvx",
)
PHASES = ("input", "global-optimization", "flow", "stream", "executable-targets", "hal")


def phase(module: bytes, to: str, *options: str) -> bytes:
    done = subprocess.run([*COMPILE, f"--compile-to={to}", *options, "-", "-o", "-"], input=module, capture_output=True)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[:2000]
    return done.stdout


def from_phase(path, to: str) -> np.ndarray:
    """Compile on from a phase, run."""
    from cachec_iree.runtime import LinkedModule

    out = path.with_suffix(".vmfb")
    done = subprocess.run([*COMPILE, f"--compile-from={to}", path, "-o", out], capture_output=True)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[:2000]
    return LinkedModule(out, {})(X)


def expected(seed: int) -> np.ndarray:
    values = arrays(seed)
    return np.tanh(X @ values["w1"]) @ values["w2"]


# --- marks


@pytest.mark.parametrize("to", PHASES)
@pytest.mark.sampled
def test_marks_are_found_again_behind_every_phase(to):
    marked = mark(strip(program(0).encode()).ir)
    assert sorted(marked.names.values()) == ["w1", "w2"]
    assert mark(strip(program(1).encode()).ir) == marked
    found = marked.find_renames(phase(marked.ir, to))
    assert sorted(found.names.values()) == ["w1", "w2"]
    assert found.dropped == ()


# Not (hal, bytecode): IREE 3.13 can't read its own bytecode there, linked or not ("resource data missing").
@pytest.mark.parametrize(("to", "form"), [("flow", "text"), ("flow", "bytecode"), ("hal", "text")])
@pytest.mark.long
def test_weights_of_a_file_go_with_the_ir_of_a_later_phase(to, form, iree_opt, tmp_path):
    """Compiled once without bytes, linked with those of two files, run."""
    marked = mark(strip(program(0).encode()).ir)
    later = phase(marked.ir, to, *(["--emit-mlir-bytecode"] if form == "bytecode" else []))
    record = Renames.decode(marked.find_renames(later).encode())
    for seed in (0, 1):
        (tmp_path / "old").write_bytes(iree_opt(program(seed).encode(), "--emit-bytecode"))
        relink(later, tmp_path / "old", tmp_path / "new.mlir", renames=record)
        np.testing.assert_allclose(from_phase(tmp_path / "new.mlir", to), expected(seed), atol=1e-5)


@pytest.mark.parametrize("package", ["iree.compiler.ir", "jaxlib.mlir.ir"])
def test_two_modules_in_one_context(package, tmp_path):
    """The second one's keys get suffixes, so that the old names say nothing, or another weight (trap 8)."""
    ir = importlib.import_module(package)
    one = {"w0": np.full(4, 1, "f4"), "w0_1": np.full(4, 2, "f4")}
    two = {"w0": np.full(4, 3, "f4"), "w0_1": np.full(4, 4, "f4")}
    text = b"".join(
        b'"op%d"() {value = dense_resource<%s> : tensor<4xf32>} : () -> ()\n' % (i, name.encode())
        for i, name in enumerate(one)
    )
    link(text, from_arrays(two), tmp_path / "old.mlir")
    with ir.Context() as context:
        context.allow_unregistered_dialects = True
        kept = ir.Module.parse(text.decode())
        second = str(ir.Module.parse(text.decode())).encode()
        marked = mark(text)
        kept_too = ir.Module.parse(marked.ir.decode())
        third = str(ir.Module.parse(marked.ir.decode())).encode()
        assert kept
        assert kept_too
    keys = re.findall(rb"dense_resource<([^>]*)>", second)
    assert len(set(keys) - {key.encode() for key in one})
    with pytest.raises(LinkError, match=r"may be|no bytes for"):
        relink(second, tmp_path / "old.mlir", tmp_path / "out")
    assert re.findall(rb"dense_resource<([^>]*)>", third) != re.findall(rb"dense_resource<([^>]*)>", marked.ir)
    relink(third, tmp_path / "old.mlir", tmp_path / "out", renames=marked.find_renames(third))
    found = strip(tmp_path / "out")
    order = re.findall(rb"dense_resource<([^>]*)>", found.ir)
    for key, value in zip(order, two.values(), strict=True):
        np.testing.assert_array_equal(found.resources.weights()[key.decode()].read(), value)


def test_marks_can_not_be_made_from_each_other():
    text = b"".join(b'"op"() {value = dense_resource<w%d> : tensor<4xf32>} : () -> ()\n' % i for i in range(12))
    marked = mark(text)
    keys = list(marked.names)
    assert len(set(keys)) == 12
    for key in keys:
        for other in keys:
            assert key == other or re.fullmatch(re.escape(other) + r"(_\d+)+", key) is None
        assert marked._name(key + "_3") == marked._name(key + "_3_1") == marked._name(key) == marked.names[key]
        for bad in (key + "_x", key + "3", key + "_", key[:-2], "x" + key, key + "_3x"):
            assert marked._name(bad) is None
    assert mark(text, "other").names.keys().isdisjoint(marked.names)
    assert mark(text + b"// more").names.keys().isdisjoint(marked.names)


def test_what_the_compiler_made_is_refused():
    marked = mark(b'"op"() {value = dense_resource<w> : tensor<4xf32>} : () -> ()\n')
    for key in ("w", "w_1", "jit_eval"):
        with pytest.raises(LinkError, match=f"resource '{key}' of the output was made by the compiler"):
            marked.find_renames(f'"op"() {{value = dense_resource<{key}> : tensor<4xf32>}} : () -> ()\n'.encode())
    assert marked.find_renames(b'"op"() : () -> ()').dropped == ("w",)
    with pytest.raises(LinkError, match="made by the compiler"):
        marked.find_renames(Builder().finish([("w", None)]))


def test_what_can_not_be_marked():
    with pytest.raises(LinkError, match="has bytes of 'w1'"):
        mark(program(0).encode())
    with pytest.raises(UsageError, match="expected a text"):
        mark(Builder().finish([("w", None)]))


# --- records by content


def test_recorded_by_content(iree_opt):
    before = strip(iree_opt(program(0).encode(), "--emit-bytecode"))
    renamed = program(0).replace("dense_resource<w1>", "dense_resource<w2_1>").replace("w1: ", "w2_1: ")
    found = find_renames(before.resources, strip(renamed.encode()).resources)
    assert found == Renames({"w2_1": "w1", "w2": "w2"}, ())
    only = {"w": arrays(0)["w2"]}
    assert find_renames(before.resources, strip(trailer(only).encode()).resources) == Renames({"w": "w2"}, ("w1",))
    with pytest.raises(LinkError, match="'w' of the output has the bytes of none that went in"):
        find_renames(before.resources, strip(trailer({"w": arrays(0)["w1"] + 1}).encode()).resources)


def test_equal_weights_are_not_told_apart():
    ones = {"g1": np.ones(8, "f4"), "g2": np.ones(8, "f4")}
    before = strip(trailer(ones).encode()).resources
    with pytest.raises(LinkError, match=r"the bytes of 'g1' and of 'g2', which are equal; mark\(\)"):
        find_renames(before, before)


def test_a_record_is_kept_as_text():
    record = Renames({"w0_2": "w0", "a": "b"}, ("c",))
    assert Renames.decode(record.encode()) == record
    assert record.encode() == b'{"version":1,"names":{"a":"b","w0_2":"w0"},"dropped":["c"]}'
    for bad in (b"", b"{}", b"[]", b'{"version":1,"names":{"a":1},"dropped":[]}', record.encode()[:-1], b"\xff"):
        with pytest.raises(LinkError, match="malformed"):
            Renames.decode(bad)
    with pytest.raises(LinkError, match="version 1, found 2"):
        Renames.decode(record.encode().replace(b'"version":1', b'"version":2'))


# --- relink


def old_file(path, blobs, **how):
    path.write_bytes(Builder(**how).finish(blobs))
    return path


BLOBS = [("w0", b"a" * 40), ("w0_2", b"b" * 40), ("v", b"c" * 24)]


def test_names_are_matched_by_the_record_or_refused(tmp_path):
    old = old_file(tmp_path / "old", BLOBS)
    out = tmp_path / "out"
    with pytest.raises(LinkError, match="'w0_2' may be 'w0_2' of the old module, or 'w0' under a name"):
        relink(Builder().finish([("w0_2", None)]), old, out)
    with pytest.raises(LinkError, match=r"no bytes for 1 resources.*'v_1'"):
        relink(Builder().finish([("v_1", None)]), old, out)
    with pytest.raises(LinkError, match="renames= says nothing of 1 resources of the module, first 'w0_2'"):
        relink(Builder().finish([("w0_2", None), ("v", None)]), old, out, renames={"v": "v"})
    with pytest.raises(LinkError, match="'gone'"):
        relink(Builder().finish([("v", None)]), old, out, renames={"v": "gone"})
    assert os.listdir(tmp_path) == ["old"]
    relink(Builder().finish([("w0", None), ("v", None)]), old, out)
    assert content(out) == {"w0": b"a" * 40, "v": b"c" * 24}
    done = relink(
        Builder().finish([("w0_2", None), ("x", None)]), old, out, renames={"w0_2": "w0", "x": "v", "more": "v"}
    )
    assert content(out) == {"w0_2": b"a" * 40, "x": b"c" * 24}
    assert done.unused == ("w0_2",)
    # Two names of one resource.
    relink(Builder().finish([("p", None), ("q", None)]), old, out, renames={"p": "v", "q": "v"})
    assert content(out) == {"p": b"c" * 24, "q": b"c" * 24}


def content(path) -> dict[str, bytes]:
    found = strip(path).resources
    return {name: b"".join(found[name].blob.pieces()) for name in found}


@pytest.mark.parametrize("old_form", ["text", "bytecode"])
@pytest.mark.parametrize("new_form", ["text", "bytecode"])
def test_between_forms(old_form, new_form, tmp_path):
    old = tmp_path / "old"
    if old_form == "text":
        old.write_text(program(3))
    else:
        old_file(old, [(name, value.tobytes()) for name, value in arrays(3).items()])
    new = strip(program(0).encode()).ir if new_form == "text" else Builder().finish([("w2", None), ("w1", None)])
    relink(new, old, tmp_path / "out")
    assert content(tmp_path / "out") == {name: value.tobytes() for name, value in arrays(3).items()}


def test_a_type_of_another_size(tmp_path):
    old = old_file(tmp_path / "old", BLOBS)
    new = b'"op"() {value = dense_resource<v> : tensor<7xf32>} : () -> ()\n'
    with pytest.raises(LinkError, match="takes 28 bytes, what it is linked to has 24"):
        relink(new, old, tmp_path / "out")
    with pytest.raises(LinkError, match="takes 28 bytes"):
        relink_by_reference(new, old, tmp_path / "out")
    assert os.listdir(tmp_path) == ["old"]


# --- by reference


@pytest.mark.parametrize("form", ["text", "bytecode"])
def test_by_reference_nothing_is_copied(form, tmp_path):
    values = arrays(2)
    old = old_file(tmp_path / "old", [(name, value.tobytes()) for name, value in values.items()], align=64)
    if form == "text":
        new = strip(program(0).encode()).ir.replace(b"<w1>", b"<x_1>")
    else:
        new = Builder().finish([("w2", None), ("x_1", None)])
    done = relink_by_reference(new, old, tmp_path / "out", renames={"x_1": "w1", "w2": "w2"})
    assert (tmp_path / "out").read_bytes() == new
    assert done.archive == tmp_path / "out.irpa"
    assert done.unused == ()
    specs = from_arrays({"x_1": values["w1"], "w2": values["w2"]}).specs
    for weights in (done.weights(), open_weights(done.archive, specs=specs)):
        assert sorted(weights) == ["w2", "x_1"]
        for name, value in (("x_1", values["w1"]), ("w2", values["w2"])):
            assert weights[name].place().path == old
            assert bytes(weights[name].raw()) == value.tobytes()
            if form == "text" or weights.specs["w2"].dtype == "float32":
                np.testing.assert_array_equal(weights[name].read(), value)
    kept = done.weights()
    os.truncate(old, 100)
    with pytest.raises(WeightsChanged):
        kept["w2"].read()


def test_by_reference_for_iree(iree_opt, tmp_path):
    """Old weights, new IR with parameters, no byte copied: the runtime maps the bytecode file."""
    from cachec_iree.runtime import LinkedModule
    from cachec_mlir import refer

    (tmp_path / "old").write_bytes(iree_opt(program(1).encode(), "--emit-bytecode"))
    ir = strip(program(0).encode()).ir
    done = relink_by_reference(ir, tmp_path / "old", tmp_path / "new.mlir")
    parameters = strip(ir, to="parameter").ir
    vmfb = compiled(parameters, tmp_path / "m")
    found = LinkedModule(vmfb, {name: weight.raw() for name, weight in done.weights().items()})(X)
    np.testing.assert_allclose(found, expected(1), atol=1e-5)
    again = refer(ir, done.weights(), tmp_path / "p.mlir", archive=tmp_path / "p.irpa")
    assert again.written


def test_what_can_not_be_referred_to(tmp_path):
    (tmp_path / "a").mkdir()
    old = old_file(tmp_path / "old", BLOBS)
    new = Builder().finish([("v", None)])
    with pytest.raises(LinkError, match=r"expected in .*/a or below"):
        relink_by_reference(new, old, tmp_path / "a" / "out")
    (tmp_path / "text").write_text(program(0))
    with pytest.raises(LinkError, match="is a text"):
        relink_by_reference(new, tmp_path / "text", tmp_path / "out")
    with pytest.raises(LinkError, match="no bytes for"):
        relink_by_reference(Builder().finish([("u", None)]), old, tmp_path / "out")
    old_file(tmp_path / "bad", BLOBS).write_bytes(old.read_bytes().replace(b"\xcb", b"\xcc"))
    with pytest.raises(CheckpointError):
        relink_by_reference(new, tmp_path / "bad", tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["a", "bad", "old", "text"]
    assert os.listdir(tmp_path / "a") == []
    # One folder up it can be.
    (tmp_path / "a" / "old").write_bytes(old.read_bytes())
    done = relink_by_reference(new, tmp_path / "a" / "old", tmp_path / "out")
    assert bytes(open_weights(done.archive)["v"].raw()) == b"c" * 24


def test_by_reference_reads_little(tmp_path):
    """2,000 resources of 64 MiB: heads and the IR."""
    count = 2000
    names = [f"layer{i}.weight" for i in range(count)]
    ir = Builder().finish([(name, None) for name in names])
    data = np.zeros(1 << 15, "u1")
    link(ir, from_arrays(dict.fromkeys(names, data)), tmp_path / "old")
    before = _read_so_far()
    done = relink_by_reference(ir, tmp_path / "old", tmp_path / "out")
    assert _read_so_far() - before < 1_500_000
    assert len(done.weights()) == count
    assert done.archive.stat().st_size < 1_000_000
    assert Bytecode(tmp_path / "out").names_without_bytes == tuple(names)


def _read_so_far() -> int:
    with open("/proc/self/io") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))
