"""Weights cut up for workers: slices of whole tensors, files by rank, and what every worker shares."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachec
from cachec import Reason
from cachec.base.hashing import FileDigests, digest_bytes
from cachec.errors import CheckpointError, UnknownWeight, UsageError
from cachec.recording import ReadRecorder
from cachec.weights import WeightSet, from_arrays, open_weights
from cachec.weights.io import writing
from cachec.weights.io.strided_copy import Spans, copy_spans, read_spans, slice_spans
from cachec.weights.shards import shard_name

AXES = {"*.col": 1, re.compile(r"l\d+\.row"): 0}


@pytest.fixture
def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "l0.row": rng.random((8, 6), "f4"),
        "l0.col": rng.random((6, 8), "f4"),
        "l1.col": rng.random((2, 8, 3), "f4"),
        "norm": rng.random(5, "f4"),
    }


@pytest.fixture
def whole(tmp_path: Path, make: Any, arrays: dict[str, Any]) -> Path:
    path: Path = make.write(tmp_path / "whole.safetensors", arrays)
    return path


def expected(arrays: dict[str, Any], rank: int, size: int) -> dict[str, Any]:
    axes = {"l0.row": 0, "l0.col": 1, "l1.col": 1}
    return {name: np.split(a, size, axes[name])[rank] if name in axes else a for name, a in arrays.items()}


def sources(path: Path, arrays: dict[str, Any]) -> dict[str, WeightSet]:
    opened = open_weights(path)
    return {
        "mmap": opened,
        "read": open_weights(path, access="read"),
        "memory": from_arrays(arrays),
        "renamed": opened.rename(lambda name: "x." + name).rename(lambda name: name.removeprefix("x.")),
        "composed": WeightSet.from_weights(dict(opened)),
        "overlaid": opened.overlay({"norm": arrays["norm"]}),
    }


@pytest.mark.parametrize("kind", ["mmap", "read", "memory", "renamed", "composed", "overlaid"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_slices_have_the_values_of_their_rank(whole: Path, arrays: dict[str, Any], kind: str, size: int) -> None:
    weights = sources(whole, arrays)[kind]
    for rank in range(size):
        own = weights.shard(AXES, rank, size)
        assert own.rank == rank
        assert list(own) == sorted(arrays)
        for name, array in expected(arrays, rank, size).items():
            weight = own[name]
            np.testing.assert_array_equal(weight.read(), array)
            np.testing.assert_array_equal(weight.private(), array)
            np.testing.assert_array_equal(np.asarray(weight), array)
            assert weight.shape == weight.spec.shape == array.shape
            assert weight.digest() == weight.digest(FileDigests()) == digest_bytes(array.tobytes())
            assert not weight.read().flags.writeable
        assert own.specs["l0.col"].shard == (1, size)
        assert own.specs["l0.row"].shard == (0, size)
        assert own.specs["norm"].shard is None


def test_a_slice_of_the_first_axis_is_in_place_and_others_are_not(whole: Path, arrays: dict[str, Any]) -> None:
    own = open_weights(whole).shard(AXES, 1, 2)
    place, full = own["l0.row"].place(), open_weights(whole)["l0.row"].place()
    assert place is not None
    assert full is not None
    assert (place.path, place.nbytes) == (whole, full.nbytes // 2)
    assert place.offset == full.offset + full.nbytes // 2
    assert own["l0.col"].place() is None
    memory = from_arrays(arrays).shard(AXES, 1, 2)
    assert np.shares_memory(memory["l0.row"].read(), arrays["l0.row"])
    assert not np.shares_memory(memory["l0.col"].read(), arrays["l0.col"])
    # An axis behind dimensions of 1 is one extent, too.
    one = from_arrays({"w": np.ones((1, 1, 4, 3), "f4")}).shard({"w": 2}, 1, 2)
    assert np.shares_memory(one["w"].read(), one["w"].read())


@pytest.mark.parametrize("seed", range(40))
def test_any_shape_axis_and_count_is_what_numpy_splits(tmp_path: Path, make: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(0 if seed % 8 == 0 else 1, 6, rng.integers(1, 5)))
    axis, size = int(rng.integers(len(shape))), int(rng.integers(1, 7))
    array = rng.integers(1, 255, shape, "u1") if seed % 3 else rng.random(shape, "f4")
    length = -(-shape[axis] // size)
    padding = [(0, length * size - shape[axis] if i == axis else 0) for i in range(len(shape))]
    wanted = np.split(np.pad(array, padding), size, axis)
    path = make.write(tmp_path / "w.safetensors", {"x": np.zeros(8, "u1"), "w": array})
    if seed % 5 == 0:  # the data section begins anywhere, as old writers have it
        whole = path.read_bytes()
        end = 8 + int.from_bytes(whole[:8], "little")
        path.write_bytes(make.file_bytes(whole[8:end].rstrip() + b" " * (seed % 4), whole[end:]))
    access: Any = "mmap" if seed % 2 else "read"
    for weights in (open_weights(path, access=access), from_arrays({"w": array})):
        for rank in range(size):
            own = weights.shard({"w": axis}, rank, size, pad=True)
            np.testing.assert_array_equal(own["w"].read(), wanted[rank])
            assert own["w"].digest() == digest_bytes(wanted[rank].tobytes())
            streamed = {weight.name: weight.read().copy() for weight in own.stream()}
            np.testing.assert_array_equal(streamed["w"], wanted[rank])


def test_writing_to_a_private_slice_changes_nothing(whole: Path, arrays: dict[str, Any]) -> None:
    own = open_weights(whole).shard(AXES, 0, 2)
    for name in ("l0.row", "l0.col"):
        own[name].private()[:] = 7
        np.testing.assert_array_equal(own[name].read(), expected(arrays, 0, 2)[name])


def test_the_specs_of_all_ranks_are_equal_and_see_axis_and_count(arrays: dict[str, Any]) -> None:
    weights = from_arrays({"w": np.zeros((8, 8), "f4")})
    digests = {weights.shard({"w": 0}, rank, 4).spec_digest for rank in range(4)}
    assert len(digests) == 1
    others = {
        weights.shard({"w": 1}, 0, 4).spec_digest,
        weights.shard({"w": 0}, 0, 2).spec_digest,
        weights.shard({"w": 0}, 0, 8).spec_digest,
        weights.spec_digest,
        from_arrays({"w": np.zeros((2, 8), "f4")}).spec_digest,
    }
    assert len(others | digests) == 6


def test_patterns(arrays: dict[str, Any]) -> None:
    weights = from_arrays(arrays)
    assert weights.shard({"l0.col": -1}, 0, 2).specs["l0.col"].shape == (6, 4)
    first = weights.shard({"l0.col": None, "l0.*": 0}, 0, 2)
    assert first.specs["l0.col"].shard is None
    assert first.specs["l0.row"].shard == (0, 2)
    assert weights.shard({"l0.*": 0, "l0.col": 1}, 0, 2).specs["l0.col"].shard == (0, 2)
    refused: list[tuple[Any, type[Exception], str]] = [
        ({"q.*": 0}, UnknownWeight, "no weight among 4 matches 'q.*'"),
        ({re.compile("l0"): 0}, UnknownWeight, "matches 'l0'"),
        ({"norm": 1}, UsageError, "'norm' has 1 dimensions [5], expected an axis below that, found 1"),
        ({"norm": "0"}, UsageError, "expected an axis or None for 'norm', found '0'"),
        ({3: 0}, UsageError, "expected a name, a glob or a compiled regular expression, found 3"),
        ({"norm": 0}, UsageError, "'norm' float32 [5]: axis 0 expected a multiple of 2 (world_size), found 5"),
    ]
    for patterns, error, message in refused:
        with pytest.raises(error, match=re.escape(message)):
            weights.shard(patterns, 0, 2)
    for rank, size in ((2, 2), (-1, 2), (True, 2), (0, 0)):
        with pytest.raises(UsageError, match="0 <= rank < world_size"):
            weights.shard(AXES, rank, size)
    with pytest.raises(UsageError, match=r"'l0\.col' is one of 2 shards on axis 1 already, expected whole"):
        weights.shard(AXES, 0, 2).shard({"l0.col": 0}, 0, 2)
    with pytest.raises(UsageError, match="the weights of rank 0, expected of all or of rank 1"):
        weights.shard(AXES, 0, 2).shard({"norm": 0}, 1, 5)


def test_uneven_splits_are_padded_as_asked(tmp_path: Path, make: Any) -> None:
    w, v = make.ramp(5, 3, start=1), make.ramp(3, 5, start=1)
    weights = open_weights(make.write(tmp_path / "w.safetensors", {"w": w, "v": v}))
    padded_w = np.concatenate([w, np.zeros((3, 3), "f4")])
    padded_v = np.concatenate([v, np.zeros((3, 3), "f4")], axis=1)
    owned = [weights.shard({"w": 0, "v": 1}, rank, 4, pad=True) for rank in range(4)]
    for rank, own in enumerate(owned):
        np.testing.assert_array_equal(own["w"].read(), padded_w[2 * rank : 2 * rank + 2])
        np.testing.assert_array_equal(own["v"].read(), padded_v[:, 2 * rank : 2 * rank + 2])
        assert own["w"].digest() == digest_bytes(padded_w[2 * rank : 2 * rank + 2].tobytes())
    assert len({own.spec_digest for own in owned}) == 1
    assert owned[0]["w"].place() is not None
    assert owned[2]["w"].place() is None
    even = weights.shard({"w": 0}, 1, 5, pad=True)
    assert even["w"].place() is not None, "nothing is padded where it divides"


def test_tied_weights_are_cut_alike_or_not_at_all(make: Any) -> None:
    weights = from_arrays({"a": make.ramp(4, 4), "b": make.ramp(4, 4)}, tied=[("a", "b")])
    own = weights.shard({"*": 0}, 1, 2)
    assert own.specs["b"].alias == own.specs["a"].alias == "a"
    with pytest.raises(cachec.WeightError, match="tied weights 'a' and 'b' expected to agree"):
        weights.shard({"a": 0}, 1, 2)


def test_in_a_stage_a_slice_reads_the_weight_that_it_is_of(whole: Path, arrays: dict[str, Any]) -> None:
    weights = open_weights(whole)
    for name in ("l0.row", "l0.col"):
        recorder = ReadRecorder("fold")
        own = weights.guard("weights", recorder, FileDigests()).shard(AXES, 1, 2)
        assert recorder.reads() == ()
        digest = own[name].digest()
        assert digest == digest_bytes(expected(arrays, 1, 2)[name].tobytes())
        own[name].read()
        assert [(read.where, read.name, read.digest) for read in recorder.reads()] == [
            ("weights", name, weights[name].digest())
        ]
        assert own.origin(name) is None
        assert own.origin("norm") == ("weights", "norm")


def test_a_guarded_slice_is_read_as_a_slice(whole: Path, arrays: dict[str, Any]) -> None:
    own = open_weights(whole).shard(AXES, 1, 2)
    recorder = ReadRecorder("fold")
    own.guard("weights", recorder, FileDigests())["l0.col"].read()
    assert [read.digest for read in recorder.reads()] == [digest_bytes(expected(arrays, 1, 2)["l0.col"].tobytes())]


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize(("width", "stride"), [(3, 3), (3, 7), (5000, 5001), (10, 9000), (6000, 12000)])
@pytest.mark.parametrize("pad", [0, 4])
def test_spans_from_memory_and_from_a_file(tmp_path: Path, count: int, width: int, stride: int, pad: int) -> None:
    data = np.random.default_rng(0).integers(0, 255, 5 * stride + 11, "u1").tobytes()
    (tmp_path / "f").write_bytes(b"x" * 13 + data)
    spans = Spans(2, width, stride, count, width + pad)
    wanted = b"".join(data[2 + i * stride : 2 + i * stride + width] + b"\0" * pad for i in range(count))
    one, two = bytearray(len(wanted)), bytearray(len(wanted))
    copy_spans(memoryview(data), spans, memoryview(one))
    fd = os.open(tmp_path / "f", os.O_RDONLY)
    read_spans(fd, 13, spans, memoryview(two))
    os.close(fd)
    assert bytes(one) == bytes(two) == wanted


def test_spans_that_leave_the_memory_are_refused() -> None:
    with pytest.raises(IndexError):
        copy_spans(memoryview(bytes(10)), Spans(0, 4, 4, 3, 4), memoryview(bytearray(12)))
    with pytest.raises(IndexError):
        copy_spans(memoryview(bytes(12)), Spans(0, 4, 4, 3, 4), memoryview(bytearray(11)))


def test_a_file_that_got_shorter(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(100))
    fd = os.open(tmp_path / "f", os.O_RDONLY)
    with pytest.raises(EOFError, match="bytes early"):
        read_spans(fd, 0, Spans(0, 40, 60, 3, 40), memoryview(bytearray(120)))
    os.close(fd)


# --- how much is read


def _read_syscalls() -> int:
    return int(
        next(line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("rchar")).split()[1]
    )


def test_a_strided_slice_reads_its_pieces_only(tmp_path: Path, make: Any) -> None:
    array = make.ramp(64, 8, 8192)  # rows of 256 KiB, slices of 32 KiB
    own = open_weights(make.write(tmp_path / "w.safetensors", {"w": array})).shard({"w": 1}, 3, 8)
    own.specs
    own["w"].tensor
    own["w"].ways().extent()
    own["w"].place()  # binds the file
    before = _read_syscalls()
    data = own["w"].raw()
    read = _read_syscalls() - before
    assert data.nbytes == array.nbytes // 8
    assert data.nbytes <= read < data.nbytes + 4096, "the header of /proc/self/io itself is within"
    np.testing.assert_array_equal(own["w"].read(), array[:, 3:4])


def _resident_in_page_cache(path: Path) -> int:
    """Bytes of a file in the page cache (mincore(2))."""
    import ctypes
    import mmap

    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        mapped = mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    pages = -(-size // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * pages)()
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), found):
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(value & 1 for value in found) * mmap.PAGESIZE


def _evict(path: Path) -> bool:
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    return _resident_in_page_cache(path) == 0


def test_a_strided_slice_brings_only_its_pages_into_memory(tmp_path: Path, make: Any) -> None:
    path = make.write(tmp_path / "w.safetensors", {"w": make.ramp(64, 8, 8192)})
    if not _evict(path):
        pytest.skip("this file system keeps its pages")
    own = open_weights(path).shard({"w": 1}, 3, 8)
    own["w"].raw()
    nbytes = own["w"].nbytes
    assert nbytes <= _resident_in_page_cache(path) <= nbytes + 64 * 2 * 4096 + (1 << 18)


# --- files by rank


@pytest.fixture
def cut(tmp_path: Path, whole: Path) -> Path:
    folder = tmp_path / "cut"
    open_weights(whole).save_shards(folder, AXES, 2)
    return folder


def test_a_worker_opens_its_own_file(cut: Path, arrays: dict[str, Any]) -> None:
    assert sorted(path.name for path in cut.iterdir()) == [
        "cachec-shards.json",
        "rank-1-of-2.safetensors",
        "rank-2-of-2.safetensors",
    ]
    for rank in range(2):
        own = open_weights(cut, rank=rank, world_size=2)
        assert own.rank == rank
        for name, array in expected(arrays, rank, 2).items():
            np.testing.assert_array_equal(own[name].read(), array)
        assert own.spec_digest == from_arrays(arrays).shard(AXES, 1 - rank, 2).spec_digest


def test_other_libraries_read_the_files(cut: Path, arrays: dict[str, Any]) -> None:
    from safetensors import safe_open

    with safe_open(cut / "rank-2-of-2.safetensors", "np") as file:
        assert set(file.keys()) == {
            "norm",
            *(shard_name(name, 1, 2) for name in ("l0.row", "l0.col", "l1.col")),
        }
        np.testing.assert_array_equal(file.get_tensor("l0.col_shard-2-of-2"), arrays["l0.col"][:, 4:])


@contextmanager
def _opened_files() -> Iterator[set[str]]:
    """The regular files that this process opens, as the audit hook tells."""
    import sys

    found: set[str] = set()
    active = [True]

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if active[0] and event == "open" and isinstance(args[0], str | os.PathLike):
            found.add(os.path.realpath(args[0]))

    sys.addaudithook(hook)
    try:
        yield found
    finally:
        active[0] = False


def test_no_file_is_opened_by_two_ranks(cut: Path) -> None:
    opened: list[set[str]] = []
    for rank in range(2):
        with _opened_files() as found:
            own = open_weights(cut, rank=rank, world_size=2)
            for weight in own.values():
                weight.read().sum()
            held = {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
            mapped = set(re.findall(r"\S*rank-\S+", Path("/proc/self/maps").read_text()))
        here = {path for path in found | held | mapped if path.startswith(str(cut) + os.sep)}
        opened.append(here)
        assert here == {str(cut / f"rank-{rank + 1}-of-2.safetensors")}
        own.release()
        del own, weight
    assert not opened[0] & opened[1]


def test_a_rank_reads_its_own_bytes(tmp_path: Path, make: Any) -> None:
    source = open_weights(make.write(tmp_path / "w.safetensors", {f"w{i}": make.ramp(64, 1024) for i in range(16)}))
    folder = tmp_path / "cut"
    source.save_shards(folder, {"w*": 1}, 8)
    files = sorted(folder.glob("*.safetensors"))
    if not all(map(_evict, files)):
        pytest.skip("this file system keeps its pages")
    own = open_weights(folder, rank=3, world_size=8)
    total = sum(weight.read().nbytes + float(weight.read().sum()) * 0 for weight in own.values())
    assert total == source.nbytes / 8
    for path in files:
        resident = _resident_in_page_cache(path)
        assert (resident > 0) == (path.name == "rank-4-of-8.safetensors"), path.name
    before = _read_syscalls()
    again = open_weights(folder, rank=3, world_size=8, access="read")
    for weight in again.values():
        weight.read()
    assert _read_syscalls() - before < own.nbytes + 32768


def test_wrong_worlds_ranks_and_missing_files(cut: Path, tmp_path: Path, make: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_weights(cut, rank=0, world_size=4)
    assert str(caught.value) == (
        f"{cut}: expected rank-1-of-4.safetensors (world_size=4), found shards for world_size=2; "
        "open it with that, or cut the weights up for 4"
    )
    with pytest.raises(CheckpointError, match="cut up for world_size=2; open them with rank= and world_size="):
        open_weights(cut)
    with pytest.raises(UsageError, match="0 <= rank < world_size; found 2 of 2"):
        open_weights(cut, rank=2, world_size=2)
    (cut / "rank-2-of-2.safetensors").unlink()
    with pytest.raises(
        CheckpointError, match=re.escape("missing rank-2-of-2.safetensors, the file of rank=1; found those of rank 0")
    ):
        open_weights(cut, rank=1, world_size=2)
    assert open_weights(cut, rank=0, world_size=2).rank == 0
    # Another worker's file under this one's name.
    (cut / "rank-1-of-2.safetensors").rename(cut / "rank-2-of-2.safetensors")
    with pytest.raises(CheckpointError, match=r"missing shard 'l0\.(row|col)_shard-2-of-2'"):
        open_weights(cut, rank=1, world_size=2)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(CheckpointError, match=r"expected model\.safetensors"):
        open_weights(empty, rank=0, world_size=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drop": "norm"}, "missing tensor 'norm', expected beside the shards"),
        ({"drop": "l0.col_shard-1-of-2"}, "names 'l0.col', of which there is no shard"),
        ({"add": "l9"}, "extra tensor 'l9', expected only what metadata 'cachec.shard_whole' names"),
        ({"add": "l0.col_shard-3-of-2"}, "extra shard 'l0.col_shard-3-of-2': expected numbers 1 to 2"),
        ({"add": "l0.col_shard-1-of-3"}, "'l0.col_shard-1-of-3': expected 2 shards (world_size), found 3"),
        ({"whole": "["}, "metadata 'cachec.shard_whole' expected a JSON list of names"),
        ({"whole": "[1]"}, "metadata 'cachec.shard_whole' expected a JSON list of names"),
    ],
)
def test_a_file_with_other_tensors_than_it_states(cut: Path, make: Any, change: dict[str, str], message: str) -> None:
    from safetensors import safe_open

    path = cut / "rank-1-of-2.safetensors"
    with safe_open(path, "np") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tensors.pop(change.get("drop"), None)
    if "add" in change:
        tensors[change["add"]] = make.ramp(3)
    if "whole" in change:
        metadata["cachec.shard_whole"] = change["whole"]
    path.unlink()
    make.write(path, tensors, metadata)
    with pytest.raises(CheckpointError, match=re.escape(message)) as caught:
        open_weights(cut, rank=0, world_size=2)
    assert str(path) in str(caught.value)


def test_saving_again(cut: Path, whole: Path, tmp_path: Path) -> None:
    weights = open_weights(whole)
    with pytest.raises(UsageError, match=r"expected to be empty, found 'cachec-shards\.json'; choose"):
        weights.save_shards(cut, AXES, 2)
    (cut / "cachec-shards.json").unlink()  # as a run leaves it that was killed
    told: list[tuple[int, int]] = []
    weights.save_shards(cut, AXES, 2, progress=lambda done, total: told.append((done, total)))
    written = sum(open_weights(cut, rank=rank, world_size=2).nbytes for rank in range(2))
    assert told[-1] == (written, written)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    with pytest.raises(UsageError, match="axis 0 expected a multiple of 3"):
        weights.save_shards(tmp_path / "three", {"l0.row": 0}, 3)
    weights.save_shards(tmp_path / "three", {"l0.row": 0}, 3, pad=True)
    assert open_weights(tmp_path / "three", rank=2, world_size=3)["l0.row"].shape == (3, 6)


def test_more_workers_than_files_that_are_open_at_once(
    tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_TOGETHER", 2)
    from_arrays({"w": make.ramp(5, 3)}).save_shards(tmp_path / "cut", {"w": 0}, 5)
    for rank in range(5):
        own = open_weights(tmp_path / "cut", rank=rank, world_size=5)
        np.testing.assert_array_equal(own["w"].read(), make.ramp(5, 3)[rank : rank + 1])
    assert len(os.listdir(tmp_path / "cut")) == 6


# --- one compile for all


@pytest.mark.parametrize("cut_before", [False, True])
def test_eight_ranks_make_one_compile(cache: cachec.Cache, tmp_path: Path, make: Any, cut_before: bool) -> None:
    path = make.write(tmp_path / "w.safetensors", {"w": make.ramp(16, 16), "v": make.ramp(16, 16), "n": make.ramp(3)})
    axes = {"w": 0, "v": 1}
    if cut_before:
        open_weights(path).save_shards(tmp_path / "cut", axes, 8)
        owned = [open_weights(tmp_path / "cut", rank=rank, world_size=8) for rank in range(8)]
    else:
        owned = [open_weights(path).shard(axes, rank, 8) for rank in range(8)]

    @cache.stage
    def lower(weights: cachec.WeightSet) -> bytes:
        return repr(sorted(weights.specs.items())).encode() + os.urandom(8)

    @cache.stage(per_rank=True)
    def lower_each(weights: cachec.WeightSet) -> bytes:
        return repr(weights.rank).encode() + os.urandom(8)

    shared = [cache.call(lower, own) for own in owned]
    assert [outcome.reason is Reason.HIT for _, outcome in shared] == [False] + [True] * 7
    assert len({value for value, _ in shared}) == 1
    each = [cache.call(lower_each, own) for own in owned]
    assert not any(outcome.hit for _, outcome in each)
    assert [value[:1] for value, _ in each] == [str(rank).encode() for rank in range(8)]
    assert all(cache.call(lower_each, own)[1].hit for own in owned)
    assert not cache.call(lower, open_weights(path).shard(axes, 0, 4))[1].hit


def test_a_rank_stays_with_what_is_derived(cache: cachec.Cache, make: Any) -> None:
    whole = from_arrays({"w": make.ramp(16, 4), "n": make.ramp(3)})

    @cache.stage
    def double(weights: cachec.WeightSet) -> tuple[cachec.WeightSet, cachec.WeightSet]:
        made = weights.derive({"n": lambda weight: weight.read() * 2})
        return made, made.select(["n"])

    @cache.stage(per_rank=True)
    def which(weights: cachec.WeightSet) -> str:
        return str(weights.rank)

    for rank in range(4):
        all_of_it, part = double(whole.shard({"w": 0}, rank, 4))
        assert (all_of_it.rank, part.rank) == (rank, rank)
        assert which(all_of_it) == which(part) == str(rank)


def test_a_slice_made_in_a_stage_is_stored(cache: cachec.Cache, make: Any) -> None:
    weights = from_arrays({"w": make.ramp(8, 4), "n": make.ramp(3)})

    @cache.stage
    def cut(weights: cachec.WeightSet) -> cachec.WeightSet:
        return weights.shard({"w": 1}, 1, 2)

    for _ in range(2):
        own, outcome = cache.call(cut, weights)
        np.testing.assert_array_equal(own["w"].read(), make.ramp(8, 4)[:, 2:])
        assert own.specs["w"].shard == (1, 2)
    assert outcome.hit
    _, outcome = cache.call(cut, from_arrays({"w": make.ramp(8, 4, start=1), "n": make.ramp(3)}))
    assert outcome.reason is Reason.WEIGHT_CONTENT_CHANGED
    read_only = cachec.Cache(cache.dir, mode="read-only", log="off")

    @read_only.stage(name="other")
    def cut_again(weights: cachec.WeightSet) -> cachec.WeightSet:
        return weights.shard({"w": 0}, 1, 2)

    own = cut_again(weights)  # stored nowhere: the fresh result has to be usable
    np.testing.assert_array_equal(own["w"].read(), make.ramp(8, 4)[4:])


def test_slice_spans() -> None:
    assert slice_spans((4, 6), 4, 0, 1, 2, 2) == Spans(24, 48, 96, 1, 48)
    assert slice_spans((4, 6), 4, 1, 1, 2, 3) == Spans(4, 8, 24, 4, 12)
