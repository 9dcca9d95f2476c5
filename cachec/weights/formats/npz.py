"""numpy's .npz: a zip archive of .npy members; only stored ones (``numpy.savez``) are read, whatever their size."""

from __future__ import annotations

from cachec.weights.formats.base import Contents, Opener
from cachec.weights.formats.npy import array_at
from cachec.weights.formats.zip_directory import members, stated_checksums
from cachec.weights.tensor import Tensor


def read(path: str, opener: Opener) -> Contents:
    """The arrays of a .npz archive. Raises CheckpointError."""
    tensors: dict[str, Tensor] = {}
    stored = members(opener.main)
    for member in stored.values():
        name = member.name.removesuffix(".npy")
        if not name or name == member.name:
            raise opener.main.error(f"member {member.name!r}: expected only .npy members in an .npz")
        tensors[name] = array_at(opener.main, name, member.offset, member.nbytes)
    return Contents(tensors, checksums=stated_checksums(opener.main, stored))
