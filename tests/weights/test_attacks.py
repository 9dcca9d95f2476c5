"""Attempts to lose, mix up or misuse weights by names, shards, overlays, ties and releases; each has to be refused."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cachec.errors import CheckpointError, HandleClosed, LinkError, UnknownWeight, UsageError
from cachec.maintain.maintainer import Maintainer
from cachec.store.store import Store
from cachec.weights import WeightSet, from_arrays, open_weights
from cachec.weights.library.stored_weights import WeightStore
from cachec.weights.overlay import ComputedWeight

# --- names


@pytest.mark.parametrize("name", ["", 3, None, b"w", "\ud800", "a\udfffb"])
def test_what_is_no_name(tmp_path: Path, make: Any, name: Any) -> None:
    """A lone surrogate would break the key, the record and the file, each with an error about an encoding."""
    ok = from_arrays({"w": make.ramp(2)})
    refused = pytest.raises(UsageError, match="expected a name of a weight, a text that is not empty, found")
    with refused:
        from_arrays({name: make.ramp(2)})
    with refused:
        WeightSet.from_weights({name: ok["w"]})
    with refused:
        ok.rename({"w": name})
    with refused:
        ok.rename(lambda _: name)
    with refused:
        ok.part((name,), ("w",))
    with refused:
        ok.overlay({name: make.ramp(2)})
    with refused:
        ok.derive({name: ComputedWeight("float32", (2,), lambda weights: make.ramp(2))})


@pytest.mark.parametrize("name", ["größe", "a b", "a\0b", "a/b", "..", "\n", "名", "😀", "w" * 5000])
def test_any_text_is_a_name(tmp_path: Path, make: Any, name: str) -> None:
    weights = from_arrays({name: make.ramp(2)})
    store = WeightStore(Store(tmp_path / "store"))
    store.add(weights, "m")
    weights.save(tmp_path / "o.safetensors")
    weights.save(tmp_path / "o.irpa", format="irpa")
    for found in (
        store.open("m"),
        open_weights(tmp_path / "o.safetensors"),
        open_weights(tmp_path / "o.irpa", specs=weights.specs),
    ):
        assert found.spec_digest == weights.spec_digest
        np.testing.assert_array_equal(found[name].read(), make.ramp(2))


# --- shards


@pytest.mark.parametrize("arrays", [("w", "w_shard-1-of-2"), ("w", "x_shard-1-of-2"), ("w_shard-2-of-3",)])
def test_weights_that_are_named_like_shards_are_not_cut(tmp_path: Path, make: Any, arrays: tuple[str, ...]) -> None:
    """One would overwrite the shard of another, or be taken for one when it is opened."""
    weights = from_arrays({name: make.ramp(4, 2) for name in arrays})
    with pytest.raises(UsageError, match=f"{arrays[-1]!r} is the name of a shard in a file; rename that weight first"):
        weights.save_shards(tmp_path / "cut", {arrays[0]: 0}, 2)
    assert not (tmp_path / "cut").exists()


@pytest.mark.parametrize("size", [0, -1, "2", 2.0, True, None])
def test_what_is_no_number_of_workers(tmp_path: Path, make: Any, size: Any) -> None:
    with pytest.raises(UsageError, match="world_size"):
        from_arrays({"w": make.ramp(4)}).save_shards(tmp_path / "cut", {"w": 0}, size)
    with pytest.raises(UsageError, match="world_size"):
        from_arrays({"w": make.ramp(4)}).shard({"w": 0}, 0, size)
    assert not (tmp_path / "cut").exists()


def test_shards_are_not_saved_as_whole_weights(tmp_path: Path, make: Any) -> None:
    """The file could not say that ``w`` is a half, and would be opened as if it were all."""
    half = from_arrays({"w": make.ramp(4, 2), "v": make.ramp(4)}).shard({"w": 0}, 0, 2)
    with pytest.raises(UsageError, match="'w' is one of 2 shards on axis 0, expected whole weights"):
        half.save_shards(tmp_path / "cut", {"v": 0}, 1)


def test_one_set_has_shards_of_one_world(make: Any) -> None:
    half = from_arrays({"w": make.ramp(4, 2), "v": make.ramp(4)}).shard({"w": 0}, 0, 2)
    with pytest.raises(UsageError, match=r"'w' is one of 2 shards already, expected one world_size.*found 4"):
        half.shard({"v": 0}, 0, 4)
    assert half.shard({"v": 0}, 0, 2).specs["v"].shard == (0, 2)


def test_files_of_ranks_that_were_exchanged(tmp_path: Path, make: Any) -> None:
    from_arrays({"w": make.ramp(4, 2)}).save_shards(tmp_path, {"w": 0}, 2)
    one, two = (tmp_path / f"rank-{number}-of-2.safetensors" for number in (1, 2))
    one.rename(tmp_path / "aside")
    two.rename(one)
    (tmp_path / "aside").rename(two)
    for rank in range(2):
        with pytest.raises(CheckpointError, match=f"missing shard 'w_shard-{rank + 1}-of-2'"):
            open_weights(tmp_path, rank=rank, world_size=2)


def test_more_workers_than_rows(make: Any) -> None:
    weights = from_arrays({"w": make.ramp(3, 2), "none": np.zeros((0, 3), np.float32)})
    parts = [weights.shard({"w": 0, "none": 0}, rank, 8, pad=True) for rank in range(8)]
    assert len({part.spec_digest for part in parts}) == 1
    whole = np.concatenate([part["w"].read() for part in parts])
    np.testing.assert_array_equal(whole[:3], make.ramp(3, 2))
    assert not whole[3:].any()
    assert parts[7]["none"].read().shape == (0, 3)


# --- ties


def test_a_tie_has_no_order(make: Any) -> None:
    def tied(*groups: tuple[str, ...]) -> WeightSet:
        return from_arrays({name: make.ramp(2) for name in "abcd"}, tied=groups)

    one, other = tied(("a", "b"), ("c", "d")), tied(("d", "c"), ("b", "a"))
    assert one.spec_digest == other.spec_digest
    one.manifest.check(other.specs)
    other.rename({"a": "z"}).manifest.check(one.rename({"a": "z"}).specs)
    # Whatever is tied otherwise is another program.
    for wrong in (tied(("a", "b")), tied(("a", "b", "c", "d")), tied(("a", "c"), ("b", "d")), tied()):
        assert wrong.spec_digest != one.spec_digest
        with pytest.raises(LinkError, match="alias"):
            one.manifest.check(wrong.specs)
        with pytest.raises(LinkError, match="alias"):
            wrong.manifest.check(one.specs)


def test_ties_follow_names_that_are_exchanged(make: Any) -> None:
    weights = from_arrays({"a": make.ramp(2), "b": make.ramp(2), "c": make.ramp(2) + 1}, tied=[("a", "b")])
    turned = weights.rename({"b": "c", "c": "b"})
    assert {name: spec.alias for name, spec in turned.specs.items()} == {"a": "a", "b": None, "c": "a"}
    np.testing.assert_array_equal(turned["b"].read(), make.ramp(2) + 1)
    with pytest.raises(LinkError):
        weights.manifest.check(turned.specs)


def test_a_manifest_of_a_part_fits_the_set_of_that_part(make: Any) -> None:
    """A plugin that folds one of two tied weights leaves the other, which is tied to nothing any more."""
    weights = from_arrays({name: make.ramp(2) for name in "abcd"}, tied=[("c", "a", "b")])
    manifest = weights.manifest.with_callers({"b": "theirs", "d": "other"})
    for folded in ("d", "a", "c", "b"):
        manifest = manifest.without(folded)
        weights = weights.select(exclude=folded)
        manifest.check(weights.specs)
        assert manifest.digest == weights.manifest.digest
        assert manifest.callers == ({"b": "theirs"} if folded != "b" else {})


# --- hints


def test_hints_are_only_given_where_they_help(make: Any) -> None:
    there = {f"(+.{name}": make.ramp(2) for name in "ab"}
    with pytest.raises(UnknownWeight, match=r"removeprefix\('\(\+\.'\)"):
        from_arrays(there).select(["a", "b"])
    for names in (("x.a", "y.a"), ("x.a", "b")):  # two answers; one that fits only some
        with pytest.raises(UnknownWeight) as caught:
            from_arrays({name: make.ramp(2) for name in names}).select(["a", "b"])
        assert "rename" not in str(caught.value)


# --- overlays and derived sets


def test_an_overlay_of_itself_and_over_an_overlay(make: Any) -> None:
    base = from_arrays({"a": make.ramp(2), "b": make.ramp(3)})
    assert {name: weight.read().shape for name, weight in base.overlay(base).items()} == {"a": (2,), "b": (3,)}
    twice = base.overlay({"a": make.ramp(2) + 1}).overlay({"a": make.ramp(2) + 2, "c": make.ramp(1)})
    assert [list(weight.read()) for weight in twice.values()] == [[2, 3], [0, 1, 2], [0]]
    np.testing.assert_array_equal(base["a"].read(), make.ramp(2))


def test_an_overlay_does_not_outlive_what_it_is_made_of(make: Any) -> None:
    base, over = from_arrays({"a": make.ramp(2), "b": make.ramp(3)}), from_arrays({"a": make.ramp(2) + 5})
    both = base.overlay(over)
    kept = both["b"].read()
    base.release()
    with pytest.raises(HandleClosed, match="'b'"):
        both["b"].read()
    np.testing.assert_array_equal(both["a"].read(), make.ramp(2) + 5)
    np.testing.assert_array_equal(kept, make.ramp(3))
    over.release()
    with pytest.raises(HandleClosed, match="'a'"):
        both["a"].read()


def test_a_function_that_releases_what_it_reads(make: Any) -> None:
    base = from_arrays({"a": make.ramp(2)})
    made = base.derive({"a": lambda weight: (base.release(), weight.read())[1]})
    with pytest.raises(HandleClosed):
        made["a"].read()


# --- release


@pytest.mark.parametrize("access", ["mmap", "read"])
def test_a_release_while_others_read(tmp_path: Path, make: Any, access: Any) -> None:
    names = [f"w{number}" for number in range(40)]
    from_arrays({name: make.ramp(1000) for name in names}).save(tmp_path / "m.safetensors")
    wrong: list[BaseException] = []
    for _ in range(20):
        weights = open_weights(tmp_path / "m.safetensors", access=access)

        def read(weights: WeightSet = weights) -> None:
            try:
                for name in names:
                    assert weights[name].read()[999] == 999
            except HandleClosed:
                pass
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        weights.release()
        for thread in threads:
            thread.join()
    assert wrong == []


@pytest.mark.parametrize("access", ["mmap", "read"])
def test_a_release_within_a_stream(tmp_path: Path, make: Any, access: Any) -> None:
    from_arrays({name: make.ramp(8) for name in "abc"}).save(tmp_path / "m.safetensors")
    weights = open_weights(tmp_path / "m.safetensors", access=access)
    handed_over = weights.stream()
    first = next(handed_over)
    kept = first.read()
    weights.release()
    with pytest.raises(HandleClosed):
        next(handed_over)
    with pytest.raises(HandleClosed):
        first.read()
    np.testing.assert_array_equal(kept, make.ramp(8))


def test_what_is_saved_after_a_release_leaves_no_file(tmp_path: Path, model: Path) -> None:
    weights = open_weights(model)
    weights.release()
    weights.release()
    for act in (
        lambda: weights.save(tmp_path / "o.safetensors"),
        lambda: weights.save_shards(tmp_path / "cut", {"w": 0}, 2),
        lambda: WeightStore(Store(tmp_path / "store")).add(weights, "m"),
        lambda: weights.shard({"w": 1}, 0, 2)["w"].read(),
        lambda: weights.rename({"w": "x"})["x"].place(),
    ):
        with pytest.raises(HandleClosed):
            act()
    assert not (tmp_path / "o.safetensors").exists()
    assert list((tmp_path / "cut").iterdir()) == []
    assert WeightStore(Store(tmp_path / "store")).revisions() == []


def test_views_and_handles_of_what_was_removed(tmp_path: Path, make: Any) -> None:
    store = WeightStore(Store(tmp_path / "store"))
    store.add(from_arrays({"a": make.ramp(2000)}), "m")
    weights = store.open("m")
    handle, view = weights["a"], weights["a"].read()
    revision = store.find("m").id
    del weights  # the handle keeps the revision, as a set does
    store.remove("m")
    maintainer = Maintainer(Store(tmp_path / "store"))
    assert maintainer.collect(limit=0).weights_in_use == (revision,)
    np.testing.assert_array_equal(handle.read(), make.ramp(2000))
    del handle
    found = maintainer.collect(limit=0)
    assert (found.weights_in_use, found.swept["revisions"], found.artifacts) == ((), 1, 1)
    np.testing.assert_array_equal(view, make.ramp(2000))  # the file has no name any more, but the map has it
