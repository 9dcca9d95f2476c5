"""The format of a zip archive without a telling name, by its members."""

from __future__ import annotations

from cachec.weights.formats import npz, torch_pt
from cachec.weights.formats.base import Contents, Opener
from cachec.weights.formats.zip_directory import members


def read(path: str, opener: Opener) -> Contents:
    """The tensors of what torch saved (it holds ``<folder>/data.pkl``), or numpy (only ``*.npy``)."""
    names = list(members(opener.main))
    if any(name.count("/") == 1 and name.endswith("/data.pkl") for name in names):
        return torch_pt.read(path, opener)
    if all(name.endswith(".npy") for name in names):
        return npz.read(path, opener)
    raise opener.main.error(
        "a zip archive; expected numpy's (only .npy members) or PyTorch's (a data.pkl), found "
        f"{', '.join(map(repr, names[:3]))}"
    )
