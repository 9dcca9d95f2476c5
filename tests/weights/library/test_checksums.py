"""Checksums that checkpoints state of their files: computed when asked for, right, wrong and absent."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cachec.errors import WeightError
from cachec.store.store import Store
from cachec.weights import from_arrays, open_weights
from cachec.weights.library.checksums import verify
from cachec.weights.library.stored_weights import WeightStore


def tensor_cache(folder: Path, **sums: str) -> Path:
    """TVM's tensor cache with the files a.bin and b.bin of a tensor each; ``sums`` replaces their MD5."""
    folder.mkdir()
    records = []
    for number, name in enumerate("ab"):
        data = np.full(64, number, np.float32).tobytes()
        (folder / f"{name}.bin").write_bytes(data)
        param = {"name": name, "shape": [64], "dtype": "float32", "format": "raw", "nbytes": 256, "byteOffset": 0}
        records.append({
            "dataPath": f"{name}.bin", "format": "raw-shard", "nbytes": 256, "records": [param],
            "md5sum": sums.get(name, hashlib.md5(data).hexdigest()),
        })  # fmt: skip
    (folder / "tensor-cache.json").write_text(json.dumps({"metadata": {}, "records": records}))
    return folder


def test_right_wrong_and_absent(tmp_path: Path) -> None:
    right = tensor_cache(tmp_path / "right")
    assert verify(open_weights(right)) == (2, ())
    assert verify(open_weights(tensor_cache(tmp_path / "absent", a="", b=""))) == (0, ())
    assert verify(open_weights(tensor_cache(tmp_path / "half", a=""))) == (1, ())
    found = verify(open_weights(tensor_cache(tmp_path / "wrong", b="0" * 32)))
    data = hashlib.md5(np.ones(64, np.float32).tobytes()).hexdigest()
    detail = f"md5 expected {'0' * 32}, found {data}"
    assert found == (2, ((str(tmp_path / "wrong" / "b.bin"), ("b",), detail),))


def test_one_byte_is_noticed(tmp_path: Path) -> None:
    folder = tensor_cache(tmp_path / "m")
    with (folder / "a.bin").open("r+b") as file:
        file.seek(100)
        file.write(b"!")
    assert [damage.names for damage in verify(open_weights(folder)).damages] == [("a",)]


def test_progress_counts_the_bytes_that_are_read(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    verify(open_weights(tensor_cache(tmp_path / "m", a="")), lambda done, total: seen.append((done, total)))
    assert seen == [(256, 256)]
    seen.clear()
    verify(open_weights(tensor_cache(tmp_path / "n")), lambda done, total: seen.append((done, total)))
    assert seen == [(256, 512), (512, 512)]


def test_a_file_that_changed_or_went(tmp_path: Path) -> None:
    folder = tensor_cache(tmp_path / "m")
    weights = open_weights(folder)
    os.utime(folder / "a.bin", ns=(1, 1))
    (folder / "b.bin").unlink()
    details = [damage.detail for damage in verify(weights).damages]
    assert details == ["changed after it was opened", "can't be opened any more: No such file or directory"]


# --- CRC-32 of the members of an archive


def archives(folder: Path) -> tuple[Path, Path]:
    """The weights a and b as numpy's .npz and as PyTorch's .pt."""
    import torch

    arrays = {"a": np.arange(1000, dtype=np.float32), "b": np.ones((3, 5), np.float32)}
    np.savez(folder / "m.npz", **arrays)
    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, folder / "m.pt")
    return folder / "m.npz", folder / "m.pt"


def test_members_of_archives(tmp_path: Path) -> None:
    for path in archives(tmp_path):
        seen: list[tuple[int, int]] = []
        size = path.stat().st_size
        assert verify(open_weights(path), lambda done, total, seen=seen: seen.append((done, total))) == (1, ())
        assert seen == sorted(seen)
        assert seen[-1] == (size, size)
        place = open_weights(path)["a"].place()
        assert place is not None
        data = bytearray(path.read_bytes())
        data[place.offset + 100] ^= 1
        path.write_bytes(data)
        with zipfile.ZipFile(path) as archive:
            member = archive.testzip()
        found = verify(open_weights(path))
        assert (found.checksums, [damage.names for damage in found.damages]) == (1, [("a",)])
        assert found.damages[0].path == str(path)
        assert found.damages[0].detail.startswith(f"member {member!r}: crc32 expected ")


