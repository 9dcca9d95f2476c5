"""Checkpoints of several files: folders of symbolic links, indexes, lists, and names cut up for workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cachec.base import fsio
from cachec.errors import CheckpointError, UsageError
from cachec.weights import formats, open_weights

INDEX = "model.safetensors.index.json"


@pytest.fixture
def hub(tmp_path: Path, make: Any) -> Path:
    """A Hugging Face snapshot: an index and two shards, all symbolic links into ../../blobs."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    make.write(blobs / "1111", {"a": make.ramp(2, 2), "b": make.ramp(3)})
    make.write(blobs / "2222", {"c": make.ramp(4, start=9)})
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    index = {"metadata": {"total_size": 44}, "weight_map": {"a": one, "b": one, "c": two}}
    (blobs / "3333").write_text(json.dumps(index))
    for name, blob in ((one, "1111"), (two, "2222"), (INDEX, "3333")):
        (snapshot / name).symlink_to(f"../../blobs/{blob}")
    return snapshot


def _set_index(hub: Path, text: str | dict[str, Any]) -> None:
    (hub / INDEX).resolve().write_text(text if isinstance(text, str) else json.dumps(text))


def test_folder_index_and_list_are_the_same(hub: Path, make: Any) -> None:
    shards = sorted(hub.glob("*.safetensors"))
    sets = [open_weights(hub), open_weights(hub / INDEX), open_weights(shards), open_weights(reversed(shards))]  # type: ignore[arg-type]
    for weights in sets:
        assert list(weights) == ["a", "b", "c"]
        assert weights.spec_digest == sets[0].spec_digest
        np.testing.assert_array_equal(weights["c"].read(), make.ramp(4, start=9))
        np.testing.assert_array_equal(weights["a"].read(), make.ramp(2, 2))


def test_a_folder_with_one_file(tmp_path: Path, make: Any) -> None:
    blob = make.write(tmp_path / "blob", {"a": make.ramp(2)})
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(blob)
    assert list(open_weights(folder)) == ["a"]
    assert list(open_weights(str(folder))) == ["a"]


def test_a_link_that_leads_elsewhere_later(hub: Path, make: Any, tmp_path: Path) -> None:
    weights = open_weights(hub)
    weights["c"].read()
    make.write(tmp_path / "blobs" / "4444", {"c": make.ramp(4, start=50)})
    shard = hub / "model-00002-of-00002.safetensors"
    shard.unlink()
    shard.symlink_to("../../blobs/4444")
    assert weights.changed() == str(shard)
    assert open_weights(hub)["c"].read()[0] == 50


def test_index_and_shards_are_looked_at_at_each_open(hub: Path, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsio, "SETTLE_SECONDS", -3600.0)
    first = open_weights(hub)
    opened: list[str] = []
    real = fsio.open_read
    monkeypatch.setattr(fsio, "open_read", lambda path: opened.append(str(path)) or real(path))
    assert open_weights(hub).manifest is first.manifest
    assert opened == []
    make.write(hub.parent.parent / "blobs" / "2222", {"c": make.ramp(5)})
    assert open_weights(hub)["c"].shape == (5,)
    one, two = (path.name for path in sorted(hub.glob("*.safetensors")))
    _set_index(hub, {"weight_map": {"a": one, "b": one, "d": two}})
    with pytest.raises(CheckpointError, match="'d' expected in"):
        open_weights(hub)
    make.write(hub / "model.safetensors", {"single": make.ramp(1)})
    assert list(open_weights(hub)) == ["single"]


ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
GOOD = f'"a":"{ONE}","b":"{ONE}","c":"{TWO}"'


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (
            {"weight_map": {"a": ONE, "b": ONE, "c": "model-00003.safetensors"}},
            "missing shard 'model-00003.safetensors'",
        ),
        ({"weight_map": {"a": ONE, "b": TWO, "c": TWO}}, f"'b' expected in '{TWO}', found in '{ONE}'"),
        ({"weight_map": {"a": ONE, "b": ONE, "c": TWO, "d": TWO}}, f"'d' expected in '{TWO}', found in no shard"),
        ({"weight_map": {"a": ONE, "c": TWO}}, "extra tensor 'b'"),
        ({"weight_map": {"a": "../up.safetensors"}}, "within the folder"),
        ({"weight_map": {"a": "/etc/passwd"}}, "within the folder"),
        ({"weight_map": {"a": ""}}, "within the folder"),
        ({"weight_map": {}}, "empty"),
        ({"weight_map": {"a": 1}}, "name -> file name"),
        ({"weight_map": [1]}, "name -> file name"),
        ({}, "name -> file name"),
        ("[]", "JSON object"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        (f'{{"weight_map":{{"a":"{ONE}",{GOOD}}}}}', "'a' twice"),
        (f'{{"weight_map":{{}},"weight_map":{{{GOOD}}}}}', "'weight_map' twice"),
        (f'{{"metadata":{{"x":1,"x":2}},"weight_map":{{{GOOD}}}}}', "'x' twice"),
        (f'{{"metadata":1,"metadata":2,"weight_map":{{{GOOD}}}}}', "'metadata' twice"),
        (f'{{"metadata":-0,"weight_map":{{{GOOD}}}}}', "-0 is no integer"),
        (f'{{"weight_map":{{{GOOD}}},"metadata": -0}}', "-0 is no integer"),
        (f'{{"weight_map":{{{GOOD}}},"metadata":[-0]}}', "-0 is no integer"),
        (f'{{"weight_map":{{{GOOD}}},"metadata":[1,\n-0]}}', "-0 is no integer"),
        (f'{{"weight_map":{{{GOOD}}},"metadata":{{"total_size":-0}}}}', "-0 is no integer"),
        (f'{{"weight_map":{{{GOOD}}},"more":-0}}', "-0 is no integer"),
    ],
)
def test_indexes_that_are_refused(hub: Path, index: Any, message: str) -> None:
    _set_index(hub, index)
    with pytest.raises(CheckpointError) as error:
        open_weights(hub)
    assert message in str(error.value)
    assert INDEX in str(error.value)


