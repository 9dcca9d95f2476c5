"""npy and npz against numpy."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachec.errors import CheckpointError
from cachec.weights import open_weights
from tests.weights.formats.suite import ShippedFormat

DTYPES = ["?", "i1", "u1", "i2", "u2", "f2", "i4", "u4", "f4", "i8", "u8", "f8", "c8", "c16"]
EDITS = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 4), st.binary(max_size=4)), min_size=1, max_size=3)
ONE = st.tuples(st.integers(0, 1 << 16), st.just(1), st.binary(min_size=1, max_size=1))
shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def official(path: Path) -> dict[str, bytes]:
    """name -> bytes, as numpy reads them."""
    found = np.load(path, allow_pickle=False)
    if isinstance(found, np.ndarray):
        return {path.stem: found.tobytes()}
    return {name: found[name].tobytes() for name in found}


def values(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(0)
    if dtype == "?":
        return rng.integers(0, 2, shape).astype(bool)
    return np.ndarray(shape, dtype, rng.bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize))


class TestNpy(ShippedFormat):
    suffix = ".npy"
    has_magic = True
    official = staticmethod(official)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"m": np.arange(6, dtype="f4").reshape(2, 3)}

    def write(self, path: Path, arrays: Any) -> Path:
        np.save(path, arrays["m"])
        return path


class TestNpz(ShippedFormat):
    suffix = ".npz"
    official = staticmethod(official)

    def write(self, path: Path, arrays: Any) -> Path:
        np.savez(path, **arrays)
        return path


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_whatever_numpy_saves_is_read_equal(tmp_path: Path, check: Any, dtype: str, version: tuple[int, int]) -> None:
    for shape in ((), (3,), (2, 3), (0, 4), (1, 2, 1, 3)):
        array = values(dtype, shape)
        path = tmp_path / "layer.0.weight.npy"
        with path.open("wb") as file:
            np.lib.format.write_array(file, array, version=version)
        weight = check.reads(path, {"layer.0.weight": array.tobytes()})["layer.0.weight"]
        assert (weight.shape, weight.dtype) == (array.shape, array.dtype.name)
        assert official(path) == {"layer.0.weight": array.tobytes()}


def test_npz(tmp_path: Path, check: Any) -> None:
    arrays = {f"{dtype}/größe" if dtype == "f4" else f"n.{dtype.strip('?')}": values(dtype, (3, 2)) for dtype in DTYPES}
    arrays["scalar"] = np.float32(3)
    path = tmp_path / "m.npz"
    np.savez(path, **arrays)
    weights = check.reads(path, {name: array.tobytes() for name, array in arrays.items()})
    for name, array in arrays.items():
        assert (weights[name].shape, weights[name].dtype) == (array.shape, array.dtype.name)
        assert weights[name].read().flags.aligned
    np.savez(path)
    assert not open_weights(path)


def test_an_archive_under_any_name(tmp_path: Path, check: Any) -> None:
    np.savez(tmp_path / "m.npz", a=np.ones(3))
    for name in ("m", "m.bin", "m.zip"):
        (tmp_path / "m.npz").rename(tmp_path / name)
        check.reads(tmp_path / name, {"a": np.ones(3).tobytes()})
        (tmp_path / name).rename(tmp_path / "m.npz")
    zipfile.ZipFile(tmp_path / "empty", "w").close()
    assert list(open_weights(tmp_path / "empty")) == []
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(CheckpointError, match=r"other\.zip: a zip archive.*readme"):
        open_weights(tmp_path / "other.zip")
    (tmp_path / "other.zip").rename(tmp_path / "other.npz")
    with pytest.raises(CheckpointError, match=r"'readme\.txt'"):
        open_weights(tmp_path / "other.npz")


def test_zip64_and_comments(tmp_path: Path, check: Any) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(3))
    path = tmp_path / "m.npz"
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("a.npy", "w", force_zip64=True) as member:
            member.write(buffer.getvalue())
        archive.mkdir("folder")
        archive.comment = b"a comment"
    check.reads(path, {"a": np.arange(3).tobytes()})


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.asfortranarray(np.ones((3, 2))), "ascontiguousarray"),
        (np.ones(3, ">f4"), "little-endian values.*astype"),
        (np.ones(3, ">c16"), "little-endian"),
        (np.array([1, "a", None], dtype=object), "pickled objects, which are never loaded"),
        (np.array(["abc"]), "<U3"),
        (np.array([b"abc"]), "S3"),
        (np.zeros(2, [("a", "f4"), ("b", "i4")]), "structured"),
        (np.ones(3, ml_dtypes.bfloat16), "bfloat16 and fp8"),
        (np.array(["2020-01-01"], "M8[D]"), "M8"),
        (np.ones(2, np.longdouble), "f16"),
    ],
)
def test_refused_with_a_way_out(tmp_path: Path, array: np.ndarray, message: str) -> None:
    np.save(tmp_path / "w.npy", array, allow_pickle=True)
    np.savez(tmp_path / "w.npz", w=array)
    for name in ("w.npy", "w.npz"):
        with pytest.raises(CheckpointError, match=message) as error:
            open_weights(tmp_path / name)
        assert str(tmp_path / name) in str(error.value)
        assert "'w'" in str(error.value)


def test_column_major_that_is_row_major_too(tmp_path: Path, check: Any) -> None:
    header = b"{'descr': '<f4', 'fortran_order': True, 'shape': (1, 5, 1), }\n"
    path = tmp_path / "w.npy"
    path.write_bytes(
        b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + np.arange(5, dtype="f4").tobytes()
    )
    check.reads(path, official(path))


def test_compressed_members_are_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "m.npz", a=np.zeros(100))
    with pytest.raises(CheckpointError, match=r"'a\.npy': expected stored bytes, found compressed ones.*numpy\.savez "):
        open_weights(tmp_path / "m.npz")


def test_no_code_is_run(tmp_path: Path) -> None:
    path = tmp_path / "w.npy"
    for header in ("__import__('os').system('touch ran')", "{" * 5000, "(" * 9000, "9**9**9", "{'descr': '<f4'}"):
        text = header.encode()
        path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
        with pytest.raises(CheckpointError, match="header"):
            open_weights(path)


@pytest.fixture(scope="module")
def originals() -> dict[str, bytes]:
    array, archive = io.BytesIO(), io.BytesIO()
    np.save(array, np.arange(6, dtype="f4").reshape(2, 3))
    np.savez(archive, a=np.arange(3), b=np.ones((2, 2), "f4"))
    return {".npy": array.getvalue(), ".npz": archive.getvalue()}


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.fuzz
def test_mutations(originals: dict[str, bytes], check: Any, suffix: str) -> None:
    assert check.mutated(originals[suffix], [], suffix, official)

    @check.quick
    @given(st.lists(ONE, min_size=1, max_size=2) | EDITS)
    def run(edits: list) -> None:
        check.mutated(originals[suffix], edits, suffix, official)

    run()
