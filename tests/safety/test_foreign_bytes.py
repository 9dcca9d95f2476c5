"""Readers of foreign bytes raise errors of cachec and nothing else, whose words no terminal obeys."""

from __future__ import annotations

import io
import json
import random
import struct
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from cachec.errors import CachecError, CheckpointError, UnknownWeight, clip
from cachec.weights import open_weights
from tests.effort import rounds

#: Values of JSON that stand where another kind is expected.
STRANGE: tuple[object, ...] = ([], {}, None, True, -1, 1 << 70, 1.5, "", "F32\x1b[31m", [[]], [True], {"a": []}, "F4")


def _safetensors(path: Path, header: object, data: bytes) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


@pytest.mark.parametrize("field", ["dtype", "shape", "data_offsets", None])
def test_a_field_of_another_kind(tmp_path: Path, field: str | None) -> None:
    for strange in STRANGE:
        entry: dict[str, object] = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
        header = {"a": strange} if field is None else {"a": {**entry, field: strange}}
        path = _safetensors(tmp_path / "w.safetensors", header, bytes(8))
        with pytest.raises(CheckpointError) as raised:
            open_weights(path)
        assert str(raised.value).isprintable()


def _mutated(data: bytes, rng: random.Random) -> bytes:
    """With a few bytes changed, doubled or left out."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(found))
        what = rng.randrange(4)
        if what == 0:
            found[at] = rng.randrange(256)
        elif what == 1:
            found[at:at] = rng.choice((b" ", b"\n", b"\xa0", b"\x1f", b"0", b"[", b"-", b"L", b"#", b"'", b"\0"))
        elif what == 2:
            del found[at]
        else:
            found[at] ^= 1 << rng.randrange(8)
    return bytes(found)


def _npy(array: np.ndarray, version: tuple[int, int]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


ARRAYS = (np.arange(6, dtype="<f4").reshape(2, 3), np.zeros((0, 3), "<i8"), np.array(1.5), np.ones(3, "?"))


@pytest.mark.fuzz
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_what_numpy_refuses_is_refused(tmp_path: Path, suffix: str) -> None:
    rng = random.Random(9)
    path = tmp_path / f"w{suffix}"
    read = 0
    for _ in range(rounds(2000)):
        array, version = rng.choice(ARRAYS), rng.choice(((1, 0), (2, 0), (3, 0)))
        data = _npy(array, version)
        header = len(data) - array.nbytes
        data = _mutated(data[:header], rng) + data[header:]
        if suffix == ".npz":
            file = io.BytesIO()
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr("w.npy", data)
            data = file.getvalue()
        path.write_bytes(data)
        try:
            found = open_weights(path)["w"].read()
        except CachecError:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wanted = np.load(io.BytesIO(data), allow_pickle=False)
            wanted = wanted["w"] if suffix == ".npz" else wanted
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert found.tobytes() == wanted.tobytes()
        read += 1
    assert read, "every one was refused: nothing was compared"


@pytest.mark.parametrize(
    "padding", [b"\n{H}\n", b"{H}\x1f\n", b"{H}\xa0\n", b"\x85{H}\n", b"{H}\x0c\n", b"{H}\0\n"], ids=repr
)
def test_white_space_that_is_none_to_numpy(tmp_path: Path, padding: bytes) -> None:
    text = padding.replace(b"{H}", b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}")
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(8)
    (tmp_path / "w.npy").write_bytes(data)
    try:
        np.load(io.BytesIO(data))
    except (ValueError, SyntaxError):
        with pytest.raises(CheckpointError):
            open_weights(tmp_path / "w.npy")
    else:
        open_weights(tmp_path / "w.npy")


def test_more_dimensions_than_numpy_has(tmp_path: Path) -> None:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {(1,) * 65}}}\n".encode()
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(4)
    (tmp_path / "w.npy").write_bytes(data)
    with pytest.raises(ValueError, match="dimension"):
        np.load(io.BytesIO(data))
    with pytest.raises(CheckpointError):
        open_weights(tmp_path / "w.npy")


@pytest.mark.parametrize("name", ["a\x1b[2J.npy", "a\u202e.npy", "x\x9b31m", "\x7f", "n" * 30_000])
def test_names_in_archives(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
        archive.writestr(name, b"no array at all")
    with pytest.raises(CheckpointError) as raised:
        open_weights(tmp_path / "w.npz")
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 10_000


def test_every_message_is_printable_and_bounded() -> None:
    for kind in (CachecError, UnknownWeight):
        assert str(kind("a\x1b[31m\r\x9b\u202eb\nc")) == "a\\x1b[31m\\r\\x9b\\u202eb\nc"
        assert len(str(kind("x" * 100_000))) < 8100
        assert str(kind("é ok")) == "é ok"
    assert clip("a\nb\x1b") == "a\\nb\\x1b"
    assert len(clip("x" * 1000)) == 160


def test_nobody_is_told_to_load_a_checkpoint_without_protection(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.zeros(2), "b": _Evil()}, tmp_path / "w.pt")
    with pytest.raises(CheckpointError) as raised:
        open_weights(tmp_path / "w.pt")
    said = str(raised.value)
    assert "posix" in said
    for advice in ("weights_only=False", "weights_only` set to", "add_safe_globals", "Re-running", "trust"):
        assert advice not in said


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, ("echo \x1b[31m",)
