"""Formats of checkpoints besides safetensors: which one a file is, and the reader of it.

A reader looks at structure only, validates it in full, and returns where each tensor lies. Readers are imported when a
file of their format turns up.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from cachec.errors import CheckpointError
from cachec.weights.formats.base import Contents, Opener

Reader = Callable[[str, Opener], Contents]

#: What the user says a format is called -> how it is told by name where its first bytes do not tell.
_SUFFIXES = {
    ".safetensors": "safetensors",
    ".gguf": "gguf",
    ".irpa": "irpa",
    ".npy": "npy",
    ".npz": "npz",
    ".onnx": "onnx",
    ".pt": "torch",
    ".pth": "torch",
    ".ckpt": "torch",
    ".json": "tvm",
}
_MAGIC = {b"GGUF": "gguf", b"FUGG": "gguf", b"IRPA": "irpa"}
#: A zip archive, or an empty one.
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
#: The file names of a TVM tensor cache, newest first.
TVM_NAMES = ("tensor-cache.json", "ndarray-cache.json")


def format_of(path: str, start: bytes) -> str:
    """The format of a file by its first 8 bytes, then by its suffix; safetensors, which has no magic, otherwise.

    A zip archive is ``npz`` or ``torch`` by its suffix, ``zip`` where the suffix does not tell (its members do). As a
    header of 64 MiB begins like a zip archive does, the suffix ``.safetensors`` decides against that one.
    """
    suffix = _SUFFIXES.get(os.path.splitext(path)[1].lower(), "")
    magic = start[:4]
    if magic in _MAGIC:
        return _MAGIC[magic]
    if start[:6] == b"\x93NUMPY":
        return "npy"
    if magic in _ZIP and suffix not in {"safetensors", "onnx"}:
        return suffix if suffix in {"npz", "torch"} else "zip"
    return suffix or "safetensors"


def reader(kind: str) -> Reader:
    """The reader of a format that ``format_of`` names."""
    match kind:
        case "gguf":
            from cachec.weights.formats.gguf import read
        case "irpa":
            from cachec.weights.formats.irpa import read
        case "npy":
            from cachec.weights.formats.npy import read
        case "npz":
            from cachec.weights.formats.npy import read_npz as read
        case "onnx":
            from cachec.weights.formats.onnx import read
        case "torch":
            from cachec.weights.formats.torch_pt import read
        case "tvm":
            from cachec.weights.formats.tvm import read
        case "zip":
            return _read_zip
        case _:
            raise AssertionError(f"no reader of {kind!r}")
    return read


def _read_zip(path: str, opener: Opener) -> Contents:
    """A zip archive whose name does not say what it is: torch's holds ``<folder>/data.pkl``, numpy's only ``*.npy``."""
    from cachec.weights.formats.zipped import members

    names = list(members(opener.main))
    if any(name.count("/") == 1 and name.endswith("/data.pkl") for name in names):
        return reader("torch")(path, opener)
    if all(name.endswith(".npy") for name in names):
        return reader("npz")(path, opener)
    raise CheckpointError(
        f"{path}: a zip archive; expected numpy's (only .npy members) or PyTorch's (a data.pkl), found "
        f"{', '.join(map(repr, names[:3]))}"
    )
