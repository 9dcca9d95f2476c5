"""Bundles: what was put in comes back, within bounds, the same bytes each time; and nothing else does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

import cachec
from cachec import bundle
from cachec.base import fsio
from cachec.base.hashing import digest_bytes
from cachec.bundle import BundleError, creating
from cachec.bundle.format import (
    BLOCK,
    TABLE,
    BundledWeights,
    BundleSignature,
    BundleTable,
    header,
    plan_bundle,
)
from cachec.errors import ConfigError, StoreFault, UsageError
from cachec.maintain.maintainer import Maintainer
from cachec.model import RECORD_VERSION, ArtifactRef, Leaf, Trace
from cachec.remote import keys
from cachec.remote.keys import Signer, from_file, keypair, public_key
from cachec.store.objects import HASHED_BELOW
from cachec.store.store import Store, references
from cachec.weights.library.revisions import PlacedFile, PlacedTensor, RevisionRecord
from cachec.weights.library.stored_weights import WeightStore
from tests import pages
from tests.bundle.packing import packed
from tests.effort import sample


class Made(NamedTuple):
    """A cache with three entries of about 1, 20 and 40 kB, their stage, and their keys."""

    cache: cachec.Cache
    stage: cachec.Stage
    keys: list[str]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    cache = cachec.Cache(tmp_path / "from", log="off")

    @cache.stage
    def blob(n: int) -> bytes:
        cachec.depends(tmp_path / "side")
        return bytes([n]) * (20_000 * n + 1_000)

    (tmp_path / "side").write_text("side")
    return Made(cache, blob, [blob.call(n)[1].key for n in (0, 1, 2)])


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A bundle of one entry and two weights, one of them large enough to be copied by two threads."""
    cache = cachec.Cache(tmp_path / "whole", log="off")
    parts = cache.store.objects.add_bytes(b"[]")
    ref = cache.store.objects.add_bytes(b"artifact" * 100)
    cache.store.publish(
        "ab" * 32,
        "pkg.build",
        ("nightly",),
        parts,
        Trace(reads=(), value=Leaf("bytes", (ref,)), seconds=1.5, created=1.0),
    )
    arrays = {"large": np.arange(300_000, dtype="f4"), "small": np.ones((2, 3), "f4")}
    WeightStore(cache.store).add(cachec.WeightSet.from_arrays(arrays), "llama/tuned")
    path = tmp_path / "whole.cachec"
    bundle.create(cache.store, ["ab" * 32], path, weights=["llama/tuned"])
    cache.close()
    return path


