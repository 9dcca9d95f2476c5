"""Weights handed over one by one: order, what is kept in memory, what a consumer may keep, what a stage records."""

from __future__ import annotations

import gc
import itertools
import re
import subprocess
import sys
import textwrap
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachec
from cachec.base.hashing import FileDigests, digest_bytes
from cachec.errors import HandleClosed, UsageError, WeightReadError, WeightsChanged
from cachec.recording import ReadRecorder
from cachec.weights import WeightSet, from_arrays, open_weights

ACCESS = pytest.mark.parametrize("access", ["mmap", "read"])
AHEAD = pytest.mark.parametrize("read_ahead", [0, 1])


@pytest.fixture
def arrays(make: Any) -> dict[str, Any]:
    """In the order of the file, which is not that of the names."""
    return {name: make.ramp(64, 33 + i, start=1000 * i) for i, name in enumerate(["z", "m", "a", "q", "b"])} | {
        "empty": np.zeros((0, 3), "f4"),
        "last": make.ramp(3),
    }


@pytest.fixture
def path(tmp_path: Path, make: Any, arrays: dict[str, Any]) -> Path:
    path: Path = make.write(tmp_path / "w.safetensors", arrays)
    return path


@ACCESS
@AHEAD
def test_every_weight_comes_once_in_the_order_of_the_file(
    path: Path, arrays: dict[str, Any], access: Any, read_ahead: int
) -> None:
    weights = open_weights(path, access=access)
    names = []
    for weight in weights.stream(read_ahead):
        names.append(weight.name)
        array = arrays[weight.name]
        assert weight.spec == weights.specs[weight.name]
        np.testing.assert_array_equal(weight.read(), array)
        assert not weight.read().flags.writeable
        assert weight.digest() == digest_bytes(array.tobytes())
        np.testing.assert_array_equal(weight.private(), array)
        np.testing.assert_array_equal(weight.read(), array)
        assert weight.place() == weights[weight.name].place()
    big = [name for name in arrays if arrays[name].nbytes]
    assert [name for name in names if name != "empty"] == big
    assert "empty" in names
    assert [weight.name for weight in weights.rename(lambda n: "x." + n).stream()] == ["x." + name for name in names]


def test_several_files_and_an_overlay_come_file_by_file(tmp_path: Path, make: Any) -> None:
    for number in range(3):
        make.write(tmp_path / f"{number}.safetensors", {f"{c}{number}": make.ramp(4, start=number) for c in "cab"})
    weights = open_weights([tmp_path / f"{number}.safetensors" for number in range(3)])
    assert [weight.name for weight in weights.stream()] == [f"{c}{number}" for number in range(3) for c in "cab"]
    over = weights.overlay({"a1": make.ramp(4, start=50), "new": make.ramp(2)})
    names = [weight.name for weight in over.stream()]
    assert sorted(names) == sorted(over)
    assert [name for name in names if name not in {"a1", "new"}] == ["c0", "a0", "b0", "c1", "b1", "c2", "a2", "b2"]
    for weight in over.stream():
        np.testing.assert_array_equal(weight.read(), over[weight.name].read())


@AHEAD
def test_slices_that_are_put_together(path: Path, arrays: dict[str, Any], read_ahead: int) -> None:
    weights = open_weights(path).shard({"z": 1, "m": 0, "q": 1}, 0, 3, pad=True)
    for weight in weights.stream(read_ahead):
        np.testing.assert_array_equal(weight.read(), weights[weight.name].read())
        assert weight.spec.shard == weights.specs[weight.name].shard


def test_weights_in_memory_are_handed_out_as_they_are(arrays: dict[str, Any]) -> None:
    weights = from_arrays(arrays)
    for weight in weights.stream():
        if weight.nbytes:
            assert np.shares_memory(weight.read(), arrays[weight.name])
    assert list(from_arrays({}).stream()) == []
    with pytest.raises(WeightReadError, match="is a placeholder"):
        next(weights.placeholders().stream())
    with pytest.raises(UsageError, match="read_ahead expected 0 or 1, found 2"):
        weights.stream(2)


@ACCESS
@AHEAD
@pytest.mark.sampled
def test_what_a_consumer_keeps_never_changes(path: Path, arrays: dict[str, Any], access: Any, read_ahead: int) -> None:
    kept = {weight.name: weight.read() for weight in open_weights(path, access=access).stream(read_ahead)}
    gc.collect()
    for name, array in arrays.items():
        np.testing.assert_array_equal(kept[name], array)
    # Some kept and some not, in every pattern.
    for pattern in itertools.product([False, True], repeat=5):
        held = {}
        for number, weight in enumerate(open_weights(path, access=access).stream(read_ahead)):
            array = weight.read()
            if number < 5 and pattern[number]:
                held[weight.name] = array
            np.testing.assert_array_equal(array, arrays[weight.name])
        for name, array in held.items():
            np.testing.assert_array_equal(array, arrays[name])


@ACCESS
def test_a_weight_can_be_used_after_its_turn(path: Path, arrays: dict[str, Any], access: Any) -> None:
    for weight in list(open_weights(path, access=access).stream()):
        np.testing.assert_array_equal(weight.read(), arrays[weight.name])
        np.testing.assert_array_equal(weight.private(), arrays[weight.name])


