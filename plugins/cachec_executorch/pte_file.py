"""Files of kind ``executorch:program``: a ``.pte``, followed by a description of its call.

ExecuTorch reads the segments that the header of a ``.pte`` names, so other bytes may follow
(``cachec_torch.trailers``). This module imports neither executorch nor torch.
"""

from __future__ import annotations

from pathlib import Path

from cachec_torch import trailers
from cachec_torch.calls import CallForm

KIND = "executorch:program"
MAGIC = b"cachec-executorch-1\n"


class MethodForm(CallForm, frozen=True, kw_only=True):
    """The inputs and results of a call, and the weights."""

    #: The version of executorch.
    executorch: str
    #: Name of an entry of the ``.ptd`` -> name of a weight.
    names: dict[str, str]


def join_file(pte: bytes, form: MethodForm) -> bytes:
    """Return the content of a file."""
    return trailers.joined(pte, form, MAGIC)


def read_file(path: Path) -> tuple[bytes, MethodForm]:
    """Return the ``.pte`` and the description of its call. Raises LinkError for another kind of file."""
    return trailers.parted(path, MethodForm, MAGIC, "cachec_executorch.compile")
