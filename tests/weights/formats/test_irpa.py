"""IRPA against IREE's runtime, and the types that ``specs=`` gives to its bytes."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import iree.runtime as rt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachec.base.hashing import digest_bytes
from cachec.errors import CheckpointError, HandleClosed, UsageError, WeightError, WeightsChanged
from cachec.model import WeightSpec
from cachec.weights import open_weights
from cachec.weights.formats import irpa
from cachec.weights.manifest import Manifest
from tests.weights.formats.suite import ShippedFormat

EDITS = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 4), st.binary(max_size=4)), min_size=1, max_size=3)
#: An edit of the header and the tables, where all that matters lies.
NEAR = st.tuples(st.integers(0, 420), st.just(1), st.binary(min_size=1, max_size=1))
FIELD = st.tuples(
    st.integers(0, 52).map(lambda n: 8 * n), st.just(8), st.sampled_from([b"\xff" * 8, bytes(8), b"\x01" + bytes(7)])
)

#: What ``Check.agrees`` does not compare.
_LARGE = 1 << 24


def official(path: Path) -> dict[str, bytes]:
    """name -> bytes, as IREE reads them."""
    index = rt.ParameterIndex()
    index.load(str(path), format="irpa")
    found = {}
    for name, entry in index.items():
        if entry.is_splat and entry.length >= _LARGE:
            found[name] = f"{entry.length} bytes, too many to be put together".encode()
        elif entry.is_splat:
            pattern = bytes(entry.splat_pattern)
            found[name] = pattern * (entry.length // len(pattern))
        else:
            found[name] = bytes(entry.file_view)
    return found


def build(path: Path) -> dict[str, bytes]:
    index = rt.ParameterIndex()
    wanted = {
        "w": np.arange(12, dtype="f4").tobytes(),
        "größe": b"abc",
        "empty": b"",
        "splat": b"\1\2\3\4" * 6,
        "zeros": bytes(40),
        "byte": b"\7" * 5,
    }
    index.add_buffer("w", wanted["w"], metadata="about w")
    index.add_buffer("größe", wanted["größe"])
    index.add_splat("splat", b"\1\2\3\4", 24)
    index.add_splat("zeros", b"\0", 40)
    index.add_splat("byte", b"\7", 5)
    index.add_splat("empty", b"\1", 0)
    index.create_archive_file(str(path))
    return wanted


class TestIrpa(ShippedFormat):
    suffix = ".irpa"
    has_magic = True
    is_typed = False
    is_written = True
    official = staticmethod(official)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"w": np.arange(12, dtype="f4"), "s": np.ones(6, "i4"), "größe": np.arange(3, dtype="u1")}

    def write(self, path: Path, arrays: Any) -> Path:
        index = rt.ParameterIndex()
        for name, array in arrays.items():
            if name == "s":
                index.add_splat(name, array[:1].tobytes(), array.nbytes)
            else:
                index.add_buffer(name, array.tobytes())
        index.create_archive_file(str(path))
        return path

    def end(self, path: Path) -> int:
        return len(path.read_bytes().rstrip(b"\0")) + 64


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive with data, splats, a splat of zeros and an empty one."""
    build(tmp_path / "m.irpa")
    return tmp_path / "m.irpa"


def test_whatever_iree_writes_is_read_equal(tmp_path: Path, check: Any) -> None:
    path = tmp_path / "m.irpa"
    wanted = build(path)
    assert official(path) == wanted
    weights = check.reads(path, wanted)
    assert {name: (weight.dtype, weight.shape) for name, weight in weights.items()} == {
        name: ("uint8", (len(data),)) for name, data in wanted.items()
    }
    assert weights["splat"].place() is None
    assert weights["w"].place() is not None


def test_what_cachec_writes(tmp_path: Path, check: Any) -> None:
    from cachec.weights import from_arrays

    arrays = {"a": np.arange(5, dtype="i2"), "b": np.ones((3, 3), "f4")}
    weights = from_arrays(arrays)
    weights.save(tmp_path / "o.irpa", format="irpa")
    wanted = {name: array.tobytes() for name, array in arrays.items()}
    check.reads(tmp_path / "o.irpa", wanted)
    assert official(tmp_path / "o.irpa") == wanted
    for specs in (weights.specs, weights.manifest):
        typed = open_weights(tmp_path / "o.irpa", specs=specs)
        assert typed.manifest == weights.manifest
        np.testing.assert_array_equal(typed["b"].read(), arrays["b"])
    renamed = open_weights(tmp_path / "o.irpa", specs=weights.specs, rename={"a": "c"})
    np.testing.assert_array_equal(renamed["c"].read(), arrays["a"])


