"""A weight set as a mapping: names, specs, digests, selections, ties, and what is computed only once."""

from __future__ import annotations

import copy
import fcntl
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cachec.base import fsio
from cachec.errors import UnknownWeight, UsageError, WeightError
from cachec.weights import WeightSet, open_weights


def test_mapping(model: Path) -> None:
    weights = open_weights(model)
    assert isinstance(weights, Mapping)
    assert list(weights) == ["b", "scale", "w"]
    assert len(weights) == 3
    assert "w" in weights
    assert 3 not in weights
    assert weights.get("nope") is None
    assert [(w.name, w.dtype, w.shape, w.nbytes) for w in weights.values()] == [
        ("b", "float32", (8,), 32),
        ("scale", "float32", (1,), 4),
        ("w", "float32", (4, 8), 128),
    ]
    assert weights.nbytes == 164
    assert weights.specs["w"] == weights["w"].spec
    with pytest.raises(TypeError):
        weights["w"] = 1  # type: ignore[index]
    with pytest.raises(TypeError):
        weights.specs["w"] = 1  # type: ignore[index]
    with pytest.raises(AttributeError):
        weights.rank = 3  # type: ignore[misc]


def test_unknown_name_suggests(model: Path) -> None:
    with pytest.raises(UnknownWeight, match=r"did you mean 'scale'\?") as error:
        open_weights(model)["scales"]
    assert isinstance(error.value, KeyError)


def test_spec_digest_ignores_file_place_order_and_bytes(tmp_path: Path, make: Any) -> None:
    a = {"w": make.ramp(2, 3), "b": make.ramp(4)}
    first = open_weights(make.write(tmp_path / "a.safetensors", a))
    others = [
        open_weights(make.write(tmp_path / "other-name.safetensors", a)),
        open_weights(make.write(tmp_path / "order.safetensors", dict(reversed(a.items())))),
        open_weights(make.write(tmp_path / "values.safetensors", {n: v + 1 for n, v in a.items()})),
        open_weights(make.write(tmp_path / "meta.safetensors", a, {"format": "pt", "note": "x" * 100})),
        WeightSet.from_arrays(a),
        first.placeholders("stage"),
    ]
    for other in others:
        assert other.spec_digest == first.spec_digest
        assert other.manifest.digest == first.manifest.digest
        assert list(other) == list(first)


def test_spec_digest_sees_every_field(tmp_path: Path, make: Any) -> None:
    base = {"w": make.ramp(2, 3), "v": make.ramp(2, 3), "b": make.ramp(4)}
    sets = [
        WeightSet.from_arrays(base),
        WeightSet.from_arrays({**base, "c": make.ramp(1)}),
        WeightSet.from_arrays(base).select(exclude="b"),
        WeightSet.from_arrays(base).rename({"b": "bias"}),
        WeightSet.from_arrays({**base, "b": make.ramp(4).view(np.int32)}),
        WeightSet.from_arrays({**base, "b": make.ramp(2, 2)}),
        WeightSet.from_arrays({**base, "w": make.ramp(3, 2)}),
        WeightSet.from_arrays(base, tied=[("w", "v")]),
    ]
    assert len({s.spec_digest for s in sets}) == len(sets)
    # A tie has no order.
    assert WeightSet.from_arrays(base, tied=[("v", "w")]).spec_digest == sets[-1].spec_digest
    assert len({s.manifest.digest for s in sets}) == len(sets)


def test_select(model: Path) -> None:
    weights = open_weights(model)
    assert list(weights.select("w")) == ["w"]
    assert list(weights.select(["w", "s*"])) == ["scale", "w"]
    assert list(weights.select(exclude=["?"])) == ["scale"]
    assert list(weights.select(exclude="none.*")) == ["b", "scale", "w"]
    assert weights.select() is weights
    assert weights.select("*") is weights
    with pytest.raises(UnknownWeight, match="did you mean 'scale'"):
        weights.select("scal")
    with pytest.raises(UnknownWeight, match="did you mean 'scale'"):
        weights.select(exclude=["scal"])
    with pytest.raises(UnknownWeight, match=r"matches 'x\*'"):
        weights.select("x*")
    with pytest.raises(UsageError):
        weights.select([1])  # type: ignore[list-item]


