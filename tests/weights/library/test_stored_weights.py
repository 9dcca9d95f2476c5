"""The store's own weights: sharing, trust, removal, concurrency, and what a kill or a full disk leaves."""

from __future__ import annotations

import errno
import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import cachec
from cachec.base.hashing import EMPTY, FileDigests, digest_bytes
from cachec.errors import HandleClosed, StoreFault, UsageError, WeightError, WeightsChanged
from cachec.maintain.collect import CollectResult
from cachec.maintain.maintainer import Maintainer
from cachec.maintain.sweep import GRACE_SECONDS
from cachec.model import Fault, WeightSpec
from cachec.store.objects import SEAL_NS
from cachec.store.store import Store
from cachec.weights import WeightSet, from_arrays, open_weights
from cachec.weights.compare import compare_weights
from cachec.weights.io import copying
from cachec.weights.library.stored_weights import WeightStore

MIB = 1 << 20


def arrays(count: int = 5, start: int = 0, size: int = 1000) -> dict[str, np.ndarray[Any, Any]]:
    return {f"w{n}": np.arange(size, dtype=np.float32) + n + start for n in range(count)}


def stored(store: WeightStore) -> list[Path]:
    return sorted(store.objects.root.glob("*/*"))


def leftovers(store: WeightStore) -> list[str]:
    return os.listdir(store.objects.tmp)


def collect(store: WeightStore, *, later: float = 2 * GRACE_SECONDS) -> CollectResult:
    """What ``gc`` does without a limit, so much later."""
    opened = Store(store.folder.parent)
    try:
        return Maintainer(opened, clock=lambda: time.time() + later).collect(limit=0)
    finally:
        opened.close()


def is_sealed(path: Path) -> bool:
    return path.stat().st_mtime_ns % 10**9 == SEAL_NS


@pytest.fixture
def store(tmp_path: Path) -> WeightStore:
    return WeightStore(Store(tmp_path))


# --- adding and opening


def test_what_is_added_comes_back(store: WeightStore) -> None:
    given = arrays() | {"empty": np.zeros((0, 3), np.float32), "scalar": np.array(2.0)}
    revision = store.add(from_arrays(given), "llama", source="x")
    with store.open("llama") as weights:
        assert list(weights) == sorted(given)
        for name, array in given.items():
            np.testing.assert_array_equal(weights[name].read(), array)
        assert weights.spec_digest == from_arrays(given).spec_digest
    assert (revision.name, revision.source, revision.owned, revision.count) == ("llama", "x", True, 7)
    assert revision.digests["w1"] == digest_bytes(given["w1"].tobytes())
    assert revision.digests["empty"] == EMPTY
    assert leftovers(store) == []


def test_ties_are_kept(store: WeightStore) -> None:
    same = np.arange(6, dtype=np.float32)
    weights = from_arrays({"a": same, "b": same, "c": same + 1}, tied=[("b", "a")])
    store.add(weights, "tied")
    with store.open("tied") as found:
        assert found.specs == weights.specs
        assert found.spec_digest == weights.spec_digest
    assert len(stored(store)) == 2


def test_shards_and_blocks_are_kept(store: WeightStore) -> None:
    specs = {
        "blocks": WeightSpec(name="blocks", dtype="uint8", shape=(2, 34), nbytes=68, layout="gguf:q8_0"),
        "shard": WeightSpec(name="shard", dtype="float32", shape=(4,), nbytes=16, shard=(0, 8)),
    }
    store.add(from_arrays({name: (bytes(spec.nbytes), spec) for name, spec in specs.items()}), "m")
    with WeightStore(Store(store.folder.parent)).open("m") as found:
        assert found.specs == specs


def test_owned_tensors_are_objects_on_pages_of_their_own_read_only_and_copies(store: WeightStore, model: Path) -> None:
    store.add(open_weights(model), "m")
    assert [path.name for path in stored(store)] == sorted(weight.digest() for weight in open_weights(model).values())
    for path in stored(store):
        found = path.stat()
        assert path.parent.name == path.name[:2]
        assert found.st_mode & 0o7777 == 0o444
        assert is_sealed(path)
        assert found.st_nlink == 1
    for folder in (store.folder, store.objects.root, stored(store)[0].parent, store.folder / "revisions"):
        assert folder.stat().st_mode & 0o7777 == 0o700
    with store.open("m") as weights:
        place = weights["w"].place()
        assert place is not None
        assert place.offset == 0
        assert weights["w"].read().ctypes.data % 4096 == 0


def test_a_hard_link_is_never_owned(store: WeightStore, tmp_path: Path, model: Path) -> None:
    os.link(model, tmp_path / "link.safetensors")
    store.add(open_weights(tmp_path / "link.safetensors"), "m")
    before = open_weights(model)["w"].read().copy()
    with model.open("r+b") as file:
        file.seek(-8, 2)
        file.write(b"\xff" * 8)
    with store.open("m") as weights:
        np.testing.assert_array_equal(weights["w"].read(), before)
        assert store.verify("m") == ()


