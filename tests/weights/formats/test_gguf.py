"""GGUF against the official package: what it writes is read equal, and nothing that it reads is read otherwise."""

from __future__ import annotations

import resource
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachec.base.hashing import digest_bytes
from cachec.errors import CheckpointError, UsageError
from cachec.weights import WeightSet, open_weights
from cachec.weights.formats.gguf import BLOCKS, PLAIN
from tests.weights.formats.suite import ShippedFormat

EDITS = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 4), st.binary(max_size=4)), min_size=1, max_size=3)
ONE = st.tuples(st.integers(0, 1 << 16), st.just(1), st.binary(min_size=1, max_size=1))


def official(path: Path) -> dict[str, bytes]:
    """name -> bytes, as the package reads them."""
    return {tensor.name: tensor.data.tobytes() for tensor in gguf.GGUFReader(path).tensors}


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "blk.0.attn.weight": rng.standard_normal((4, 8)).astype("f4"),
        "half": rng.standard_normal((2, 3, 5)).astype("f2"),
        "double": rng.standard_normal(3),
        "i8": np.arange(-4, 4, dtype="i1"),
        "i16": np.arange(5, dtype="i2"),
        "i32": np.arange(6, dtype="i4").reshape(2, 3),
        "i64": np.arange(2, dtype="i8"),
    }


def write(path: Path, tensors: dict[str, np.ndarray], *, alignment: int | None = None, metadata: bool = True) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    if metadata:
        writer.add_array("tokenizer.ggml.tokens", ["<s>", "größer", ""] * 20)
        writer.add_array("tokenizer.ggml.scores", [0.5, 1.5])
        writer.add_bool("flag", True)
        writer.add_uint64("big", 2**60)
        writer.add_float64("f", 1.25)
        writer.add_int8("i", -3)
        writer.add_string("general.name", "test")
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class TestGguf(ShippedFormat):
    suffix = ".gguf"
    has_magic = True
    official = staticmethod(official)

    def write(self, path: Path, arrays: Any) -> Path:
        return write(path, arrays, metadata=False)


@pytest.mark.parametrize("alignment", [None, 8, 64])
def test_whatever_the_package_writes_is_read_equal(tmp_path: Path, check: Any, alignment: int | None) -> None:
    wanted = arrays()
    path = write(tmp_path / "m.gguf", wanted, alignment=alignment)
    weights = check.reads(path, {name: array.tobytes() for name, array in wanted.items()})
    for name, array in wanted.items():
        assert (weights[name].shape, weights[name].dtype) == (array.shape, array.dtype.name)
        assert weights[name].spec.layout == "row-major"
        np.testing.assert_array_equal(weights[name].read(), array)
    assert {name: array.tobytes() for name, array in wanted.items()} == official(path)


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q5_1", "TQ1_0", "MXFP4"])
def test_quantised_types_are_bytes_with_their_name(tmp_path: Path, check: Any, kind: str) -> None:
    values = np.random.default_rng(1).standard_normal((3, 512)).astype("f4")
    blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    writer = gguf.GGUFWriter(tmp_path / "q.gguf", "llama")
    writer.add_tensor("q", blocks, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    weight = check.reads(tmp_path / "q.gguf", {"q": blocks.tobytes()})["q"]
    assert (weight.dtype, weight.shape, weight.spec.layout) == ("uint8", blocks.shape, f"gguf:{kind.lower()}")
    np.testing.assert_array_equal(weight.read(), blocks)
    back = gguf.quants.dequantize(weight.read(), gguf.GGMLQuantizationType[kind])
    np.testing.assert_array_equal(back, gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind]))


