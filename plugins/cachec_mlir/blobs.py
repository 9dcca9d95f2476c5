"""Resources of a module: named bytes in place, raw or as hexadecimal text, and weight sets over them."""

from __future__ import annotations

import binascii
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec
from blake3 import blake3

from cachec.base.hashing import FileDigests
from cachec.errors import CheckpointError, HandleClosed
from cachec.model import WeightSpec
from cachec.programs.weight_files import (
    Copier,
    Extent,
    FileSource,
    Identity,
    Layout,
    Ranges,
    Source,
    Tensor,
    Ways,
    identity,
    pread_exact,
)
from cachec.weights import WeightSet
from cachec.weights.dtypes import SIZES

#: Alignment of the weights of a live module: what IREE and XLA want of constants.
ALIGNMENT = 64

#: LLVM reads a small file into memory of this alignment (``MemoryBuffer.cpp``).
BUFFER_ALIGNMENT = 16

#: LLVM maps a large file, and a mapping begins at a page: of this size on most machines, and of a multiple on others.
PAGE_ALIGNMENT = 4096

#: The key that MLIR prints for every constant that ``--mlir-elide-elementsattrs-if-larger`` leaves out.
ELIDED = "__elided__"

#: MLIR's element types (builtin dialect) of whole bytes -> names of numpy and ml_dtypes.
ELEMENTS: dict[str, str] = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8E5M2": "float8_e5m2",
    "f8E4M3FN": "float8_e4m3fn",
    "f8E8M0FNU": "float8_e8m0fnu",
    "f8E4M3FNUZ": "float8_e4m3fnuz",
    "f8E5M2FNUZ": "float8_e5m2fnuz",
    "i1": "bool",
    "index": "int64",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
}
ELEMENTS |= {f"{sign}i{bits}": f"int{bits}" for sign in ("", "s") for bits in (8, 16, 32, 64)}
ELEMENTS |= {f"ui{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)}

_TYPE = re.compile(r"(?:tensor|vector)<((?:\d{1,18}x){0,64})(complex<f32>|complex<f64>|\w+)\s*[,>]", re.ASCII)
_STEP = 1 << 20
#: Where a large copy is split: the steps of ``Copier`` then begin there.
_ALIGNED = 4 << 20


class Blob:
    """The bytes of one resource, in place. hexadecimal: whether the file has them as text, two digits for a byte."""

    __slots__ = ("hexadecimal", "nbytes", "place", "where")

    def __init__(self, place: Extent | memoryview, *, hexadecimal: bool = False, where: str = "") -> None:
        """where: what errors call it."""
        self.place = place
        self.hexadecimal = hexadecimal
        self.nbytes = place.nbytes // 2 if hexadecimal else place.nbytes
        self.where = where

    def pieces(self, offset: int = 0, nbytes: int | None = None) -> Iterator[bytes]:
        """The bytes (decoded) from ``offset`` in pieces of at most 1 MiB. Raises CheckpointError for a bad digit."""
        for piece in self._read_pieces(offset, self.nbytes - offset if nbytes is None else nbytes):
            yield self.decode(piece) if self.hexadecimal else piece

    def digest(self, offset: int = 0, nbytes: int | None = None) -> str:
        """BLAKE3 of the bytes (decoded) from ``offset``, 64 hexadecimal characters. Raises CheckpointError."""
        hasher = blake3()
        for piece in self.pieces(offset, nbytes):
            hasher.update(piece)
        return hasher.hexdigest()

    def fill(self, out: memoryview, offset: int = 0) -> None:
        """Fill ``out`` with the bytes (decoded) from ``offset`` on. Raises CheckpointError for a bad digit."""
        done = 0
        for piece in self.pieces(offset, out.nbytes):
            out[done : done + len(piece)] = piece
            done += len(piece)

    def copy(self, copier: Copier, fd: int, offset: int) -> None:
        """Write the bytes to ``fd``; by the kernel where they are raw."""
        place = self.place
        if not self.hexadecimal:
            if isinstance(place, Extent) and place.nbytes > _ALIGNED:
                # Writes that begin at a multiple of a large page are up to 1.4 times as fast (ext4, Linux 6.18).
                head = -offset % _ALIGNED
                copier.copy(msgspec.structs.replace(place, nbytes=head), fd, offset, digest=False)
                place = msgspec.structs.replace(place, offset=place.offset + head, nbytes=place.nbytes - head)
                offset += head
            copier.copy(place, fd, offset, digest=False)
            return
        for piece in self.pieces():
            offset = write_at(fd, piece, offset)

    def copy_digits(self, copier: Copier, fd: int, offset: int) -> None:
        """Write the bytes to ``fd`` as hexadecimal text; by the kernel where they are that already."""
        if self.hexadecimal:
            copier.copy(self.place, fd, offset, digest=False)
            return
        for piece in self._read_pieces(0, self.nbytes):
            offset = write_at(fd, piece.hex().upper().encode(), offset)

    def decode(self, digits: bytes) -> bytes:
        """Bytes of digits. Raises CheckpointError."""
        try:
            return binascii.a2b_hex(digits)
        except binascii.Error as error:
            raise CheckpointError(f"{self.where}: expected hexadecimal digits, found another character") from error

    def _read_pieces(self, offset: int, nbytes: int) -> Iterator[bytes]:
        scale = 2 if self.hexadecimal else 1
        place = self.place
        for start in range(offset * scale, (offset + nbytes) * scale, _STEP):
            length = min(_STEP, (offset + nbytes) * scale - start)
            if isinstance(place, Extent):
                yield pread_exact(place.fd, place.offset + start, length)
            else:
                yield bytes(place[start : start + length])
        if isinstance(place, Extent):
            place.check()


def write_at(fd: int, data: bytes, offset: int) -> int:
    """Write all; the offset after it."""
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done
    return offset


class Resource(NamedTuple):
    """One resource. name: as a weight; group, key: as in the module. alignment: in bytes. type: MLIR's, where known."""

    name: str
    group: str
    key: str
    alignment: int
    blob: Blob
    type: str | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the data."""
        return self.blob.nbytes

    def spec(self) -> WeightSpec:
        """Its description; a uint8 vector if the type is unknown, or not a number of whole bytes.

        Raises CheckpointError where the module states a type of another size.
        """
        known = spec_of(self.name, self.type) if self.type else None
        if known is not None and known.nbytes == self.nbytes:
            return known
        if known is not None and known.dtype != "bool":  # packed bits
            raise CheckpointError(
                f"resource {self.name!r}: {self.type} takes {known.nbytes} bytes, the module has {self.nbytes}"
            )
        return WeightSpec(name=self.name, dtype="uint8", shape=(self.nbytes,), nbytes=self.nbytes)

    def words(self) -> str:
        """Type, size and alignment, for a person. Raises as ``spec``."""
        spec = self.spec()
        kind = self.type or f"{spec.dtype} {list(spec.shape)}"
        return f"{kind}, {self.nbytes:,} bytes, alignment {self.alignment}"


def element_type(text: str) -> tuple[str, tuple[int, ...]] | None:
    """dtype and shape of a static tensor or vector type, None for any other."""
    match = _TYPE.match(text.replace(" ", ""))
    if match is None or match[2] not in ELEMENTS:
        return None
    return ELEMENTS[match[2]], tuple(int(each) for each in match[1].split("x") if each)


def spec_of(name: str, text: str) -> WeightSpec | None:
    """The description of a weight of a static tensor or vector type, None for any other type."""
    known = element_type(text)
    if known is None:
        return None
    dtype, shape = known
    return WeightSpec(name=name, dtype=dtype, shape=shape, nbytes=math.prod(shape) * SIZES[dtype])


class Resources(Mapping[str, Resource]):
    """Resources by weight name: ``key``, or ``dialect:key`` if not of ``builtin``. Each is read on its first use."""

    def __init__(self, names: Mapping[str, int], load: Callable[[int], Resource]) -> None:
        """names: name -> number; load: the resource of a number, checked."""
        self._names = names
        self._load = load
        self._loaded: dict[str, Resource] = {}

    def __getitem__(self, name: str) -> Resource:
        """The resource. Raises KeyError, CheckpointError (its head is malformed)."""
        resource = self._loaded.get(name)
        if resource is None:
            resource = self._loaded[name] = self._load(self._names[name])
        return resource

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def weights(
        self, specs: Mapping[str, WeightSpec] | None = None, *, only: Collection[str] | None = None
    ) -> WeightSet:
        """The resources as weights over the original bytes. Reads every head.

        specs: types of those that the module does not tell (bytecode: all); the others are uint8 vectors, or of the
        type that the module's text gives them. only: names of those that are wanted. Raises CheckpointError where a
        size disagrees.
        """
        names = self if only is None else [name for name in self if name in only]
        typed = {name: _checked_spec(self[name], (specs or {}).get(name)) for name in names}
        blobs = {name: self[name].blob for name in typed}
        files = {blob.place.file for blob in blobs.values() if isinstance(blob.place, Extent) and not blob.hexadecimal}
        if len(files) == 1 and all(isinstance(b.place, Extent) and not b.hexadecimal for b in blobs.values()):
            tensors = {
                name: Tensor(spec.dtype, spec.shape, spec.nbytes, blob.place.offset)
                for (name, spec), blob in zip(typed.items(), blobs.values(), strict=True)
                if isinstance(blob.place, Extent)
            }
            return WeightSet(Layout(tensors), FileSource(tuple(files)))
        tensors = {name: Tensor(spec.dtype, spec.shape, spec.nbytes, 0) for name, spec in typed.items()}
        return WeightSet(Layout(tensors), _BlobSource(blobs))


def _checked_spec(resource: Resource, spec: WeightSpec | None) -> WeightSpec:
    if spec is None:
        return resource.spec()
    if spec.nbytes != resource.nbytes:
        raise CheckpointError(
            f"resource {resource.name!r}: expected {spec.nbytes} bytes ({spec.dtype} {list(spec.shape)}), "
            f"found {resource.nbytes}"
        )
    return spec


class _BlobSource(Source):
    """Weights that are not plain ranges of one file: decoded, or viewed, at each access."""

    def __init__(self, blobs: Mapping[str, Blob]) -> None:
        self._blobs: Mapping[str, Blob] | None = blobs
        self._token = os.urandom(16)

    def expose(self, name: str, tensor: Tensor, digests: FileDigests | None) -> None:
        self._blob(name)

    def digest(self, name: str, tensor: Tensor, digests: FileDigests | None) -> str:
        return self._blob(name).digest(tensor.offset, tensor.nbytes)

    def ways(self, name: str, tensor: Tensor) -> Ways:
        def read(begin: int, out: memoryview) -> None:
            self._blob(name).fill(out, tensor.offset + begin)

        def view() -> memoryview:
            out = memoryview(bytearray(tensor.nbytes))
            read(0, out)
            return out.toreadonly()

        return Ways(view, copies=True, ranges=lambda: Ranges(tensor.nbytes, read))

    def changed(self) -> str | None:
        for blob in (self._blobs or {}).values():
            if isinstance(blob.place, Extent):
                file = blob.place.file
                return None if _same(file.path, file.identity) else file.path
        return None

    def state(self) -> bytes:
        files = {b.place.file.identity for b in (self._blobs or {}).values() if isinstance(b.place, Extent)}
        return repr(sorted(files)).encode() if files else self._token

    def release(self) -> None:
        self._blobs = None

    def _blob(self, name: str) -> Blob:
        if self._blobs is None:
            raise HandleClosed(f"weight {name!r}: its set was released; open the module again")
        return self._blobs[name]


def _same(path: str, before: Identity) -> bool:
    try:
        return identity(path) == before
    except OSError:
        return False
