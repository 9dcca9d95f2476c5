"""Input of modules from a file or from memory, with bounded reads, and errors that name the byte."""

from __future__ import annotations

import os
from contextlib import suppress
from mmap import mmap

from cachec.errors import CheckpointError, WeightsChanged
from cachec.programs.weight_files import Extent, OpenedFile, identity, map_read, open_read, pread_exact, tell_read

#: A module: the path of a file, or its bytes.
Source = str | os.PathLike[str] | bytes | bytearray | memoryview


#: Bytes that one call reads as a rule; heads of resources are read by the thousand.
_SMALL = 1 << 12


class ModuleInput:
    """A module's bytes; this base holds them in memory."""

    def __init__(self, label: str, data: memoryview) -> None:
        """label: the name of the module in errors."""
        self.label = label
        self._data = data
        self.size = data.nbytes

    def error(self, offset: int, text: str) -> CheckpointError:
        """An error that names the module and the byte."""
        return CheckpointError(f"{self.label}: byte {offset}: {text}")

    def within(self, offset: int, nbytes: int, what: str) -> None:
        """Raise CheckpointError unless ``[offset, offset + nbytes)`` is in the module."""
        if offset + nbytes > self.size:
            raise self.error(
                offset,
                f"{what} expected within the {self.size} bytes of the module, found {nbytes} bytes from here: "
                "it is truncated, or malformed",
            )

    def at(self, offset: int, nbytes: int, what: str) -> bytes:
        """A copy of ``[offset, offset + nbytes)``. Raises CheckpointError where the module has fewer."""
        self.within(offset, nbytes, what)
        return bytes(self._data[offset : offset + nbytes])

    def start(self, offset: int, limit: int) -> bytes:
        """A copy of at most ``limit`` bytes from ``offset``; fewer at the end."""
        return self.at(offset, min(limit, self.size - offset), "the module")

    def view(self) -> memoryview | mmap:
        """All bytes, for searching; nothing is copied."""
        return self._data

    def range(self, offset: int, nbytes: int) -> Extent | memoryview:
        """A range in place, for what copies or maps it."""
        return self._data[offset : offset + nbytes]

    def check(self) -> None:
        """Raise WeightsChanged if the file changed since it was opened."""


class FileInput(ModuleInput):
    """A file that is open as long as this object or a range of it is in use."""

    def __init__(self, path: str) -> None:
        self.fd = open_read(path)
        self._map: mmap | None = None
        self._file = OpenedFile(path, identity(self.fd), 0, "")
        self.label = path
        self.size = self._file.identity.size

    def at(self, offset: int, nbytes: int, what: str) -> bytes:
        self.within(offset, nbytes, what)
        if nbytes <= _SMALL:
            data = os.pread(self.fd, nbytes, offset)
            if len(data) == nbytes:
                return data
        try:
            return pread_exact(self.fd, offset, nbytes)
        except EOFError as error:
            raise WeightsChanged(f"{self.label}: became shorter while it was read") from error

    def view(self) -> memoryview | mmap:
        if self.size == 0:
            return memoryview(b"")
        if self._map is None:
            mapped = map_read(self.fd, 0, self.size).obj
            assert isinstance(mapped, mmap)
            self._map = mapped
        return self._map

    def range(self, offset: int, nbytes: int) -> Extent | memoryview:
        return Extent(self.fd, offset, nbytes, self._file, self.check)

    def check(self) -> None:
        if not self._file.same(identity(self.fd)):
            raise WeightsChanged(f"{self.label}: changed after it was opened; open the module again")

    def __del__(self) -> None:
        fd = getattr(self, "fd", None)
        if fd is not None:
            with suppress(OSError):  # it was read only: nothing is lost
                os.close(fd)


def open_input(source: Source) -> ModuleInput:
    """The module in a file (``str`` and ``PathLike`` are paths) or in memory. Raises OSError."""
    if isinstance(source, str | os.PathLike):
        tell_read([source], like=source)
        return FileInput(os.fspath(source))
    return ModuleInput("the module", memoryview(source).cast("B").toreadonly())