def test_archives_that_are_linked(tmp_path: Path, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path / "a.irpa")
    index = rt.ParameterIndex()
    index.add_buffer("second", b"0123456789")
    index.create_archive_file(str(tmp_path / "b.irpa"))
    first, second = (tmp_path / "a.irpa").read_bytes(), (tmp_path / "b.irpa").read_bytes()
    linked = bytearray(first + second)
    linked[16:24] = struct.pack("<Q", len(first))
    path = tmp_path / "m.irpa"
    path.write_bytes(linked)
    # IREE 3.13 writes no links, and its parser looks for the entries of every archive in the first one.
    check.reads(path, official(tmp_path / "a.irpa") | official(tmp_path / "b.irpa"))
    monkeypatch.setattr(irpa, "_MAX_ARCHIVES", 1)
    with pytest.raises(CheckpointError, match="at most 1 linked"):
        open_weights(path)
    linked[16:24] = struct.pack("<Q", 8)
    path.write_bytes(linked)
    with pytest.raises(CheckpointError, match="multiple of 16"):
        open_weights(path)


def _entry(kind: int, body: bytes, name: tuple[int, int]) -> bytes:
    entry = struct.pack("<QIQQQQQQ", 60 + len(body), kind, 0, *name, 0, 0, 0) + body
    return entry + bytes(-len(entry) % 16)


def _archive(entries: list[bytes], metadata: bytes, storage: bytes = b"") -> bytes:
    table = b"".join(entries)
    at = 96
    head = struct.pack("<4sHHQQQ", b"IRPA", 0, 0, 88, 0, 0) + struct.pack(
        "<7Q",
        len(entries),
        at,
        len(table),
        at + len(table),
        len(metadata),
        at + len(table) + len(metadata),
        len(storage),
    )
    return head + bytes(at - 88) + table + metadata + storage


def test_skipped_entries_and_external_files(tmp_path: Path, check: Any) -> None:
    path = tmp_path / "m.irpa"
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x.bin").write_bytes(b"0123456789")
    location = b"sub/x.bin"
    entries = [
        _entry(0, b"", (0, 1)),
        _entry(3, struct.pack("<QQQQ", 1, len(location), 2, 4), (0, 1)),
    ]
    path.write_bytes(_archive(entries, b"x" + location))
    check.reads(path, {"x": b"2345"})
    weights = open_weights(path)
    (tmp_path / "sub" / "x.bin").write_bytes(b"changed!!!")
    with pytest.raises(WeightsChanged, match=r"x\.bin"):
        weights["x"].read()
    path.write_bytes(_archive([_entry(3, struct.pack("<QQQQ", 1, len(location), 8, 4), (0, 1))], b"x" + location))
    with pytest.raises(CheckpointError, match=r"m\.irpa.*'x'.*within the 10 of .*x\.bin, found 4 at offset 8"):
        open_weights(path)


@pytest.mark.parametrize(
    "location", [b"../x.bin", b"/etc/hostname", b"", b"a/../../x.bin", b"link", b"linked/x.bin", b"no"]
)
def test_an_external_file_stays_in_the_folder(tmp_path: Path, location: bytes) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "x.bin").write_bytes(bytes(16))
    (folder / "link").symlink_to(tmp_path / "x.bin")
    (folder / "linked").symlink_to(tmp_path)
    path = folder / "m.irpa"
    path.write_bytes(_archive([_entry(3, struct.pack("<QQQQ", 1, len(location), 0, 4), (0, 1))], b"x" + location))
    with pytest.raises(CheckpointError, match=r"m\.irpa: tensor 'x'"):
        open_weights(path)


def _end(archive: Path) -> int:
    """Where the last tensor has ended, and the padding of the file begun."""
    return archive.read_bytes().rindex(np.arange(12, dtype="f4").tobytes()) + 64