def test_what_was_put_in_hits_in_another_store(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "a.cachec"
    done = bundle.create(made.cache.store, [*made.keys[:2], made.keys[0], "0" * 64], path)
    assert (done.entries, done.left_out, done.unusable, done.size) == (2, 0, 1, path.stat().st_size)
    assert path.stat().st_mode & 0o777 == 0o600
    names = subprocess.run(["tar", "tf", path], capture_output=True, text=True, check=True).stdout.split()
    assert names[0] == "cachec.json"
    assert {f"entries/{key}.json" for key in made.keys[:2]} < set(names)
    shutil.rmtree(tmp_path / "from")
    made.cache.close()
    store = Store(tmp_path / "from")
    assert bundle.add(store, path)[:2] == (2, done.objects)
    assert [made.stage.check(n).hit for n in (0, 1, 2)] == [True, True, False]
    assert made.stage(1) == b"\1" * 21_000
    assert bundle.add(store, path)[:2] == (2, 0), "again: nothing changes"
    entry = made.cache.store.lookup(made.keys[0])
    assert entry is not None
    assert len(entry.traces) == 1
    (tmp_path / "side").write_text("other")
    assert not made.stage.check(0).hit, "what the runs read counts after as before"


def test_one_content_has_one_bundle(made: Made, tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in "abc")
    bundle.create(made.cache.store, made.keys, first)
    bundle.create(made.cache.store, made.keys[::-1], second)
    store = Store(tmp_path / "to")
    bundle.add(store, first)
    bundle.create(store, sorted(made.keys), third)
    assert first.read_bytes() == second.read_bytes() == third.read_bytes()


def test_bounds_keep_what_saves_most_a_byte(made: Made, tmp_path: Path) -> None:
    store, keys = made.cache.store, made.keys
    least = bundle.create(store, keys[:1], tmp_path / "one").size
    done = bundle.create(store, keys, tmp_path / "a", max_size=least + 30_000)
    assert (done.entries, done.left_out) == (2, 1)
    assert done.size <= least + 30_000
    size = bundle.create(store, keys, tmp_path / "a").size
    for limit in range(size - 50_000, size + 2 * BLOCK, 3_001):
        assert bundle.create(store, keys, tmp_path / "b", max_size=limit).size <= limit
    assert bundle.create(store, keys, tmp_path / "b", max_size=size + 2 * BLOCK).left_out == 0
    assert bundle.create(store, keys, tmp_path / "b", max_size=1).entries == 0


def test_an_entry_with_a_damaged_artifact_is_left_out(made: Made, tmp_path: Path) -> None:
    entry = made.cache.store.lookup(made.keys[2])
    assert entry is not None
    largest = max(references(entry), key=lambda ref: ref.size)
    path = made.cache.store.objects.path(largest)
    path.chmod(0o600)
    path.write_bytes(b"x" * largest.size)
    done = bundle.create(made.cache.store, made.keys, tmp_path / "a")
    assert (done.entries, done.unusable) == (2, 1)


def stored(tmp_path: Path, size: int) -> tuple[Store, ArtifactRef, Path]:
    """A store of one entry with an artifact of so many bytes, and where that is."""
    store = Store(tmp_path / "from")
    ref = store.objects.add_bytes(b"a" * size)
    parts = store.objects.add_bytes(b"[]")
    store.publish("ab" * 32, "s", (), parts, Trace(reads=(), value=Leaf("bytes", (ref,)), seconds=1.0, created=1.0))
    return store, ref, store.objects.path(ref)


def spoil(path: Path) -> None:
    """Change a byte as a disk that forgets does: nothing tells but the digest."""
    state = path.stat()
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.write(b"b")
    os.utime(path, ns=(state.st_mtime_ns, state.st_mtime_ns))


@pytest.mark.parametrize("size", [HASHED_BELOW, 3 << 20])
def test_an_object_that_changed_under_its_seal_is_told_where_the_bundle_is_looked_at(
    tmp_path: Path, into: Store, size: int
) -> None:
    """To make a bundle is a use of the store as a hit is, and believes seals as one does; no bundle is believed."""
    store, ref, path = stored(tmp_path, size)
    spoil(path)
    before = kept(into)
    assert bundle.create(store, ["ab" * 32], tmp_path / "a").entries == 1
    with pytest.raises(BundleError, match=f"object {ref.digest[:12]} has other content"):
        bundle.add(into, tmp_path / "a")
    assert kept(into) == before


@pytest.mark.parametrize("size", [HASHED_BELOW, 3 << 20])
@pytest.mark.parametrize("how", ["written", "cut"])
def test_an_object_that_changes_while_it_is_copied_makes_no_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, how: str
) -> None:
    store, ref, path = stored(tmp_path, size)
    real = fsio.identity

    def changed(file: int) -> fsio.Identity:
        state = real(file)
        if state.size == size:
            monkeypatch.undo()
            path.chmod(0o600)
            with path.open("r+b") as writer:
                writer.truncate(size - 9 if how == "cut" else size)
                writer.write(b"b")
        return state

    monkeypatch.setattr(creating.fsio, "identity", changed)
    with pytest.raises(StoreFault, match=ref.digest):
        bundle.create(store, ["ab" * 32], tmp_path / "a")
    assert not (tmp_path / "a").exists()
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".cachec")]