@pytest.mark.parametrize("metadata", [None, {}, {"total_size": 1}, {"a": "b", "c": {"d": ["e:\\"]}}, 3, "x:y"])
def test_metadata_of_an_index_is_free(hub: Path, metadata: Any) -> None:
    extra = {} if metadata is None else {"metadata": metadata}
    _set_index(hub, {**extra, "weight_map": {"a": ONE, "b": ONE, "c": TWO}, "more": 1})
    assert list(open_weights(hub)) == ["a", "b", "c"]


def test_a_name_in_two_files(tmp_path: Path, make: Any) -> None:
    paths = [make.write(tmp_path / f"{i}.safetensors", {"a": make.ramp(2)}) for i in range(2)]
    with pytest.raises(CheckpointError, match=r"'a' is both in .*0\.safetensors and in .*1\.safetensors"):
        open_weights(paths)


def test_sources_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_weights(tmp_path / "none.safetensors")
    for source in ([], 3, b"x", [b"x"], "", [""], "a\0b"):
        with pytest.raises(UsageError):
            open_weights(source)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="access"):
        open_weights(tmp_path, access="mmapp")  # type: ignore[arg-type]


# --- presharded


def _cut(tmp_path: Path, make: Any, drop: str = "", add: str = "", axes: str | None = '{"w": 1}') -> list[Path]:
    paths = []
    for rank in range(2):
        tensors = {
            f"w_shard-{rank + 1}-of-2": make.ramp(2, 3, start=10 * rank),
            f"v_shard-{rank + 1}-of-2": make.ramp(4, start=10 * rank),
        }
        if rank == 0:
            tensors["norm"] = make.ramp(3)
        if add and rank == 1:
            tensors[add] = make.ramp(2, 3)
        tensors.pop(drop, None)
        metadata = None if axes is None else {"cachec.shard_axes": axes}
        paths.append(make.write(tmp_path / f"{rank}.safetensors", tensors, metadata))
    return paths


def test_a_worker_maps_its_own_shards(tmp_path: Path, make: Any) -> None:
    paths = _cut(tmp_path, make)
    sets = [open_weights(paths, rank=rank, world_size=2) for rank in range(2)]
    for rank, weights in enumerate(sets):
        assert list(weights) == ["norm", "v", "w"]
        assert weights.rank == weights.select("w").rank == rank
        assert weights.specs["w"].shard == (1, 2)
        assert weights.specs["v"].shard == (0, 2)
        assert weights.specs["norm"].shard is None
        np.testing.assert_array_equal(weights["w"].read(), make.ramp(2, 3, start=10 * rank))
    assert sets[0].spec_digest == sets[1].spec_digest
    assert sets[0].revision != sets[1].revision
    other_axis = open_weights(_cut(tmp_path, make, axes=None), rank=0, world_size=2)
    assert other_axis.spec_digest != sets[0].spec_digest
    plain = open_weights(paths)
    assert plain.rank is None
    assert "w_shard-1-of-2" in plain


