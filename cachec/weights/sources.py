"""Where the bytes of weights come from, and what is asked before they are handed out.

Every exposure of bytes goes ``expose`` (record, or refuse) and then one of its ``Ways``. A source knows
its weights by the names that it was opened with; sets renamed later translate.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec
from blake3 import blake3

from cachec.base import fsio
from cachec.base.hashing import FileDigests, digest_bytes
from cachec.errors import HandleClosed, WeightReadError, WeightsChanged
from cachec.weights.dtypes import SIZES
from cachec.weights.tensor import Tensor

if TYPE_CHECKING:
    from cachec.weights.layout import Layout

Origin = tuple[str, str]

#: Files of the store that one set keeps open; others are opened again when they are used.
_MANY = 128
#: Bytes that are put together at once.
_BLOCK = 1 << 18


class TensorPlace(msgspec.Struct, frozen=True):
    """Where the bytes of a weight lie, for a runtime that maps files by itself."""

    path: Path
    #: With ``nbytes``: in bytes.
    offset: int
    nbytes: int


class Extent(msgspec.Struct, frozen=True):
    """The bytes of a weight as a range of an open file, for what copies them by descriptor."""

    #: Open as long as the extent is kept.
    fd: int
    offset: int
    nbytes: int
    file: OpenedFile
    #: Raises WeightsChanged unless the file is still what was opened; to be called after the bytes were taken.
    check: Callable[[], None]
    #: What the bytes are known to have, or empty.
    digest: str = ""


class Ranges(msgspec.Struct, frozen=True):
    """Bytes that are put together range by range, where ``view`` would need memory for all of them."""

    nbytes: int
    #: Fills its second argument with the bytes from its first on; raises WeightsChanged, EOFError.
    read: Callable[[int, memoryview], None]

    def digest(self) -> str:
        """BLAKE3 of all bytes, in hexadecimal."""
        hasher = blake3()
        buffer = memoryview(bytearray(min(self.nbytes, _BLOCK)))
        for begin in range(0, self.nbytes, _BLOCK):
            piece = buffer[: self.nbytes - begin]
            self.read(begin, piece)
            hasher.update(piece)
        return hasher.hexdigest()


class Ways(msgspec.Struct, frozen=True):
    """The ways to the bytes of one weight, for one look: whoever takes one has told ``Source.expose`` before."""

    #: The bytes, read-only, aligned to the item size; the view stays valid however the source ends.
    view: Callable[[], memoryview]
    #: Whether it reads them into new memory, which a stream would rather reuse.
    copies: bool = False
    #: The bytes as a range of an open file, or None where ``view`` is the only way to them.
    extent: Callable[[], Extent | None] = lambda: None
    #: The bytes range by range, where ``view`` would put all of them together in memory; else None.
    ranges: Callable[[], Ranges | None] = lambda: None
    #: Writable bytes of which nobody else sees what is written, where that costs less than a copy of the view.
    own: Callable[[], memoryview] | None = None

    def private(self) -> memoryview:
        """The bytes, writable; what is written is seen by nobody else."""
        return memoryview(bytearray(self.view())) if self.own is None else self.own()

    def fill(self, out: memoryview) -> None:
        """Copy the bytes to ``out``, which has room for exactly these, through no other memory where that can be."""
        extent, ranges = self.extent(), self.ranges()
        if extent is None:
            if ranges is not None:
                ranges.read(0, out)
            else:
                out[:] = self.view()
            return
        try:
            fsio.pread_into(extent.fd, extent.offset, out)
        except EOFError as error:
            raise WeightsChanged(f"{extent.file.path}: became shorter while it was read") from error
        extent.check()  # a file that was written to meanwhile is not the one that was opened


class Source:
    """Base of all sources. ``name`` is the name within the source, ``tensor`` its type and place.

    Only the bytes that ``tensor`` states count: it may be a part of the tensor that the source was opened with.
    """

    def expose(self, name: str, tensor: Tensor, digests: FileDigests | None) -> None:
        """Called before bytes are handed out."""

    def digest(self, name: str, tensor: Tensor, digests: FileDigests | None) -> str:
        """BLAKE3 of the bytes, in hexadecimal; records like ``expose``."""
        return digest_bytes(self.ways(name, tensor).view())

    def ways(self, name: str, tensor: Tensor) -> Ways:
        """How to get at the bytes, for one look."""
        raise NotImplementedError

    def tells_place(self, name: str) -> bool:
        """Whether it may be seen where the bytes lie. Not by a stage: its key says what they are."""
        return True

    def origin(self, name: str) -> Origin | None:
        """Which caller's weight this is: argument path and name there; None for one that no stage was given."""
        return None

    def overlaid_on(self, layout: Layout) -> tuple[str, tuple[str, ...]] | None:
        """The path of an argument and the names over it, where ``layout`` is that whole set with others over it."""
        return None

    def arguments(self) -> tuple[str, ...]:
        """The paths of the arguments of the running stage that the bytes come from."""
        return ()

    def changed(self) -> str | None:
        """The name of a file that was bound and is not what was opened any more."""
        return None

    def state(self) -> bytes:
        """What tells one state of the source from another; for the revision."""
        raise NotImplementedError

    def release(self) -> None:
        """Give back what is held; later exposures raise HandleClosed. Views that were handed out stay valid."""


