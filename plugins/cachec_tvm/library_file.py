"""Files of kind ``tvm:exported``: a shared library of TVM, followed by a description of its call.

A loader reads the segments that the program headers name, so other bytes may follow (``cachec_torch.trailers``). This
module imports neither tvm nor torch.
"""

from __future__ import annotations

from pathlib import Path

from cachec_torch import trailers
from cachec_torch.calls import CallForm

MAGIC = b"cachec-tvm-torch-1\n\0"


class MachineForm(CallForm, frozen=True, kw_only=True):
    """The inputs and results of a call, and the weights."""

    #: The version of TVM.
    tvm: str
    #: The parameters of ``main`` before the inputs. A tied weight occurs once for each of its names in the module.
    weights: tuple[str, ...]


def join_file(library: bytes, form: MachineForm) -> bytes:
    """Return the content of a file."""
    return trailers.joined(library, form, MAGIC)


def read_file(path: Path) -> tuple[bytes, MachineForm]:
    """Return the library and the description of its call. Raises LinkError for another kind of file."""
    return trailers.parted(path, MachineForm, MAGIC, "cachec_tvm.compile")