def test_an_object_without_a_seal_is_hashed_on_its_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, ref, path = stored(tmp_path, HASHED_BELOW)
    os.utime(path, ns=(1, 1))
    monkeypatch.setattr(creating, "_usable", lambda store, key: store.lookup(key))  # which would give it one
    with path.open("rb"):
        path.chmod(0o600)
        path.write_bytes(b"b" * ref.size)
    with pytest.raises(StoreFault, match=ref.digest):
        bundle.create(store, ["ab" * 32], tmp_path / "a")


# --- weights


def test_weights_come_along_where_asked_for(whole: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "to")
    assert bundle.add(store, whole).weights == 1
    owner = WeightStore(store)
    assert owner.verify("llama/tuned") == ()
    with owner.open("llama/tuned") as weights:
        assert weights["large"].read().tolist() == list(range(300_000))
        assert weights["small"].read().shape == (2, 3)
    again = tmp_path / "again"
    bundle.create(store, ["ab" * 32], again, weights=["llama/tuned", "llama/tuned"])
    assert again.read_bytes() == whole.read_bytes()
    store.objects.release()


def test_a_name_that_is_taken_stays(whole: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "to")
    owner = WeightStore(store)
    before = owner.add(cachec.WeightSet.from_arrays({"w": np.ones(3, "f4")}), "llama/tuned")
    with pytest.raises(UsageError, match="'llama/tuned' is the name of other weights"):
        bundle.add(store, whole)
    assert owner.revisions()[0].id == before.id
    assert [*store.entries()] == []
    bundle.add(store, whole, replace=True)
    assert owner.revisions()[0].id != before.id
    bundle.add(store, whole)


def test_weights_in_place_are_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "from")
    path = tmp_path / "m.safetensors"
    cachec.WeightSet.from_arrays({"w": np.ones(3, "f4")}).save(path)
    with cachec.open_weights(path) as weights:
        WeightStore(store).add(weights, "m", own=False)
    for name, words in (("m", "are in place"), ("n", "no weights 'n'")):
        with pytest.raises(UsageError, match=words):
            bundle.create(store, [], tmp_path / "a", weights=[name])


# --- what is no bundle


def kept(store: Store) -> tuple[object, ...]:
    """What is in a store: entries, objects, weights, and what is being written."""
    tmp = os.listdir(store.objects.tmp) if store.objects.tmp.exists() else []
    names = [(each.name, each.id) for each in WeightStore(store).revisions()]
    return [*store.entries()], sorted(ref.digest for ref, _ in store.objects.iterate()), names, tmp


@pytest.fixture
def into(tmp_path: Path) -> Store:
    """A store with an entry and weights of its own."""
    store = Store(tmp_path / "into")
    parts = store.objects.add_bytes(b"[]")
    store.publish("cd" * 32, "s", (), parts, Trace(reads=(), value=Leaf("bytes", (parts,)), seconds=1.0, created=1.0))
    WeightStore(store).add(cachec.WeightSet.from_arrays({"w": np.ones(3, "f4")}), "mine")
    return store


def refused(store: Store, path: Path, data: bytes) -> str:
    """Adding is refused, and nothing has changed."""
    path.write_bytes(data)
    before = kept(store)
    with pytest.raises(BundleError) as caught:
        bundle.add(store, path)
    assert kept(store) == before
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_bundle_cut_anywhere_or_followed_by_more(whole: Path, into: Store) -> None:
    data = whole.read_bytes()
    for end in [*range(0, len(data), 29_989), len(data) - BLOCK, len(data) - 1]:
        refused(into, whole, data[:end])
    for more in (b"x", b"\0" * 512):
        assert "bytes, and" in refused(into, whole, data + more)