def test_an_exact_name_comes_before_a_glob() -> None:
    weights = WeightSet.from_arrays({"a[0]": np.ones(1), "a0": np.ones(1)})
    assert list(weights.select("a[0]")) == ["a[0]"]


def test_rename(model: Path) -> None:
    weights = open_weights(model)
    renamed = weights.rename({"w": "layer.w"})
    assert list(renamed) == ["b", "layer.w", "scale"]
    assert renamed["layer.w"].name == renamed["layer.w"].spec.name == "layer.w"
    np.testing.assert_array_equal(renamed["layer.w"].read(), weights["w"].read())
    twice = renamed.rename(str.upper).select("LAYER.*")
    np.testing.assert_array_equal(twice["LAYER.W"].read(), weights["w"].read())
    swapped = weights.rename({"w": "b", "b": "w"})
    assert swapped["b"].shape == (4, 8)
    assert swapped["b"].digest() == weights["w"].digest()
    assert weights.rename({}) is weights
    opened = open_weights(model, rename={"w": "layer.w"})
    assert opened.spec_digest == renamed.spec_digest
    with pytest.raises(UsageError, match="both be named 'b'"):
        weights.rename({"w": "b"})
    with pytest.raises(UnknownWeight):
        weights.rename({"x": "y"})
    with pytest.raises(UsageError, match="found 3"):
        weights.rename(lambda name: 3)  # type: ignore[arg-type,return-value]


def test_ties_are_stated_never_inferred(tmp_path: Path, make: Any) -> None:
    same = make.ramp(2, 2)
    path = make.write(tmp_path / "t.safetensors", {"a": same, "b": same, "c": same, "d": make.ramp(4)})
    plain = open_weights(path)
    assert all(spec.alias is None for spec in plain.specs.values())
    tied = open_weights(path, tied=[("b", "a", "c")])
    assert {name: spec.alias for name, spec in tied.specs.items()} == {"a": "a", "b": "a", "c": "a", "d": None}
    assert tied.spec_digest != plain.spec_digest
    assert open_weights(path).spec_digest == plain.spec_digest  # what is remembered for one is not used for the other
    assert tied.rename({"b": "B"}).specs["a"].alias == "B"
    assert tied.specs == open_weights(path, tied=[("c", "b", "a")]).specs
    assert tied.select(exclude="a").specs["c"].alias == "b"
    assert tied.select(["a", "d"]).specs["a"].alias is None
    with pytest.raises(WeightError, match=r"'a' and 'd'.*\[2, 2\].*\[4\]"):
        open_weights(path, tied=[("a", "d")])
    with pytest.raises(UnknownWeight):
        open_weights(path, tied=[("a", "x")])
    with pytest.raises(UsageError, match="two names"):
        open_weights(path, tied=[("a",)])
    with pytest.raises(UsageError, match="twice"):
        open_weights(path, tied=[("a", "b"), ("b", "c")])


def test_revision_changes_with_the_file_and_the_names(tmp_path: Path, make: Any) -> None:
    path = make.write(tmp_path / "r.safetensors", {"a": make.ramp(2), "b": make.ramp(2)})
    first = open_weights(path)
    assert open_weights(path).revision == first.revision
    assert first.rename({"a": "x"}).revision != first.revision
    assert first.select("a").revision != first.revision
    assert first.rename({"a": "b", "b": "a"}).revision != first.revision
    before = first.revision
    new = make.write(tmp_path / "new", {"a": make.ramp(2), "b": make.ramp(2)})
    new.rename(path)
    assert open_weights(path).revision != before
    memory = WeightSet.from_arrays({"a": make.ramp(2)})
    assert memory.revision == memory.revision
    assert WeightSet.from_arrays({"a": make.ramp(2)}).revision != memory.revision


