"""Weights that are put together: hashed, owned, written and compared in bounded memory, whatever their size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import iree.runtime as rt
import numpy as np
import pytest

from cachec.base.hashing import digest_bytes
from cachec.store.store import Store
from cachec.weights import from_arrays, open_weights
from cachec.weights.io.strided_copy import Spans, copy_spans, within_spans
from cachec.weights.library.stored_weights import WeightStore
from cachec.weights.sources import Ranges
from cachec.weights.weight import Weight

MIB = 1 << 20


def ranges_of(weight: Weight) -> Ranges | None:
    return weight.ways().ranges()


@pytest.mark.parametrize("seed", range(30))
def test_any_range_of_spans(seed: int) -> None:
    rng = np.random.default_rng(seed)
    width = int(rng.integers(0, 9))
    spans = Spans(int(rng.integers(0, 5)), width, width + int(rng.integers(0, 9)), int(rng.integers(1, 7)),
                  max(1, width + int(rng.integers(0, 5))))  # fmt: skip
    data = memoryview(rng.integers(1, 255, spans.first + spans.stride * spans.number + 1, np.uint8).tobytes())
    whole = bytearray(spans.step * spans.number)
    for number in range(spans.number):
        at = spans.first + number * spans.stride
        whole[number * spans.step : number * spans.step + width] = data[at : at + width]
    for begin in range(len(whole)):
        for end in {begin, begin + 1, *map(int, rng.integers(begin, len(whole) + 1, 4)), len(whole)}:
            out = memoryview(bytearray(end - begin))
            for found, at in within_spans(spans, begin, len(out)):
                copy_spans(data, found, out[at:])
            assert bytes(out) == whole[begin:end]


@pytest.mark.parametrize("kind", ["mmap", "read", "memory"])
def test_ranges_are_what_is_read(tmp_path: Path, make: Any, kind: str) -> None:
    array = make.ramp(6, 10, 7)
    path = make.write(tmp_path / "m.safetensors", {"w": array, "lora_A": make.ramp(3, 5)})
    whole = (
        from_arrays({"w": array, "lora_A": make.ramp(3, 5)}) if kind == "memory" else open_weights(path, access=kind)
    )
    cut = whole.shard({"w": 1}, 2, 4, pad=True)
    slice_ = np.zeros((6, 3, 7), np.float32)
    slice_[:] = array[:, 6:9]
    padded = np.zeros((8, 5), np.float32)
    padded[:3] = make.ramp(3, 5)
    for weight, expected in ((cut["w"], slice_), (whole.pad_rank(8, {"lora_A": 0})["lora_A"], padded)):
        found = ranges_of(weight)
        assert found is not None
        data = expected.tobytes()
        assert found.nbytes == weight.nbytes == len(data)
        for begin, end in ((0, len(data)), (1, 2), (83, 91), (100, 100), (3, len(data) - 5)):
            out = memoryview(bytearray(b"\xff" * (end - begin)))
            found.read(begin, out)
            assert bytes(out) == data[begin:end]
        assert weight.digest() == found.digest() == digest_bytes(data)
    # What lies somewhere as it is has no need of it.
    assert ranges_of(whole["w"]) is None
    assert ranges_of(whole.shard({"w": 0}, 0, 2)["w"]) is None


def test_a_slice_of_a_slice(make: Any) -> None:
    array = make.ramp(4, 8, 6)
    cut = from_arrays({"w": array}).shard({"w": 1}, 1, 2)
    again = from_arrays({"w": cut["w"].read()}).shard({"w": 2}, 2, 3)
    np.testing.assert_array_equal(again["w"].read(), array[:, 4:, 4:])
    assert again["w"].digest() == digest_bytes(array[:, 4:, 4:].tobytes())


def splat(path: Path, pattern: bytes, nbytes: int) -> Path:
    index = rt.ParameterIndex()
    index.add_splat("s", pattern, nbytes)
    index.create_archive_file(str(path))
    return path


@pytest.mark.parametrize("pattern", [b"\1", b"\1\2", b"abcd", b"\0\0\0\1\0\0\0\2", bytes(range(16)), bytes(8)])
@pytest.mark.parametrize("nbytes", [16, 48, MIB + 16, 3 * MIB - 16])
def test_a_pattern_is_owned_and_written_as_its_bytes(tmp_path: Path, pattern: bytes, nbytes: int) -> None:
    path = splat(tmp_path / "s.irpa", pattern, nbytes)
    data = pattern * (nbytes // len(pattern))
    store = WeightStore(Store(tmp_path / "store"))
    with open_weights(path) as weights:
        assert weights["s"].digest() == digest_bytes(data)
        assert store.add(weights, "s").digests["s"] == digest_bytes(data)
        weights.save(tmp_path / "o.safetensors")
        weights.save(tmp_path / "o.irpa", format="irpa")
        found = ranges_of(weights["s"])
        if found is not None:
            out = memoryview(bytearray(nbytes - 8))
            found.read(5, out[:-3])
            assert bytes(out[:-3]) == data[5:-6]
    for owned in (store.open("s"), open_weights(tmp_path / "o.safetensors"), open_weights(tmp_path / "o.irpa")):
        assert owned["s"].raw() == data


# Each step works on 96 MiB with room for 60 MiB of private memory (getrlimit(2), RLIMIT_DATA), stacks included.
BOUNDED = """
import resource, sys
import numpy as np
from pathlib import Path
from cachec.weights import from_arrays, open_weights
from cachec.weights.compare import value_difference
from cachec.store.store import Store
from cachec.weights.library.stored_weights import WeightStore
import cachec.weights.io.writing, cachec.weights.shards
folder, kind = Path(sys.argv[1]), sys.argv[2]
def limit():
    used = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (used + (60 << 20), resource.RLIM_INFINITY))
    try:
        bytearray(96 << 20)
    except MemoryError:
        return
    raise SystemExit("the limit does not hold")
if kind == "splat":
    weights = open_weights(folder / "s.irpa")
elif kind == "slice of memory":
    weights = from_arrays({"w": np.ones((4096, 12288), np.float32)})
else:
    weights = open_weights(folder / "m.safetensors", access="read" if kind == "slice by read" else "mmap")
limit()
if kind == "padded":
    weights = weights.pad_rank(12288, {"w": 1})
elif kind != "splat":
    weights.save_shards(folder / "shards", {"w": 1}, 2)
    weights = weights.shard({"w": 1}, 1, 2)
[weight] = weights.values()
digest = weight.digest()
assert WeightStore(Store(folder / "store")).add(weights, "m").digests[weight.name] == digest
weights.save(folder / "o.safetensors")
with open_weights(folder / "o.safetensors") as again:
    assert again[weight.name].digest() == digest
    assert value_difference(weight, again[weight.name]).number == 0
"""


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["splat", "slice", "slice by read", "slice of memory", "padded"])
def test_nothing_is_put_together_in_memory(tmp_path: Path, kind: str) -> None:
    if kind == "splat":
        splat(tmp_path / "s.irpa", b"\1\2\3\4", 96 * MIB)
    elif kind == "padded":
        from_arrays({"w": np.ones((2048, 4096), np.float32)}).save(tmp_path / "m.safetensors")
    elif kind != "slice of memory":
        from_arrays({"w": np.ones((4096, 12288), np.float32)}).save(tmp_path / "m.safetensors")
    subprocess.run([sys.executable, "-c", BOUNDED, str(tmp_path), kind], check=True)
