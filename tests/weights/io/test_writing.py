"""Saving weight sets: bytes, read back by the formats' own libraries, and what is left when something goes wrong."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cachec.errors import CheckpointError, UsageError, WeightsChanged
from cachec.store.store import Store
from cachec.weights import WeightSet, from_arrays, open_weights
from cachec.weights.io.writing import save
from cachec.weights.library.stored_weights import WeightStore

ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "z": np.arange(7, dtype=np.uint8),
    "a.half": np.arange(5, dtype=ml_dtypes.bfloat16),
    "m": np.arange(12, dtype=np.float32).reshape(3, 4),
    "wide": np.arange(3, dtype=np.float64),
    "scalar": np.array(3.5, np.float32),
    "empty": np.zeros((0, 4), np.float32),
    'odd "name" \n ü': np.arange(3, dtype=np.int16),
}


@pytest.fixture
def weights() -> WeightSet:
    return from_arrays(ARRAYS)


def assert_same(found: WeightSet) -> None:
    assert list(found) == sorted(ARRAYS)
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype.name
        np.testing.assert_array_equal(found[name].read(), array)


def leftovers(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if "partial" in name]


# --- safetensors


def test_what_is_written_is_read_back(tmp_path: Path, weights: WeightSet) -> None:
    path = tmp_path / "out.safetensors"
    weights.save(path)
    assert_same(open_weights(path))
    assert leftovers(tmp_path) == []


def test_the_official_library_reads_it(tmp_path: Path, weights: WeightSet) -> None:
    from safetensors import safe_open
    from safetensors.numpy import load_file

    weights.save(tmp_path / "out.safetensors", metadata={"b": "2", "a": "1"})
    found = load_file(tmp_path / "out.safetensors")
    assert sorted(found) == sorted(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name].view(array.dtype), array)
    with safe_open(tmp_path / "out.safetensors", "np") as file:
        assert file.metadata() == {"a": "1", "b": "2"}


def test_the_bytes_are_those_of_the_official_writer(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    arrays = {name: np.arange(size, dtype=np.float32) for name, size in (("b", 3), ("a.x", 5), ("c", 1))}
    from_arrays(arrays).save(tmp_path / "ours", metadata={"k": "v"})
    save_file(arrays, tmp_path / "theirs", metadata={"k": "v"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_the_bytes_depend_on_the_weights_only(tmp_path: Path) -> None:
    a = from_arrays(ARRAYS)
    b = from_arrays({name: ARRAYS[name].copy() for name in reversed(ARRAYS)})
    a.save(tmp_path / "a", metadata={"x": "1", "y": "2"})
    b.save(tmp_path / "b", metadata={"y": "2", "x": "1"})
    open_weights(tmp_path / "a").save(tmp_path / "c", metadata={"x": "1", "y": "2"})
    data = (tmp_path / "a").read_bytes()
    assert data == (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()
    b.save(tmp_path / "d", metadata={"y": "2"})
    assert data != (tmp_path / "d").read_bytes()
    from_arrays(ARRAYS | {"m": ARRAYS["m"] + 1}).save(tmp_path / "e", metadata={"x": "1", "y": "2"})
    assert data != (tmp_path / "e").read_bytes()


def test_offsets_are_aligned_without_holes(tmp_path: Path, weights: WeightSet) -> None:
    weights.save(tmp_path / "out.safetensors")
    for weight in open_weights(tmp_path / "out.safetensors").values():
        place = weight.place()
        assert place is not None
        assert place.offset % 8 % weight.read().dtype.itemsize == 0


@pytest.mark.parametrize("format", ["safetensors", "irpa"])
def test_a_set_without_weights(tmp_path: Path, format: str) -> None:
    save(from_arrays({}), tmp_path / f"none.{format}", format=format)
    assert len(open_weights(tmp_path / f"none.{format}")) == 0


def test_names_of_a_renamed_and_narrowed_set_are_written(tmp_path: Path, weights: WeightSet) -> None:
    weights.select(["m", "z"]).rename({"m": "matrix"}).save(tmp_path / "out.safetensors")
    assert list(open_weights(tmp_path / "out.safetensors")) == ["matrix", "z"]


# --- shards


def test_shards_with_an_index(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    arrays = {f"w{number}": np.full(25, number, np.float32) for number in range(5)}
    from_arrays(arrays).save(tmp_path / "model.safetensors", shard_size=250, metadata={"format": "np"})
    names = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    assert sorted(os.listdir(tmp_path)) == [*names, "model.safetensors.index.json"]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 500}
    assert list(index["weight_map"].items()) == [(f"w{n}", names[n // 2]) for n in range(5)]
    assert sorted(load_file(tmp_path / names[1])) == ["w2", "w3"]
    found = open_weights(tmp_path)
    assert {name: float(w.read()[0]) for name, w in found.items()} == {f"w{n}": float(n) for n in range(5)}


def test_a_tensor_larger_than_a_shard_has_one_of_its_own(tmp_path: Path) -> None:
    arrays = {"a": np.zeros(10, np.uint8), "b": np.zeros(1000, np.uint8), "c": np.zeros(10, np.uint8)}
    from_arrays(arrays).save(tmp_path / "m.safetensors", shard_size=100)
    assert len(os.listdir(tmp_path)) == 4
    assert open_weights(tmp_path / "m.safetensors.index.json").nbytes == 1020


def test_what_fits_one_shard_is_one_file(tmp_path: Path, weights: WeightSet) -> None:
    weights.save(tmp_path / "model.safetensors", shard_size=1 << 20)
    assert os.listdir(tmp_path) == ["model.safetensors"]


def test_saving_shards_again_leaves_no_moment_with_a_wrong_index(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    arrays = {f"w{number}": np.full(25, number, np.float32) for number in range(4)}
    from_arrays(arrays).save(path, shard_size=100)
    (tmp_path / "model-00003-of-00004.safetensors").unlink()
    (tmp_path / "model-00003-of-00004.safetensors").mkdir()  # the third rename would fail
    with pytest.raises(UsageError, match="expected to be a file or nothing"):
        from_arrays({name: a + 1 for name, a in arrays.items()}).save(path, shard_size=100)
    (tmp_path / "model-00003-of-00004.safetensors").rmdir()
    from_arrays({name: a + 1 for name, a in arrays.items()}).save(path, shard_size=100)
    assert open_weights(tmp_path)["w3"].read()[0] == 4


def test_shards_hidden_by_a_single_file_are_refused(tmp_path: Path, weights: WeightSet) -> None:
    weights.save(tmp_path / "model.safetensors")
    with pytest.raises(UsageError, match="would hide the shards"):
        weights.save(tmp_path / "model.safetensors", shard_size=30)


# --- IRPA


def test_the_official_runtime_reads_irpa(tmp_path: Path, weights: WeightSet) -> None:
    rt = pytest.importorskip("iree.runtime")
    weights.save(tmp_path / "out.irpa", format="irpa")
    index = rt.ParameterIndex()
    index.load(str(tmp_path / "out.irpa"))
    found = dict(index.items())
    assert sorted(found) == sorted(ARRAYS)
    assert bytes(found["m"].file_view) == ARRAYS["m"].tobytes()
    assert bytes(found["a.half"].file_view) == ARRAYS["a.half"].tobytes()


def test_the_bytes_are_those_of_irees_writer(tmp_path: Path) -> None:
    rt = pytest.importorskip("iree.runtime")
    weights = from_arrays({name: array for name, array in ARRAYS.items() if array.nbytes})
    weights.save(tmp_path / "ours.irpa", format="irpa")
    index = rt.ParameterIndex()
    for name, weight in weights.items():
        index.add_buffer(name, bytes(weight.raw()))
    index.create_archive_file(str(tmp_path / "theirs.irpa"))
    assert (tmp_path / "ours.irpa").read_bytes() == (tmp_path / "theirs.irpa").read_bytes()


def test_irpa_is_read_back_and_aligned(tmp_path: Path, weights: WeightSet) -> None:
    weights.save(tmp_path / "out.irpa", format="irpa")
    assert (tmp_path / "out.irpa").stat().st_size % 4096 == 0
    found = open_weights(tmp_path / "out.irpa")
    assert list(found) == sorted(ARRAYS)
    for name, array in ARRAYS.items():
        assert bytes(found[name].raw()) == array.tobytes()
        place = found[name].place()
        assert place is not None
        assert not array.nbytes or place.offset % 64 == 0


# --- what is refused


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"format": "gguf"}, "format expected"),
        ({"shard_size": 0}, "shard_size expected"),
        ({"shard_size": True}, "shard_size expected"),
        ({"metadata": {"a": 1}}, "metadata expected"),
        ({"format": "irpa", "shard_size": 100}, "no index of shards"),
        ({"format": "irpa", "metadata": {"a": "b"}}, "keeps no metadata"),
    ],
)
def test_refused_options(tmp_path: Path, weights: WeightSet, how: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        save(weights, tmp_path / "out", **how)
    assert os.listdir(tmp_path) == []


def test_the_suffix_decides_or_is_refused(tmp_path: Path, weights: WeightSet) -> None:
    for name, start in (("o.irpa", b"IRPA"), ("o.IRPA", b"IRPA")):
        weights.save(tmp_path / name)
        assert (tmp_path / name).read_bytes()[:4] == start
    for name in ("o.safetensors", "o"):
        weights.save(tmp_path / name)
        assert (tmp_path / name).read_bytes()[8:9] == b"{"
    written = sorted(os.listdir(tmp_path))
    for name, message in (
        ("o.gguf", r"o\.gguf: gguf can be read and not written; expected \.safetensors or \.irpa or \.ptd"),
        ("o.bin", r"o\.bin: no format is known by \.bin; .* or say which: format="),
    ):
        with pytest.raises(UsageError, match=message):
            weights.save(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == written
    for name in ("o.bin", "o.gguf", "o2.safetensors"):  # who says which format is heard
        weights.save(tmp_path / name, format="irpa")
        assert (tmp_path / name).read_bytes()[:4] == b"IRPA"


def test_refused_weights_and_places(tmp_path: Path, weights: WeightSet) -> None:
    with pytest.raises(UsageError, match="safetensors has no complex128"):
        from_arrays({"c": np.zeros(2, np.complex128)}).save(tmp_path / "c.safetensors")
    with pytest.raises(UsageError, match="reserves the name"):
        from_arrays({"__metadata__": np.zeros(2)}).save(tmp_path / "c.safetensors")
    with pytest.raises(UsageError, match="expected to be a file or nothing"):
        weights.save(tmp_path)
    with pytest.raises(UsageError, match="expected to be a file or nothing"):
        weights.save("/dev/null")
    with pytest.raises(UsageError, match="named after a file that ends in"):
        weights.save(tmp_path / "model.bin", format="safetensors", shard_size=10)
    with pytest.raises(FileNotFoundError):
        weights.save(tmp_path / "no" / "such" / "folder.safetensors")
    from_arrays({"c": np.zeros(2, np.complex128)}).save(tmp_path / "c.irpa", format="irpa")
    assert os.listdir(tmp_path) == ["c.irpa"]


# --- replacing


def test_onto_the_file_that_the_weights_are_mapped_from(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    from_arrays({"a": np.arange(4.0), "b": np.ones(4)}).save(path)
    weights = open_weights(path)
    view = weights["a"].read()
    inode = path.stat().st_ino
    weights.select("a").save(path)
    assert path.stat().st_ino != inode
    np.testing.assert_array_equal(view, np.arange(4.0))
    assert list(open_weights(path)) == ["a"]


def test_a_link_is_replaced_and_what_it_leads_to_is_not(tmp_path: Path, weights: WeightSet) -> None:
    (tmp_path / "blob").write_bytes(b"precious")
    (tmp_path / "m.safetensors").symlink_to("blob")
    weights.save(tmp_path / "m.safetensors")
    assert (tmp_path / "blob").read_bytes() == b"precious"
    assert_same(open_weights(tmp_path / "m.safetensors"))


def test_modes(tmp_path: Path, weights: WeightSet) -> None:
    old = os.umask(0o027)
    try:
        weights.save(tmp_path / "new")
    finally:
        os.umask(old)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640
    (tmp_path / "new").chmod(0o604)
    weights.save(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o604


# --- going wrong


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").write_bytes(b"old")

    def full(*args: Any) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(os, "copy_file_range", full)
    with pytest.raises(OSError, match="no space left"):
        open_weights(model).save(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"old"
    assert leftovers(tmp_path) == []


def test_a_full_disk_in_the_middle_of_shards_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.pwrite, [0]

    def full(*args: Any) -> int:
        calls[0] += 1
        if calls[0] == 3:
            raise OSError(errno.ENOSPC, "no space left")
        return real(*args)

    monkeypatch.setattr(os, "pwrite", full)
    weights = from_arrays({f"w{number}": np.ones(25, np.float32) for number in range(5)})
    with pytest.raises(OSError, match="no space left"):
        weights.save(tmp_path / "model.safetensors", shard_size=100)
    assert os.listdir(tmp_path) == []


KILLED = """
import os, signal, sys
import numpy as np
from cachec.weights import from_arrays
def die(done, total):
    if done > 1 << 20:
        os.kill(os.getpid(), signal.SIGKILL)
