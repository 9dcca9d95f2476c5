"""Files of kind ``tvm:exported``: a shared library of TVM's, and behind it what its caller has to know.

A loader reads what the program headers of a library name, so more may follow its end (``cachec_torch.trailers``).
Nothing here imports tvm or torch.
"""

from __future__ import annotations

from pathlib import Path

from cachec_torch import trailers
from cachec_torch.calls import CallForm

MAGIC = b"cachec-tvm-torch-1\n\0"


class MachineForm(CallForm, frozen=True, kw_only=True):
    """What a caller has to know. tvm: its version. weights: what ``main`` takes before the inputs; a tied weight is
    there once for each of its names in the module."""

    tvm: str
    weights: tuple[str, ...]


def joined(library: bytes, form: MachineForm) -> bytes:
    """A file's content."""
    return trailers.joined(library, form, MAGIC)


def read(path: Path) -> tuple[bytes, MachineForm]:
    """The library alone, and what is behind it. Raises LinkError for a file that is none."""
    return trailers.parted(path, MachineForm, MAGIC, "cachec_tvm.compile")