@ACCESS
def test_torch_gets_the_memory_and_may_write_into_it(path: Path, arrays: dict[str, Any], access: Any) -> None:
    torch = pytest.importorskip("torch")
    before = path.read_bytes()
    kept = []
    for weight in open_weights(path, access=access).stream():
        tensor = weight.torch()
        assert torch.equal(tensor, torch.from_numpy(arrays[weight.name]))
        tensor += 1
        np.testing.assert_array_equal(weight.read(), arrays[weight.name])
        kept.append((weight.name, tensor))
    for name, tensor in kept:
        np.testing.assert_array_equal(tensor.numpy(), arrays[name] + 1)
    assert path.read_bytes() == before


@ACCESS
def test_jax_arrays_stay_what_they_were(path: Path, arrays: dict[str, Any], access: Any) -> None:
    pytest.importorskip("jax")
    kept = {weight.name: weight.jax() for weight in open_weights(path, access=access).stream()}
    gc.collect()
    for name, array in arrays.items():
        np.testing.assert_array_equal(np.asarray(kept[name]), array)


@ACCESS
def test_a_stage_records_what_was_handed_over(path: Path, access: Any) -> None:
    weights = open_weights(path, access=access)
    recorder = ReadRecorder("fold")
    guarded = weights.guard("weights", recorder, FileDigests())
    stream = guarded.stream()
    assert recorder.reads() == ()
    first, second = next(stream), next(stream)
    assert {read.name for read in recorder.reads()} == {first.name, second.name}
    assert {read.digest for read in recorder.reads()} == {weights[name].digest() for name in (first.name, second.name)}
    guarded.close_guard()
    with pytest.raises(HandleClosed, match="has returned"):
        next(stream)


@ACCESS
def test_a_stage_depends_on_all_that_it_streams(cache: cachec.Cache, tmp_path: Path, make: Any, access: Any) -> None:
    @cache.stage
    def total(weights: cachec.WeightSet) -> float:
        return float(sum(weight.read().sum() for weight in weights.select(["a", "b"]).stream()))

    def write(name: str, **starts: int) -> WeightSet:
        return open_weights(
            make.write(tmp_path / name, {n: make.ramp(4, start=starts.get(n, 0)) for n in "abc"}), access=access
        )

    assert total(write("1")) == 12
    assert cache.call(total, write("2", c=9))[1].hit
    value, outcome = cache.call(total, write("3", b=1))
    assert (value, outcome.reason) == (16, cachec.Reason.WEIGHT_CONTENT_CHANGED)


@ACCESS
def test_a_file_that_changes_meanwhile(path: Path, make: Any, access: Any) -> None:
    stream = open_weights(path, access=access).stream()
    next(stream)
    with path.open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"abcd")
    with pytest.raises(WeightsChanged):
        list(stream)


@ACCESS
def test_a_set_that_is_released_meanwhile(path: Path, access: Any) -> None:
    weights = open_weights(path, access=access)
    stream = weights.stream()
    next(stream)
    weights.release()
    with pytest.raises(HandleClosed, match="released"):
        list(stream)


def _readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "cachec-stream"]


@ACCESS
def test_leaving_early_stops_the_thread(path: Path, access: Any) -> None:
    held = []
    for weight in open_weights(path, access=access).stream():
        held.append(weight.read())
        assert _readers()
        break
    gc.collect()
    assert _readers() == []
    stream = open_weights(path, access=access).stream()
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert _readers() == []
    assert held[0][0, 1] == 1


def test_memory_goes_with_the_last_view(path: Path) -> None:
    stream = open_weights(path, access="read").stream()
    first = next(stream)
    array = first.read()
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    held = weakref.ref(base.obj)
    del base
    del first
    list(stream)
    assert held() is not None
    del array
    assert held() is None


_MEASURE = """
    import gc, re, sys, time
    from pathlib import Path
    import numpy as np
    from cachec.weights import open_weights

    def private():  # pages of a file that was just written count as dirty, so not those
        text = Path("/proc/self/smaps_rollup").read_text()
        return int(re.search(r"Anonymous:\\s+(\\d+)", text)[1]) * 1024

    def resident():
        return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

    how, path = sys.argv[1:]
    weights = open_weights(path, access="read" if how.startswith("read") else "mmap")
    np.ones(4).copy()
    target = np.empty(8 << 20, np.uint8)
    target[:] = 1
    before_private, before_resident = private(), resident()
    peak_private = peak_resident = 0
    for weight in weights.stream():
        array = weight.read().reshape(-1).view(np.uint8)
        target[: array.nbytes] = array
        while how.startswith("read") and not peak_private and private() - before_private < 1.5 * array.nbytes:
            time.sleep(0.001)  # the next one is read meanwhile, or this ends by the test's time limit
        peak_private, peak_resident = max(peak_private, private()), max(peak_resident, resident())
        if how.endswith("drop"):
            del array
    print(peak_private - before_private, peak_resident - before_resident)
"""


@pytest.mark.parametrize("how", ["mmap", "read", "mmap-drop", "read-drop"])
@pytest.mark.sampled
def test_at_most_two_tensors_are_resident(tmp_path: Path, make: Any, how: str) -> None:
    nbytes = 8 << 20
    path = make.write(tmp_path / "w.safetensors", {f"w{i}": make.ramp(nbytes // 4, start=i) for i in range(6)})
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_MEASURE), how, str(path)], capture_output=True, text=True, check=True
    )
    private, resident = map(int, done.stdout.split())
    slack = 3 << 20  # of a thread's stack and Python's own
    assert private < (slack if how.startswith("mmap") else 2 * nbytes + slack)
    assert how.startswith("mmap") or private > 1.5 * nbytes, "the next one is read meanwhile"
    # The consumer still holds the array before, where it is rebound late: a map of it costs no memory of its own.
    assert resident < 2 * nbytes + slack
    assert re.match(r"-?\d+ -?\d+$", done.stdout)
