"""Bytecode: read, strip, link, hash; on files built by hand."""

import os

import numpy as np
import pytest

from cachec.errors import CheckpointError, LinkError, UsageError, WeightsChanged
from cachec.model import WeightSpec
from cachec.weights import WeightSet, open_weights
from cachec_mlir import Bytecode, is_bytecode, link, strip, topology
from cachec_mlir.bytecode.reader import varint
from tests.plugins.mlir.conftest import BLOBS, SETTINGS, Builder, number

NAMES = [name for name, _ in BLOBS]


@pytest.mark.parametrize("bits", range(65))
def test_numbers_are_written_as_specified(bits):
    for value in {(1 << bits) - 1, (1 << bits) // 2, max(0, (1 << bits) - 2)}:
        assert varint(value) == number(value)


@pytest.mark.parametrize("wide", [False, True])
def test_resources_are_ranges_of_the_file(tmp_path, wide):
    path = tmp_path / "m.mlirbc"
    path.write_bytes(Builder(wide=wide).finish(BLOBS, SETTINGS))
    module = Bytecode(path)
    assert (module.version, module.producer) == (6, b"by hand")
    assert list(module.resources) == NAMES
    assert module.names_without_bytes == ()
    for name, raw in BLOBS:
        found = module.resources[name]
        assert (found.group, found.key, found.alignment, found.nbytes) == ("builtin", name, 16, len(raw))
        assert found.blob.place.offset % 16 == 0
        assert b"".join(found.blob.pieces()) == raw
        assert path.read_bytes()[found.blob.place.offset :][: len(raw)] == raw


def test_a_section_of_another_version():
    module = Builder()
    for each in range(5):
        module.section(each, number(0) if each == 0 else bytes([each]) * 10)
    module.section(9, b"new")
    with pytest.raises(CheckpointError, match="one of 0 to 8, found 9"):
        Bytecode(module.out)


@pytest.mark.parametrize("left_out", [None, *range(5)])
def test_sections_without_which_there_is_no_module(left_out):
    module = Builder()
    for each in set(range(5)) - {left_out}:
        module.section(each, number(0) if each == 0 else bytes([each]) * 10)
    if left_out is None:
        assert not Bytecode(module.out).resources
        return
    with pytest.raises(CheckpointError, match=f"section {left_out} expected, found the end"):
        Bytecode(module.out)


def test_other_dialects_have_names_of_their_own():
    assert list(Bytecode(Builder().finish([("w", b"1")], group="torch")).resources) == ["torch:w"]


def test_as_weights_in_place(tmp_path, bytecode):
    path = tmp_path / "m.mlirbc"
    path.write_bytes(bytecode)
    found = strip(path).resources
    weights = found.weights()
    assert {name: bytes(weight.raw()) for name, weight in weights.items()} == dict(BLOBS)
    assert weights["w"].dtype == "uint8"
    assert weights["w"].place().path == path
    spec = WeightSpec(name="w", dtype="float32", shape=(2, 5), nbytes=40)
    np.testing.assert_array_equal(
        found.weights({"w": spec})["w"].read(), np.frombuffer(bytes(range(40)), "f4").reshape(2, 5)
    )
    with pytest.raises(CheckpointError, match="expected 44 bytes"):
        found.weights({"w": WeightSpec(name="w", dtype="float32", shape=(11,), nbytes=44)})


def test_in_memory(bytecode):
    weights = strip(bytecode).resources.weights()
    assert {name: bytes(weight.raw()) for name, weight in weights.items()} == dict(BLOBS)
    assert weights["w"].digest() == open_digest(bytes(range(40)))


def open_digest(data: bytes) -> str:
    from cachec.base.hashing import digest_bytes

    return digest_bytes(data)


@pytest.mark.parametrize("wide", [False, True])
def test_strip_keeps_all_but_blobs(wide):
    data = Builder(wide=wide).finish(BLOBS, SETTINGS)
    stripped = strip(data)
    module, before = Bytecode(stripped.ir), Bytecode(data)
    assert list(module.names_without_bytes) == NAMES
    assert not module.resources
    for old, new in zip(before.sections, module.sections, strict=True):
        assert old.id == new.id
        if old.id not in {5, 6}:
            assert data[old.offset :][: old.nbytes] == stripped.ir[new.offset :][: new.nbytes]
    # Settings are kept by value.
    values = [(module.strings[e.key], e.kind, stripped.ir[e.offset :][: e.nbytes]) for e in module.groups[0].entries]
    assert values == list(SETTINGS)
    assert strip(stripped.ir).ir == stripped.ir


def test_strip_then_link_is_the_same_file(tmp_path, bytecode):
    path, target = tmp_path / "m", tmp_path / "linked"
    path.write_bytes(bytecode)
    for source in (path, bytecode):
        stripped = strip(source)
        done = link(stripped.ir, stripped.resources, target)
        assert target.read_bytes() == bytecode
        assert done == (len(bytecode), (), False)
    assert sorted(os.listdir(tmp_path)) == ["linked", "m"]


def test_an_external_blob_stays():
    builder = Builder()
    raw = builder.blob(0, b"x" * 21, 16)
    data = builder.finish([("w", b"12345678")], [("big", 0, raw)])
    stripped = strip(data)
    assert b"x" * 21 in stripped.ir
    assert b"12345678" not in stripped.ir
    assert list(stripped.resources) == ["w"]
    external = Bytecode(stripped.ir).groups[0].entries[0]
    assert stripped.ir.find(b"x" * 21) % 16 == 0
    assert stripped.ir[external.offset :][: external.nbytes] == raw


def test_link_other_weights(tmp_path, bytecode, weights_file):
    weights = open_weights(weights_file)
    ir = strip(bytecode).ir
    target = tmp_path / "linked"
    done = link(ir, weights, target, names={"w": "a", "naïve name": "b", "last": "scale"}, alignment=256)
    module = Bytecode(target)
    assert done.unused == ()
    for name, there in (("w", "a"), ("naïve name", "b"), ("last", "scale")):
        found = module.resources[name]
        assert found.alignment == 256
        assert found.blob.place.offset % 256 == 0
        assert b"".join(found.blob.pieces()) == bytes(weights[there].raw())
    assert strip(target).ir == ir


def test_names_are_never_guessed(tmp_path, bytecode):
    ir = strip(bytecode).ir
    there = {name + "_2": np.zeros(4, "u1") for name in NAMES}
    weights = WeightSet.from_arrays(there)
    with pytest.raises(LinkError, match=r"no bytes for 3 resources.*names=\{'last': 'last_2'\}"):
        link(ir, weights, tmp_path / "out")
    with pytest.raises(LinkError, match="maps 'x', which the module does not declare"):
        link(ir, weights, tmp_path / "out", names={"x": "last_2"})
    assert os.listdir(tmp_path) == []
    done = link(ir, weights.overlay({"more": np.zeros(1, "u1")}), tmp_path / "out", names={n: n + "_2" for n in NAMES})
    assert done.unused == ("more",)


def test_bytes_that_are_there_are_kept_and_not_replaced(tmp_path):
    ir = Builder().finish([("here", b"abcd"), ("wanted", None)])
    out = tmp_path / "out"
    with pytest.raises(LinkError, match="has bytes of 'here'"):
        link(ir, WeightSet.from_arrays({"here": np.zeros(4, "u1"), "wanted": np.zeros(2, "u1")}), out)
    link(ir, WeightSet.from_arrays({"wanted": np.arange(2, dtype="u1")}), out)
    found = Bytecode(out).resources
    assert {n: b"".join(found[n].blob.pieces()) for n in found} == {"here": b"abcd", "wanted": b"\0\1"}


def test_relink_copies_large_runs_of_several_files(tmp_path):
    r = np.random.default_rng(0)
    blobs = [(f"w{i}", r.bytes(300_000 + i)) for i in range(4)]
    (tmp_path / "old").write_bytes(Builder(align=64).finish(blobs))
    order = [("w2", None), ("w3", None), ("new", None), ("w0", None), ("w1", None)]
    ir = Builder().finish(order)
    both = strip(tmp_path / "old").resources.weights().overlay({"new": np.arange(7, dtype="u1")})
    new = strip(Builder().finish([("new", bytes(range(7)))])).resources
    for weights in (both, {**strip(tmp_path / "old").resources, **new}):
        link(ir, weights, tmp_path / "out")
        found = Bytecode(tmp_path / "out").resources
        assert {n: b"".join(found[n].blob.pieces()) for n in found} == dict(blobs) | {"new": bytes(range(7))}


def test_a_file_that_changes_is_noticed(tmp_path, bytecode):
    path = tmp_path / "m"
    path.write_bytes(bytecode)
    stripped = strip(path)
    os.truncate(path, len(bytecode) - 1)
    with pytest.raises(WeightsChanged):
        link(stripped.ir, stripped.resources, tmp_path / "out")
    assert os.listdir(tmp_path) == ["m"]


def test_a_link_replaces_only_files(tmp_path, bytecode):
    stripped = strip(bytecode)
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="file or nothing"):
        link(stripped.ir, stripped.resources, tmp_path / "folder")
    with pytest.raises(UsageError, match="power of two"):
        link(stripped.ir, stripped.resources, tmp_path / "x", alignment=48)
    with pytest.raises(UsageError, match="inline"):
        link(stripped.ir, stripped.resources, tmp_path / "x", inline=["w"])
    assert os.listdir(tmp_path) == ["folder"]


