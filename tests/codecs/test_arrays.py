"""numpy arrays: raw bytes, mapped back in private pages."""

from __future__ import annotations

import math
import mmap
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cachec import codecs
from cachec.errors import StoreFault, UnstorableResult
from cachec.model import ArtifactRef, Fault, Leaf
from tests.effort import rounds


def same(one: Any, other: Any) -> bool:
    """Equal type, dtype (with byte order), shape and bytes in C order."""
    return bool(
        type(one) is type(other)
        and one.dtype == other.dtype
        and one.dtype.str == other.dtype.str
        and one.shape == other.shape
        and one.tobytes() == other.tobytes()
    )


ARRAYS = [
    np.arange(12, dtype="f4").reshape(3, 4),
    np.asfortranarray(np.arange(12, dtype="i8").reshape(3, 4)),
    np.arange(24).reshape(2, 3, 4)[:, ::2, ::-1],
    np.arange(12, dtype=">i2").reshape(3, 4),
    np.arange(12, dtype=">f8").reshape(3, 4).T,
    np.broadcast_to(np.float16(1), (3, 2)),
    np.array(3.5),
    np.zeros((0, 3), "f4"),
    np.zeros((2, 0), "c16"),
    np.array([True, False]),
    np.array([1 + 2j], "c8"),
    np.array(["a", "é😀"]),
    np.array([b"a", b"bc\0d"]),
    np.array(["2026-01-01", "nat"], "M8[ns]"),
    np.array([1, 2], "m8[25s]"),
    np.array([1], "m8"),
    np.array([np.nan, -0.0, np.inf]),
    np.arange(4).astype(ml_dtypes.bfloat16),
    np.arange(4).astype(ml_dtypes.float8_e4m3fn).reshape(2, 2).T,
    np.arange(4).astype(ml_dtypes.float8_e5m2),
    np.arange(4).astype(ml_dtypes.int4),
    np.array(1, ml_dtypes.bfloat16),
    np.zeros((0,), ml_dtypes.bfloat16),
    np.arange(6, dtype="u1"),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{list(array.shape)}")
def test_writing_to_an_array_changes_it_alone(bench: Any, array: np.ndarray[Any, Any]) -> None:
    back = bench.round_trip(array)
    assert same(back, array)
    back[...] = np.zeros((), back.dtype)
    assert same(bench.round_trip(array), array)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=rounds(60))
@given(
    hnp.arrays(
        st.one_of(
            hnp.integer_dtypes(endianness="?"),
            hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
            hnp.boolean_dtypes(),
            hnp.datetime64_dtypes(endianness="?"),
        ),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    ),
    st.booleans(),
)
def test_any_array_comes_back_as_it_was(bench: Any, array: np.ndarray[Any, Any], turned: bool) -> None:
    array = array.T if turned else array
    assert same(bench.round_trip(array), array)


@pytest.mark.parametrize(
    "value",
    [np.float32(1.5), np.int64(-3), np.bool_(True), np.str_("ab"), ml_dtypes.bfloat16(2), np.datetime64(1, "s")],
)
def test_scalars_come_back_as_scalars(bench: Any, value: Any) -> None:
    back = bench.round_trip({"a": (value, [b""])})["a"][0]
    assert type(back) is type(value)
    assert same(back, value)


def test_an_array_is_mapped_and_outlives_its_file(bench: Any) -> None:
    array = np.arange(100_000)
    node = bench.encode(array)
    back = bench.decode(node)
    base = back.base
    while isinstance(base, memoryview | np.ndarray):
        base = base.obj if isinstance(base, memoryview) else base.base
    assert isinstance(base, mmap.mmap)
    (bench.store.root / node.artifacts[0].digest).unlink()
    assert same(back, array)


def test_a_memmap_is_stored_as_the_array_that_it_is(bench: Any, tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "m", "i4", "w+", shape=(3,))
    mapped[:] = 7
    back = bench.round_trip(mapped)
    assert type(back) is np.ndarray
    assert back.tolist() == [7, 7, 7]