def test_a_worker_with_only_its_own_file(tmp_path: Path, make: Any) -> None:
    paths = _cut(tmp_path, make)
    assert list(open_weights(paths[1], rank=1, world_size=2)) == ["v", "w"]
    with pytest.raises(CheckpointError, match=r"missing shard '(w|v)_shard-1-of-2'"):
        open_weights(paths[1], rank=0, world_size=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"drop": "w_shard-2-of-2"},
            "missing shard 'w_shard-2-of-2', expected for rank=R of world_size=2; found number 1 of 'w', in F0",
        ),
        (
            {"drop": "w_shard-1-of-2"},
            "missing shard 'w_shard-1-of-2', expected for rank=R of world_size=2; found number 2 of 'w', in F1",
        ),
        ({"add": "w_shard-3-of-2"}, "F1: extra shard 'w_shard-3-of-2': expected numbers 1 to 2, found 3"),
        ({"add": "w_shard-0-of-2"}, "F1: extra shard 'w_shard-0-of-2': expected numbers 1 to 2, found 0"),
        ({"add": "w_shard-1-of-4"}, "F1: 'w_shard-1-of-4': expected 2 shards (world_size), found 4"),
        ({"add": "w"}, "F1: 'w' is there both whole and in shards; expected one of them"),
        ({"axes": '{"w": 2}'}, "F0: 'w': shard axis expected below 2 for [2, 3], found 2"),
        ({"axes": '{"w": -1}'}, "from 0"),
        ({"axes": '{"w": 0, "u": 0}'}, "names 'u'"),
        ({"axes": "[1]"}, "JSON object"),
        ({"axes": "x"}, "JSON object"),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_shards_that_do_not_fit(tmp_path: Path, make: Any, change: Any, message: str, rank: int) -> None:
    with pytest.raises(CheckpointError) as error:
        open_weights(_cut(tmp_path, make, **change), rank=rank, world_size=2)
    for number in range(2):
        message = message.replace(f"F{number}", str(tmp_path / f"{number}.safetensors"))
    assert message.replace("=R", f"={rank}") in str(error.value)


def test_shards_of_other_shapes(tmp_path: Path, make: Any) -> None:
    tensors = {"w_shard-1-of-2": make.ramp(2, 3), "w_shard-2-of-2": make.ramp(1, 3)}
    uneven = open_weights(make.write(tmp_path / "u.safetensors", tensors), rank=1, world_size=2)
    assert uneven["w"].shape == (1, 3)
    tensors["w_shard-2-of-2"] = make.ramp(2, 4)
    with pytest.raises(
        CheckpointError, match=r"x\.safetensors: 'w': shard 2 expected float32 .*, found float32 \[2, 4\]"
    ):
        open_weights(make.write(tmp_path / "x.safetensors", tensors), rank=0, world_size=2)
    files = [
        make.write(tmp_path / f"y{number}.safetensors", {f"w_shard-{number}-of-2": tensors[f"w_shard-{number}-of-2"]})
        for number in (1, 2)
    ]
    with pytest.raises(CheckpointError, match=r"y2\.safetensors: 'w': shard 2 expected float32 .*, found"):
        open_weights(files, rank=0, world_size=2)


def test_of_formats_that_packages_offer_the_longest_magic_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    class Offering:
        def plugin_entry_points(self, group: str) -> dict[str, str]:
            return {"0x4142": "two:read", "0x414243": "three:read", ".abc": "suffix:read"}

    monkeypatch.setattr(formats, "_distributions", Offering)
    assert [formats.format_of("x", start).name for start in (b"ABCD", b"AB..")] == ["0x414243", "0x4142"]
    assert formats.format_of("x.abc", b"????").name == ".abc"


def test_the_wrong_world(tmp_path: Path, make: Any) -> None:
    paths = _cut(tmp_path, make)
    with pytest.raises(CheckpointError, match="expected 4 shards \\(world_size\\), found 2; open it with world_size=2"):
        open_weights(paths, rank=0, world_size=4)
    for rank, size in ((0, None), (None, 2), (2, 2), (-1, 2), (True, 2)):
        for source in (paths, paths[0]):
            with pytest.raises(UsageError) as wrong:
                open_weights(source, rank=rank, world_size=size)
            label = ", ".join(map(str, paths)) if source is paths else str(source)
            assert str(wrong.value) == (
                f"{label}: rank= and world_size= go together, with 0 <= rank < world_size; found {rank!r} of {size!r}"
            )
    plain = make.write(tmp_path / "p.safetensors", {"a": make.ramp(2)})
    with pytest.raises(CheckpointError, match="no tensor is named"):
        open_weights(plain, rank=0, world_size=2)
    assert open_weights(plain, rank=0, world_size=1).rank == 0
