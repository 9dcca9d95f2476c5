"""Files of kind ``executorch:program``: a ``.pte``, and behind it what its caller has to know.

ExecuTorch reads what the header of a ``.pte`` names, so more may follow its end (``cachec_torch.trailers``). Nothing
here imports executorch or torch.
"""

from __future__ import annotations

from pathlib import Path

from cachec_torch import trailers
from cachec_torch.calls import CallForm

KIND = "executorch:program"
MAGIC = b"cachec-executorch-1\n"


class MethodForm(CallForm, frozen=True, kw_only=True):
    """What a caller has to know. executorch: its version. names: of entries of the ``.ptd`` -> of weights."""

    executorch: str
    names: dict[str, str]


def joined(pte: bytes, form: MethodForm) -> bytes:
    """A file's content."""
    return trailers.joined(pte, form, MAGIC)


def read(path: Path) -> tuple[bytes, MethodForm]:
    """The ``.pte`` alone, and what is behind it. Raises LinkError for a file that is none."""
    return trailers.parted(path, MethodForm, MAGIC, "cachec_executorch.compile")
