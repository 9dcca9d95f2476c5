"""Weights in the memory of other libraries: by reference, read-only, or refused with the way out."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cachec.base.hashing import digest_bytes
from cachec.errors import UsageError
from cachec.model import WeightSpec
from cachec.weights import WeightSet, from_arrays, open_weights
from tests.needs import Later

jax: Any = Later("jax")
jnp: Any = Later("jax.numpy")
torch: Any = Later("torch")


def address(view: Any) -> int:
    """Where the bytes of a buffer begin."""
    return int(np.frombuffer(view, np.uint8).ctypes.data)


class Dlpack:
    """An array that has DLPack and nothing else; device: what it says to be on."""

    def __init__(self, of: Any, device: tuple[int, int] = (1, 0)) -> None:
        self._of = of
        self._device = device

    def __dlpack__(self, **how: Any) -> Any:
        return self._of.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


SOURCES: dict[str, tuple[Callable[[], Any], str, tuple[int, ...]]] = {
    "numpy": (lambda: np.arange(6, dtype="f4").reshape(2, 3), "float32", (2, 3)),
    "numpy bf16": (lambda: np.ones((2, 3), ml_dtypes.bfloat16), "bfloat16", (2, 3)),
    "numpy fp8": (lambda: np.ones(5, ml_dtypes.float8_e4m3fn), "float8_e4m3fn", (5,)),
    "numpy scalar": (lambda: np.float64(3), "float64", ()),
    "numpy read-only": (lambda: np.frombuffer(b"\1\2\3\4", "i2"), "int16", (2,)),
    "jax": (lambda: jnp.arange(6.0).reshape(2, 3), "float32", (2, 3)),
    "jax bf16": (lambda: jnp.ones((2, 3), jnp.bfloat16), "bfloat16", (2, 3)),
    "jax fp8": (lambda: jnp.ones(4, jnp.float8_e5m2), "float8_e5m2", (4,)),
    "jax scalar": (lambda: jnp.int32(3), "int32", ()),
    "jax bool": (lambda: jnp.array([True, False]), "bool", (2,)),
    "torch": (lambda: torch.arange(6.0).reshape(2, 3), "float32", (2, 3)),
    "torch part": (lambda: torch.arange(6.0).reshape(3, 2)[1:], "float32", (2, 2)),
    "torch bf16": (lambda: torch.ones(2, 3, dtype=torch.bfloat16), "bfloat16", (2, 3)),
    "torch fp8": (lambda: torch.ones(4).to(torch.float8_e4m3fn), "float8_e4m3fn", (4,)),
    "torch fp8 of exponents": (lambda: torch.ones(4).to(torch.float8_e8m0fnu), "float8_e8m0fnu", (4,)),
    "torch complex": (lambda: torch.ones(2, dtype=torch.complex64), "complex64", (2,)),
    "torch scalar": (lambda: torch.tensor(7), "int64", ()),
    "torch parameter": (lambda: torch.nn.Parameter(torch.ones(3)), "float32", (3,)),
    "dlpack of numpy": (lambda: Dlpack(np.arange(4, dtype="i8")), "int64", (4,)),
    "dlpack of torch": (lambda: Dlpack(torch.ones(2, 2)), "float32", (2, 2)),
    "dlpack of jax": (lambda: Dlpack(jnp.ones(3)), "float32", (3,)),
    "bytes": (lambda: b"abcd", "uint8", (4,)),
    "bytearray": (lambda: bytearray(b"abcd"), "uint8", (4,)),
    "array.array": (lambda: array.array("d", [1, 2, 3]), "float64", (3,)),
    "memoryview": (lambda: memoryview(bytes(24)).cast("f", [2, 3]), "float32", (2, 3)),
    "memoryview of bool": (lambda: memoryview(bytes(3)).cast("?"), "bool", (3,)),
    "ctypes": (lambda: (ctypes.c_int16 * 5)(), "int16", (5,)),
    "mmap": (lambda: mmap.mmap(-1, 4096), "uint8", (4096,)),
    "empty numpy": (lambda: np.empty((0, 3), "f2"), "float16", (0, 3)),
    "empty torch": (lambda: torch.empty(0, 3), "float32", (0, 3)),
    "empty jax": (lambda: jnp.empty((0, 3)), "float32", (0, 3)),
    "empty bytes": (lambda: b"", "uint8", (0,)),
}


@pytest.mark.parametrize(("make", "dtype", "shape"), SOURCES.values(), ids=SOURCES.keys())
def test_what_is_taken(make: Any, dtype: str, shape: tuple[int, ...]) -> None:
    weight = from_arrays({"a": make()})["a"]
    assert (weight.dtype, weight.shape) == (dtype, shape)
    read = weight.read()
    assert (read.dtype.name, read.shape, read.flags.writeable) == (dtype, shape, False)
    with pytest.raises(ValueError, match="WRITEABLE"):
        read.flags.writeable = True
    assert weight.raw().readonly
    assert weight.digest() == digest_bytes(read.tobytes())


def test_values_are_those_of_the_array() -> None:
    for source in (jnp.arange(6.0) + 1, torch.arange(6.0) + 1, array.array("f", [1, 2, 3, 4, 5, 6])):
        assert from_arrays({"a": source})["a"].read().tolist() == [1, 2, 3, 4, 5, 6]
    for source in (jnp.array([1.5, -2], jnp.bfloat16), torch.tensor([1.5, -2], dtype=torch.bfloat16)):
        assert from_arrays({"a": source})["a"].read().astype("f4").tolist() == [1.5, -2]
    fp8 = from_arrays({"a": torch.tensor([1.5, -2]).to(torch.float8_e5m2)})["a"].read()
    assert fp8.astype("f4").tolist() == [1.5, -2]


def test_nothing_is_copied() -> None:
    numpy, tensor, bf16 = np.ones(1000, "f4"), torch.ones(1000), torch.ones(1000, dtype=torch.bfloat16)
    jaxed, halves = jnp.ones(1000), jnp.ones(1000, jnp.bfloat16)
    text, buffer = b"x" * 1000, array.array("f", [0] * 1000)
    packed = np.ones(1000, "i2")
    weights = from_arrays(
        {
            "numpy": numpy,
            "tensor": tensor,
            "bf16": bf16,
            "parameter": torch.nn.Parameter(tensor),
            "jaxed": jaxed,
            "halves": halves,
            "text": text,
            "buffer": buffer,
            "packed": Dlpack(packed),
        }
    )
    assert {name: address(weight.raw()) for name, weight in weights.items()} == {
        "numpy": numpy.ctypes.data,
        "tensor": tensor.data_ptr(),
        "bf16": bf16.data_ptr(),
        "parameter": tensor.data_ptr(),
        "jaxed": jaxed.unsafe_buffer_pointer(),
        "halves": halves.unsafe_buffer_pointer(),
        "text": address(text),
        "buffer": buffer.buffer_info()[0],
        "packed": packed.ctypes.data,
    }


def test_a_mapped_file_is_taken_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(range(16)))
    with (tmp_path / "f").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    spec = WeightSpec(name="b", dtype="uint32", shape=(2, 2), nbytes=16)
    weights = from_arrays({"a": mapped, "b": (mapped, spec)})
    assert weights["a"].read().tolist() == list(range(16))
    assert weights["b"].read()[0, 0] == 0x03020100
    assert address(weights["a"].raw()) == address(weights["b"].raw()) == address(mapped)
    with pytest.raises(BufferError):
        mapped.close()


def test_the_memory_stays_when_the_array_goes() -> None:
    made = {
        "torch": lambda: torch.full((100_000,), 3.0),
        "jax": lambda: jnp.full((100_000,), 3.0),
        "array": lambda: array.array("f", [3.0]) * 100_000,
        "dlpack": lambda: Dlpack(torch.full((100_000,), 3.0)),
    }
    weights = from_arrays({name: make() for name, make in made.items()})
    gc.collect()
    other = [make() for make in made.values() for _ in range(3)]
    assert len(other) == 12
    for weight in weights.values():
        assert (weight.read() == 3).all()


def test_memory_can_not_be_taken_away_from_a_weight() -> None:
    tensor, buffer = torch.ones(1000), array.array("f", [1] * 1000)
    jaxed = jnp.ones(1000)
    weights = from_arrays({"tensor": tensor, "buffer": buffer, "jaxed": jaxed})
    with pytest.raises(RuntimeError, match="not resizable"):
        tensor.untyped_storage().resize_(0)
    with pytest.raises(BufferError):
        buffer.append(1)
    doubled = jax.jit(lambda x: x * 2, donate_argnums=0)(jaxed)  # a donated array is written over, if nobody looks
    assert float(doubled[0]) == 2
    for weight in weights.values():
        assert (weight.read() == 1).all()


# --- digests


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    from cachec.weights import sources

    found: list[int] = []

    def counting(data: Any) -> str:
        found.append(len(data))
        return digest_bytes(data)

    monkeypatch.setattr(sources, "digest_bytes", counting)
    return found


@pytest.mark.parametrize("source", [b"1234", memoryview(b"1234").cast("f"), memoryview(b"012345")[1:5]])
def test_a_digest_of_what_nobody_can_change_is_remembered(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = _counted(monkeypatch)
    weight = from_arrays({"a": source})["a"]
    assert weight.digest() == weight.digest() == digest_bytes(bytes(source))
    assert counted == [4]


CHANGED: dict[str, Any] = {
    "torch": lambda: torch.zeros(4),
    "torch bf16": lambda: torch.zeros(4, dtype=torch.bfloat16),
    "array.array": lambda: array.array("f", [0] * 4),
    "bytearray": lambda: bytearray(4),
    "numpy": lambda: np.zeros(4, "f4"),
    "mmap": lambda: mmap.mmap(-1, 4096),
}


@pytest.mark.parametrize("make", CHANGED.values(), ids=CHANGED.keys())
def test_a_digest_of_what_can_change_is_taken_each_time(make: Any) -> None:
    source = make()
    weight = from_arrays({"a": source})["a"]
    before = weight.digest()
    assert weight.digest() == before
    source[0] = 1
    assert weight.digest() == digest_bytes(weight.raw()) != before


def test_a_jax_array_over_memory_that_changes() -> None:
    """``device_put`` may share the memory of what it is given; so no digest of a jax array is remembered."""
    room = np.zeros((1 << 20) + 64, "u1")
    start = -room.ctypes.data % 64
    given = room[start : start + (1 << 20)].view("f4")
    shared, owned = jax.device_put(given).block_until_ready(), jnp.array(given).block_until_ready()
    over = jnp.from_dlpack(torch.from_numpy(given))
    assert over.unsafe_buffer_pointer() == given.ctypes.data
    weights = from_arrays({"shared": shared, "owned": owned, "over": over})
    before = {name: weight.digest() for name, weight in weights.items()}
    given[0] = 1
    for name, weight in weights.items():
        assert weight.digest() == digest_bytes(np.asarray(weight.read()).tobytes()), name
    assert weights["over"].digest() != before["over"]


# --- what is refused


def _sharded() -> Any:
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:1]), ("x",))
    return jax.device_put(jnp.ones(4), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")))


def test_a_jax_array_on_a_mesh_of_one_device_is_taken() -> None:
    assert from_arrays({"a": _sharded()})["a"].read().tolist() == [1, 1, 1, 1]


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "numpy transposed": (
        lambda: np.ones((3, 4)).T,
        r"row-major.*\[4, 3\].*strides of \[8, 32\].*numpy.ascontiguousarray",
    ),
    "numpy every second": (lambda: np.ones(8)[::2], r"row-major.*\[16\].*numpy.ascontiguousarray"),
    "numpy big-endian": (lambda: np.ones(3, ">f4"), r"little-endian bytes, found dtype >f4; use .astype\('<f4'\)"),
    "numpy objects": (lambda: np.array([None]), "dtype object can't be a weight"),
    "numpy text": (lambda: np.array(["a"]), "can't be a weight"),
    "torch transposed": (
        lambda: torch.ones(3, 4).T,
        r"row-major.*\[4, 3\].*\[4, 16\] bytes; use tensor.contiguous\(\)",
    ),
    "torch expanded": (lambda: torch.ones(1).expand(4), r"strides of \[0\] bytes; use tensor.contiguous\(\)"),
    "torch sparse": (
        lambda: torch.ones(3, 3).to_sparse(),
        r"dense tensor, found torch.sparse_coo; use tensor.to_dense\(\)",
    ),
    "torch elsewhere": (
        lambda: torch.ones(3, device="meta"),
        r"on the CPU, found it on meta; copy it with tensor.cpu\(\)",
    ),
    "torch negative": (lambda: torch._neg_view(torch.ones(3)), "resolve_neg"),
    "torch conjugate": (lambda: torch.ones(3, dtype=torch.complex64).conj(), "resolve_conj"),
    "jax int4": (lambda: jnp.ones(4, jnp.int4), "dtype int4 can't be a weight"),
    "jax key": (lambda: jax.random.key(0), "numpy can't see the jax array of key"),
    "dlpack on CUDA": (lambda: Dlpack(np.ones(3), (2, 1)), "on the CPU, found it on CUDA 1; copy it"),
    "dlpack on ROCm": (lambda: Dlpack(np.ones(3), (10, 0)), "found it on ROCm 0"),
    "dlpack on an unknown": (lambda: Dlpack(np.ones(3), (99, 0)), "found it on DLPack device type 99 0"),
    "dlpack transposed": (lambda: Dlpack(np.ones((2, 3)).T), "row-major"),
    "dlpack that fails": (lambda: Dlpack(np.ones(3, ">f4")), "Dlpack can't be taken by DLPack"),
    "dlpack of bf16": (lambda: Dlpack(torch.ones(3, dtype=torch.bfloat16)), r"DLPack.*pass \(bytes-like, WeightSpec\)"),
    "dlpack without device": (lambda: type("Half", (), {"__dlpack__": None})(), "Half does not say where it is"),
    "buffer every second": (lambda: memoryview(bytearray(8))[::2], "row-major"),
    "buffer big-endian": (lambda: (ctypes.c_float.__ctype_be__ * 3)(), "little-endian"),
    "buffer of characters": (lambda: memoryview(b"abc").cast("c"), "can't be a weight"),
    "list": (lambda: [1.0, 2.0], "expected an array .*, found list; use numpy.asarray"),
    "text": (lambda: "abc", "found str"),
    "none": (lambda: None, "found NoneType"),
    "a weight": (lambda: from_arrays({"w": np.ones(1)})["w"], "use WeightSet.from_weights"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        from_arrays({"layer.w": make()})
    assert "'layer.w'" in str(error.value)


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own, on what it calls deprecated or experimental
def test_types_that_no_weight_has() -> None:
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    for tensor in (quantized, torch.ones(3, dtype=torch.complex32)):
        with pytest.raises(UsageError, match=f"{tensor.dtype} can't be a weight"):
            from_arrays({"a": tensor})


@pytest.mark.parametrize("way_out", ["contiguous", "astype", "dense", "neg"])
def test_the_way_out_works(way_out: str) -> None:
    made = {
        "contiguous": torch.arange(6.0).reshape(2, 3).T.contiguous(),
        "astype": np.ones(3, ">f4").astype("<f4"),
        "dense": torch.eye(2).to_sparse().to_dense(),
        "neg": torch._neg_view(torch.ones(3)).resolve_conj().resolve_neg(),
    }[way_out]
    assert from_arrays({"a": made})["a"].read().tolist() == made.tolist()


def test_a_traced_or_deleted_jax_array_is_refused() -> None:
    def body(x: Any) -> Any:
        from_arrays({"a": x})
        return x

    with pytest.raises(UsageError, match=r"'a': expected an array with values, found .*being traced"):
        jax.jit(body)(1.0)
    gone = jnp.ones(3)
    gone.delete()
    with pytest.raises(UsageError, match="deleted, or donated"):
        from_arrays({"a": gone})


_DEVICES = """
import sys
import jax, jax.numpy as jnp
from cachec.errors import UsageError
from cachec.weights import from_arrays
one = jax.device_put(jnp.ones(4), jax.devices()[1])
assert from_arrays({"a": one})["a"].read().tolist() == [1] * 4
mesh = jax.sharding.Mesh(jax.devices(), ("x",))
for spec in (jax.sharding.PartitionSpec("x"), jax.sharding.PartitionSpec()):
    try:
        from_arrays({"a": jax.device_put(jnp.ones(4), jax.sharding.NamedSharding(mesh, spec))})
    except UsageError as error:
        print(error)
"""


@pytest.mark.long
def test_a_jax_array_on_several_devices_is_refused() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _DEVICES],
        env={"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = found.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert re.search(r"'a': expected an array on the CPU, found it on \S+:?0.*1; copy it with jax.device_put", line)


def test_a_read_only_view_of_torch_changes_nothing(model: Path) -> None:
    """From a file to torch and back: private pages, taken by reference."""
    tensor = open_weights(model)["w"].torch()
    tensor.zero_()
    assert WeightSet.from_arrays({"w": tensor})["w"].read().sum() == 0
    assert open_weights(model)["w"].read().sum() == 496


def test_nothing_is_imported_for_it() -> None:
    code = (
        "import sys, numpy; from cachec.weights import from_arrays; from_arrays({'a': numpy.ones(2), 'b': b'12'});"
        "print(sorted(m for m in ('torch', 'jax', 'ml_dtypes') if m in sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
