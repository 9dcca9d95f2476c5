"""What is mapped goes with its last view, and not before; what is released is an error to use, never a crash."""

from __future__ import annotations

import ctypes
import gc
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cachec.errors import HandleClosed
from cachec.weights import WeightSet, from_arrays, open_weights
from cachec.weights.overlay import ComputedWeight

MEBI = 1 << 20


@pytest.fixture
def large(tmp_path: Path, make: Any) -> Path:
    """Two tensors of 8 MiB."""
    arrays = {"a": make.ramp(2 * MEBI), "b": make.ramp(2 * MEBI, start=1)}
    path: Path = make.write(tmp_path / "large.safetensors", arrays)
    return path


def maps(path: Path) -> int:
    """How many maps of a file this process has."""
    return Path("/proc/self/maps").read_text().count(f"{path}\n")


def resident(path: Path) -> int:
    """Bytes of a file's maps that are in memory (proc(5), smaps)."""
    total, is_here = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_here = line.endswith(str(path))
        elif is_here and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def descriptors(path: Path) -> int:
    """How many descriptors of a file this process holds."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{fd}") == str(path)
        except FileNotFoundError:
            continue
    return found


def plain(path: Path) -> WeightSet:
    return open_weights(path)


def shard(path: Path) -> WeightSet:
    return open_weights(path).shard({"*": 0}, 1, 2)


def overlaid(path: Path) -> WeightSet:
    return open_weights(path).overlay({"new": np.zeros(3, "f4")})


def composed(path: Path) -> WeightSet:
    return WeightSet.from_weights(dict(open_weights(path)))


KINDS = pytest.mark.parametrize("kind", [plain, shard, overlaid, composed])


@KINDS
def test_nothing_is_mapped_before_a_read_or_after_the_last_view(large: Path, kind: Callable[[Path], WeightSet]) -> None:
    weights = kind(large)
    assert (maps(large), descriptors(large)) == (0, 0)
    first, second = weights["a"].read(), weights["b"].read()
    assert float(first.sum() + second.sum()) > 0
    assert maps(large) >= 1
    assert resident(large) >= first.nbytes + second.nbytes
    part = second[5:6]
    del first, second
    gc.collect()
    assert maps(large) >= 1, "a view of a view keeps the map alive"
    assert part[0] == part[0]
    del part
    gc.collect()
    assert maps(large) == 0
    assert resident(large) == 0


@KINDS
def test_views_outlive_the_release_and_the_set(large: Path, kind: Callable[[Path], WeightSet]) -> None:
    weights = kind(large)
    array, raw = weights["a"].read(), weights["b"].raw()
    expected = float(array.sum())
    weights.release()
    del weights
    gc.collect()
    large.unlink()
    assert float(array.sum()) == expected
    assert bytes(raw[:4]) == bytes(raw[:4])
    assert maps(Path(f"{large} (deleted)")) == 1
    del array
    assert maps(Path(f"{large} (deleted)")) == 1
    del raw
    gc.collect()
    assert maps(Path(f"{large} (deleted)")) == 0


USES: dict[str, Any] = {
    "read": lambda weight: weight.read(),
    "raw": lambda weight: weight.raw(),
    "private": lambda weight: weight.private(),
    "digest": lambda weight: weight.digest(),
    "place": lambda weight: weight.place(),
    "jax": lambda weight: weight.jax(),
    "array": np.asarray,
    "dlpack": np.from_dlpack,
}


@KINDS
@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_a_released_weight_is_an_error_for_every_use(large: Path, kind: Callable[[Path], WeightSet], use: Any) -> None:
    with kind(large) as weights:
        before = weights["a"]
        before.read()
    with pytest.raises(HandleClosed, match=r"weight 'a'.*released"):
        use(before)
    with pytest.raises(HandleClosed, match=r"weight 'a'.*released"):
        use(weights["a"])
    weights.release()
    assert weights["a"].spec == weights.specs["a"], "what it is can still be asked"
    assert descriptors(large) == 0


def test_memory_and_derived_weights_are_released_too(make: Any) -> None:
    array = make.ramp(4)
    with from_arrays({"w": array}) as weights:
        view = weights["w"].read()
    with pytest.raises(HandleClosed):
        weights["w"].read()
    assert np.shares_memory(view, array)
    base = from_arrays({"w": array})
    made = base.derive({"x": ComputedWeight("float32", (4,), lambda all_: all_["w"].read())})
    made.release()
    for weight in (made["x"], made["w"], base["w"]):
        with pytest.raises(HandleClosed):
            weight.read()


def test_sets_of_one_source_are_released_together(large: Path) -> None:
    weights = open_weights(large)
    others = [weights.select("a"), weights.rename({"a": "x"}), weights.shard({"a": 0}, 0, 2)]
    others[0].release()
    for each in (weights, *others):
        with pytest.raises(HandleClosed):
            next(iter(each.values())).read()
    assert open_weights(large)["a"].read()[1] == 1, "another open is another source"


def test_private_pages_of_consumers_that_write(large: Path) -> None:
    before = large.read_bytes()
    for weights in (plain(large), shard(large), overlaid(large)):
        shared, private = weights["a"].read(), weights["a"].private()
        private += 1
        np.testing.assert_array_equal(private, shared + 1)
        exported = np.from_dlpack(weights["a"])
        np.testing.assert_array_equal(exported, shared)
    assert large.read_bytes() == before


def test_private_pages_cost_what_is_written(large: Path) -> None:
    def anonymous() -> int:
        found = re.search(r"Anonymous:\s+(\d+)", Path("/proc/self/smaps_rollup").read_text())
        assert found is not None
        return int(found[1]) * 1024

    before = anonymous()
    array = open_weights(large)["a"].private()
    assert float(array.sum()) > 0
    assert anonymous() - before < MEBI
    array[:1024] = 0
    assert anonymous() - before < 2 * MEBI


@pytest.mark.long
def test_torch_writes_into_its_own_pages(large: Path) -> None:
    torch = pytest.importorskip("torch")
    before = large.read_bytes()
    for kind in (plain, shard, overlaid):
        weights = kind(large)
        tensor = weights["a"].torch()
        expected = weights["a"].read().copy()
        weights.release()
        gc.collect()
        tensor.mul_(2)
        assert torch.equal(tensor, torch.from_numpy(expected * 2))
        del tensor
        gc.collect()
        assert maps(large) == 0
    assert large.read_bytes() == before
    strided = from_arrays({"w": np.arange(8, dtype="f4").reshape(2, 4)}).shard({"w": 1}, 1, 2)["w"].torch()
    strided += 1
    assert strided.tolist() == [[3, 4], [7, 8]]


def test_jax_arrays_outlive_the_set(large: Path) -> None:
    pytest.importorskip("jax")
    weights = open_weights(large)
    array = weights["a"].jax()
    weights.release()
    gc.collect()
    assert float(array[7]) == 7


def _written_through(kind: str, weights: WeightSet) -> Any:
    """What a library makes of a weight; writes zeros into it where the library lets itself."""
    weight = weights["a"]
    if kind.startswith("torch"):
        torch = pytest.importorskip("torch")
        tensor = {"torch.from_dlpack": torch.from_dlpack, "torch.asarray": torch.asarray}[kind](weight)
        return tensor.zero_()
    if kind == "tvm":
        tvm = pytest.importorskip("tvm")
        array = tvm.runtime.from_dlpack(weight)
        array.copyfrom(np.zeros(array.shape, "f4"))
        return array.numpy()
    if kind == "jax":
        return pytest.importorskip("jax").numpy.from_dlpack(weight) * 0
    exported = np.from_dlpack(weight)
    ctypes.memset(exported.ctypes.data, 0, exported.nbytes)  # as C code does, which numpy can't keep from it
    return exported


ROADS = ("file", "read", "shard", "overlay", "owned", "memory", "npz")
#: TVM takes only what is aligned to 64 bytes, as the store's own files are, and says so of the rest.
IMPORTERS = {"torch.from_dlpack": ROADS, "torch.asarray": ROADS, "tvm": ("owned",), "jax": ROADS, "numpy": ROADS}


@pytest.mark.parametrize(("kind", "road"), [(kind, road) for kind, roads in IMPORTERS.items() for road in roads])
def test_no_importer_writes_through(tmp_path: Path, model: Path, make: Any, kind: str, road: str) -> None:
    """Whatever ignores read-only gets pages of its own: no file, no memory of the user, no other array changes."""
    from cachec.store.store import Store
    from cachec.weights.library.stored_weights import WeightStore

    array = make.ramp(8, 3, start=1)
    path = make.write(tmp_path / "a.safetensors", {"a": array})
    store = WeightStore(Store(tmp_path / "store"))
    store.add(open_weights(path), "a")
    np.savez(tmp_path / "a.npz", a=array)
    weights = {
        "file": lambda: open_weights(path),
        "read": lambda: open_weights(path, access="read"),
        "shard": lambda: open_weights(path).shard({"a": 0}, 1, 2),
        "overlay": lambda: from_arrays({"a": array + 1}).overlay(open_weights(path)),
        "owned": lambda: store.open("a"),
        "memory": lambda: from_arrays({"a": array}),
        "npz": lambda: open_weights(tmp_path / "a.npz"),
    }[road]()
    before, expected, files = (
        weights["a"].read(),
        array.copy(),
        [path, *store.objects.root.rglob("*"), tmp_path / "a.npz"],
    )
    content = {file: file.read_bytes() for file in files if file.is_file()}
    digest = weights["a"].digest()
    assert not np.any(np.asarray(_written_through(kind, weights)))
    np.testing.assert_array_equal(array, expected)
    np.testing.assert_array_equal(before, expected[4:] if road == "shard" else expected)
    np.testing.assert_array_equal(weights["a"].read(), before)
    assert weights["a"].digest() == digest
    assert {file: file.read_bytes() for file in content} == content
