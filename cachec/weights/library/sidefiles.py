"""Side files: the bytes of one tensor each, row-major and little-endian, in an immutable file named by their BLAKE3.

A side file starts on a page, as every file does, and has mode 0444.

**Trust.** Rehashing 500 GB at each use is no choice, so a side file carries a seal: once written it gets one fixed
mtime, and any later write through its name would change that. A sealed file of the right size is taken to hold what its
name says; any other (restored from a backup without its times, say) is hashed when first used, and sealed again or
refused. ``verify`` hashes all of them, and breaks the seal of what is damaged: then uses raise, and the next ``add``
repairs it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cachec.base import fsio
from cachec.base.hashing import FileDigests, digest_extent
from cachec.errors import WeightsChanged
from cachec.weights.library.revisions import Use
from cachec.weights.sources import Extent, FileSource, OpenedFile
from cachec.weights.tensor import Tensor

#: The mtime of every side file: 2000-01-01 00:00:00 UTC, a whole even second, which every file system can keep.
SEAL_NS = 946_684_800 * 10**9
MODE = 0o444


class OwnedSource(FileSource):
    """The side files of one revision, opened when used, a bounded number of them at a time.

    The digest of a whole weight is the name of its file; a part of one is hashed.
    """

    def __init__(self, tensors: Path, revision: str, digests: tuple[tuple[str, int], ...], use: Use) -> None:
        super().__init__(())
        self._many = True
        self._tensors = tensors
        self._revision = revision
        self._owned = digests
        self._use = use
        self._checked: dict[int, fsio.Identity] = {}

    def digest(self, name: str, tensor: Tensor, digests: FileDigests | None) -> str:
        self._bind(name, tensor)
        return self._stated(tensor) or super().digest(name, tensor, digests)

    def extent(self, name: str, tensor: Tensor) -> Extent | None:
        bound = self._bind(name, tensor)
        return Extent(bound.fd, tensor.offset, tensor.nbytes, bound.file, bound.check, self._stated(tensor))

    def state(self) -> bytes:
        return f"owned:{self._revision}".encode()

    def release(self) -> None:
        super().release()
        self._use.close()

    def _stated(self, tensor: Tensor) -> str:
        digest, nbytes = self._owned[tensor.file]
        return digest if (tensor.offset, tensor.nbytes) == (0, nbytes) else ""

    def _file(self, name: str, number: int) -> OpenedFile:
        digest, nbytes = self._owned[number]
        path = self._tensors / digest[:2] / digest
        try:
            found = fsio.identity(path)
            # Binding again what had to be hashed, and can't be sealed by this user, must not hash it again.
            whole = self._checked.get(number) == found or holds(path, digest, nbytes)
            found = fsio.identity(path)
        except FileNotFoundError:
            raise WeightsChanged(f"weight {name!r}: its side file {path} is gone; add the weights again") from None
        if not whole:
            raise WeightsChanged(
                f"weight {name!r}: its side file {path} does not hold the {nbytes} bytes that its name says; add the "
                "weights again"
            )
        self._checked[number] = found
        return OpenedFile(str(path), found, 0, "", artifact=True, checksum=f"blake3:{digest}")


def holds(path: str | os.PathLike[str], digest: str, nbytes: int) -> bool:
    """Whether a side file is what its name says: sealed and of that size, or, without a seal, hashed and sealed.

    Raises FileNotFoundError.
    """
    found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode) or found.st_size != nbytes:
        return False
    if found.st_mtime_ns == SEAL_NS:
        return True
    if digest_of(path) != digest:
        return False
    stamp(path, SEAL_NS)
    return True


def stamp(path: str | os.PathLike[str], mtime_ns: int) -> None:
    """Set or break the seal, where this process may: a store that is only read stays as it is."""
    try:
        os.utime(path, ns=(mtime_ns, mtime_ns))
    except OSError as error:
        if not fsio.is_unwritable(error):
            raise


def digest_of(path: str | os.PathLike[str]) -> str:
    """BLAKE3 of a file, read anew. Raises OSError."""
    fd = fsio.open_read(path)
    try:
        return digest_extent(fd, 0, os.fstat(fd).st_size)
    finally:
        os.close(fd)
