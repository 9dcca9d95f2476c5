"""Bytes of weights: read-only views, private pages, exports, and files that change under a set."""

from __future__ import annotations

import gc
import os
import sys
import threading
import types
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cachec.base import fsio
from cachec.base.hashing import FileDigests, digest_bytes
from cachec.errors import HandleClosed, UsageError, WeightReadError, WeightsChanged
from cachec.model import WeightSpec
from cachec.weights import WeightSet, from_arrays, open_weights

ACCESS = pytest.mark.parametrize("access", ["mmap", "read"])


@ACCESS
def test_read_is_a_read_only_view(model: Path, make: Any, access: Any) -> None:
    array = open_weights(model, access=access)["w"].read()
    np.testing.assert_array_equal(array, make.ramp(4, 8))
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True


def test_a_map_is_shared_and_goes_with_its_last_view(model: Path) -> None:
    def maps() -> int:
        return Path("/proc/self/maps").read_text().count(str(model))

    weights = open_weights(model)
    arrays = [weight.read() for weight in weights.values()]
    assert maps() == 1
    weights.release()
    assert maps() == 1
    assert arrays[2][3, 7] == 31
    del arrays
    gc.collect()
    assert maps() == 0


def test_descriptors_do_not_grow_with_the_tensors(tmp_path: Path, make: Any) -> None:
    path = make.write(tmp_path / "m.safetensors", {f"t{i}": make.ramp(3) for i in range(200)})

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    weights = open_weights(path)
    assert descriptors() == before
    arrays = [weight.read() for weight in weights.values()]
    assert descriptors() <= before + 2
    weights.release()
    del arrays
    gc.collect()
    assert descriptors() == before


@ACCESS
def test_release(model: Path, access: Any) -> None:
    with open_weights(model, access=access) as weights:
        part = weights.select("w").rename({"w": "x"})
        array = part["x"].read()
    for use in (part["x"].read, part["x"].digest, part["x"].raw, part["x"].private, part["x"].place):
        with pytest.raises(HandleClosed, match="released"):
            use()
    assert array.sum() == 496
    assert open_weights(model)["w"].read().sum() == 496


@ACCESS
def test_private_pages_change_nothing_else(model: Path, access: Any) -> None:
    content = model.read_bytes()
    weights = open_weights(model, access=access)
    first, second = weights["w"].private(), weights["w"].private()
    first[:] = -1
    assert second.sum() == 496
    assert weights["w"].read().sum() == 496
    assert model.read_bytes() == content
    assert weights.changed() is None


