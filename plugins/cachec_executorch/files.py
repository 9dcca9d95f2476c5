"""Files of kind ``executorch:program``: a ``.pte``, and behind it what its caller has to know.

ExecuTorch reads what the header of a ``.pte`` names, so more may follow its end: here a JSON object (``MethodForm``),
its length in eight bytes, little-endian, and ``MAGIC``. A file is loaded where it lies in the store. Nothing here
imports executorch or torch.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from cachec.errors import LinkError
from cachec_torch.calls import CallForm

KIND = "executorch:program"
MAGIC = b"cachec-executorch-1\n"

_END = 8 + len(MAGIC)


class MethodForm(CallForm, frozen=True, kw_only=True):
    """What a caller has to know. executorch: its version. names: of entries of the ``.ptd`` -> of weights."""

    executorch: str
    names: dict[str, str]


def joined(pte: bytes, form: MethodForm) -> bytes:
    """A file's content."""
    head = msgspec.json.encode(form)
    return pte + head + len(head).to_bytes(8, "little") + MAGIC


def read(path: Path) -> tuple[bytes, MethodForm]:
    """The ``.pte`` alone, and what is behind it. Raises LinkError for a file that is none."""
    data = path.read_bytes()
    end = len(data) - _END
    if end < 0 or not data.endswith(MAGIC):
        raise LinkError(f"{path} is nothing that cachec_executorch.compile made")
    start = end - int.from_bytes(data[end : end + 8], "little")
    if start < 0:
        raise LinkError(f"{path} is malformed: its description begins {-start} bytes before it")
    try:
        form = msgspec.json.decode(data[start:end], type=MethodForm)
    except msgspec.DecodeError as error:
        raise LinkError(f"{path} is malformed: {error}") from error
    if form.arguments is None or form.results is None:
        raise LinkError(f"{path} is malformed: it says nothing of its trees")
    return data[:start], form
