"""A folder that machines share (NFS, or a layer of a container's image).

    r/ab/<64 hex>    rows, ``ab`` begins the name        b/ab/<64 hex>    blobs        tmp/<32 hex>    being written

The folder itself is never made by a build: where a mount is missing that would be one of the disk below it. A file
gets its name by ``link``, which two writers can't both do, or by ``rename`` where it replaces another; so a
reader finds all of a file or none. Permissions are those of the folder, whatever the umask: what sends was started by
one process, and sends for others.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from cachec.base import file_ownership
from cachec.errors import StoreFault
from cachec.model import Digest, Fault
from cachec.remote.engines.base import CHUNK, MAX_ROW, STALL_SECONDS, RemoteBlob, run_with_deadline

if TYPE_CHECKING:
    from cachec.remote.urls import Address

T = TypeVar("T")

#: Bytes that are read at once: each time by a thread, which costs more than reading a few.
_PIECE = 1 << 20

_FAULTS = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), Fault.REMOTE_REFUSED),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), Fault.REMOTE_FULL),
    **dict.fromkeys((errno.EINVAL, errno.ELOOP, errno.EISDIR, errno.ENOTDIR), Fault.REMOTE_CORRUPT),
}


class SharedFolder:
    """The engine on a folder."""

    def __init__(self, root: str) -> None:
        self._root = root

    def get_row(self, name: Digest, until: float) -> bytes | None:
        """See RemoteEngine."""
        return self._find(lambda: file_ownership.read_regular(self._place("r", name), MAX_ROW), until)

    def put_row(self, name: Digest, row: bytes, blobs: Sequence[RemoteBlob], until: float, *, replace: bool) -> bool:
        """See RemoteEngine."""
        del blobs
        return self._write_file(self._place("r", name), iter((row,)), until, replace=replace)

    def delete_row(self, name: Digest, until: float) -> bool:
        """See RemoteEngine."""
        return self._find(lambda: _remove(self._place("r", name)), until) is not None

    def has_blob(self, blob: RemoteBlob, until: float) -> bool:
        """See RemoteEngine."""
        status = self._find(lambda: os.stat(self._place("b", blob.digest)), until)
        return status is not None and status.st_size == blob.size

    def get_blob(self, blob: RemoteBlob, until: float) -> Iterator[bytes] | None:
        """See RemoteEngine."""
        fd = self._find(lambda: file_ownership.open_read(self._place("b", blob.digest)), until)
        return None if fd is None else self._chunks(fd, until)

    def _chunks(self, fd: int, until: float) -> Iterator[bytes]:
        try:
            while chunk := self._run_bounded(lambda: os.read(fd, _PIECE), min(until, monotonic() + STALL_SECONDS)):
                yield chunk
        finally:
            os.close(fd)

    def put_blob(self, blob: RemoteBlob, path: str, until: float) -> None:
        """See RemoteEngine."""
        with open(path, "rb") as file:
            pieces = iter(lambda: file.read(CHUNK), b"")
            self._write_file(self._place("b", blob.digest), pieces, until, replace=True)

    def close(self) -> None:
        """See RemoteEngine."""

    def is_there(self, until: float) -> bool:
        """Whether there is such a folder. Raises StoreFault."""
        return self._run_bounded(lambda: os.path.isdir(self._root), until)

    def make(self, until: float) -> bool:
        """Make the folder, in one that is there; True. Raises StoreFault."""
        try:
            self._run_bounded(lambda: os.mkdir(self._root), until)
        except FileNotFoundError as error:
            words = f"{self._root}: neither it nor the folder above it is there: not mounted?"
            raise StoreFault(Fault.REMOTE_UNREACHABLE, words) from error
        return True

    def expect_writable(self, until: float) -> None:
        """Raise StoreFault where this user can't write."""
        if not self.is_there(until):
            raise self._missing_folder_fault()
        for place in (self._root, *(f"{self._root}/{kind}" for kind in ("r", "b", "tmp"))):
            if not self._run_bounded(lambda place=place: _is_writable(place), until):  # type: ignore[misc]
                raise StoreFault(Fault.REMOTE_REFUSED, f"{place}: this user can't write there")

    def _place(self, kind: str, name: str) -> str:
        return f"{self._root}/{kind}/{name[:2]}/{name}"

    def _find(self, read: Callable[[], T], until: float) -> T | None:
        """What ``read`` gives; None where the file is not there. Raises StoreFault, also where the folder is not."""

        def found() -> T | None:
            try:
                return read()
            except FileNotFoundError:
                if os.path.isdir(self._root):
                    return None
                raise

        try:
            return self._run_bounded(found, until)
        except FileNotFoundError as error:
            raise self._missing_folder_fault() from error

    def _missing_folder_fault(self) -> StoreFault:
        check = f"cachec remote check {shlex.quote('file://' + quote(self._root))}"
        words = f"{self._root}: the folder is not there: moved, or not mounted? A new one is made by: {check}"
        return StoreFault(Fault.REMOTE_UNREACHABLE, words)

    def _write_file(self, place: str, pieces: Iterator[bytes], until: float, *, replace: bool) -> bool:
        try:
            return self._run_bounded(lambda: self._write(place, pieces, replace), until)
        except FileNotFoundError as error:  # another process cleans up there, or the folder can't exist
            if not self.is_there(until):
                raise self._missing_folder_fault() from error
            raise StoreFault(Fault.REMOTE_UNREACHABLE, f"{self._root}: {error.strerror}") from error

    def _write(self, place: str, pieces: Iterator[bytes], replace: bool) -> bool:
        staged = f"{self._root}/tmp/{os.urandom(16).hex()}"
        mode = os.stat(self._root).st_mode
        folder = os.path.dirname(place)
        for each in (os.path.dirname(folder), folder, os.path.dirname(staged)):  # and not the root
            with contextlib.suppress(FileExistsError):
                os.mkdir(each)
                with contextlib.suppress(OSError):  # a file system without such rights
                    os.chmod(each, mode & 0o2777)
        try:
            with open(staged, "xb") as file:
                file.writelines(pieces)
                with contextlib.suppress(OSError):
                    os.fchmod(file.fileno(), mode & 0o666)
            if replace:
                os.rename(staged, place)
            else:
                os.link(staged, place)
        except FileExistsError:
            return False
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(staged)
        return True

    def _run_bounded(self, call: Callable[[], T], until: float) -> T:
        """What ``call`` gives. Raises FileNotFoundError where the file is not there, StoreFault for all else."""
        try:
            return run_with_deadline(call, until, self._root)
        except FileNotFoundError:
            raise
        except OSError as error:
            fault = _FAULTS.get(error.errno or 0, Fault.REMOTE_UNREACHABLE)
            raise StoreFault(fault, f"{self._root}: {error.strerror}") from error


def at_address(address: Address) -> SharedFolder:
    """The engine on the folder of a URL ``file:///folder``."""
    return SharedFolder(address.path)


def _remove(place: str) -> bool:
    os.unlink(place)
    return True


def _is_writable(place: str) -> bool:
    return not os.path.exists(place) or os.access(place, os.W_OK | os.X_OK)
