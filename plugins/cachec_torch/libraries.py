"""Files of kind ``torch:aoti``: a shared library that AOTInductor made, and behind it what its caller has to know.

A loader reads what the program headers of a library name, so more may follow its end: here the constants of the program
(64-byte aligned, as they lie in memory), then a JSON object (``LibraryForm``), then the lengths of both, eight bytes
each, little-endian, and ``MAGIC``. A file is loaded where it lies in the store. Nothing here imports torch.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from cachec.errors import LinkError
from cachec_torch.calls import CallForm

MAGIC = b"cachec-torch-1\n\0"
ALIGNMENT = 64

_END = 16 + len(MAGIC)


class PlacedForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A constant of the program. shape, stride: in elements. offset: from the first constant. nbytes: all its span."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    nbytes: int


class LibraryForm(CallForm, frozen=True, kw_only=True):
    """What a caller has to know. torch: its version. names: of parameters and buffers in the program -> of weights.

    mutated: those that the program writes to. by_torch: why only torch's own loader can run it, empty where this
    package can. specs: the trees in torch's notation, for that loader. extern: what that loader reads beside the
    library.
    """

    torch: str
    names: dict[str, str]
    mutated: tuple[str, ...]
    constants: dict[str, PlacedForm]
    by_torch: str = ""
    specs: tuple[str, str] = ("", "")
    extern: str = ""


def write(out: BinaryIO, library: bytes, constants: bytes, form: LibraryForm) -> None:
    """``constants``: as the offsets of ``form`` say."""
    head = msgspec.json.encode(form)
    out.write(library + bytes(-len(library) % ALIGNMENT) + constants + head)
    out.write(len(constants).to_bytes(8, "little") + len(head).to_bytes(8, "little") + MAGIC)


def read(path: Path) -> tuple[LibraryForm, Mapping[str, memoryview]]:
    """What is behind the library, and the constants: private pages, which may be written to and change no file.

    Raises LinkError for a file that is none.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)) if size else memoryview(b"")
    end = size - _END
    if end < 0 or memory[end + 16 :] != MAGIC:
        raise LinkError(f"{path} is no library that cachec_torch.compile_aoti made")
    constants, head = (int.from_bytes(memory[at : at + 8], "little") for at in (end, end + 8))
    start = end - head - constants
    try:
        form = msgspec.json.decode(memory[end - head : end], type=LibraryForm)
    except msgspec.DecodeError as error:
        raise LinkError(f"{path} is malformed: {error}") from error
    if start < 0 or any(each.offset < 0 or each.offset + each.nbytes > constants for each in form.constants.values()):
        raise LinkError(f"{path} is malformed: constants beyond its end")
    places = {
        name: memory[start + each.offset : start + each.offset + each.nbytes] for name, each in form.constants.items()
    }
    return form, places


def same_library(fresh: bytes, stored: bytes) -> str | None:
    """None where two files are equal byte for byte, else in words."""
    if fresh == stored:
        return None
    where = next((at for at, pair in enumerate(zip(fresh, stored, strict=False)) if pair[0] != pair[1]), None)
    at = min(len(fresh), len(stored)) if where is None else where
    return f"{len(fresh)} against {len(stored)} bytes, first difference at byte {at}"
