"""The object store: immutable files named by their content.

    objects/ab/<64 hex>      one artifact; ``ab`` are the first two digits of its BLAKE3-256; mode 0444
    trees/<64 hex>/...       folders put together from objects (see trees.py)
    tmp/stage-<pid>-<hex>    being written; becomes an object by one rename

No object is ever written in place: a damaged one is removed, or replaced by a rename. ``flock`` on the folder
``objects/ab`` orders what adds and reuses (shared) against what removes (exclusive), so that ``gc`` can't remove an
object that somebody found in place and is about to refer to, or was handed (see leases.py).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from blake3 import blake3

from cachec.base import fsio
from cachec.base.hashing import FileDigests, digest_bytes
from cachec.errors import StoreFault
from cachec.model import ArtifactRef, Fault
from cachec.store.leases import Held, Leases
from cachec.store.trees import Trees
from cachec.store.usage import occupied

#: A reused object gets a new mtime when its old one is older than this; the grace period of ``gc`` must be longer.
REFRESH_SECONDS = 300.0

MODE = 0o444

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_COPY_CHUNK = 1 << 26
#: Places remembered in memory; all are forgotten when there are more.
_PLACES_MAX = 8192
#: What ``copy_file_range`` says where it can't serve these two files; they are then copied by hand.
_NO_KERNEL_COPY = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})


class _Place(NamedTuple):
    text: str
    path: Path
    size: int


class Objects:
    """The artifacts in a folder. Every failure of the store is a StoreFault."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        tmp: str | os.PathLike[str],
        digests: FileDigests,
        *,
        fsync: bool = False,
        leases: Leases | None = None,
    ) -> None:
        """root, tmp: on one file system; made when first written. fsync: flush each object and its name.

        leases: where it is noted what this process was handed; by default the folder ``leases`` beside ``root``.
        """
        self.root = Path(root)
        self.tmp = Path(tmp)
        self.digests = digests
        self._root = os.fspath(root)
        self._fsync = fsync
        self._places: dict[str, _Place] = {}
        self.leases = leases or Leases(self.root.with_name("leases"))
        self._written = 0
        self._written_lock = threading.Lock()

    # --- adding

    def add_bytes(self, data: bytes | bytearray | memoryview) -> ArtifactRef:
        """Store these bytes."""
        ref = ArtifactRef(digest_bytes(data), memoryview(data).nbytes)
        if not self._reuse(ref):
            with self.staging() as writer:
                writer.write(data)
                return writer.commit()
        return ref

    def add_pieces(self, pieces: Iterable[memoryview]) -> ArtifactRef:
        """Store these bytes one after another, for what would be too large in memory."""
        with self.staging() as writer:
            for piece in pieces:
                writer.write(piece)
            return writer.commit()

    def add_file(self, path: str | os.PathLike[str]) -> ArtifactRef:
        """Store the content of a regular file: shared with it where the file system can (reflink), else copied.

        The digest is taken of what was stored. Raises the OSError as it is where ``path`` can't be read, ValueError
        where it is no regular file, and StoreFault where it keeps changing while it is copied.
        """
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not block
        try:
            if not stat.S_ISREG(os.fstat(source).st_mode):
                raise ValueError(f"{os.fspath(path)} is no regular file; only the content of files is stored")
            for _ in range(3):
                before = fsio.identity(source)
                with self.staging() as writer:
                    writer.copy(source)
                    if fsio.identity(source) == before:
                        return writer.commit()
        finally:
            os.close(source)
        raise StoreFault(Fault.IO_ERROR, f"{os.fspath(path)} kept changing while it was stored; wait for its writer")

    def staging(self) -> ObjectWriter:
        """A new object to write piece by piece; leaving the ``with`` block without ``commit`` forgets it."""
        return ObjectWriter(self)

    def publish(self, staged: fsio.Staging, ref: ArtifactRef) -> None:
        """Give a staged file its final name, unless the object is there already."""
        with fsio.faults(f"storing object {ref.digest}"):
            if self._reuse(ref):
                return
            with self._shard(ref.digest, exclusive=False, create=True):
                self.leases.take((ref.digest,), strict=True)
                staged.commit(self._path(ref.digest), mode=MODE, fsync=self._fsync)
        self.count(ref.size)

    @property
    def trees(self) -> Trees:
        """The folders put together from these artifacts. Made anew: kept, it would hold what holds it."""
        return Trees(self.root.with_name("trees"), self.tmp, self.digests, self.path, self.leases, self.count)

    def release(self) -> None:
        """Give up all leases: paths that were handed out may vanish from now on, and are leased anew when asked for."""
        self._places.clear()
        self.leases.release()

    def written(self) -> int:
        """Bytes on disk that this process has added since the last call."""
        with self._written_lock:
            written, self._written = self._written, 0
        return written

    def count(self, size: int) -> None:
        """Count a file of so many bytes as added."""
        with self._written_lock:
            self._written += occupied(size)

    def _reuse(self, ref: ArtifactRef) -> bool:
        """Whether the object is there, whole; its mtime is then recent enough for ``gc`` to leave it alone."""
        text = self._path(ref.digest)
        try:
            with self._shard(ref.digest, exclusive=False):
                found = os.lstat(text)
                if not self._is_whole(text, ref, found):
                    return False
                self.leases.take((ref.digest,), strict=True)
                if time.time() - found.st_mtime > REFRESH_SECONDS:
                    os.utime(text)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise fsio.fault(error, f"reusing object {ref.digest}") from error
        return True

    def _is_whole(self, text: str, ref: ArtifactRef, found: os.stat_result) -> bool:
        if not stat.S_ISREG(found.st_mode) or found.st_size != ref.size:
            return False
        try:
            return self.digests.of_path(text) == ref.digest
        except EOFError:
            return False  # cut while it was read

    # --- reading

    def path(self, ref: ArtifactRef) -> Path:
        """Where an artifact is. Its content was checked against its digest since its file last changed.

        Raises StoreFault ARTIFACT_MISSING, or ARTIFACT_CORRUPT once the damaged file is removed so that it heals.
        """
        place = self._places.get(ref.digest)
        try:
            if place is None:
                return self._first_use(ref)
            if place.size == ref.size and self.digests.of_path(place.text) == ref.digest:
                return place.path
        except FileNotFoundError as error:
            self._places.pop(ref.digest, None)
            self.leases.forget(ref.digest)
            raise StoreFault(Fault.ARTIFACT_MISSING, f"object {ref.digest} ({ref.size} bytes) is gone") from error
        except OSError as error:
            raise fsio.fault(error, f"reading object {ref.digest}") from error
        except EOFError:
            pass  # cut while it was read: corrupt, as below
        return self._refuse(ref)

    def check(self, ref: ArtifactRef) -> None:
        """Raise as ``path`` does where an artifact is not there or not whole. Nothing is leased, removed or healed."""
        text = self._path(ref.digest)
        try:
            if self._is_whole(text, ref, os.lstat(text)):
                return
        except FileNotFoundError as error:
            raise StoreFault(Fault.ARTIFACT_MISSING, f"object {ref.digest} ({ref.size} bytes) is gone") from error
        except OSError as error:
            raise fsio.fault(error, f"reading object {ref.digest}") from error
        raise StoreFault(Fault.ARTIFACT_CORRUPT, f"object {ref.digest} does not hold {ref.size} bytes of that digest")

    def read(self, ref: ArtifactRef) -> bytes:
        """The content of an artifact, checked against its digest; raises as ``path`` does."""
        data = self.content(ref.digest)
        if data is None:
            raise StoreFault(Fault.ARTIFACT_MISSING, f"object {ref.digest} ({ref.size} bytes) is gone")
        if len(data) != ref.size:
            self._refuse(ref)
        return data

    def content(self, digest: str) -> bytes | None:
        """The content of the object of that digest, checked; None where there is none."""
        if not _DIGEST.match(digest):
            return None
        try:
            fd = os.open(self._path(digest), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                data = fsio.pread_exact(fd, 0, os.fstat(fd).st_size)
            finally:
                os.close(fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise fsio.fault(error, f"reading object {digest}") from error
        except EOFError:
            data = b""
        if digest_bytes(data) != digest:
            self._refuse(ArtifactRef(digest, len(data)))
        return data

    def tree(
        self,
        files: Mapping[str, tuple[ArtifactRef, bool]],
        links: Mapping[str, str] | None = None,
        folders: Collection[str] = (),
    ) -> Path:
        """The immutable folder of these files (relative path -> content, executable), links and folders; see trees."""
        return self.trees.tree(files, links, folders)

    def _first_use(self, ref: ArtifactRef) -> Path:
        text = self._path(ref.digest)
        if self.leases.holds(ref.digest):
            found = os.lstat(text)
        else:
            with self._shard(ref.digest, exclusive=False):
                self.leases.take((ref.digest,))
                found = os.lstat(text)
        if not self._is_whole(text, ref, found):
            self._refuse(ref)
        if len(self._places) >= _PLACES_MAX:
            self._places.clear()
        place = self._places[ref.digest] = _Place(text, Path(text), ref.size)
        return place.path

    def _refuse(self, ref: ArtifactRef) -> Path:
        """Raise ARTIFACT_CORRUPT, and remove the damaged file, if it still is one and may be removed."""
        text = self._path(ref.digest)
        self._places.pop(ref.digest, None)
        detail = f"object {ref.digest} does not hold the {ref.size} bytes that its name says"
        try:
            with self._shard(ref.digest, exclusive=True):
                if self._digest_at(text) != ref.digest:
                    os.unlink(text)
                    detail += "; removed"
        except FileNotFoundError:
            pass  # another process removed it first
        except OSError as error:
            detail += f"; it can't be removed: {error}"
        raise StoreFault(Fault.ARTIFACT_CORRUPT, detail)

    def _digest_at(self, text: str) -> str | None:
        try:
            if not stat.S_ISREG(os.lstat(text).st_mode):
                return None
            return self.digests.of_path(text)
        except EOFError:
            return None

    # --- maintenance

    def iterate(self) -> Iterator[tuple[ArtifactRef, float]]:
        """All objects, by their names (unchecked), each with its mtime in Unix time."""
        with fsio.faults(f"listing {self._root}"):
            if not os.path.isdir(self._root):
                return
            for shard in sorted(os.listdir(self._root)):
                folder = os.path.join(self._root, shard)
                if len(shard) != 2 or not os.path.isdir(folder):
                    continue
                for name in sorted(os.listdir(folder)):
                    if not _DIGEST.match(name) or not name.startswith(shard):
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        found = os.lstat(os.path.join(folder, name))
                        yield ArtifactRef(name, found.st_size), found.st_mtime

    def remove_unheld(self, digests: Collection[str], held: Held) -> list[tuple[str, os.stat_result]]:
        """Remove the objects of one folder that nobody holds; which, each as it was.

        The leases are read again with the folder locked: nobody can be handed one of these objects meanwhile.
        """
        removed = []
        (shard,) = {digest[:2] for digest in digests}
        with (
            fsio.faults(f"removing objects from {self._root}/{shard}"),
            contextlib.suppress(FileNotFoundError),
            fsio.folder_locked(f"{self._root}/{shard}", exclusive=True),
        ):
            held.look()
            for digest in digests:
                if digest in held:
                    continue
                self._places.pop(digest, None)
                with contextlib.suppress(FileNotFoundError):
                    found = os.lstat(self._path(digest))
                    os.unlink(self._path(digest))
                    removed.append((digest, found))
        return removed

    def remove(self, digest: str, *, unused_since: float | None = None) -> bool:
        """Remove an object; whether it was there. With ``unused_since`` (Unix time) only if its mtime is not newer."""
        if not _DIGEST.match(digest):
            raise ValueError(f"{digest!r} is no digest of an object; it takes 64 hexadecimal characters")
        self._places.pop(digest, None)
        text = self._path(digest)
        try:
            with self._shard(digest, exclusive=True):
                if unused_since is not None and os.lstat(text).st_mtime > unused_since:
                    return False
                os.unlink(text)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise fsio.fault(error, f"removing object {digest}") from error
        return True

    def _path(self, digest: str) -> str:
        return f"{self._root}/{digest[:2]}/{digest}"

    @contextlib.contextmanager
    def _shard(self, digest: str, *, exclusive: bool, create: bool = False) -> Iterator[None]:
        """The folder of an object, locked. Raises FileNotFoundError where there is none and ``create`` is not set."""
        folder = f"{self._root}/{digest[:2]}"
        if create:
            fsio.make_dir(folder)
        with fsio.folder_locked(folder, exclusive=exclusive):
            yield


class ObjectWriter:
    """An object in the making."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._hasher = blake3()
        self._size = 0
        with fsio.faults(f"staging in {objects.tmp}"):
            try:
                self._staged = fsio.Staging(objects.tmp)
            except FileNotFoundError:
                fsio.make_dir(objects.tmp)
                self._staged = fsio.Staging(objects.tmp)

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

    def commit(self) -> ArtifactRef:
        """Publish the object and say what it is."""
        ref = ArtifactRef(self._hasher.hexdigest(), self._size)
        self._objects.publish(self._staged, ref)
        self._staged.discard()
        return ref

    def __enter__(self) -> ObjectWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._staged.discard()
