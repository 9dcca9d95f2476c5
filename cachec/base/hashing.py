"""Content hashes: a hasher that frames every part itself, and digests of files that are remembered only when safe.

BLAKE3-256 (the BLAKE3 paper, section 2) throughout.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec
from blake3 import blake3

from cachec.base import fsio
from cachec.base.fsio import Identity
from cachec.base.mounts import TRACKED_FILESYSTEMS, Mounts
from cachec.model import MALFORMED_JSON

#: BLAKE3-256 of no bytes, for a missing file.
EMPTY = blake3(b"").hexdigest()

_FRAME = struct.Struct("<IQ")
_SMALL = 4096
_PIECE = 1 << 18
_DIGEST = rb"[0-9a-f]{64}"


def frame(label: str, data: bytes) -> bytes:
    """One part as ``Hasher`` hashes it."""
    name = label.encode()
    return _FRAME.pack(len(name), len(data)) + name + data


class Hasher:
    """BLAKE3 over labelled, length-framed parts.

    Every part is hashed as ``u32 len(label) | u64 len(data) | label | data`` (little-endian), so no two different
    lists of parts feed the same bytes and no caller has a delimiter to remember.
    """

    __slots__ = ("_hasher", "_waiting")

    def __init__(self, domain: str) -> None:
        self._hasher = blake3()
        self._waiting: list[bytes] = []  # small parts are hashed together: a call of the hasher costs more than they do
        self.part("domain", domain.encode())

    def part(self, label: str, data: bytes | memoryview) -> None:
        """Add one part."""
        name = label.encode()
        if type(data) is bytes and len(data) < _SMALL:
            self._waiting.append(_FRAME.pack(len(name), len(data)) + name + data)
            return
        self._waiting += (_FRAME.pack(len(name), len(data)), name)
        self._flush()
        self._hasher.update(data)

    def digest(self) -> str:
        """64 hexadecimal characters over all parts so far."""
        self._flush()
        return self._hasher.hexdigest()

    def _flush(self) -> None:
        if self._waiting:
            self._hasher.update(b"".join(self._waiting))
            self._waiting.clear()


def digest_bytes(data: bytes | bytearray | memoryview) -> str:
    """BLAKE3-256 of a buffer, in hexadecimal."""
    return blake3(data).hexdigest()


def digest_by(algorithm: str, fd: int, nbytes: int, progress: Callable[[int], None] | None = None) -> str:
    """The digest of the first bytes of an open file, in hexadecimal. Raises EOFError on a short file.

    algorithm: ``blake3``, or one of hashlib. progress: called with the bytes done.
    """
    import hashlib  # for what others stated alone

    hasher = blake3() if algorithm == "blake3" else hashlib.new(algorithm, usedforsecurity=False)
    done = 0
    for chunk in fsio.pread_chunks(fd, 0, nbytes):
        hasher.update(chunk)
        done += len(chunk)
        if progress is not None:
            progress(done)
    return hasher.hexdigest()


def digest_extent(fd: int, offset: int, nbytes: int) -> str:
    """BLAKE3-256 of a range of an open file, read with ``pread`` in bounded memory. Raises EOFError on a short file."""
    hasher = blake3()
    buffer = memoryview(bytearray(min(nbytes, _PIECE)))  # one for all: pages of a new one cost as much as the read
    end = offset + nbytes
    while offset < end:
        piece = buffer[: end - offset]
        fsio.pread_into(fd, offset, piece)
        hasher.update(piece)
        offset += len(piece)
    return hasher.hexdigest()


#: Bytes from which a file of a tool is hashed by one process at a time, of those that could take the first one's word.
ALONE_BYTES = 1 << 24

#: Given what a row is called: a context in which no other process computes it, and after which it is written.
Alone = Callable[[str], AbstractContextManager[None]]

#: Digests of ranges of files (offset, length) in a state that is remembered.
Known = dict[tuple[tuple[int, ...], int, int], str]


class DigestMemory(Protocol):
    """Where digests are remembered between processes: a small byte-string table. Either call may forget."""

    def recall(self, name: str) -> bytes | None:
        """The bytes last put under ``name``, or None."""

    def remember(self, name: str, value: bytes) -> None:
        """Keep ``value`` under ``name``; failing to is no error."""


class _MemoizedDigest(msgspec.Struct, frozen=True, array_like=True):
    identity: tuple[int, int, int, int, int]
    digest: str


class FileDigests:
    """Digests of files, or of ranges of files, taken safely and remembered only where a later write would show.

    A digest is remembered when it was read between two equal ``fstat``s of the held descriptor, no writer or writable
    map existed (a read lease was granted), the last change was over two seconds ago, and the file system marks every
    write. Anywhere else it is computed again at each call.
    """

    def __init__(
        self,
        memory: DigestMemory | None = None,
        mounts: Mounts | None = None,
        known: Known | None = None,
        alone: Alone | None = None,
    ) -> None:
        """known: what this process remembers, where that is shared with others that come after this one. alone: for
        large files of tools."""
        self._alone = alone
        self._memory = memory
        self._mounts = mounts or Mounts()
        self._known: Known = {} if known is None else known

    def of_path(self, path: str | os.PathLike[str]) -> str:
        """The digest of a whole file. Raises OSError where it can't be read."""
        return self._of_path(path, fsio.no_writer)

    def remembered(self, status: os.stat_result) -> str | None:
        """The digest of a regular file in that state, where this process remembers it."""
        size = status.st_size
        # Equal to its Identity, and made in half the time.
        state = (status.st_dev, status.st_ino, size, status.st_mtime_ns, status.st_ctime_ns)
        return self._known.get((state, 0, size))

    def of_installed(self, path: str | os.PathLike[str]) -> str:
        """The digest of a file of an installed tool: ``of_path``, also remembered where it is foreign."""
        return self._of_path(path, lambda fd: fsio.no_writer(fd) or is_foreign(fd, path), self._alone)

    def of_all(self, states: Mapping[str, Identity], paths: Mapping[str, str]) -> str:
        """One digest of files of a tool, by name and content, remembered in one row where that of each may be.

        states: what ``fsio.identity`` told of them now. Raises OSError as ``of_installed``.
        """
        text = repr([(name, *state) for name, state in states.items()]).encode()
        row = f"digest:all:{digest_bytes(text)}"
        now = time.time()
        if self._memory is not None and all(fsio.is_settled(state, now) for state in states.values()):
            known = self._memory.recall(row) or b""
            if re.fullmatch(_DIGEST, known):
                return known.decode()
        hasher = Hasher("files")
        for name in states:
            hasher.part(name, self.of_installed(paths[name]).encode())
        digest = hasher.digest()
        if self._memory is not None and all((state, 0, state.size) in self._known for state in states.values()):
            self._memory.remember(row, digest.encode())
        return digest

    def _of_path(self, path: str | os.PathLike[str], is_calm: Callable[[int], bool], alone: Alone | None = None) -> str:
        identity = fsio.identity(path)
        size = identity.size
        known = self._known.get((identity, 0, size))
        if known is not None:
            return known
        if alone is not None and size >= ALONE_BYTES and fsio.is_settled(identity):
            known = self._recall(identity, 0, size)
            if known is not None:
                return known
            with alone(row_name(identity, 0, size)):
                return self._of_path(path, is_calm)
        fd = fsio.open_read(path)
        try:
            size = os.fstat(fd).st_size
            if not size and os.pread(fd, 1, 0):
                raise OSError(errno.EINVAL, "a file that does not tell its size (as in /proc)", os.fspath(path))
            return self._of_extent(fd, 0, size, is_calm)
        except EOFError as error:  # cut during the reading, or generated by the kernel (as in /sys)
            raise OSError(errno.EIO, f"shorter than it says: {error}", os.fspath(path)) from error
        finally:
            os.close(fd)

    @property
    def memory(self) -> DigestMemory | None:
        """What is remembered between processes, for facts about content (which need no trust in a file)."""
        return self._memory

    def of_extent(self, fd: int, offset: int, nbytes: int) -> str:
        """The digest of ``nbytes`` bytes of an open file from ``offset``. Raises EOFError where it is shorter.

        A file that changes while it is read is read again, up to three times; the last digest is then returned, as
        the bytes that were seen, and not remembered.
        """
        return self._of_extent(fd, offset, nbytes, fsio.no_writer)

    def _of_extent(self, fd: int, offset: int, nbytes: int, is_calm: Callable[[int], bool]) -> str:
        before = fsio.identity(fd)
        known = self._recall(before, offset, nbytes)
        if known is not None:
            return known
        digest = EMPTY
        for _ in range(3):
            calm = is_calm(fd)
            digest = digest_extent(fd, offset, nbytes)
            after = fsio.identity(fd)
            if after == before:
                if calm and is_calm(fd) and self.trusts(fd, after):
                    self._keep(after, offset, nbytes, digest)
                break
            before = after
        return digest

    def trusts(self, fd: int, identity: Identity) -> bool:
        """Whether a write after this moment would change the file's identity."""
        return fsio.is_settled(identity) and self._mounts.kind_of_device(identity.dev, f"/proc/self/fd/{fd}") in (
            TRACKED_FILESYSTEMS
        )

    def _recall(self, identity: Identity, offset: int, nbytes: int) -> str | None:
        known = self._known.get((identity, offset, nbytes))
        if known is not None or self._memory is None or not fsio.is_settled(identity):
            return known  # one that changed just now was never remembered
        row = self._memory.recall(row_name(identity, offset, nbytes))
        if row is None:
            return None
        try:
            memoized = msgspec.json.decode(row, type=_MemoizedDigest)
        except MALFORMED_JSON:
            return None  # a damaged memory only costs the time to hash again
        if memoized.identity != tuple(identity):
            return None
        self._known[identity, offset, nbytes] = memoized.digest
        return memoized.digest

    def _keep(self, identity: Identity, offset: int, nbytes: int, digest: str) -> None:
        self._known[identity, offset, nbytes] = digest
        if self._memory is not None:
            row = msgspec.json.encode(_MemoizedDigest((*identity,), digest))
            self._memory.remember(row_name(identity, offset, nbytes), row)


def is_foreign(fd: int, path: str | os.PathLike[str]) -> bool:
    """Whether the file of an installed tool is somebody else's, and not to be written here.

    A plain user gets no lease on root's libraries. Where this process may not write a file and another owner holds it,
    only that owner could have it mapped for writing: an installer replaces files, it does not do that.
    """
    return os.fstat(fd).st_uid != os.geteuid() and not os.access(path, os.W_OK, effective_ids=True)


def row_name(identity: Identity, offset: int, nbytes: int) -> str:
    """The name under which the digest of a range of a file is remembered."""
    return f"digest:{identity.dev}:{identity.ino}:{offset}:{nbytes}"