@pytest.mark.fuzz
def test_mutations(archive: Path, check: Any) -> None:
    whole = archive.read_bytes()
    assert check.mutated(whole, [], ".irpa", official)

    @check.quick
    @given(st.lists(NEAR | FIELD, min_size=1, max_size=3) | EDITS)
    def run(edits: list) -> None:
        check.mutated(whole, edits, ".irpa", official)

    run()


# --- splats


def _splat(tmp_path: Path, pattern: bytes, nbytes: int) -> Path:
    body = struct.pack("<Q16sB", nbytes, pattern, len(pattern))
    path = tmp_path / "s.irpa"
    path.write_bytes(_archive([_entry(1, body, (0, 1))], b"s"))
    return path


def test_a_huge_splat_takes_no_memory(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        weights = open_weights(_splat(tmp_path, b"\0\0", 1 << 40))
        array = weights["s"].read()
        assert array.shape == (1 << 40,)
        assert array[123_456_789] == 0
        private = open_weights(_splat(tmp_path, b"\0", 1 << 30))["s"].private()
        private[5] = 1
        assert open_weights(tmp_path / "s.irpa")["s"].read()[5] == 0
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        open_weights(_splat(tmp_path, b"\1\2", 1 << 28))["s"].digest()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
    with pytest.raises(WeightError, match="does not fit into memory"):
        open_weights(_splat(tmp_path, b"\1\2", 1 << 62))["s"].read()


def test_a_splat_in_parts_and_in_a_stream(tmp_path: Path) -> None:
    pattern = bytes(range(1, 9))
    path = _splat(tmp_path, pattern, 8 * 30)
    spec = WeightSpec(name="s", dtype="float32", shape=(6, 10), nbytes=240)
    weights = open_weights(path, specs={"s": spec})
    whole = np.frombuffer(pattern * 30, "<f4").reshape(6, 10)
    np.testing.assert_array_equal(weights["s"].read(), whole)
    for axis in (0, 1):
        for rank in (0, 1):
            part = weights.shard({"s": axis}, rank, 2)["s"]
            wanted = np.split(whole, 2, axis)[rank]
            np.testing.assert_array_equal(part.read(), wanted)
            np.testing.assert_array_equal(part.private(), wanted)
            assert part.digest() == digest_bytes(wanted.tobytes())
    odd = open_weights(path, specs={"s": spec}).shard({"s": 0}, 1, 3)["s"]  # begins within the pattern
    np.testing.assert_array_equal(odd.read(), whole[2:4])
    assert [bytes(weight.raw()) for weight in weights.stream()] == [pattern * 30]
    weights.save(tmp_path / "o.safetensors")
    np.testing.assert_array_equal(open_weights(tmp_path / "o.safetensors")["s"].read(), whole)


def test_a_splat_follows_its_file_and_its_set(tmp_path: Path) -> None:
    path = _splat(tmp_path, b"\x77", 4)
    weights = open_weights(path)
    weights["s"].read()
    path.write_bytes(path.read_bytes().replace(b"\x77", b"\x78"))
    assert weights.changed() == str(path)
    for use in (weights["s"].read, weights["s"].digest, weights["s"].private):
        with pytest.raises(WeightsChanged, match=r"s\.irpa"):
            use()
    weights = open_weights(path)
    weights.release()
    with pytest.raises(HandleClosed, match="released"):
        weights["s"].read()


# --- specs


def _spec(**changes: Any) -> WeightSpec:
    return WeightSpec(**({"name": "w", "dtype": "float32", "shape": (3, 4), "nbytes": 48} | changes))


def test_specs_give_types_and_the_rest_stays(archive: Path) -> None:
    weights = open_weights(archive, specs={"w": _spec()})
    np.testing.assert_array_equal(weights["w"].read(), np.arange(12, dtype="f4").reshape(3, 4))
    assert weights["splat"].dtype == "uint8"
    assert open_weights(archive)["w"].dtype == "uint8"
    assert open_weights(archive, specs={"w": _spec(dtype="int32")})["w"].dtype == "int32"


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (
            _spec(shape=(3, 5), nbytes=60),
            CheckpointError,
            r"m\.irpa: tensor 'w': expected 60 bytes .* found 48 at offset",
        ),
        (_spec(name="x"), CheckpointError, r"m\.irpa: missing tensor 'x', expected float32 \[3, 4\]"),
        (_spec(nbytes=40), UsageError, "takes 48 bytes, the spec says 40"),
        (_spec(shape=(-3, -4)), UsageError, "integers from 0"),
        (_spec(dtype="float33"), UsageError, "float33"),
    ],
)
def test_specs_are_checked(archive: Path, spec: WeightSpec, error: type[Exception], message: str) -> None:
    for specs in ({spec.name: spec}, Manifest.of({spec.name: spec})):
        with pytest.raises(error, match=message):
            open_weights(archive, specs=specs)
    with pytest.raises(UsageError, match=r"the spec of that name, cachec\.WeightSpec\(name='other'"):
        open_weights(archive, specs={"other": spec})
    with pytest.raises(UsageError, match=r"a mapping name -> cachec\.WeightSpec"):
        open_weights(archive, specs=[spec])  # type: ignore[arg-type]