def test_the_version_is_in_the_hash(bytecode):
    """The same sections mean something else in another version of the format."""
    hashes = set()
    for version in range(7):
        changed = bytecode.replace(number(6), number(version), 1)
        assert Bytecode(changed).version == version
        hashes.add(topology(changed))
    assert len(hashes) == 7


def test_topology_leaves_out_resource_bytes_only(bytecode):
    base = topology(bytecode)
    assert topology(Builder().finish([(n, bytes(len(d))) for n, d in BLOBS], SETTINGS)) == base
    others = {
        "size": Builder().finish([("w", bytes(39)), *BLOBS[1:]], SETTINGS),
        "name": Builder().finish([("v", BLOBS[0][1]), *BLOBS[1:]], SETTINGS),
        "alignment": Builder(align=32).finish(BLOBS, SETTINGS),
        "dialect": Builder().finish(BLOBS, SETTINGS, group="torch"),
        "setting": Builder().finish(BLOBS, [("flag", 1, b"\0"), SETTINGS[1]]),
        "no setting": Builder().finish(BLOBS),
        "stripped": strip(bytecode).ir,
        "producer": bytecode.replace(b"by hand", b"by hind"),
    }
    hashes = {name: topology(data) for name, data in others.items()}
    assert len({base, *hashes.values()}) == len(others) + 1
    section = Bytecode(bytecode).sections[3]
    assert section.id == 4
    for at in range(section.offset, section.offset + section.nbytes):
        assert topology(bytecode[:at] + bytes([bytecode[at] ^ 1]) + bytecode[at + 1 :]) != base


def test_kinds_are_told_apart(tmp_path, bytecode):
    (tmp_path / "m").write_bytes(bytecode)
    assert is_bytecode(bytecode)
    assert is_bytecode(tmp_path / "m")
    assert not is_bytecode(b"module {}")
    assert not is_bytecode(b"")


def test_strip_reads_little_and_maps_nothing(tmp_path):
    """64 MiB in 2,000 resources: under 1 MB through read calls; heads stay unread until they are asked for."""
    ir = Builder().finish([(f"w{i}", None) for i in range(2000)])
    data = np.zeros(1 << 15, "u1")
    path = tmp_path / "m"
    link(ir, WeightSet.from_arrays({f"w{i}": data for i in range(2000)}), path)
    before = _read_so_far()
    stripped = strip(path)
    assert _read_so_far() - before < 1_000_000
    assert stripped.ir == strip(ir).ir
    assert stripped.resources["w1999"].nbytes == 1 << 15


def _read_so_far() -> int:
    with open("/proc/self/io") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))