def test_every_changed_byte_is_seen(whole: Path, into: Store) -> None:
    data = whole.read_bytes()
    large = len(header("x", 0)) * 8  # all of the table and the first headers, then here and there
    for at in sample(
        [*range(0, large, 13), *range(large, len(data), 19_973), *range(len(data) - 6_000, len(data), 23)]
    ):
        changed = bytearray(data)
        changed[at] ^= 0x41
        refused(into, whole, bytes(changed))
    whole.write_bytes(data)
    bundle.add(into, whole)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A bundle of so many objects that two threads share them, and of a large one that two threads copy in turn."""
    store = Store(tmp_path / "many")
    refs = [store.objects.add_bytes(os.urandom(1_000 * number + 7)) for number in range(80)]
    refs.append(store.objects.add_bytes(os.urandom(5 << 20)))
    parts = store.objects.add_bytes(b"[]")
    trace = Trace(reads=(), value=Leaf("bytes", (refs[0],)), seconds=1.0, created=1.0, explanations=tuple(refs[1:]))
    store.publish("ab" * 32, "s", (), parts, trace)
    path = tmp_path / "many.cachec"
    assert bundle.create(store, ["ab" * 32], path).objects == len(refs) + 1
    return path


def test_many_objects_come_back_as_they_were(many: Path, into: Store, tmp_path: Path) -> None:
    assert bundle.add(into, many).objects == 81, "all but the empty list, which is there"
    assert [into.objects.verify(ref) for ref, _ in into.objects.iterate()] == [""] * len([*into.objects.iterate()])
    bundle.create(into, ["ab" * 32], tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == many.read_bytes()


def test_one_wrong_byte_of_many_objects(many: Path, into: Store) -> None:
    data = many.read_bytes()
    with bundle.BundleReader(many) as reader:
        members = reader.plan.objects
    for member in sample([members[0], members[40], members[-1], max(members, key=lambda each: each.size)]):
        changed = bytearray(data)
        changed[member.offset + member.size // 2] ^= 1
        assert member.digest[:12] in refused(into, many, bytes(changed))


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")], ids=["stopped", "full"])
def test_what_ends_it_in_the_middle_leaves_nothing(
    many: Path, into: Store, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """In whichever of the threads it comes."""
    before, copies = kept(into), iter(range(1000))
    copy = bundle.BundleReader.copy_object

    def failing(self: bundle.BundleReader, member: Any, target: int, **how: bool) -> None:
        if next(copies) == 50:
            raise error
        copy(self, member, target, **how)

    monkeypatch.setattr(bundle.BundleReader, "copy_object", failing)
    with pytest.raises((KeyboardInterrupt, StoreFault)):
        bundle.add(into, many)
    assert kept(into) == before
    monkeypatch.undo()
    assert bundle.add(into, many).objects == 81


def test_gc_beside_it_takes_nothing_of_it(many: Path, into: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects are there, and leased, before what refers to them is."""
    atomically = into.index.atomically

    def late(change: Any) -> Any:
        monkeypatch.setattr(into.index, "atomically", atomically)
        Maintainer(Store(into.folder), clock=lambda: time.time() + 86_400).collect()
        return atomically(change)

    monkeypatch.setattr(into.index, "atomically", late)
    bundle.add(into, many)
    entry = into.lookup("ab" * 32)
    assert entry is not None
    assert [into.objects.verify(ref) for ref in references(entry)] == [""] * 82