def test_every_member_counts_and_each_is_said(tmp_path: Path) -> None:
    path, _ = archives(tmp_path)
    data = bytearray(path.read_bytes())
    for name in "ab":
        place = open_weights(path)[name].place()
        assert place is not None
        data[place.offset] ^= 0x80
    path.write_bytes(data)
    assert [damage.names for damage in verify(open_weights(path)).damages] == [("a",), ("b",)]


def test_the_stated_crc_of_a_member_counts(tmp_path: Path) -> None:
    path, _ = archives(tmp_path)
    with zipfile.ZipFile(path) as archive:
        crc = archive.getinfo("b.npy").CRC
    data = path.read_bytes()
    at = data.rindex(crc.to_bytes(4, "little"))
    path.write_bytes(data[:at] + bytes(4) + data[at + 4 :])  # one zero is no archive without them
    [damage] = verify(open_weights(path)).damages
    assert (damage.names, damage.detail) == (("b",), f"member 'b.npy': crc32 expected 00000000, found {crc:08x}")


def test_an_archive_without_them(tmp_path: Path) -> None:
    import torch
    from torch.serialization import get_crc32_options, set_crc32_options

    before = get_crc32_options()
    set_crc32_options(False)
    try:
        torch.save({"a": torch.arange(5.0)}, tmp_path / "m.pt")
    finally:
        set_crc32_options(before)
    assert verify(open_weights(tmp_path / "m.pt")) == (0, ())


def test_an_archive_in_place(tmp_path: Path) -> None:
    store = WeightStore(Store(tmp_path / "store"))
    for path in archives(tmp_path):
        assert store.add(open_weights(path), path.suffix[1:], own=False).checksums == 1
        assert store.verify(path.suffix[1:]) == ()
    # Bytes that rot on the disk change no time of the file: its record is made to agree with what stands there.
    path = tmp_path / "m.npz"
    data = bytearray(path.read_bytes())
    place = open_weights(path)["b"].place()
    assert place is not None
    data[place.offset] ^= 1
    path.write_bytes(data)
    store.add(open_weights(path), "rotten", own=False)
    [damage] = store.verify("rotten")
    assert damage.names == ("b",)


def test_what_states_nothing(tmp_path: Path, model: Path, make: Any) -> None:
    for weights in (
        open_weights(model),
        from_arrays({"w": make.ramp(3)}),
        open_weights(model).overlay({"w": make.ramp(4, 8)}),
    ):
        assert verify(weights) == (0, ())


def test_in_place_the_store_keeps_what_is_stated(tmp_path: Path) -> None:
    store = WeightStore(Store(tmp_path / "store"))
    for name, sums, number, wrong in (("m", {}, 2, ()), ("n", {"a": "", "b": "f" * 32}, 1, (("b",),)),
                                      ("o", {"a": "", "b": ""}, 0, ())):  # fmt: skip
        revision = store.add(open_weights(tensor_cache(tmp_path / name, **sums)), name, own=False)
        assert revision.checksums == number
        assert tuple(damage.names for damage in store.verify(name)) == wrong
    # A file that is not as it was added is said once, and not read.
    os.utime(tmp_path / "n" / "b.bin", ns=(1, 1))
    [damage] = store.verify("n")
    assert "changed after its weights were added in place" in damage.detail


def test_records_from_before_checksums_are_read_as_they_are(tmp_path: Path, model: Path) -> None:
    store = WeightStore(Store(tmp_path / "store"))
    revision = store.add(open_weights(model), "m", own=False)
    text = (store.folder / "revisions" / f"{revision.id}.json").read_text()
    assert "checksum" not in text, "the revision of a file that states none is what it always was"
    assert store.verify("m") == ()


@pytest.mark.parametrize("value", ["crc32:abc", "md5", "sha256:" + "0" * 64])
def test_a_record_with_another_kind_of_checksum_is_malformed(tmp_path: Path, model: Path, value: str) -> None:
    from cachec.base.hashing import digest_bytes

    store = WeightStore(Store(tmp_path / "store"))
    revision = store.add(open_weights(tensor_cache(tmp_path / "c")), "m", own=False)
    path = store.folder / "revisions" / f"{revision.id}.json"
    record = json.loads(path.read_bytes())
    record["files"][0]["checksum"] = value
    data = json.dumps(record).encode()
    (path.parent / f"{digest_bytes(data)}.json").write_bytes(data)
    with pytest.raises(WeightError, match="malformed"):
        WeightStore(Store(tmp_path / "store")).verify(digest_bytes(data))