class OpenedFile(msgspec.Struct, frozen=True, gc=False):
    """A file as it was when its header was read."""

    path: str
    identity: fsio.Identity
    #: With ``header_digest``: of its first bytes (both empty for a file without a header); checked again when bound.
    header_nbytes: int
    header_digest: str
    #: An immutable file of the store, whose times a publication may refresh; its inode and size must stay.
    artifact: bool = False
    #: What the checkpoint states of all its bytes, as ``sha1:<hex>`` or ``md5:<hex>``; ``crc32:members`` where it is a
    #: zip archive that states them of its members; of an object of the store ``blake3:<hex>``; else empty.
    checksum: str = ""

    def same(self, identity: fsio.Identity) -> bool:
        """Whether ``identity`` is this file in the state that was opened."""
        return identity[:3] == self.identity[:3] if self.artifact else identity == self.identity


class _BoundFile:
    """An open file, and one map of all of it that lives as long as somebody uses a view of it.

    One map a file, not one a tensor: each map of Python's holds a descriptor, and a set may have thousands of tensors.
    """

    def __init__(self, file: OpenedFile, *, among_many: bool = False) -> None:
        """among_many: whether the set has so many files that their maps must not keep descriptors."""
        self.file = file
        self._among_many = among_many
        self._map: weakref.ref[mmap] | None = None
        try:
            self.fd = fsio.open_read(file.path)
        except OSError as error:
            raise WeightsChanged(f"{file.path}: can't be opened any more: {error.strerror}") from error
        self.check()
        if file.header_nbytes:
            with self.whole():
                header = fsio.pread_exact(self.fd, 0, file.header_nbytes)
            if digest_bytes(header) != file.header_digest:
                raise self._change_error("its header is another one")

    def check(self) -> None:
        """Raise WeightsChanged unless this is still the file that was opened, in the same state."""
        identity = fsio.identity(self.fd)
        if not self.file.same(identity):
            expected = self.file.identity
            fields = [
                f"{field} expected {old}, found {new}"
                for field, old, new in zip(expected._fields, expected, identity, strict=True)
                if old != new
            ]
            raise self._change_error(", ".join(fields))

    def map(self) -> memoryview:
        """All of the file, read-only."""
        mapping = self._map() if self._map is not None else None
        if mapping is not None:
            return memoryview(mapping)
        if self._among_many:
            return fsio.map_untracked(self.fd, 0, self.file.identity.size)
        with self.whole():
            view = fsio.map_read(self.fd, 0, self.file.identity.size)
        if isinstance(view.obj, mmap):
            self._map = weakref.ref(view.obj)
        return view

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Let what the body raises where the file became shorter after ``check`` be WeightsChanged."""
        try:
            yield
        except (EOFError, ValueError) as error:  # ValueError: of a map, which begins with a look at the size
            raise self._change_error(str(error)) from error

    def _change_error(self, detail: str) -> WeightsChanged:
        return WeightsChanged(f"{self.file.path}: changed after it was opened ({detail}); open the weights again")

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        fd = getattr(self, "fd", None)
        if fd is not None:
            try:  # noqa: SIM105 - where Python ends, this module's names are gone before what it made
                close(fd)
            except OSError:
                pass  # it was read only: nothing is lost


class FileSource(Source):
    """Tensors in files, bound when first used.

    read_access: copy bytes into memory with ``pread`` instead of mapping them.
    """

    def __init__(self, files: tuple[OpenedFile, ...], *, read_access: bool = False) -> None:
        self._files = files
        self._read_access = read_access
        self._many = len(files) > _MANY
        self._bound: dict[int, _BoundFile] | None = {}
        self._lock = threading.Lock()

    @property
    def files(self) -> tuple[OpenedFile, ...]:
        """The files in the order of ``Tensor.file``."""
        return self._files

    def expose(self, name: str, tensor: Tensor, digests: FileDigests | None) -> None:
        self._bind(name, tensor)

    def digest(self, name: str, tensor: Tensor, digests: FileDigests | None) -> str:
        bound = self._bind(name, tensor)
        with bound.whole():
            digest = self._stated_digest(tensor) or (digests or FileDigests()).of_extent(
                bound.fd, tensor.offset, tensor.nbytes
            )
        bound.check()  # bytes that changed while they were hashed are not the weight that was opened
        return digest

    def ways(self, name: str, tensor: Tensor) -> Ways:
        copies = self._read_access or not _is_aligned(tensor)
        return Ways(
            lambda: self._view(name, tensor),
            copies,
            lambda: self._extent(name, tensor),
            own=None if copies or tensor.nbytes == 0 else lambda: self._private(name, tensor),
        )

    def _view(self, name: str, tensor: Tensor) -> memoryview:
        bound = self._bind(name, tensor)
        if self._read_access:
            with bound.whole():
                data = fsio.pread_exact(bound.fd, tensor.offset, tensor.nbytes)
            bound.check()
            return memoryview(data)
        if tensor.nbytes == 0:
            return memoryview(b"")
        with self._lock:
            view = bound.map()[tensor.offset : tensor.offset + tensor.nbytes]
        return view if _is_aligned(tensor) else memoryview(bytes(view))

    def _private(self, name: str, tensor: Tensor) -> memoryview:
        bound = self._bind(name, tensor)
        try:
            with bound.whole():
                return fsio.map_private(bound.fd, tensor.offset, tensor.nbytes)
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
            # Before Python 3.13 a map holds a descriptor, and a process may have too few for thousands of them.
            return memoryview(bytearray(self._view(name, tensor)))

    def _extent(self, name: str, tensor: Tensor) -> Extent:
        bound = self._bind(name, tensor)
        return Extent(bound.fd, tensor.offset, tensor.nbytes, bound.file, bound.check, self._stated_digest(tensor))

    def changed(self) -> str | None:
        for bound in list((self._bound or {}).values()):
            file = bound.file
            try:
                now = fsio.identity(file.path)
            except OSError:
                return file.path
            if not file.same(now) or not file.same(fsio.identity(bound.fd)):
                return file.path
        return None

    def state(self) -> bytes:
        return repr([tuple(file.identity) for file in self._files]).encode()

    def release(self) -> None:
        with self._lock:
            self._bound = None

    def _bind(self, name: str, tensor: Tensor) -> _BoundFile:
        if self._bound is not None and tensor.file not in self._bound:
            self._provide(name, tensor.file)
        with self._lock:
            if self._bound is None:
                raise HandleClosed(f"weight {name!r}: its set was released; open the weights again")
            bound = self._bound.get(tensor.file)
            if bound is None:
                bound = _BoundFile(self._file(name, tensor.file), among_many=self._many)
                if bound.file.artifact and len(self._bound) >= _MANY:
                    # One file a tensor: keeping thousands open would use up the descriptors. It is bound again by name.
                    del self._bound[next(iter(self._bound))]
                self._bound[tensor.file] = bound
            else:
                bound.check()
            return bound

    def _stated_digest(self, tensor: Tensor) -> str:
        """The digest that is known without a look at the bytes, or empty."""
        return ""

    def _provide(self, name: str, number: int) -> None:
        """Called before a file is opened, by several threads at once: what takes long holds up nobody else."""

    def _file(self, name: str, number: int) -> OpenedFile:
        """A file that is about to be opened. name: of the weight that is wanted."""
        return self._files[number]


def _is_aligned(tensor: Tensor) -> bool:
    return tensor.offset % SIZES[tensor.dtype] == 0


class Buffer(msgspec.Struct, frozen=True):
    """Bytes in memory, read-only."""

    view: memoryview
    #: Whether nobody can change them, so that a digest may be remembered.
    fixed: bool


class MemorySource(Source):
    """Bytes in the caller's memory, by reference. A digest is taken anew each time, unless the bytes are fixed."""

    def __init__(self, buffers: Mapping[str, Buffer]) -> None:
        self._buffers: Mapping[str, Buffer] | None = buffers
        self._digests: dict[tuple[str, int, int], str] = {}
        self._token = os.urandom(16)

    def expose(self, name: str, tensor: Tensor, digests: FileDigests | None) -> None:
        self._buffer(name)

    def digest(self, name: str, tensor: Tensor, digests: FileDigests | None) -> str:
        fixed = self._buffer(name).fixed
        place = (name, tensor.offset, tensor.nbytes)
        known = self._digests.get(place)
        if known is not None:
            return known
        digest = super().digest(name, tensor, digests)
        if fixed:
            self._digests[place] = digest
        return digest

    def ways(self, name: str, tensor: Tensor) -> Ways:
        return Ways(lambda: self._buffer(name).view[tensor.offset : tensor.offset + tensor.nbytes])

    def state(self) -> bytes:
        return self._token

    def release(self) -> None:
        self._buffers = None

    def _buffer(self, name: str) -> Buffer:
        if self._buffers is None:
            raise HandleClosed(f"weight {name!r}: its set was released")
        return self._buffers[name]


class PlaceholderSource(Source):
    """No bytes at all."""

    def __init__(self, stage: str) -> None:
        self._stage = stage

    def expose(self, name: str, tensor: Tensor, digests: FileDigests | None) -> None:
        self._refuse(name)

    def ways(self, name: str, tensor: Tensor) -> Ways:
        return Ways(lambda: self._refuse(name))

    def state(self) -> bytes:
        return b"placeholders"

    def _refuse(self, name: str) -> NoReturn:
        stage = f" of stage {self._stage!r}" if self._stage else ""
        raise WeightReadError(
            f"weight {name!r}{stage} is a placeholder without bytes. Pass it to the compiled program by name; or, if "
            "its value decides what is compiled, read it from the stage's own weight set instead of .placeholders(), "
            "and the result will depend on its content"
        )
