"""An object that is written in pieces, or copied from an open file, before the store has it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import TracebackType
from typing import Protocol

from blake3 import blake3

from cachec.base import fsio
from cachec.model import ArtifactRef

_COPY_CHUNK = 1 << 26
#: What ``copy_file_range`` says where it can't serve these two files; they are then copied by hand.
_NO_KERNEL_COPY = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})


class ObjectFolder(Protocol):
    """Where an object goes; ``objects.Objects`` is one."""

    tmp: Path

    def new_staging(self) -> fsio.Staging: ...

    def publish(self, staged: fsio.Staging, ref: ArtifactRef) -> None: ...


class ObjectWriter:
    """An object in the making."""

    def __init__(self, objects: ObjectFolder) -> None:
        self._objects = objects
        self._hasher = blake3()
        self._size = 0
        with fsio.faults(f"staging in {objects.tmp}"):
            self._staged = objects.new_staging()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append ``data``."""
        view = memoryview(data).cast("B")
        with fsio.faults("storing an object"):
            self._staged.write(view)
        self._hasher.update(view)
        self._size += view.nbytes

    def copy(self, source: int) -> None:
        """Append the whole content of an open file. Only as the first call: what was stored is then hashed."""
        if self._size:
            raise ValueError("copy() must come first")
        offset = 0
        with fsio.faults("storing an object"):
            while True:
                try:
                    done = os.copy_file_range(source, self._staged.fd, _COPY_CHUNK, offset)
                except OSError as error:
                    if offset or error.errno not in _NO_KERNEL_COPY:
                        raise
                    self._copy_by_hand(source)
                    return
                if not done:
                    break
                offset += done
            self._size = os.fstat(self._staged.fd).st_size
            if self._size == 0 and os.fstat(source).st_size:
                self._copy_by_hand(source)  # procfs and its like say nothing is there to copy
                return
            for chunk in fsio.pread_chunks(self._staged.fd, 0, self._size):
                self._hasher.update(chunk)

    def _copy_by_hand(self, source: int) -> None:
        offset = 0
        while chunk := os.pread(source, _COPY_CHUNK, offset):
            self.write(chunk)
            offset += len(chunk)

    def ref(self) -> ArtifactRef:
        """What the object is so far."""
        return ArtifactRef(self._hasher.hexdigest(), self._size)

    def commit(self) -> ArtifactRef:
        """Publish the object and say what it is."""
        ref = self.ref()
        self._objects.publish(self._staged, ref)
        self._staged.discard()
        return ref

    def __enter__(self) -> ObjectWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._staged.discard()