def test_specs_state_ties_and_shards(tmp_path: Path) -> None:
    index = rt.ParameterIndex()
    for name in ("w_shard-1-of-2", "w_shard-2-of-2", "a", "b"):
        index.add_buffer(name, np.full(4, len(name), "f4").tobytes())
    path = tmp_path / "m.irpa"
    index.create_archive_file(str(path))
    flat = {"dtype": "float32", "shape": (4,), "nbytes": 16}
    specs = {
        "w": WeightSpec(name="w", dtype="float32", shape=(2, 2), nbytes=16, shard=(1, 2)),
        "a": WeightSpec(name="a", alias="a", **flat),
        "b": WeightSpec(name="b", alias="a", **flat),
    }
    weights = open_weights(path, specs=specs, rank=1, world_size=2)
    assert weights.specs == specs
    assert open_weights(path, specs=specs, rank=1, world_size=2, tied=[("b", "a")]).specs == specs
    whole = specs | {"w": WeightSpec(name="w", dtype="float32", shape=(2, 2), nbytes=16)}
    with pytest.raises(CheckpointError, match="'w': expected a whole weight by specs=, found one of 2 shards"):
        open_weights(path, specs=whole, rank=1, world_size=2)


def test_specs_of_a_format_with_types_have_to_agree(model: Path) -> None:
    weights = open_weights(model)
    assert open_weights(model, specs=weights.manifest).manifest == weights.manifest
    wrong = dict(weights.specs) | {"b": WeightSpec(name="b", dtype="int32", shape=(8,), nbytes=32)}
    with pytest.raises(CheckpointError, match=r"'b': expected int32 \[8\] by specs=, found float32 \[8\] at offset"):
        open_weights(model, specs=wrong)
    assert open_weights(model).specs == weights.specs


def test_one_list_of_several_formats(tmp_path: Path, archive: Path, model: Path, make: Any) -> None:
    other = make.write(tmp_path / "n.safetensors", {"n": make.ramp(3)})
    index = rt.ParameterIndex()
    index.add_splat("second", b"\5", 7)
    index.add_buffer("third", b"xyz!")
    index.create_archive_file(str(tmp_path / "z.irpa"))
    for order in ([archive, other, tmp_path / "z.irpa"], [tmp_path / "z.irpa", archive, other]):
        weights = open_weights(order, specs={"third": WeightSpec(name="third", dtype="int32", shape=(1,), nbytes=4)})
        assert bytes(weights["second"].raw()) == b"\5" * 7
        assert bytes(weights["splat"].raw()) == b"\1\2\3\4" * 6
        assert bytes(weights["third"].raw()) == b"xyz!"
        assert weights["third"].dtype == "int32"
        np.testing.assert_array_equal(weights["n"].read(), make.ramp(3))
    with pytest.raises(CheckpointError, match="both in"):
        open_weights([archive, archive])


def test_an_unchanged_archive_is_not_read_again(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cachec.base import fsio

    assert open_weights(archive).manifest is open_weights(archive).manifest  # unsettled: read again, one layout
    monkeypatch.setattr(fsio, "SETTLE_SECONDS", -3600.0)
    first = open_weights(archive, specs={"w": _spec()})

    def refuse(*_: object) -> int:
        raise AssertionError("opened again")

    monkeypatch.setattr(fsio, "open_read", refuse)
    assert open_weights(archive, specs={"w": _spec()}).manifest is first.manifest
    with pytest.raises(AssertionError, match="opened again"):
        open_weights(archive, specs={"w": _spec(dtype="int32")})