def test_two_fine_tunes_share_what_they_share(store: WeightStore) -> None:
    base = arrays(100)
    store.add(from_arrays(base), "base")
    before = {path: path.stat().st_ino for path in stored(store)}
    store.add(from_arrays(base | {"w7": base["w7"] * 3}), "tuned")
    after = stored(store)
    assert len(after) == 101
    assert {path: path.stat().st_ino for path in before} == before
    old, new = store.find("base"), store.find("tuned")
    differing = compare_weights(old.specs, new.specs, old.digests, new.digests)
    assert [each.name for each in differing.changed] == ["w7"]
    assert len(differing.same) == 99


def test_what_is_there_is_not_copied(store: WeightStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "big.safetensors"
    base = {"a": np.arange(MIB, dtype=np.float32), "b": np.ones(MIB, np.float32), "c": np.zeros(8, np.float32)}
    from_arrays(base).save(path)
    store.add(open_weights(path), "one")
    monkeypatch.setattr(copying.Copier, "copy", lambda *args, **how: pytest.fail("copied"))
    seen: list[tuple[int, int]] = []
    store.add(open_weights(path), "two", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (8 * MIB + 32, 8 * MIB + 32)
    assert store.find("one").id == store.find("two").id


@pytest.mark.parametrize("size", [MIB // 8, MIB], ids=["small", "large"])
def test_new_weights_are_read_once(
    store: WeightStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Weights of one size are not taken for each other, and looked at before they are copied."""
    path = tmp_path / "m.safetensors"
    from_arrays(arrays(6, size=size)).save(path)
    monkeypatch.setattr(copying.Copier, "hash", lambda *args: pytest.fail("hashed"))
    digests = store.add(open_weights(path), "m").digests
    assert digests == {name: digest_bytes(array.tobytes()) for name, array in arrays(6, size=size).items()}


def test_the_same_content_within_one_set_is_there_once(store: WeightStore, tmp_path: Path) -> None:
    for number, size in enumerate((8, MIB)):
        twice = {name: np.ones(size, np.float32) for name in ("a", "b")} | {"c": np.ones(2 * size, np.float32)}
        from_arrays(twice).save(tmp_path / "m.safetensors")
        store.add(open_weights(tmp_path / "m.safetensors"), f"m{number}")
        assert len(stored(store)) == 2 * (number + 1)
    assert leftovers(store) == []


def test_what_somebody_else_put_there_is_left_alone(store: WeightStore) -> None:
    store.add(from_arrays(arrays()), "m")
    for name in ("note.txt", "ab/note.txt", f"ab/{'0' * 63}", f"ab/{'f' * 64}/x"):
        path = store.objects.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    store.add(from_arrays(arrays(3)), "n")
    store.remove("m")
    assert collect(store).artifacts == 2
    for name in ("note.txt", "ab/note.txt"):
        assert (store.objects.root / name).read_text() == "mine"
    assert store.verify("n") == ()


def test_owned_weights_are_added_again_without_reading_them(
    store: WeightStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add(from_arrays(arrays()), "one")
    monkeypatch.setattr(copying.Copier, "hash", lambda *args: pytest.fail("hashed"))
    with store.open("one") as weights:
        found = store.add(weights.rename({"w0": "first"}), "two")
    assert found.digests["first"] == store.find("one").digests["w0"]


def test_from_one_store_to_another(store: WeightStore, tmp_path: Path) -> None:
    other = WeightStore(Store(tmp_path / "other"))
    store.add(from_arrays(arrays()), "m")
    with store.open("m") as weights:
        assert other.add(weights, "m").id == store.find("m").id
    assert len(stored(other)) == 5


def test_a_name_keeps_its_weights_unless_replaced(store: WeightStore) -> None:
    store.add(from_arrays(arrays()), "m")
    again = store.add(from_arrays(arrays()), "m")
    assert again.id == store.find("m").id
    for other in (arrays(start=1), arrays(4), {"x": np.zeros(3)}):
        with pytest.raises(UsageError, match="'m' is the name of other weights"):
            store.add(from_arrays(other), "m")
    assert len(stored(store)) == 5  # nothing was copied for them
    old = store.find("m").id
    new = store.add(from_arrays(arrays(start=1)), "m", replace=True)
    assert store.find("m").id == new.id != old
    assert (store.folder / "revisions" / f"{old}.json").exists()
    assert collect(store).swept["revisions"] == 1
    assert [path.stem for path in (store.folder / "revisions").iterdir()] == [new.id]
    assert store.verify("m") == ()


@pytest.mark.parametrize("name", ["", "..", "a/../b", "/a", "a/", ".hidden", "a b", "a\n", "ü", "x" * 121, "a%2Fb", 3])
def test_names_that_are_refused(store: WeightStore, name: Any) -> None:
    with pytest.raises(UsageError, match="a name of weights expected"):
        store.add(from_arrays(arrays()), name)
    assert not store.folder.exists()


def test_names_and_prefixes(store: WeightStore) -> None:
    a = store.add(from_arrays(arrays()), "org/model-7B@v1.2")
    store.add(from_arrays(arrays(start=1)), "other")
    assert [revision.name for revision in store.revisions()] == ["org/model-7B@v1.2", "other"]
    assert "w0" in store.open(a.id[:8])
    for wrong in ("orq/model-7B@v1.2", "0123456789", "../names/other", ""):
        with pytest.raises(WeightError, match="no weights are named"):
            store.open(wrong)
    with pytest.raises(WeightError, match=r"did you mean 'other'"):
        store.open("othr")


def test_equal_weights_are_one_revision_whatever_their_source(tmp_path: Path, model: Path) -> None:
    one, two = WeightStore(Store(tmp_path / "1")), WeightStore(Store(tmp_path / "2"), clock=lambda: 5.0)
    weights = open_weights(model)
    a = one.add(weights, "a", source="x")
    b = two.add(from_arrays({name: weights[name].read().copy() for name in reversed(list(weights))}), "b")
    assert a.id == b.id
    assert b.created == 5.0
    assert a.id != two.add(weights.rename({"w": "v"}), "c").id


# --- digests and trust


def test_the_digest_of_an_owned_weight_is_known(store: WeightStore, monkeypatch: pytest.MonkeyPatch) -> None:
    given = arrays(3, size=MIB)
    store.add(from_arrays(given), "m")
    monkeypatch.setattr(FileDigests, "of_extent", lambda *args: pytest.fail("hashed"))
    with store.open("m") as weights:
        assert weights["w2"].digest() == digest_bytes(given["w2"].tobytes())
        assert weights["w2"].digest(FileDigests()) == digest_bytes(given["w2"].tobytes())


def test_the_revision_of_a_set_is_of_its_content(store: WeightStore, tmp_path: Path) -> None:
    store.add(from_arrays(arrays()), "a")
    other = WeightStore(Store(tmp_path / "other"))
    other.add(from_arrays(arrays()), "b")
    other.add(from_arrays(arrays(start=1)), "c")
    assert store.open("a").revision == other.open("b").revision != other.open("c").revision


def damage(path: Path, *, keep_seal: bool) -> None:
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    if keep_seal:
        os.utime(path, ns=times)


def object_of(store: WeightStore, name: str, weight: str) -> Path:
    return Path(store.objects.place(store.find(name).digests[weight]))


#: Large, with its times set back as well, is found by ``verify`` alone: see the next test.
@pytest.mark.parametrize(("size", "keep_seal"), [(1000, False), (1000, True), (MIB, False)])
def test_a_tensor_that_was_written_is_refused_and_repaired_by_adding(
    store: WeightStore, size: int, keep_seal: bool
) -> None:
    store.add(from_arrays(arrays(size=size)), "m")
    damage(object_of(store, "m", "w1"), keep_seal=keep_seal)
    with store.open("m") as weights:
        assert weights["w0"].digest()
        with pytest.raises(WeightsChanged, match=r"'w1'.*does not hold"):
            weights["w1"].read()
        with pytest.raises(WeightsChanged, match=r"'w1'.*is gone"):
            weights["w1"].digest()
    store.add(from_arrays(arrays(size=size)), "m")
    with store.open("m") as weights:
        np.testing.assert_array_equal(weights["w1"].read(), arrays(size=size)["w1"])


def test_verify_finds_what_a_look_can_not(store: WeightStore) -> None:
    given = arrays(3, size=MIB)
    given["copy"] = given["w1"]
    store.add(from_arrays(given), "m")
    assert store.verify("m") == ()
    victim = object_of(store, "m", "w1")
    damage(victim, keep_seal=True)
    seen: list[tuple[int, int]] = []
    (found,) = store.verify("m", lambda done, total: seen.append((done, total)))
    assert found.path == str(victim)
    assert found.names == ("copy", "w1")
    assert seen[-1] == (3 * 4 * MIB, 3 * 4 * MIB)
    with store.open("m") as weights, pytest.raises(WeightsChanged):
        weights["w1"].read()
    store.add(from_arrays(given), "m")
    assert store.verify("m") == ()


def test_lost_and_cut_tensors(store: WeightStore) -> None:
    store.add(from_arrays(arrays()), "m")
    object_of(store, "m", "w0").unlink()
    os.truncate(object_of(store, "m", "w1"), 10)
    os.truncate(object_of(store, "m", "w2"), 10)
    with store.open("m") as weights:
        with pytest.raises(WeightsChanged, match=r"'w0'.*is gone"):
            weights["w0"].read()
        with pytest.raises(WeightsChanged, match=r"'w1'.*does not hold"):
            weights["w1"].read()
    assert {found.names: found.detail[:10] for found in store.verify("m")} == {
        ("w0",): "it is gone",
        ("w1",): "it is gone",
        ("w2",): "its bytes ",
    }
    store.add(from_arrays(arrays()), "m")
    assert store.verify("m") == ()


def test_a_store_restored_without_its_times_is_hashed_once_and_sealed(
    store: WeightStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = arrays(size=MIB)
    store.add(from_arrays(given), "m")
    for name in ("objects", "weights"):
        shutil.copytree(tmp_path / name, tmp_path / "copy" / name, copy_function=shutil.copy)
    copy = WeightStore(Store(tmp_path / "copy"))
    assert not any(map(is_sealed, stored(copy)))
    with copy.open("m") as weights:
        np.testing.assert_array_equal(weights["w3"].read(), given["w3"])
    assert [path.name for path in filter(is_sealed, stored(copy))] == [store.find("m").digests["w3"]]
    monkeypatch.setattr(FileDigests, "of_path", lambda *args: pytest.fail("hashed again"))
    with WeightStore(Store(tmp_path / "copy")).open("m") as weights:
        np.testing.assert_array_equal(weights["w3"].read(), given["w3"])


@pytest.mark.parametrize("kind", ["revisions", "names"])
@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"version": 2}', b'{"version": 1, "owned": 3}', b"\xff"])
def test_a_damaged_record_is_an_error_and_nothing_is_swept(store: WeightStore, kind: str, data: bytes) -> None:
    store.add(from_arrays(arrays()), "m")
    (path,) = (store.folder / kind).iterdir()
    path.chmod(0o644)
    path.write_bytes(data)
    fresh = WeightStore(Store(store.folder.parent))
    with pytest.raises(WeightError, match=str(path)):
        fresh.open("m")
    faults: list[tuple[Fault, str]] = []
    later = Maintainer(
        Store(store.folder.parent),
        on_fault=lambda *fault: faults.append(fault),
        clock=lambda: time.time() + 2 * GRACE_SECONDS,
    )
    assert later.collect(limit=0).artifacts == 0
    assert Fault.IO_ERROR in dict(faults)
    assert str(path) in dict(faults)[Fault.IO_ERROR]
    assert path.read_bytes() == data
    assert len(stored(store)) == 5


def test_a_record_that_lies_is_refused(store: WeightStore) -> None:
    store.add(from_arrays(arrays(2)), "m")
    (path,) = (store.folder / "revisions").iterdir()
    good = msgspec.json.decode(path.read_bytes())

    def lie(**changes: Any) -> None:
        bad = msgspec.json.decode(path.read_bytes())
        bad["owned"][0] |= {"spec": bad["owned"][0]["spec"] | changes}
        write(bad)

    def write(record: Any) -> None:
        data = msgspec.json.encode(record)
        name = digest_bytes(data)
        (path.parent / f"{name}.json").write_bytes(data)
        with pytest.raises(WeightError):
            store.open(name)
        (path.parent / f"{name}.json").unlink()

    lie(nbytes=4004)
    lie(shape=[1001])
    lie(shape=[-1000])
    lie(dtype="object")
    lie(name="w1")
    lie(name="zz")
    write(good | {"owned": list(reversed(good["owned"]))})
    write(good | {"owned": [*good["owned"], good["owned"][1]]})
    write(good | {"owned": [good["owned"][0] | {"digest": "../../etc/passwd"}]})
    placed = {"spec": good["owned"][0]["spec"], "file": 0, "offset": 0}
    write({"version": 1, "placed": [placed]})
    file = {"path": "/x", "ino": 1, "size": 3999, "mtime_ns": 0, "ctime_ns": 0, "header_nbytes": 0, "header_digest": ""}
    write({"version": 1, "placed": [placed], "files": [file]})
    write({"version": 1, "placed": [placed | {"offset": -1}], "files": [file | {"size": 9999}]})
    write(good | {"placed": [placed], "files": [file | {"size": 9999}]})


# --- in place


def test_in_place_notes_where_and_copies_nothing(store: WeightStore, model: Path) -> None:
    revision = store.add(open_weights(model), "m", own=False)
    assert not revision.owned
    assert revision.files == (str(model),)
    assert stored(store) == []
    with store.open("m") as weights:
        np.testing.assert_array_equal(weights["w"].read(), open_weights(model)["w"].read())
        place = weights["w"].place()
        assert place is not None
        assert place.path == model
    assert store.verify("m") == ()


def test_in_place_of_a_changed_file(store: WeightStore, model: Path) -> None:
    store.add(open_weights(model), "m", own=False)
    os.utime(model)
    with pytest.raises(WeightsChanged, match="changed after its weights were added"):
        store.open("m")
    (found,) = store.verify("m")
    assert found.names == ("b", "scale", "w")
    model.unlink()
    with pytest.raises(WeightsChanged, match="found none"):
        store.open("m")


def test_in_place_is_refused_for_memory_and_for_files_of_a_store(store: WeightStore) -> None:
    with pytest.raises(UsageError, match="in memory"):
        store.add(from_arrays(arrays()), "m", own=False)
    store.add(from_arrays(arrays()), "m")
    with store.open("m") as weights, pytest.raises(UsageError, match="file of a store"):
        store.add(weights, "again", own=False)


# --- removing


def test_remove_takes_what_nobody_else_needs(store: WeightStore) -> None:
    base = arrays(10)
    store.add(from_arrays(base), "base")
    store.add(from_arrays(base | {"w0": base["w0"] * 2}), "tuned")
    store.remove("base")
    found = collect(store, later=0)  # no grace period for what had a name
    assert (found.swept["revisions"], found.artifacts, found.freed, found.weights_in_use) == (1, 1, 4096, ())
    with store.open("tuned") as weights:
        assert all(weight.read() is not None for weight in weights.values())
    assert store.verify("tuned") == ()
    store.remove("tuned")
    collect(store, later=0)
    assert stored(store) == []
    assert os.listdir(store.folder / "revisions") == []
    with pytest.raises(WeightError, match="no weights are named 'tuned'"):
        store.remove("tuned")


def test_two_names_of_one_revision(store: WeightStore) -> None:
    store.add(from_arrays(arrays()), "a")
    store.add(from_arrays(arrays()), "b")
    store.remove("a")
    assert (collect(store).artifacts, len(stored(store))) == (0, 5)
    assert store.verify("b") == ()


def test_what_an_open_set_uses_stays(store: WeightStore) -> None:
    store.add(from_arrays(arrays()), "m")
    weights = store.open("m")
    store.remove("m")
    found = collect(store)
    assert (found.artifacts, found.weights_in_use) == (0, (weights_revision(store),))
    np.testing.assert_array_equal(weights["w4"].read(), arrays()["w4"])
    weights.release()
    assert collect(store).artifacts == 5


def weights_revision(store: WeightStore) -> str:
    (path,) = (store.folder / "revisions").iterdir()
    return path.stem


def test_what_a_collected_set_used_goes_and_what_a_handle_uses_stays(store: WeightStore) -> None:
    store.add(from_arrays(arrays()), "m")
    handle = store.open("m").select("w1")["w1"]
    gc.collect()
    store.remove("m")
    assert collect(store).artifacts == 0
    np.testing.assert_array_equal(handle.read(), arrays()["w1"])
    del handle
    gc.collect()
    assert collect(store).artifacts == 5


def test_views_outlive_release_and_removal(store: WeightStore) -> None:
    store.add(from_arrays(arrays()), "m")
    weights = store.open("m")
    view = weights["w1"].read()
    weights.release()
    with pytest.raises(HandleClosed):
        weights["w1"].read()
    store.remove("m")
    assert collect(store).artifacts == 5
    np.testing.assert_array_equal(view, arrays()["w1"])


OPENED = """
import sys
from cachec.store.store import Store
from cachec.weights.library.stored_weights import WeightStore
weights = WeightStore(Store(sys.argv[1])).open("m")
print("open", flush=True)
sys.stdin.readline()
print(float(weights["w2"].read()[0]), flush=True)
sys.stdin.readline()
"""


def test_what_another_process_has_open_stays_until_it_is_killed(store: WeightStore) -> None:
    store.add(from_arrays(arrays()), "m")
    command = [sys.executable, "-c", OPENED, str(store.folder.parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        store.remove("m")
        assert collect(store).artifacts == 0
        assert collect(store).artifacts == 0
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "2.0\n"
        process.kill()
    assert collect(store).artifacts == 5


def test_what_is_being_added_stays_although_another_name_of_it_goes(store: WeightStore) -> None:
    store.add(from_arrays(arrays(3)), "old")
    found: list[CollectResult] = []

    def meanwhile(done: int, total: int) -> None:
        if done == 2 * 4000:
            WeightStore(Store(store.folder.parent)).remove("old")
            found.append(collect(store))

    store.add(from_arrays(arrays(3) | {"x": np.ones(3)}), "new", progress=meanwhile)
    assert found[0].artifacts == 1  # w2, which the addition had not come to: it was stored anew
    assert store.verify("new") == ()
    assert collect(store).artifacts == 0


@pytest.mark.long
def test_opening_while_others_add_and_remove(store: WeightStore) -> None:
    """An opened set is whole, whatever happens around it; there is no moment at which its tensors are gone."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def churn() -> None:
        try:
            mine = WeightStore(Store(store.folder.parent))
            while not stop.is_set():
                mine.add(from_arrays(arrays(3)), "m")
                mine.remove("m")
                collect(mine)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=churn)
    thread.start()
    opened = 0
    end = time.monotonic() + 20
    while opened < 30 and time.monotonic() < end and not errors:
        try:
            weights = WeightStore(Store(store.folder.parent)).open("m")
        except WeightError as error:
            if "no weights are named" in str(error) or "is gone" in str(error):
                continue  # it was removed first
            raise
        with weights:
            for name, array in arrays(3).items():
                np.testing.assert_array_equal(weights[name].read(), array)
        opened += 1
    stop.set()
    thread.join()
    assert errors == []
    assert opened > 0


# --- thousands of tensors


MANY = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
from cachec.store.store import Store
from cachec.weights.library.stored_weights import WeightStore
weights = WeightStore(Store(sys.argv[1])).open("many")
views = [weight.raw() for weight in weights.values()]
digests = {weight.digest() for weight in weights.values()}
assert len(digests) == 1000
print(sum(view[0] for view in views))
"""


def test_a_thousand_views_at_once_need_no_thousand_descriptors(store: WeightStore) -> None:
    given = {f"w{n:04d}": np.frombuffer(n.to_bytes(4, "little"), np.uint8) for n in range(1000)}
    store.add(from_arrays(given), "many")
    command = [sys.executable, "-c", MANY, str(store.folder.parent)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert int(found) == sum(n % 256 for n in range(1000))


def test_opening_opens_no_file_of_weights(store: WeightStore) -> None:
    store.add(from_arrays(arrays(8, size=MIB)), "m")
    opened: list[str] = []
    armed = [True]

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if armed[0] and event == "open" and str(args[0]).startswith(str(store.objects.root)):
            opened.append(str(args[0]))

    sys.addaudithook(hook)
    weights = store.open("m")
    assert len(weights.specs) == 8
    assert weights.revision
    assert opened == []
    weights["w7"].read()
    armed[0] = False
    assert len(opened) == 1


# --- full disks and kills


def test_a_full_disk_leaves_only_what_can_be_resumed(
    store: WeightStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.safetensors"
    from_arrays(arrays(4, size=MIB)).save(path)
    real, begun = os.pwrite, [0]

    def full(fd: int, data: Any, offset: int) -> int:
        begun[0] += offset == 0
        if begun[0] == 3 and offset:
            raise OSError(errno.ENOSPC, "no space left")
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="no space left"):
        store.add(open_weights(path), "m")
    assert len(stored(store)) == 2
    assert leftovers(store) == []
    assert store.revisions() == []
    store.add(open_weights(path), "m")
    assert begun[0] == 5  # the two that were there were not copied again
    assert store.verify("m") == ()


LIMITED = """
import resource, sys
from cachec.weights import open_weights
from cachec.store.store import Store
from cachec.weights.library.stored_weights import WeightStore
resource.setrlimit(resource.RLIMIT_FSIZE, (6 << 20, resource.RLIM_INFINITY))
try:
    WeightStore(Store(sys.argv[1])).add(open_weights(sys.argv[2]), "m")
except OSError as error:
    print(error.errno)
"""


def test_a_real_limit_of_the_file_system(store: WeightStore, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    from_arrays({"a": np.ones(4 * MIB, np.uint8), "b": np.ones(8 * MIB, np.uint8)}).save(path)
    command = [sys.executable, "-c", LIMITED, str(store.folder.parent), str(path)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert int(found) == errno.EFBIG
    assert len(stored(store)) == 1
    assert leftovers(store) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


KILLED = """
import itertools, os, signal, sys
from cachec.base import fsio
from cachec.store import objects
from cachec.store.store import Store
from cachec.weights import open_weights
from cachec.weights.library import revisions, stored_weights
def die(*args, **how):
    os.kill(os.getpid(), signal.SIGKILL)
def on_call(cls, name, number, after):
    real, calls = getattr(cls, name), itertools.count(1)  # of two threads, each has a number of its own
    def patched(*args, **how):
        call = next(calls)
        if call == number and not after:
            die()
        found = real(*args, **how)
        if call == number:
            die()
        return found
    setattr(cls, name, patched)
where, number = sys.argv[3], int(sys.argv[4])
points = {
    "copy": (stored_weights.Copier, "copy"), "chunk": (fsio, "pread_into"), "publish": (objects.Objects, "publish"),
    "commit": (fsio.Staging, "commit"), "record": (revisions.Revisions, "add"), "point": (revisions.Revisions, "point"),
}
name, _, after = where.partition(":")
on_call(*points[name], number, bool(after))
stored_weights.WeightStore(Store(sys.argv[1])).add(open_weights(sys.argv[2]), "m")
"""


@pytest.mark.parametrize(
    ("where", "number", "published", "partial"),
    [
        ("copy", 1, 0, 1),
        ("chunk", 20, 2, 1),
        ("copy:after", 2, 1, 1),
        ("publish", 2, 1, 1),
        ("commit", 3, 2, 1),
        ("commit:after", 3, 3, 0),
        ("publish:after", 4, 4, 0),
        ("record", 1, 4, 0),
        ("record:after", 1, 4, 0),
        ("point", 1, 4, 0),
        ("commit", 6, 4, 1),
    ],
)
@pytest.mark.sampled
def test_kill_minus_nine(
    store: WeightStore, tmp_path: Path, where: str, number: int, published: int, partial: int
) -> None:
    path = tmp_path / "m.safetensors"
    from_arrays(arrays(4, size=MIB)).save(path)
    store.add(from_arrays(arrays(1)), "other")
    command = [sys.executable, "-c", KILLED, str(store.folder.parent), str(path), where, str(number)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert len(stored(store)) == 1 + published
    assert len(leftovers(store)) == partial
    assert [revision.name for revision in store.revisions()] == ["other"]
    copied: list[int] = []
    real = copying.Copier.copy

    def counting(self: copying.Copier, source: Any, *args: Any, **how: Any) -> Any:
        copied.append(source.nbytes)
        return real(self, source, *args, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying.Copier, "copy", counting)
        store.add(open_weights(path), "m")
    assert len(copied) == 4 - published
    assert store.verify("m") == ()
    assert collect(store).swept["unfinished files"] == partial
    assert leftovers(store) == []
    assert store.verify("m") == ()
    with store.open("m") as weights:
        np.testing.assert_array_equal(weights["w3"].read(), arrays(4, size=MIB)["w3"])


def test_a_kill_and_then_a_sweep_leaves_nothing_of_it(store: WeightStore, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    from_arrays(arrays(4, size=MIB)).save(path)
    store.add(from_arrays(arrays(1)), "other")
    command = [sys.executable, "-c", KILLED, str(store.folder.parent), str(path), "publish", "3"]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert collect(store, later=0).artifacts == 0  # within the grace period it can be gone on with
    assert collect(store).artifacts == 2
    assert leftovers(store) == []
    assert len(stored(store)) == 1
    assert store.verify("other") == ()


ADDS = """
import sys
from cachec.weights import open_weights
from cachec.store.store import Store
from cachec.weights.library.stored_weights import WeightStore
print("ready", flush=True)
sys.stdin.readline()
print(WeightStore(Store(sys.argv[1])).add(open_weights(sys.argv[2]), sys.argv[3]).id)
"""


@pytest.mark.parametrize("names", [("m", "m"), ("a", "b")])
@pytest.mark.sampled
def test_two_processes_add_the_same_at_once(store: WeightStore, tmp_path: Path, names: tuple[str, str]) -> None:
    path = tmp_path / "m.safetensors"
    from_arrays(arrays(20, size=MIB // 2)).save(path)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ADDS, str(store.folder.parent), str(path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    ids = set()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        out, _ = process.communicate()
        assert process.returncode == 0
        ids.add(out)
    assert len(ids) == 1
    assert len(stored(store)) == 20
    assert leftovers(store) == []
    assert store.verify(names[0]) == store.verify(names[1]) == ()


def test_a_set_that_changes_while_it_is_added_is_not_added(store: WeightStore, model: Path) -> None:
    weights = open_weights(model)
    weights["w"].read()
    os.utime(model)
    with pytest.raises(WeightsChanged):
        store.add(weights, "m")
    assert store.revisions() == []


def test_weights_of_several_sets_together(store: WeightStore, model: Path) -> None:
    store.add(from_arrays(arrays(2)), "a")
    with store.open("a") as ours:
        both = WeightSet.from_weights({**ours, **open_weights(model), **from_arrays({"x": np.ones(3)})})
        revision = store.add(both, "both")
    assert list(revision.specs) == ["b", "scale", "w", "w0", "w1", "x"]
    with store.open("both") as found:
        np.testing.assert_array_equal(found["w1"].read(), arrays()["w1"])
        assert found["w1"].digest() == revision.digests["w1"]


# --- one content store


def on_disk(folder: Path) -> int:
    """Bytes of all files below, each inode once, as ``du`` counts them."""
    found = {os.lstat(path).st_ino: os.lstat(path).st_blocks for path in folder.rglob("*")}
    return 512 * sum(found.values())


@pytest.mark.parametrize("order", ["result first", "owned first"])
@pytest.mark.sampled
def test_a_result_of_40_mb_that_is_owned_takes_40_mb(tmp_path: Path, order: str) -> None:
    given = arrays(4, size=10 * MIB // 4)
    cache = cachec.Cache(tmp_path / "store", log="off", mode="on")

    @cache.stage
    def twice(weights: WeightSet) -> WeightSet:
        return weights.derive({name: lambda weight: weight.read() * 2 for name in given})

    owned = WeightStore(Store(tmp_path / "store"))
    if order == "owned first":
        owned.add(from_arrays({name: array * 2 for name, array in given.items()}), "doubled")
    made = twice(from_arrays(given))
    if order == "result first":
        owned.add(made, "doubled")
    del made
    os.sync()
    assert 40 * MIB <= on_disk(tmp_path / "store") < 41 * MIB
    assert sorted(path.name for path in stored(owned) if path.stat().st_size > MIB) == sorted(
        owned.find("doubled").digests.values()
    )
    # Neither goes with the other.
    for forget in (lambda: cache.store.invalidate(next(cache.store.entries()).key), lambda: owned.remove("doubled")):
        for name, weight in owned.open("doubled").items():
            np.testing.assert_array_equal(weight.read(), given[name] * 2)
        del weight  # it keeps its revision
        forget()
        cache.store.release()
        gc.collect()
        collect(owned)
    assert stored(owned) == []


def test_a_result_stays_although_the_weights_that_had_it_first_go(tmp_path: Path) -> None:
    given = arrays(3, size=MIB)
    cache = cachec.Cache(tmp_path, log="off", mode="on")

    @cache.stage
    def twice(weights: WeightSet) -> WeightSet:
        return weights.derive({name: lambda weight: weight.read() * 2 for name in given})

    owned = WeightStore(Store(tmp_path))
    owned.add(from_arrays({name: array * 2 for name, array in given.items()}), "doubled")
    twice(from_arrays(given))
    cache.store.release()
    measured = Maintainer(cache.store).measure_usage().nbytes
    assert measured < MIB, "what has a name is not the cache's"
    owned.remove("doubled")
    assert collect(owned).artifacts == 0
    assert Maintainer(cache.store).measure_usage().nbytes == measured + 3 * 4 * MIB
    made, outcome = cache.call(twice, from_arrays(given))
    assert outcome.hit
    np.testing.assert_array_equal(made["w2"].read(), given["w2"] * 2)


def test_gc_takes_no_named_weights_to_come_within_its_limit(tmp_path: Path) -> None:
    cache = cachec.Cache(tmp_path, log="off", mode="on")

    @cache.stage
    def build(number: int) -> bytes:
        return bytes([number]) * MIB

    owned = WeightStore(Store(tmp_path))
    owned.add(from_arrays(arrays(3, size=MIB)), "m")
    build(1)
    cache.store.release()
    gc.collect()
    done = Maintainer(cache.store, clock=lambda: time.time() + 2 * GRACE_SECONDS).collect(limit=1)
    assert (done.entries, done.after, done.is_within) == (1, 0, True)
    assert [path.name for path in stored(owned)] == sorted(owned.find("m").digests.values())
    assert owned.verify("m") == ()


def test_a_record_of_another_version_keeps_what_it_names(store: WeightStore) -> None:
    revision = store.add(from_arrays(arrays()), "m").id
    path = store.folder / "revisions" / f"{revision}.json"
    data = path.read_bytes().replace(b'"version":1', b'"version":9', 1)
    path.unlink()
    newer = store.folder / "revisions" / f"{digest_bytes(data)}.json"
    newer.write_bytes(data)
    pointer = store.folder / "names" / "m.json"
    named = pointer.read_bytes().replace(revision.encode(), digest_bytes(data).encode())
    pointer.unlink()
    pointer.write_bytes(named)
    store.add(from_arrays(arrays(2, start=100)), "other")
    store.remove("other")
    assert collect(store).artifacts == 2
    assert len(stored(store)) == 5
    with pytest.raises(WeightError, match="expected version 1, found 9"):
        WeightStore(Store(store.folder.parent)).open("m")


def test_registering_in_place_reads_no_weight_and_stores_none(store: WeightStore, tmp_path: Path) -> None:
    """500 GB would take as long: the file has a terabyte of holes."""
    header = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (1 << 40, 1 << 40)
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + (1 << 40))
    started = time.process_time()
    assert store.add(open_weights(path), "m", own=False).nbytes == 1 << 40
    with store.open("m") as weights:
        assert weights["w"].nbytes == 1 << 40
    assert time.process_time() - started < 1
    assert stored(store) == []


@pytest.mark.parametrize("what", ["names", "revisions"])
def test_no_regular_file_where_a_record_is_expected(store: WeightStore, tmp_path: Path, what: str) -> None:
    store.add(from_arrays(arrays()), "base")
    [path] = (tmp_path / "weights" / what).iterdir()
    path.unlink()
    os.mkfifo(path)
    again = WeightStore(Store(tmp_path))
    for look in (lambda: again.open("base"), lambda: again.verify("base")):
        with pytest.raises(WeightError, match="not a regular file"):
            look()


def test_a_record_of_a_path_that_is_none(store: WeightStore, tmp_path: Path) -> None:
    from_arrays(arrays()).save(tmp_path / "w.safetensors")
    revision = store.add(open_weights(tmp_path / "w.safetensors"), "m", own=False)
    path = tmp_path / "weights" / "revisions" / f"{revision.id}.json"
    data = path.read_bytes().replace(b"w.safetensors", b"\\u0000")
    (path.parent / f"{digest_bytes(data)}.json").write_bytes(data)
    with pytest.raises(WeightError, match="NUL"):
        WeightStore(Store(tmp_path)).open(digest_bytes(data))


@pytest.mark.parametrize("what", ["names", "revisions"])
def test_gc_takes_nothing_where_it_can_not_see_what_is_needed(store: WeightStore, tmp_path: Path, what: str) -> None:
    """It took a folder that the system refuses for an empty one, and all weights for forgotten."""
    store.add(from_arrays(arrays()), "base")
    folder = tmp_path / "weights" / what
    folder.rename(tmp_path / "aside")
    folder.symlink_to(tmp_path / "aside")
    with suppress(StoreFault):
        collect(WeightStore(Store(tmp_path)))
    folder.unlink()
    (tmp_path / "aside").rename(folder)
    assert WeightStore(Store(tmp_path)).verify("base") == ()
