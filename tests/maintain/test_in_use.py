"""What is never collected: named weights, and everything that a living process can still read from the store."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import cachec
from cachec.maintain.collect import CollectResult
from cachec.maintain.maintainer import Maintainer
from cachec.maintain.selector import Selector
from cachec.maintain.sweep import GRACE_SECONDS, LONG_SECONDS
from cachec.model import Fault
from cachec.store.store import Store
from cachec.weights.library.stored_weights import WeightStore

from .conftest import start


def collect(folder: Path) -> CollectResult:
    """A gc that may keep nothing, a long time later, and meets no fault."""
    faults: list[tuple[Fault, str]] = []
    store = Store(folder)
    later = time.time() + 2 * (GRACE_SECONDS + LONG_SECONDS)
    maintainer = Maintainer(store, on_fault=lambda *fault: faults.append(fault), clock=lambda: later)
    done = maintainer.collect(limit=1)
    assert faults == []
    store.close()
    return done


def artifacts(folder: Path) -> set[str]:
    return {path.name for path in (folder / "objects").rglob("*") if path.is_file()}


@contextmanager
def process(body: Callable[[Callable[[], None]], None]) -> Iterator[Callable[[], None]]:
    """A process that runs ``body(pause)`` up to the pause. Inside, a call lets it go on to its end, which must be good;
    it is killed when that was not asked.
    """
    ready, more = os.pipe(), os.pipe()

    def run() -> None:
        def pause() -> None:
            os.write(ready[1], b"x")
            assert os.read(more[0], 1) == b"x"

        body(pause)

    pid = start(run)
    ended = False

    def finish() -> None:
        nonlocal ended
        os.write(more[1], b"x")
        ended = True
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    try:
        os.close(ready[1])
        assert os.read(ready[0], 1) == b"x", "it ended before it paused"
        yield finish
    finally:
        if not ended:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for fd in (ready[0], *more):
            os.close(fd)


def test_weights_that_have_a_name_stay(tmp_path: Path, weights_file: Path) -> None:
    weights, before = WeightStore(Store(tmp_path / "store")), weights_file.read_bytes()
    base = cachec.open_weights(weights_file)
    revision = weights.add(base, "team/base")
    weights.add(base, "placed", own=False)
    cache = cachec.Cache(tmp_path / "store", log="off", mode="on")

    @cache.stage
    def total(weights: cachec.WeightSet) -> float:
        return float(weights["scale"].read())

    total(base)
    cache.store.release()
    done = collect(tmp_path / "store")
    assert (done.entries, done.after, done.swept["revisions"]) == (1, 0, 0)
    assert artifacts(tmp_path / "store") == set(revision.digests.values())
    assert [each.name for each in weights.revisions()] == ["placed", "team/base"]
    assert weights_file.read_bytes() == before
    for name in ("team/base", "placed"):
        for weight in weights.open(name).values():
            np.testing.assert_array_equal(weight.read(), base[weight.name].read())


def test_the_tensors_of_an_open_set_stay_until_its_process_is_gone(tmp_path: Path, weights_file: Path) -> None:
    weights = WeightStore(Store(tmp_path))
    expected = {name: weight.read().copy() for name, weight in cachec.open_weights(weights_file).items()}
    weights.add(cachec.open_weights(weights_file), "base")
    names = artifacts(tmp_path)

    def use(pause: Callable[[], None]) -> None:
        opened = WeightStore(Store(tmp_path)).open("base")
        pause()  # no file of weights was opened yet
        for name, array in expected.items():
            np.testing.assert_array_equal(opened[name].read(), array)

    with process(use) as finish:
        (tmp_path / "weights" / "names" / "base.json").unlink()
        done = collect(tmp_path)
        assert (done.artifacts, len(done.weights_in_use)) == (0, 1)
        assert artifacts(tmp_path) == names
        finish()
    assert collect(tmp_path).artifacts == 3
    weights.add(cachec.open_weights(weights_file), "base")
    with process(use):
        (tmp_path / "weights" / "names" / "base.json").unlink()
    assert collect(tmp_path).artifacts == 3  # it was killed
    assert artifacts(tmp_path) == set()


def test_tensors_that_are_being_added_stay(tmp_path: Path, weights_file: Path) -> None:
    def add(pause: Callable[[], None]) -> None:
        seen: list[int] = []

        def progress(done: int, _total: int) -> None:
            seen.append(done)
            if len(artifacts(tmp_path)) == 2 and len(seen) < 1000:
                seen.extend(range(1000))
                pause()  # two tensors are there, the third and the revision are not

        WeightStore(Store(tmp_path)).add(cachec.open_weights(weights_file), "base", progress=progress)
        assert len(seen) >= 1000

    with process(add) as finish:
        assert collect(tmp_path).artifacts == 0
        assert len(artifacts(tmp_path)) == 2
        finish()
    opened = WeightStore(Store(tmp_path)).open("base")
    assert all(weight.read().nbytes == weight.nbytes for weight in opened.values())
    assert collect(tmp_path).artifacts == 0


def derived(folder: Path, weights_file: Path) -> cachec.WeightSet:
    """A set of which a stage made two weights, from the store; nothing of it was looked at."""
    cache = cachec.Cache(folder, log="off", mode="on")

    @cache.stage
    def twice(weights: cachec.WeightSet) -> cachec.WeightSet:
        return weights.derive({name: lambda weight: weight.read() * 2 for name in ("a", "b")})

    made = twice(cachec.open_weights(weights_file))
    assert isinstance(made, cachec.WeightSet)
    return made  # which outlives the cache


@pytest.mark.parametrize("published", [False, True])
def test_weights_that_a_stage_derived_stay_while_a_process_has_them(
    tmp_path: Path, weights_file: Path, published: bool
) -> None:
    folder = tmp_path / "store"
    base = {name: weight.read().copy() for name, weight in cachec.open_weights(weights_file).items()}

    def make(pause: Callable[[], None]) -> None:
        derived(folder, weights_file)
        pause()

    if published:  # by a process that has ended: the other one hits
        with process(make) as finish:
            finish()

    def use(pause: Callable[[], None]) -> None:
        made = derived(folder, weights_file)
        pause()
        np.testing.assert_array_equal(made["a"].read(), base["a"] * 2)
        np.testing.assert_array_equal(made["b"].read(), base["b"] * 2)
        np.testing.assert_array_equal(made["scale"].read(), base["scale"])

    with process(use) as finish:
        held = artifacts(folder)
        done = collect(folder)
        assert (done.entries, done.kept_in_use) == (0, 1)
        assert artifacts(folder) == held
        store = Store(folder)
        plan = Maintainer(store).plan(Selector(stages=("twice",)))
        assert len(plan.apply().removed) == 1
        store.close()
        collect(folder)  # its entry is gone, what the process has is not
        assert len(artifacts(folder) & held) >= 2
        finish()
    assert artifacts(folder) != set()
    collect(folder)
    assert artifacts(folder) == set()


def called(folder: Path, weights_file: Path) -> tuple[cachec.Program, cachec.File, cachec.Dir]:
    """What two stages give, in a cache that is gone then; nothing of it was looked at."""
    cache = cachec.Cache(folder, log="off", mode="on")

    @cache.stage
    def lower(weights: cachec.WeightSet) -> cachec.Program:
        return cachec.Program("ir" * 1000, format="test:text", manifest=weights.manifest)

    @cache.stage
    def build(program: cachec.Program) -> tuple[cachec.File, cachec.Dir]:
        with cachec.scratch() as scratch:
            (scratch / "out").write_bytes(b"out" * 1000)
            (scratch / "folder").mkdir()
            (scratch / "folder" / "tool").write_bytes(b"tool" * 1000)
            (scratch / "folder" / "tool").chmod(0o755)
            return cachec.File(scratch / "out"), cachec.Dir(scratch / "folder")

    program = lower(cachec.open_weights(weights_file))
    return program, *build(program)


def test_what_a_process_has_not_read_yet_stays(tmp_path: Path, weights_file: Path) -> None:
    folder = tmp_path / "store"

    def call(pause: Callable[[], None]) -> None:
        program, file, tree = called(folder, weights_file)
        pause()
        assert program.ir == b"ir" * 1000
        assert set(program.manifest.weights) == {"scale", "a", "b"}
        assert file.read_bytes() == b"out" * 1000
        assert file.manifest is not None
        assert set(file.manifest.weights) == {"scale", "a", "b"}
        assert (tree.path / "tool").read_bytes() == b"tool" * 1000

    for _ in range(2):  # misses, then hits
        with process(call) as finish:
            done = collect(folder)
            assert (done.entries, done.kept_in_use, done.swept["trees"]) == (0, 2, 0)
            finish()
    with process(call):
        pass  # killed
    done = collect(folder)
    assert (done.entries, done.kept_in_use, done.swept["trees"]) == (2, 0, 1)
    assert artifacts(folder) == set()


@pytest.mark.parametrize("kept", [0, 1, 2])
@pytest.mark.sampled
def test_each_result_keeps_what_it_needs_and_gives_it_up(tmp_path: Path, weights_file: Path, kept: int) -> None:
    result = called(tmp_path, weights_file)[kept]
    gc.collect()  # the cache
    assert collect(tmp_path).entries == 0
    assert os.listdir(tmp_path / "leases") != []
    del result
    gc.collect()
    assert os.listdir(tmp_path / "leases") == []
    assert collect(tmp_path).entries == 2


def pickled(value: object) -> object:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - of this test


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_copies_of_a_result_are_its_fields_alone(tmp_path: Path, copied: Callable[[object], object]) -> None:
    cache = cachec.Cache(tmp_path, log="off", mode="on")

    @cache.stage
    def make(number: int) -> list[cachec.File | cachec.Dir]:
        with cachec.scratch() as scratch:
            (scratch / "folder").mkdir()
            (scratch / "folder" / "out").write_bytes(b"out" * number)
            return [cachec.File(scratch / "folder" / "out", kind="test:kind"), cachec.Dir(scratch / "folder")]

    for result in make(5000):
        other = copied(result)
        assert other == result
        assert repr(other) == repr(result)
        assert other.__dict__ == {name: result.__dict__[name] for name in ("path", "kind", "manifest", "name")}


def test_an_array_outlives_its_artifact(tmp_path: Path) -> None:
    cache = cachec.Cache(tmp_path, log="off", mode="on")

    @cache.stage
    def make(number: int) -> np.ndarray:  # type: ignore[type-arg]
        return np.arange(number, dtype="i8")

    array = make(5000)
    cache.store.release()  # it is mapped: nothing has to stay for it
    assert collect(tmp_path).entries == 1
    assert artifacts(tmp_path) == set()
    np.testing.assert_array_equal(array, np.arange(5000))
    again, outcome = cache.call(make, 5000)
    assert outcome.reason.kind == "miss"
    np.testing.assert_array_equal(again, array)