def hostile(path: Path) -> Iterator[tuple[str, bytes]]:
    """Bundles whose maker knows the format, with the words that refuse each."""
    with tarfile.open(path) as tar:
        files = {info.name: tar.extractfile(info).read() for info in tar}  # type: ignore[union-attr]
    good: dict[str, Any] = msgspec.json.decode(files.pop(TABLE))
    (entry_name,) = [name for name in files if name.startswith("entries/")]
    (weights_name,) = [name for name in files if name.startswith("weights/")]
    objects = good["objects"]

    def table(**changed: Any) -> dict[str, Any]:
        return {**good, **changed}

    def with_entry(entry: Any, name: str = entry_name) -> bytes:
        data = entry if isinstance(entry, bytes) else msgspec.json.encode(entry)
        row = [name.split("/")[1].removesuffix(".json"), digest_bytes(data), len(data)]
        changed = {n: each for n, each in files.items() if n not in {entry_name, weights_name}}
        return packed(table(entries=[row]), {**changed, name: data, weights_name: files[weights_name]})

    def with_weights(*held: Any) -> bytes:
        encoded = [each if isinstance(each, bytes) else msgspec.json.encode(each) for each in held]
        revisions = [
            digest_bytes(msgspec.json.encode(each.record)) if isinstance(each, BundledWeights) else "0" * 64
            for each in held
        ]
        rows = sorted((r, digest_bytes(data), len(data), data) for r, data in zip(revisions, encoded, strict=True))
        others = {n: each for n, each in files.items() if n != weights_name}
        return packed(
            table(weights=[row[:3] for row in rows]), {**others, **{f"weights/{r[0]}.json": r[3] for r in rows}}
        )

    yield "it is cut", b""
    yield "no bundle of cachec", b"\0" * 10_240
    yield "no bundle of cachec", packed(good, files)[BLOCK:]
    yield "no bundle of cachec", header("cachec.json", 1 << 40) + b"{}"
    yield "no bundle of cachec", header("../cachec.json", 2) + b"{}"
    yield "it is cut", header("cachec.json", 1 << 20) + b"{}"
    yield "table is malformed", packed(b"[" * 100_000, files)
    yield "table is malformed", packed(b'{"format":"cachec-bundle","version":1}', files)
    yield "table is malformed", packed(table(more=1), files)
    yield "it is 'other' version 1", packed(table(format="other"), files)
    yield "version 9", packed(table(version=9), files)
    yield "not written as it would be", packed(b" " + msgspec.json.encode(good), files)
    yield "in order, or has something twice", packed(table(objects=objects[::-1]), files)
    yield "in order, or has something twice", packed(table(objects=[objects[0], *objects]), files)
    yield "in order, or has something twice", packed(table(entries=good["entries"] * 2), files)
    yield "in order, or has something twice", packed(table(weights=good["weights"] * 2), files)
    for bad in ("../../../etc/passwd", "/etc/passwd", "", "0" * 63, "G" * 64, "0" * 64 + "/x"):
        yield "table is malformed", packed(table(objects=[[bad, 1]]), files)
        yield "table is malformed", packed(table(entries=[[bad, "0" * 64, 1]]), files)
    for size in (-1, 1 << 61, 1 << 70, 1.5, "1"):
        yield "table is malformed", packed(table(objects=[[objects[0][0], size], *objects[1:]]), files)
    for size in (0, 1 << 40, 1 << 60):
        yield "by its table", packed(table(objects=[[objects[0][0], size], *objects[1:]]), files)
    yield "by its table", packed(table(signer=f"mine:{'0' * 43}="), files)
    yield "signer", packed(table(signer="0" * 64), files)
    signature = msgspec.json.encode(BundleSignature("0" * 128))
    yield "its signer holds no NAME:KEY", packed(table(signer=f"mine:{'=' * 44}"), files, signature)
    yield "the header of", packed(good, {("x" + name if "objects" in name else name): files[name] for name in files})
    yield "the header of", packed(good, files).replace(header(*sized(files, 0)), link(*sized(files, 0)))
    yield "the header of", packed(good, dict([*list(files.items())[1::-1], *list(files.items())[2:]]))
    yield (
        "other content than its name says",
        packed(good, {n: each[:-1] + b"?" if n.startswith("objects/") else each for n, each in files.items()}),
    )
    first = f"objects/{objects[0][0]}"
    yield "which is absent", packed(table(objects=objects[1:]), {n: each for n, each in files.items() if n != first})
    extra = b"nobody asked for this"
    more = {
        **{n: each for n, each in files.items() if n.startswith("objects/")},
        f"objects/{digest_bytes(extra)}": extra,
    }
    rows = sorted([*objects, [digest_bytes(extra), len(extra)]])
    rest = {n: each for n, each in files.items() if not n.startswith("objects/")}
    yield "that nothing in it needs", packed(table(objects=rows), {**dict(sorted(more.items())), **rest})

    entry = msgspec.json.decode(files[entry_name])
    yield "is malformed", with_entry(b"{}")
    yield "is malformed", with_entry(b"[" * 100_000)
    yield "is of key", with_entry({**entry, "key": "0" * 64})
    yield "is of key", with_entry(entry, f"entries/{'0' * 64}.json")
    yield "with 0 runs", with_entry({**entry, "traces": []})
    yield "with 33 runs", with_entry({**entry, "traces": entry["traces"] * 33})
    yield "another release of cachec made it", with_entry({**entry, "version": 0})
    yield "another release of cachec made it", with_entry({"version": RECORD_VERSION + 1, "of": "another form"})
    yield "which is absent", with_entry({**entry, "parts": {**entry["parts"], "size": 7}})
    yield (
        "other content than the table says",
        packed(good, {**files, entry_name: files[entry_name].replace(b"nightly", b"nightlx")}),
    )
    yield (
        "at most",
        packed(
            table(entries=[[good["entries"][0][0], "0" * 64, 17 << 20]]),
            {
                **{n: e for n, e in files.items() if n != weights_name},
                entry_name: bytes(17 << 20),
                weights_name: files[weights_name],
            },
        ),
    )

    held = msgspec.json.decode(files[weights_name], type=BundledWeights)
    tensor = held.record.owned[0]
    placed = RevisionRecord(
        1, placed=(PlacedTensor(tensor.spec, 0, 0),), files=(PlacedFile("/etc/passwd", 1, 1 << 30, 1, 1, 0, ""),)
    )
    for names in (("../x",), ("/x",), ("x\0",), ("",), ("a" * 121,)):
        yield "a name of weights expected", with_weights(BundledWeights(names, held.record))
    yield "not the record that its name says", with_weights(BundledWeights((), held.record))
    yield "not the record that its name says", with_weights(msgspec.json.encode(held))
    yield "not the record that its name says", with_weights(BundledWeights(("x",), placed))
    yield "is malformed", with_weights(b"{}")
    yield (
        "each once, found otherwise",
        with_weights(BundledWeights(("x",), msgspec.structs.replace(held.record, owned=held.record.owned[::-1]))),
    )
    yield (
        "stands for several weights",
        with_weights(
            held, BundledWeights(held.names, msgspec.structs.replace(held.record, owned=held.record.owned[:1]))
        ),
    )
    for words, fields in (("which is absent", {"shape": (1,), "nbytes": 4}), ("the spec says", {"shape": (1,)})):
        other = msgspec.structs.replace(tensor, spec=msgspec.structs.replace(tensor.spec, **fields))
        yield words, with_weights(BundledWeights(("x",), RevisionRecord(1, owned=(other, *held.record.owned[1:]))))