def test_bfloat16(tmp_path: Path) -> None:
    import ml_dtypes

    values = np.arange(8, dtype=ml_dtypes.bfloat16).reshape(2, 4)
    writer = gguf.GGUFWriter(tmp_path / "b.gguf", "llama")
    writer.add_tensor("b", values.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    weight = open_weights(tmp_path / "b.gguf")["b"]
    assert (weight.dtype, weight.shape) == ("bfloat16", (2, 4))
    np.testing.assert_array_equal(weight.read(), values)


@pytest.mark.parametrize("kind", [kind for kind in gguf.GGUFValueType if kind.name not in {"ARRAY", "STRING"}])
def test_metadata_of_every_kind_is_passed_over(tmp_path: Path, check: Any, kind: Any) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_key_value("before", 1, kind)
    writer.add_array("list", [1, 2, 3])
    writer.add_key_value("after", "x", gguf.GGUFValueType.STRING)
    writer.add_tensor("a", np.ones(3, "f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    check.reads(tmp_path / "m.gguf", {"a": np.ones(3, "f4").tobytes()})


def test_the_package_knows_the_same_types() -> None:
    known = {int(kind): (kind.name.lower(), *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert {kind: known[kind] for kind in BLOCKS} == BLOCKS
    assert set(known) == set(BLOCKS) | set(PLAIN)
    for kind, dtype in PLAIN.items():
        assert known[kind][1:] == (1, 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize)


def test_the_magic_decides_and_not_the_name(tmp_path: Path, check: Any) -> None:
    for name in ("m.bin", "m.safetensors", "m.onnx", "m"):
        check.reads(write(tmp_path / name, {"a": np.ones(3, "f4")}), {"a": np.ones(3, "f4").tobytes()})


def test_version_2_and_others(tmp_path: Path, check: Any) -> None:
    path = write(tmp_path / "m.gguf", {"a": np.ones(3, "f4")})
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + struct.pack("<I", 2) + whole[8:])
    check.reads(path, {"a": np.ones(3, "f4").tobytes()})
    for version, message in ((1, "version expected 2 or 3, found 1"), (4, "found 4"), (3 << 24, "big-endian")):
        path.write_bytes(whole[:4] + struct.pack("<I", version) + whole[8:])
        with pytest.raises(CheckpointError, match=message):
            open_weights(path)


def _original() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        tensors = {
            "a": np.arange(6, dtype="f4").reshape(2, 3),
            "b": np.ones((2, 2), "f2"),
            "c": np.arange(4, dtype="i1"),
        }
        return write(Path(folder) / "m.gguf", tensors).read_bytes()


@pytest.fixture(scope="module")
def original() -> bytes:
    return _original()


@pytest.mark.fuzz
def test_mutations(original: bytes, check: Any) -> None:
    assert check.mutated(original, [], ".gguf", official)

    @check.quick
    @given(st.lists(ONE, min_size=1, max_size=2) | EDITS)
    def run(edits: list) -> None:
        check.mutated(original, edits, ".gguf", official)

    run()


def test_a_count_that_can_not_be_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    array = struct.pack("<Q3sIIQ", 3, b"key", 9, 8, 2**61)
    for data in (
        struct.pack("<4sIQQ", b"GGUF", 3, 2**62, 0),
        struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**62),
        struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + array,
        struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 2**63),
    ):
        path.write_bytes(data + bytes(64))
        with pytest.raises(CheckpointError, match=r"m\.gguf"):
            open_weights(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10


def test_blocks_keep_their_layout_when_they_are_used(tmp_path: Path) -> None:
    blocks = gguf.quants.quantize(np.ones((4, 64), "f4"), gguf.GGMLQuantizationType.Q8_0)
    writer = gguf.GGUFWriter(tmp_path / "q.gguf", "llama")
    writer.add_tensor("q", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    weights = open_weights(tmp_path / "q.gguf")
    for other in (weights.rename({"q": "r"})["r"], weights.shard({"q": 0}, 1, 2)["q"], weights.placeholders()["q"]):
        assert other.spec.layout == "gguf:q8_0"
    assert bytes(weights.shard({"q": 0}, 1, 2)["q"].raw()) == blocks[2:].tobytes()
    with pytest.raises(UsageError, match="cut its blocks"):
        weights.shard({"q": 1}, 0, 2)
    with pytest.raises(UsageError, match="gguf:q8_0 blocks"):
        weights.save(tmp_path / "q.safetensors")
    weights.save(tmp_path / "q.irpa", format="irpa")
    assert open_weights(tmp_path / "q.irpa", specs=weights.specs).specs == weights.specs
    (tmp_path / "raw").write_bytes(blocks.tobytes())
    stored = WeightSet.from_files({"q": (tmp_path / "raw", weights.specs["q"])})
    assert stored.manifest == weights.manifest
    assert stored["q"].digest() == digest_bytes(blocks.tobytes())