def test_handles_and_sets_are_not_pickled_or_copied(model: Path) -> None:
    weights = open_weights(model)
    for value in (weights, weights["w"]):
        for way in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(UsageError, match="can't be pickled or copied"):
                way(value)


def test_repr_shows_no_values(model: Path) -> None:
    weights = open_weights(model)
    assert repr(weights) == "WeightSet(3 weights, 164 bytes)"
    assert repr(weights["w"]) == "Weight('w', float32, [4, 8])"


# --- what is remembered


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as settled at once."""
    monkeypatch.setattr(fsio, "SETTLE_SECONDS", -3600.0)


@pytest.mark.usefixtures("settled")
def test_an_unchanged_file_is_not_read_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_weights(model)

    def refuse(*_: object) -> int:
        raise AssertionError("opened again")

    monkeypatch.setattr(fsio, "open_read", refuse)
    second = open_weights(model)
    assert second.manifest is first.manifest
    assert second.select(exclude="b").manifest is first.select(exclude=["b"]).manifest
    assert second.rename({"b": "c"}).manifest is first.rename({"b": "c"}).manifest
    with pytest.raises(AssertionError, match="opened again"):
        open_weights([model, model])


@pytest.mark.usefixtures("settled")
def test_a_changed_file_is_read_again(model: Path, make: Any) -> None:
    before = open_weights(model).spec_digest
    make.write(model, {"other": make.ramp(5)})
    assert list(open_weights(model)) == ["other"]
    assert open_weights(model).spec_digest != before


def test_an_unsettled_file_is_read_again_and_parsed_once(model: Path, make: Any, parsed: list[str]) -> None:
    make.write(model, {"fresh": make.ramp(3)})
    first = open_weights(model)
    again = open_weights(model)
    assert again.manifest is first.manifest
    assert parsed == [str(model)]


def test_a_file_with_a_writer_is_not_trusted(model: Path, monkeypatch: pytest.MonkeyPatch, settled: None) -> None:
    opened: list[str] = []
    real = fsio.open_read
    monkeypatch.setattr(fsio, "open_read", lambda path: opened.append(str(path)) or real(path))
    with model.open("r+b"):
        open_weights(model)
        open_weights(model)
    assert len(opened) == 2
    open_weights(model)
    open_weights(model)
    assert len(opened) == 3


@pytest.mark.usefixtures("settled")
def test_nor_is_one_that_a_writer_was_let_into_meanwhile(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel does after 45 seconds, where this process was stopped in the midst of the header."""
    opened: list[str] = []
    pread, real = os.pread, fsio.open_read
    monkeypatch.setattr(fsio, "open_read", lambda path: opened.append(str(path)) or real(path))

    def stopped(fd: int, nbytes: int, offset: int) -> bytes:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return pread(fd, nbytes, offset)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", stopped)
        open_weights(model)
    open_weights(model)
    open_weights(model)
    assert len(opened) == 2


def test_a_relative_path_follows_the_working_folder(tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        make.write(tmp_path / folder / "m.safetensors", {folder: make.ramp(1)})
    for folder in ("one", "two"):
        monkeypatch.chdir(tmp_path / folder)
        weights = open_weights("m.safetensors")
        monkeypatch.chdir(tmp_path)
        assert list(weights) == [folder]
        weights[folder].read()


def test_opening_and_naming_import_no_numpy(model: Path) -> None:
    code = (
        "import sys; from cachec.weights import open_weights; w = open_weights(sys.argv[1]);"
        "w.select(exclude='b').rename({'w': 'x'}).spec_digest; w.manifest; w.revision; w['w'].digest(); w['w'].raw();"
        "print(sorted(m for m in ('numpy', 'ml_dtypes', 'json', 'logging', 'subprocess') if m in sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code, str(model)], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
