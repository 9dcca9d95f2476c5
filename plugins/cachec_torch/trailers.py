"""A form behind the end of a compiled program, for its caller; loaders read what is in front of it and no more.

It is a JSON object, its length in eight bytes, little-endian, and a magic that says what made the file. A file is
loaded where it lies in the store. Nothing here imports torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from cachec.errors import LinkError
from cachec_torch.calls import CallForm

Form = TypeVar("Form", bound=CallForm)

_LENGTH = 8


def joined(program: bytes, form: CallForm, magic: bytes) -> bytes:
    """A file's content."""
    head = msgspec.json.encode(form)
    return program + head + len(head).to_bytes(_LENGTH, "little") + magic


def parted(path: Path, kind: type[Form], magic: bytes, maker: str) -> tuple[bytes, Form]:
    """The program alone, and what is behind it.

    maker: what makes such files, for the error. Raises LinkError for a file that is none, and where it says nothing of
    the trees that it is called with.
    """
    data = path.read_bytes()
    end = len(data) - _LENGTH - len(magic)
    if end < 0 or not data.endswith(magic):
        raise LinkError(f"{path} is nothing that {maker} made")
    start = end - int.from_bytes(data[end : end + _LENGTH], "little")
    if start < 0:
        raise LinkError(f"{path} is malformed: its description begins {-start} bytes before it")
    try:
        form = msgspec.json.decode(data[start:end], type=kind)
    except msgspec.DecodeError as error:
        raise LinkError(f"{path} is malformed: {error}") from error
    if form.arguments is None or form.results is None:
        raise LinkError(f"{path} is malformed: it says nothing of its trees")
    return data[:start], form