def sized(files: dict[str, bytes], number: int) -> tuple[str, int]:
    name = list(files)[number]
    return name, len(files[name])


def link(name: str, nbytes: int) -> bytes:
    """The header of a link to a file of the system, in place of a file's."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.type, info.linkname = nbytes, 0o444, tarfile.SYMTYPE, "/etc/passwd"
    return info.tobuf(tarfile.GNU_FORMAT)


def test_hostile_bundles_change_nothing(whole: Path, into: Store, tmp_path: Path) -> None:
    for number, (words, data) in enumerate(hostile(whole)):
        assert words in refused(into, tmp_path / "b", data), number
    bundle.add(into, whole)


def test_the_bundle_that_the_hostile_ones_are_made_of_is_written_as_they_are(whole: Path) -> None:
    with tarfile.open(whole) as tar:
        files = {info.name: tar.extractfile(info).read() for info in tar}  # type: ignore[union-attr]
    table = msgspec.json.decode(files.pop(TABLE), type=BundleTable)
    assert packed(table, files) == whole.read_bytes()
    assert plan_bundle(table, len(msgspec.json.encode(table))).size == whole.stat().st_size


def test_a_file_of_holes_is_refused_before_the_disk_is_full(into: Store, tmp_path: Path) -> None:
    """Its sizes are those of the file, and its file is larger than any disk here."""
    size = 1 << 43
    digest = "0" * 64
    trace = Trace(reads=(), value=Leaf("bytes", (ArtifactRef(digest, size),)), seconds=1.0, created=1.0)
    store = Store(tmp_path / "from")
    parts = store.objects.add_bytes(b"[]")
    store.publish("ab" * 32, "s", (), parts, trace)
    entry = store.lookup("ab" * 32)
    data = msgspec.json.encode(entry)
    rows = sorted([(digest, size), (parts.digest, parts.size)])
    table = BundleTable("cachec-bundle", 1, tuple(map(tuple, rows)), (("ab" * 32, digest_bytes(data), len(data)),), ())  # type: ignore[arg-type]
    head = msgspec.json.encode(table)
    plan = plan_bundle(msgspec.json.decode(head, type=BundleTable), len(head))
    path = tmp_path / "holes"
    with path.open("wb") as file:
        for member, content in zip(plan.members(), (head, b"", b"[]", data), strict=True):
            file.seek(member.offset - BLOCK)
            file.write(header(member.name, member.size) + content)
        file.truncate(plan.size)
    before = kept(into)
    with pytest.raises(StoreFault, match="are free"):
        bundle.add(into, path)
    assert kept(into) == before


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to nothing"])
def test_what_is_no_file(into: Store, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere")
    with pytest.raises((BundleError, OSError)):
        bundle.add(into, path)


# --- signatures


def test_signatures(made: Made, into: Store, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    mine = Signer(keypair("mine").secret, "a test")
    # As long as the other, for one is put into the place of the other.
    mine_id, other_id = mine.public, keypair("evil").public
    path = tmp_path / "a"
    bundle.create(made.cache.store, made.keys, path, signer=mine)
    data = path.read_bytes()
    bundle.create(made.cache.store, made.keys, path, signer=mine)
    assert path.read_bytes() == data
    with bundle.BundleReader(path, (other_id, mine_id)) as reader:
        assert (reader.table.signer, reader.is_checked) == (mine_id, True)
    before = kept(into)
    with pytest.raises(BundleError, match=f"signed by {mine_id}, not by"):
        bundle.add(into, path, trusted=(other_id,))
    pretended = data.replace(mine_id.encode(), other_id.encode())
    path.write_bytes(pretended)
    with pytest.raises(BundleError, match="signature is not by the key"):
        bundle.add(into, path, trusted=(other_id,))
    with pytest.raises(BundleError, match="signature is not by the key"):
        bundle.add(into, path)
    signature = msgspec.json.decode(data[data.index(b'{"ed25519"') :][:142], type=BundleSignature).ed25519
    path.write_bytes(data.replace(signature.encode(), signature[::-1].encode()))
    with pytest.raises(BundleError, match="signature is not by the key"):
        bundle.add(into, path)
    bundle.create(made.cache.store, made.keys, path)
    with pytest.raises(BundleError, match="signed by nobody"):
        bundle.add(into, path, trusted=(mine_id,))
    assert kept(into) == before
    path.write_bytes(data)
    assert bundle.add(into, path, trusted=(mine_id,)).signer == mine_id


def test_what_is_no_key(tmp_path: Path) -> None:
    """Text of another kind, a key that is cut, and one of bits that say nothing: base64 ends in four of them."""
    pytest.importorskip("cryptography")
    pair = keypair("mine")
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    digit = last[last.index(pair.public[-2]) + 1 :][:1] or "A"
    for text in ("text", "mine:AAAA", pair.public[:-1], f"{pair.public[:-2]}{digit}=", "-----BEGIN PUBLIC KEY-----"):
        (tmp_path / "key").write_text(text)
        with pytest.raises(ConfigError, match="keygen"):
            Signer(from_file(str(tmp_path / "key"), "--sign"), "--sign")
        with pytest.raises(ConfigError, match="keygen"):
            public_key(str(tmp_path / "key"), "--trust")
    (tmp_path / "key").write_text(pair.public + "\n")
    assert public_key(str(tmp_path / "key"), "--trust") == public_key(pair.public, "--trust") == pair.public
    with pytest.raises(ConfigError, match="can't be read"):
        from_file(str(tmp_path / "nothing"), "--sign")
    (tmp_path / "secret").write_text(pair.secret)
    (tmp_path / "secret").chmod(0o666)
    with pytest.raises(ConfigError, match="can't be read"):
        from_file(str(tmp_path / "secret"), "--sign")


def test_without_the_package(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cryptography")
    pair = keypair("mine")
    path = tmp_path / "a"
    bundle.create(made.cache.store, made.keys, path, signer=Signer(pair.secret, "a test"))
    monkeypatch.setattr(keys, "has_package", lambda: False)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    with bundle.BundleReader(path) as reader:
        assert (bool(reader.table.signer), reader.is_checked) == (True, False)
    for call in (lambda: Signer(pair.secret, "a test"), lambda: bundle.BundleReader(path, (pair.public,))):
        with pytest.raises(ConfigError, match=r"cachec\[sign\]"):
            call()


# --- on the command line


def cachec_line(store: Path, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "cachec", "--dir", str(store), *words]
    return subprocess.run(line, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_on_the_command_line(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "a.cachec"
    done = cachec_line(tmp_path / "from", "bundle", "create", "-o", str(path), made.keys[0][:12])
    assert " ".join(done.stdout.split()).startswith(f"{path}: 1 entry, 0 revisions of weights, ")
    shown = msgspec.json.decode(cachec_line(tmp_path / "to", "bundle", "show", str(path), "--json").stdout)
    assert [each["key"] for each in shown["entries"]] == made.keys[:1]
    assert not (tmp_path / "to").exists()
    added = msgspec.json.decode(cachec_line(tmp_path / "to", "bundle", "add", str(path), "--json").stdout)
    assert (added["entries"], added["weights"], added["signer"]) == (1, 0, "")
    none = cachec_line(tmp_path / "nothing", "bundle", "create", "-o", str(tmp_path / "b"))
    assert (none.returncode, (tmp_path / "b").exists(), (tmp_path / "nothing").exists()) == (1, False, False)
    path.write_bytes(path.read_bytes()[:-1])
    for verb in ("show", "add"):
        bad = cachec_line(tmp_path / "to", "bundle", verb, str(path))
        assert (bad.returncode, "is refused" in bad.stderr) == (2, True)


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_store_that_can_only_be_read_is_enough(made: Made, tmp_path: Path) -> None:
    """As in the image of a container: filled from a bundle by one user, then read by another."""
    path = tmp_path / "a.cachec"
    bundle.create(made.cache.store, made.keys, path)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        image, out = Path(name) / "image", Path(name) / "out"
        out.mkdir(mode=0o777)
        for folder in (Path(name), out):
            folder.chmod(0o777)
        store = Store(image)
        bundle.add(store, path)
        store.close()
        for folder, _, files in os.walk(image):
            Path(folder).chmod(0o755)
            for each in files:
                (Path(folder) / each).chmod(0o444)
        code = f"""
import os
from cachec import bundle
from cachec.store.store import Store
keys = {made.keys}
bundle.create(Store({str(image)!r}), keys, {str(out / "imported")!r})
os.setegid(65534)
os.seteuid(65534)
done = bundle.create(Store({str(image)!r}), keys, {str(out / "again")!r})
print(done.entries, os.access({str(image / "objects")!r}, os.W_OK, effective_ids=True))
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "3 False\n"
        assert (out / "again").read_bytes() == path.read_bytes()


@pytest.mark.long
def test_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of the bundles in docs/reference/formats.md, in order, in one folder."""
    pytest.importorskip("cryptography")
    commands = pages.commands("reference/formats.md")[:4] + pages.commands("reference/formats.md", "## Bundles")
    script = tmp_path / "bin" / "cachec"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m cachec "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CACHEC_DIR", str(tmp_path / "store"))
    cache = cachec.Cache(tmp_path / "store", log="off")
    cache.stage(name="doubled")(lambda n: 2 * n)(4)
    cache.close()
    for command in commands:
        done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
    for name in ("other", "trusting"):
        assert len([*Store(tmp_path / name).entries()]) == 1