def test_private_pages_without_a_free_descriptor(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = open_weights(model)

    def refuse(*_: int) -> memoryview:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(fsio, "map_private", refuse)
    array = weights["w"].private()
    array += 1
    assert array.sum() == 528

    def broken(*_: int) -> memoryview:
        raise OSError(5, "I/O error")

    monkeypatch.setattr(fsio, "map_private", broken)
    with pytest.raises(OSError, match="I/O"):
        weights["w"].private()


def test_dlpack_and_array_and_buffer(model: Path) -> None:
    weights = open_weights(model)
    content = model.read_bytes()
    exported = np.from_dlpack(weights["w"])
    assert exported.shape == (4, 8)
    np.asarray(exported).sum()
    assert np.asarray(weights["w"]).sum() == 496
    assert np.asarray(weights["w"], dtype=np.float64).dtype == np.float64
    copied = np.array(weights["w"], copy=True)
    copied[:] = 0
    with pytest.raises(ValueError, match="has to be copied"):
        np.asarray(weights["w"], dtype=np.float64, copy=False)
    view = weights["w"].__buffer__(0)
    assert (view.format, view.shape, view.readonly) == ("f", (4, 8), True)
    assert weights["w"].__dlpack_device__() == (1, 0)
    assert model.read_bytes() == content


def test_bf16_has_no_buffer_and_no_dlpack() -> None:
    weight = from_arrays({"a": np.ones(3, ml_dtypes.bfloat16)})["a"]
    assert weight.dtype == "bfloat16"
    assert weight.read().dtype == ml_dtypes.bfloat16
    with pytest.raises(BufferError, match="bfloat16"):
        weight.__buffer__(0)
    with pytest.raises(BufferError):
        weight.__dlpack__()


def test_jax(model: Path) -> None:
    weights = open_weights(model)
    array = weights["w"].jax()
    assert type(array).__module__.startswith("jax")
    np.testing.assert_array_equal(np.asarray(array), weights["w"].read())


def test_torch_gets_private_pages(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # torch itself is no dependency of the tests; numpy stands in for the three things of it that are used.
    fake = types.SimpleNamespace(float32=np.float32, frombuffer=np.frombuffer, empty=np.empty)
    monkeypatch.setitem(sys.modules, "torch", fake)
    content = model.read_bytes()
    weights = open_weights(model)
    tensor = weights["w"].torch()
    assert (tensor.shape, tensor.sum()) == ((4, 8), 496)
    tensor[:] = 0
    assert model.read_bytes() == content
    assert weights["w"].torch().sum() == 496
    assert from_arrays({"a": np.empty((0, 2), np.float32)})["a"].torch().shape == (0, 2)
    with pytest.raises(UsageError, match="no dtype int8"):
        from_arrays({"a": np.ones(1, np.int8)})["a"].torch()


def test_real_torch_writes_to_no_file(model: Path) -> None:
    torch = pytest.importorskip("torch")
    content = model.read_bytes()
    weights = open_weights(model)
    for tensor in (weights["w"].torch(), torch.from_dlpack(weights["w"])):
        assert tensor.dtype == torch.float32
        tensor.zero_()
    assert weights["w"].read().sum() == 496
    assert model.read_bytes() == content


@ACCESS
def test_digest_is_blake3_of_the_bytes(model: Path, make: Any, access: Any) -> None:
    weights = open_weights(model, access=access)
    wanted = digest_bytes(make.ramp(4, 8).tobytes())
    assert weights["w"].digest() == weights["w"].digest(FileDigests()) == wanted
    assert WeightSet.from_arrays({"w": make.ramp(4, 8)})["w"].digest() == wanted
    assert weights["b"].digest() != wanted


def test_place(model: Path, make: Any) -> None:
    place = open_weights(model)["w"].place()
    assert place is not None
    with place.path.open("rb") as file:
        file.seek(place.offset)
        assert file.read(place.nbytes) == make.ramp(4, 8).tobytes()
    assert from_arrays({"a": np.ones(1)})["a"].place() is None


def test_empty_and_scalar_weights(tmp_path: Path, make: Any) -> None:
    arrays = {"none": make.ramp(0, 3), "one": make.ramp(1).reshape(())}
    for weights in (open_weights(make.write(tmp_path / "e.safetensors", arrays)), from_arrays(arrays)):
        assert weights["none"].read().shape == (0, 3)
        assert weights["none"].private().shape == (0, 3)
        assert weights["one"].read().shape == ()
        assert weights["one"].read() == 0
        assert weights["none"].digest() == digest_bytes(b"")


# --- files that change


def _replace(path: Path, make: Any) -> None:
    make.write(path.with_suffix(".new"), {"w": make.ramp(4, 8, start=5), "b": make.ramp(8), "scale": make.ramp(1)})
    path.with_suffix(".new").rename(path)


def _in_place(path: Path, make: Any) -> None:
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def _truncated(path: Path, make: Any) -> None:
    os.truncate(path, path.stat().st_size - 4)


def _gone(path: Path, make: Any) -> None:
    path.unlink()


CHANGES = pytest.mark.parametrize("change", [_replace, _in_place, _truncated, _gone])


@CHANGES
@ACCESS
def test_a_change_before_the_first_read(model: Path, make: Any, access: Any, change: Any) -> None:
    weights = open_weights(model, access=access)
    assert weights.changed() is None
    change(model, make)
    for use in (weights["w"].read, weights["w"].digest, weights["b"].private, weights["b"].place):
        with pytest.raises(WeightsChanged, match=r"m\.safetensors"):
            use()


@CHANGES
@ACCESS
def test_a_change_after_the_first_read(model: Path, make: Any, access: Any, change: Any) -> None:
    weights = open_weights(model, access=access)
    weights["w"].read()
    assert weights.changed() is None
    change(model, make)
    assert weights.changed() == str(model)
    for use in (weights["w"].read, weights["w"].digest, weights["b"].private, weights["b"].place):
        with pytest.raises(WeightsChanged, match="open the weights again"):
            use()


@pytest.mark.parametrize("use", ["read", "digest", "private", "extent"])
@ACCESS
def test_a_file_that_is_cut_after_a_look_at_it(
    model: Path, monkeypatch: pytest.MonkeyPatch, access: Any, use: str
) -> None:
    """Whatever look it is after: a file that ends early is one that changed."""
    data, identity = model.read_bytes(), fsio.identity
    seen: list[bool] = []
    for last in range(1, 8):
        model.write_bytes(data)
        weights, looks = open_weights(model, access=access), 0

        def look(file: Any, last: int = last) -> fsio.Identity:
            nonlocal looks
            told, looks = identity(file), looks + 1
            if looks == last:
                os.truncate(model, 8)
            return told

        with monkeypatch.context() as patched:
            patched.setattr(fsio, "identity", look)
            try:
                getattr(weights["w"], use)()
                seen.append(False)
            except WeightsChanged:
                seen.append(True)
    assert seen[0]
    assert not seen[-1]  # all looks were over


def test_a_header_that_changes_unseen_by_stat(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As a store through a map whose page was dirty already would: same identity, other bytes.
    weights = open_weights(model)
    data = model.read_bytes()
    opened = fsio.identity(model)
    model.write_bytes(data.replace(b'"scale"', b'"SCALE"'))
    monkeypatch.setattr(fsio, "identity", lambda file: opened)
    with pytest.raises(WeightsChanged, match="header"):
        weights["w"].read()


def test_an_untouched_file_is_unchanged(model: Path) -> None:
    weights = open_weights(model)
    for _ in range(3):
        weights["w"].read()
        assert weights.changed() is None


def test_reads_from_many_threads(model: Path) -> None:
    weights = open_weights(model)
    sums: list[float] = []
    threads = [threading.Thread(target=lambda: sums.append(float(weights["w"].read().sum()))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [496.0] * 16


# --- memory


def test_arrays_are_taken_by_reference_and_read_only() -> None:
    array = np.zeros(4, np.float32)
    weights = from_arrays({"a": array})
    before = weights["a"].digest()
    found = weights["a"].read()
    with pytest.raises(ValueError, match="WRITEABLE"):
        found.flags.writeable = True
    private = weights["a"].private()
    private[:] = 9
    assert array.sum() == 0
    array[0] = 1
    assert found[0] == 1
    assert weights["a"].digest() != before, "bytes that can change are hashed each time"
    assert weights.changed() is None


def test_bytes_like_with_a_spec() -> None:
    spec = WeightSpec(name="a", dtype="float16", shape=(2,), nbytes=4)
    data = np.array([1, 2], np.float16).tobytes()
    for buffer in (data, bytearray(data), memoryview(data)):
        weights = from_arrays({"a": (buffer, spec)})
        np.testing.assert_array_equal(weights["a"].read(), np.array([1, 2], np.float16))
        assert weights["a"].digest() == digest_bytes(data)
    changing = bytearray(data)
    weights = from_arrays({"a": (changing, spec)})
    before = weights["a"].digest()
    changing[0] ^= 1
    assert weights["a"].digest() != before


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.ones((3, 4)).T, "row-major"),
        (np.ones(3, ">f4"), "little-endian"),
        (np.array(["x"]), "can't be a weight"),
        (np.array([object()]), "can't be a weight"),
        ([1.0, 2.0], "numpy.asarray"),
        ((b"1234", WeightSpec(name="b", dtype="float32", shape=(1,), nbytes=4)), "spec of 'b'"),
        ((b"123", WeightSpec(name="a", dtype="float32", shape=(1,), nbytes=4)), "takes 4 bytes"),
        ((b"1234", WeightSpec(name="a", dtype="float33", shape=(1,), nbytes=4)), "float33"),
        ((b"1234", WeightSpec(name="a", dtype="float32", shape=(1,), nbytes=8)), "spec says 8"),
        ((b"1234", WeightSpec(name="a", dtype="float32", shape=(-1, -1), nbytes=4)), "row-major shape"),
        ((3, WeightSpec(name="a", dtype="float32", shape=(1,), nbytes=4)), "bytes-like"),
    ],
)
def test_arrays_that_are_refused(value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_arrays({"a": value})


def test_weights_of_raw_files(tmp_path: Path) -> None:
    specs = {n: WeightSpec(name=n, dtype="int16", shape=(2,), nbytes=4, alias="a") for n in ("a", "b")}
    for name in specs:
        (tmp_path / name).write_bytes(b"\1\0\2\0")
    weights = WeightSet.from_files({name: (tmp_path / name, spec) for name, spec in specs.items()})
    assert weights["b"].read().tolist() == [1, 2]
    assert dict(weights.specs) == specs
    (tmp_path / "a").touch()  # as the store does when an artifact is used again
    assert weights.changed() is None
    assert weights["a"].read().tolist() == [1, 2]
    (tmp_path / "new").write_bytes(b"\3\0\4\0")
    (tmp_path / "new").rename(tmp_path / "a")
    assert weights.changed() == str(tmp_path / "a")
    other = WeightSet.from_files({name: (tmp_path / name, spec) for name, spec in specs.items()})
    os.truncate(tmp_path / "b", 3)
    with pytest.raises(WeightsChanged):
        other["b"].read()
    (tmp_path / "a").write_bytes(b"123456")
    with pytest.raises(UsageError, match="has 6"):
        WeightSet.from_files({"a": (tmp_path / "a", specs["a"])})


def test_weights_of_several_sets(model: Path) -> None:
    file, memory = open_weights(model), from_arrays({"m": np.ones(2, np.float32)})
    weights = WeightSet.from_weights({"x": file["w"], "y": memory["m"]})
    assert weights["x"].read().sum() == 496
    assert weights["y"].digest() == memory["m"].digest()
    assert weights.rename({"x": "z"})["z"].place() == file["w"].place()
    assert weights.revision == WeightSet.from_weights({"x": file["w"], "y": memory["m"]}).revision
    assert weights.revision != WeightSet.from_weights({"x": file["b"], "y": memory["m"]}).revision
    model.touch()
    assert weights.changed() == str(model)
    weights.release()
    with pytest.raises(HandleClosed):
        file["w"].read()
    with pytest.raises(UsageError, match="expected a Weight"):
        WeightSet.from_weights({"x": 3})  # type: ignore[dict-item]


def test_placeholders_have_specs_and_no_bytes(model: Path) -> None:
    weights = open_weights(model)
    empty = weights.placeholders("lower")
    assert empty.specs == weights.specs
    assert empty["w"].shape == (4, 8)
    handle = empty["w"]
    for use in (handle.read, handle.digest, handle.raw, handle.private, handle.place, handle.jax, handle.__dlpack__):
        with pytest.raises(WeightReadError, match=r"'w' of stage 'lower' is a placeholder.*read it from"):
            use()
    with pytest.raises(WeightReadError):
        np.asarray(handle)
    assert empty.revision == open_weights(model).placeholders().revision