def test_decoding_twice_gives_two_arrays(bench: Any) -> None:
    node = bench.encode(np.arange(6))
    first = bench.decode(node)
    first.shape = (2, 3)
    assert bench.decode(node).shape == (6,)


@pytest.mark.parametrize(
    "value",
    [
        np.array([object()]),
        np.zeros(2, "i4,f4"),
        np.zeros(2, "V3"),
        np.zeros(2, np.longdouble),
        np.zeros(2, np.dtype("f4", metadata={"unit": "m"})),
        np.ma.masked_array([1, 2]),
    ],
    ids=lambda value: f"{type(value).__name__}-{value.dtype}",
)
def test_arrays_without_bytes_of_their_own_are_refused(bench: Any, value: object) -> None:
    with pytest.raises(UnstorableResult, match=r"^result\[1\] is an? "):
        bench.encode((b"", value))


ZEROS = bytes(24)


@pytest.mark.parametrize(
    "meta",
    [
        {"dtype": "<f4", "shape": [7]},
        {"dtype": "<f4", "shape": [5]},
        {"dtype": "<f4", "shape": [-6]},
        {"dtype": "<f4", "shape": [-2, -3]},
        {"dtype": "<f4", "shape": [6.0]},
        {"dtype": "<f4", "shape": "6"},
        {"dtype": "<f4", "shape": [2**62, 2**62]},
        {"dtype": "<f4"},
        {"shape": [6]},
        {"dtype": "<f4", "shape": [6], "more": 1},
        {"dtype": "<f4", "shape": [6], "scalar": True},
        {"dtype": "<f4", "shape": [6, *[1] * 70]},
        {"dtype": "|O", "shape": [3]},
        {"dtype": "O", "shape": [3]},
        {"dtype": "f4", "shape": [6]},
        {"dtype": "<f4,<f4", "shape": [3]},
        {"dtype": "|V4", "shape": [6]},
        {"dtype": "<M8[xx]", "shape": [3]},
        {"dtype": "<U99999999", "shape": [0]},
        {"dtype": "float32", "shape": [6]},
        {"dtype": "bfloat17", "shape": [12]},
        {"dtype": "float8_finfo", "shape": [24]},
        {"dtype": "__name__", "shape": [24]},
        {"dtype": 4, "shape": [6]},
    ],
)
def test_a_meta_that_does_not_fit_its_artifact_is_corrupt(bench: Any, meta: dict[str, Any]) -> None:
    ref = bench.store.add_bytes(ZEROS)
    with pytest.raises(StoreFault) as caught:
        bench.decode(Leaf("array", (ref,), meta))
    assert caught.value.fault is Fault.ROW_CORRUPT
    assert same(bench.decode(Leaf("array", (ref,), {"dtype": "<f4", "shape": [6]})), np.zeros(6, "f4"))


def test_an_empty_array_hides_no_shape_beyond_memory(bench: Any) -> None:
    ref = bench.store.add_bytes(b"")
    with pytest.raises(StoreFault) as caught:
        bench.decode(Leaf("array", (ref,), {"dtype": "<f4", "shape": [0, 2**62]}))
    assert caught.value.fault is Fault.ROW_CORRUPT


def test_an_artifact_of_another_size_is_never_mapped(bench: Any) -> None:
    ref = bench.store.add_bytes(ZEROS)
    lying = ArtifactRef(ref.digest, 2400)
    with pytest.raises(StoreFault) as caught:
        bench.decode(Leaf("array", (lying,), {"dtype": "<f4", "shape": [600]}))
    assert caught.value.fault is Fault.ARTIFACT_CORRUPT


def test_the_meta_is_small_and_says_what_is_stored(bench: Any) -> None:
    node = bench.encode(np.ones((2, 3), "f4"))
    assert node.meta == {"dtype": "<f4", "shape": [2, 3]}
    assert sum(ref.size for ref in codecs.artifacts(node)) == math.prod((2, 3)) * 4