from_arrays({"a": np.ones(1 << 18, np.float32), "b": np.ones(1 << 18, np.float32)}).save(sys.argv[1], progress=die)
"""


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path, weights: WeightSet) -> None:
    path = tmp_path / "out.safetensors"
    found = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert found.returncode == -signal.SIGKILL
    assert len(leftovers(tmp_path)) == 1
    assert not path.exists()
    weights.save(tmp_path / "other.safetensors")
    assert len(leftovers(tmp_path)) == 1  # not of that name
    weights.save(path)
    assert leftovers(tmp_path) == []


def test_what_another_is_writing_is_left_alone(tmp_path: Path, weights: WeightSet) -> None:
    path = tmp_path / "out.safetensors"
    seen: list[list[str]] = []

    def meanwhile(done: int, total: int) -> None:
        if not seen:
            seen.append(leftovers(tmp_path))
            weights.save(path)

    from_arrays({"big": np.ones(9 << 20, np.uint8)}).save(path, progress=meanwhile)
    assert len(seen[0]) == 1
    assert list(open_weights(path)) == ["big"]


def test_a_source_that_changes_is_not_saved(tmp_path: Path, model: Path) -> None:
    weights = open_weights(model)
    weights["w"].read()
    with model.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    with pytest.raises(WeightsChanged):
        weights.save(tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()
    assert leftovers(tmp_path) == []


def test_a_damaged_owned_weight_is_not_saved(tmp_path: Path) -> None:
    store = WeightStore(Store(tmp_path / "store"))
    store.add(from_arrays({"a": np.arange(1e6)}), "a")
    (path,) = (tmp_path / "store" / "objects").glob("*/*")
    times = path.stat().st_mtime_ns
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.write(b"rot")
    os.utime(path, ns=(times, times))  # it is sealed as before: no look tells
    with store.open("a") as weights, pytest.raises(WeightsChanged, match=r"'a'.*expected the digest"):
        weights.save(tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


def test_progress_counts_all_bytes(tmp_path: Path, weights: WeightSet) -> None:
    seen: list[tuple[int, int]] = []
    weights.save(tmp_path / "out", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (weights.nbytes, weights.nbytes)


def test_fsync_reaches_file_and_folder(tmp_path: Path, weights: WeightSet, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    weights.save(tmp_path / "out")
    assert synced == []
    weights.save(tmp_path / "out", fsync=True)
    assert len(synced) == 2


PEAK = """
import sys
from cachec.weights import open_weights
peak = 0
def look(done, total):
    global peak
    with open("/proc/self/smaps_rollup") as lines:
        peak = max(peak, sum(int(l.split()[1]) for l in lines if l.startswith("Private_Dirty:")))
open_weights(sys.argv[1]).save(sys.argv[2], format=sys.argv[3], progress=look)
print(peak)
"""


@pytest.mark.parametrize("format", ["safetensors", "irpa"])
def test_memory_is_bounded(tmp_path: Path, make: Any, format: str) -> None:
    size = 150 << 20
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}})
    path = tmp_path / "big.safetensors"
    path.write_bytes(make.file_bytes(header))
    os.truncate(path, path.stat().st_size + size)
    command = [sys.executable, "-c", PEAK, str(path), str(tmp_path / f"out.{format}"), format]
    assert int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) < 64 << 10
    assert open_weights(tmp_path / f"out.{format}").nbytes == size
    (tmp_path / f"out.{format}").unlink()


def test_a_file_that_was_cut_is_refused(tmp_path: Path, weights: WeightSet) -> None:
    for format in ("safetensors", "irpa"):
        save(weights, tmp_path / f"out.{format}", format=format)
        data = (tmp_path / f"out.{format}").read_bytes()
        (tmp_path / f"cut.{format}").write_bytes(data[:200])
        with pytest.raises(CheckpointError):
            open_weights(tmp_path / f"cut.{format}")
