"""The object store: immutable files named by their content, each content once.

    objects/ab/<64 hex>      an artifact, or a tensor of owned weights; ``ab`` begins its BLAKE3-256; mode 0444
    trees/<64 hex>/...       folders put together from objects (see trees.py)
    tmp/stage-<pid>-<hex>    being written; becomes an object by one rename

No object is ever written in place: a damaged one is removed, or replaced by a rename. ``flock`` on the folder
``objects/ab`` orders what looks and reuses (shared) against what adds and removes (exclusive), so that ``gc`` can't
remove an object that somebody found in place and is about to refer to, or was handed (see leases.py).

**Trust.** Hashing 500 GB at each use is no choice, so an object is sealed when it is published: its mtime gets the
nanoseconds ``SEAL_NS``, which a later write through any name replaces by the clock's, and its ctime, which nobody can
set back, stays near to it. A sealed file of the right size of ``HASHED_BELOW`` bytes or more holds what its name says;
what is smaller is hashed, unless its digest is remembered for its state (hashing.py), and so is a larger one without a
seal (of an older cachec, restored or copied, linked once more, on a file system that keeps no nanoseconds). What gets a
seal was hashed as it was stored. ``verify`` believes no seal.
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
from typing import TYPE_CHECKING

from cachec.base import fsio
from cachec.base.bounded_dict import BoundedDict
from cachec.base.hashing import FileDigests, digest_bytes, digest_extent
from cachec.errors import StoreFault
from cachec.model import ArtifactRef, Fault
from cachec.store.leases import LeasedArtifacts, Leases
from cachec.store.store_size import disk_bytes

if TYPE_CHECKING:  # for folders, and for what is written in pieces
    from cachec.store.object_writer import ObjectWriter
    from cachec.store.trees import Trees

#: A reused object gets a new mtime when its old one is older than this; the grace period of ``gc`` must be longer.
REFRESH_SECONDS = 300.0

#: The nanoseconds of the mtime of what is sealed: on no grid of a coarser clock, so there nothing is taken for sealed.
SEAL_NS = 618_033_989

#: The ctime of what is sealed is this near to its mtime: a write whose times were set back leaves a later one, and so
#: do a restored copy and a new hard link, which are hashed once and remembered. Long enough to sync and rename.
SEAL_SLACK_NS = 10 * 10**9

#: Bytes below which a seal is not enough: to hash fewer costs as little as to ask what is remembered.
HASHED_BELOW = 1 << 16

#: A damaged file that is so much larger than it should be is not hashed: one with holes would take hours.
_EXCESS = 1 << 30

MODE = 0o444

#: What ``verify`` says of an object that is not there.
GONE = "it is gone"

_DIGEST = r"[0-9a-f]{64}"
#: The name of a folder of objects, of locks, of memos.
SHARD = r"[0-9a-f]{2}"
_SECOND = 10**9
#: Paths remembered in memory; all are forgotten when there are more.
_PATHS_MAX = 8192
#: New objects that are known as such: more than a result has, but for rare ones, whose rest waits for a ``gc``.
_FRESH_MAX = 4096


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
        self.fsync = fsync
        self._paths: dict[str, tuple[str, Path]] = {}  # to stat one as text takes half as long
        self.leases = leases or Leases(self.root.with_name("leases"))
        self._written = 0
        self._written_lock = threading.Lock()
        #: Objects that this process made of late and nobody in it has asked for since.
        self._fresh: BoundedDict[bool] = BoundedDict(_FRESH_MAX)

    def leasing(self) -> Objects:
        """The same objects for one user, whose leases are its own: they end with ``release``, or with the user."""
        return Objects(self.root, self.tmp, self.digests, fsync=self.fsync, leases=Leases(self.leases.folder))

    # --- adding

    def add_bytes(self, data: bytes | bytearray | memoryview) -> ArtifactRef:
        """Store these bytes."""
        ref = ArtifactRef(digest_bytes(data), memoryview(data).nbytes)
        if not (os.path.lexists(self.place(ref.digest)) and self.has(ref)):
            with fsio.faults(f"storing object {ref.digest}"), self.new_staging() as staged:
                staged.write(memoryview(data))
                if not isinstance(data, bytes):  # whose memory it is may have changed it: what was stored counts
                    ref = ArtifactRef(digest_extent(staged.fd, 0, ref.size), ref.size)
                self.publish(staged, ref)
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
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ValueError(f"{os.fspath(path)} is no regular file; only the content of files is stored")
        with fsio.closing(fsio.open_read(path)) as source:
            for _ in range(3):
                before = fsio.identity(source)
                with self.staging() as writer:
                    writer.copy(source)
                    if fsio.identity(source) == before:
                        return writer.commit()
        raise StoreFault(Fault.IO_ERROR, f"{os.fspath(path)} kept changing while it was stored; wait for its writer")

    def receive(self, ref: ArtifactRef, pieces: Iterable[bytes]) -> bool:
        """Store what somebody else sent as ``ref``; whether it is that. Nothing is stored, and no byte beyond its size
        asked for, where it is not.
        """
        remaining = ref.size
        with self.staging() as writer:
            for piece in pieces:
                remaining -= len(piece)
                if remaining < 0:
                    return False
                writer.write(piece)
            if writer.ref() != ref:
                return False
            writer.commit()
        return True

    def staging(self) -> ObjectWriter:
        """A new object to write piece by piece; leaving the ``with`` block without ``commit`` forgets it."""
        from cachec.store.object_writer import ObjectWriter

        return ObjectWriter(self)

    def new_staging(self) -> fsio.Staging:
        """A file for the content of a new object, for who hashes it by other means. Raises OSError."""
        try:
            return fsio.Staging(self.tmp)
        except FileNotFoundError:
            fsio.make_dir(self.tmp)
            return fsio.Staging(self.tmp)

    def publish(self, staged: fsio.Staging, ref: ArtifactRef) -> None:
        """Seal a staged file, whose content is known to be that of ``ref``, and give it its final name; unless the
        object is there already, for its file may be mapped.
        """
        with fsio.faults(f"storing object {ref.digest}"):
            fsio.make_inner_dir(self._folder(ref.digest))
            with self._lock_folder(ref.digest, exclusive=True):
                if self._reuse(ref):
                    return
                self.leases.take((ref.digest,), strict=True)
                seal(staged.fd, time.time_ns())
                staged.commit(self.place(ref.digest), mode=MODE, fsync=self.fsync)
                self._fresh.put(ref.digest, True)
        self.count(ref.size)

    def discard(self, refs: Iterable[ArtifactRef]) -> None:
        """Remove objects that were added for a result which is not stored after all: those that were not there before,
        and that nobody has had since. Raises StoreFault.

        What another process was handed, published and gave up again in between is removed with them: its entry is a
        miss then, and heals.
        """
        for ref in refs:
            with fsio.faults(f"removing object {ref.digest}"), contextlib.suppress(FileNotFoundError):
                with self._lock_folder(ref.digest, exclusive=True):
                    if not self._fresh.get(ref.digest) or self.leases.is_leased_by_others(ref.digest):
                        continue
                    self._fresh.drop(ref.digest)
                    os.unlink(self.place(ref.digest))
                self.leases.forget(ref.digest)
                with self._written_lock:
                    self._written -= disk_bytes(ref.size)

    def has(self, ref: ArtifactRef) -> bool:
        """Whether the object is there, whole. It is leased then, and recent enough for ``gc`` to leave it alone."""
        try:
            with self._lock_folder(ref.digest, exclusive=False):
                return self._reuse(ref)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise fsio.fault(error, f"reusing object {ref.digest}") from error

    @property
    def trees(self) -> Trees:
        """The folders put together from these artifacts. Made anew: kept, it would hold what holds it."""
        from cachec.store.trees import Trees

        return Trees(self.root.with_name("trees"), self.tmp, self.is_whole, self.path, self.leases, self.count)

    def release(self) -> None:
        """Give up all leases: paths that were handed out may vanish from now on, and are leased anew when asked for."""
        self._paths.clear()
        self._fresh = BoundedDict(_FRESH_MAX)
        self.leases.release()

    def take_written_bytes(self) -> int:
        """Bytes on disk that this process has added since the last call."""
        with self._written_lock:
            written, self._written = self._written, 0
        return written

    def count(self, size: int) -> None:
        """Count a file of so many bytes as added."""
        with self._written_lock:
            self._written += disk_bytes(size)

    def _reuse(self, ref: ArtifactRef) -> bool:
        """``has``, with the folder locked."""
        self._fresh.drop(ref.digest)
        text = self.place(ref.digest)
        try:
            if not self.is_whole(text, ref):
                return False
            self.leases.take((ref.digest,), strict=True)
            if time.time() - os.lstat(text).st_mtime > REFRESH_SECONDS:
                with contextlib.suppress(PermissionError):  # another user's, in a shared store: the lease has to do
                    seal(text, time.time_ns())
        except FileNotFoundError:
            return False
        return True

    # --- trust

    def is_whole(self, path: str | os.PathLike[str], ref: ArtifactRef, *, may_seal: bool = True) -> bool:
        """Whether a file of the store is ``ref``, by the rule above. Raises OSError.

        may_seal: False for a question, which writes nothing.
        """
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size != ref.size:
            return False
        is_large = ref.size >= HASHED_BELOW
        if is_large and is_sealed(status):
            return True
        if (self.digests.remembered(status) or self.digests.of_path(path)) != ref.digest:
            return False
        if is_large and may_seal and status.st_mtime_ns % _SECOND != SEAL_NS:
            try:
                seal(path, time.time_ns())
            except OSError as error:  # a store that is only read stays as it is
                if not fsio.is_unwritable(error):
                    raise
        return True

    def verify(self, ref: ArtifactRef) -> str:
        """Hash an object, whatever is known of it: what is wrong, empty where nothing is.

        A damaged one is removed, so that it heals.
        """
        try:
            digest = _hash_file(self.place(ref.digest), ref.size)
        except FileNotFoundError:
            return GONE
        except OSError as error:
            return f"it can't be read: {error.strerror}"
        if digest == ref.digest:
            return ""
        self._refusal(ref.digest, ref.size)
        return f"its bytes have the digest {digest}" if digest else f"it is no regular file of {ref.size} bytes"

    # --- reading

    def path(self, ref: ArtifactRef, *, lease: bool = True) -> Path:
        """Where an artifact is, by the rule above.

        lease: False for who holds a lease on what refers to it, such as a revision of weights. Raises StoreFault
        ARTIFACT_MISSING, or ARTIFACT_CORRUPT once the damaged file is removed so that it heals.
        """
        try:
            text, path = self._paths.get(ref.digest) or self._first_use(ref.digest, lease)
            if self.is_whole(text, ref):
                return path
        except FileNotFoundError as error:
            self._paths.pop(ref.digest, None)
            self.leases.forget(ref.digest)
            raise StoreFault(Fault.ARTIFACT_MISSING, f"object {ref.digest} ({ref.size} bytes) is gone") from error
        except OSError as error:
            raise fsio.fault(error, f"reading object {ref.digest}") from error
        raise self._refusal(ref.digest, ref.size)

    def check(self, ref: ArtifactRef) -> None:
        """Raise as ``path`` does where an artifact is not there or not whole. Nothing is leased, removed or healed."""
        try:
            if self.is_whole(self.place(ref.digest), ref, may_seal=False):
                return
        except FileNotFoundError as error:
            raise StoreFault(Fault.ARTIFACT_MISSING, f"object {ref.digest} ({ref.size} bytes) is gone") from error
        except OSError as error:
            raise fsio.fault(error, f"reading object {ref.digest}") from error
        raise StoreFault(Fault.ARTIFACT_CORRUPT, f"object {ref.digest} does not hold {ref.size} bytes of that digest")

    def read(self, ref: ArtifactRef) -> bytes:
        """The content of an artifact, checked against its digest; raises as ``path`` does."""
        data = self._content(ref.digest, ref.size)
        if data is None:
            raise StoreFault(Fault.ARTIFACT_MISSING, f"object {ref.digest} ({ref.size} bytes) is gone")
        return data

    def content(self, digest: str) -> bytes | None:
        """The content of the object of that digest, checked; None where there is none."""
        return self._content(digest, None) if re.match(_DIGEST, digest) else None

    def _content(self, digest: str, size: int | None) -> bytes | None:
        """The same; size: what it has to be, where that is known. What fits into no memory is not tried."""
        try:
            with fsio.closing(fsio.open_read(self.place(digest), os.O_NOFOLLOW)) as fd:
                found = os.fstat(fd).st_size
                if size not in {None, found}:
                    raise self._refusal(digest, size)
                if found > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
                    raise StoreFault(Fault.ARTIFACT_CORRUPT, f"object {digest} has {found} bytes, more than the memory")
                data = fsio.pread_exact(fd, 0, found)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in {errno.EINVAL, errno.ELOOP}:  # no regular file
                raise self._refusal(digest, size) from error
            raise fsio.fault(error, f"reading object {digest}") from error
        except EOFError:
            data = b""
        if digest_bytes(data) != digest:
            raise self._refusal(digest, size)
        return data

    def tree(
        self,
        files: Mapping[str, tuple[ArtifactRef, bool]],
        links: Mapping[str, str] | None = None,
        folders: Collection[str] = (),
    ) -> Path:
        """The immutable folder of these files (relative path -> content, executable), links and folders; see trees."""
        return self.trees.tree(files, links, folders)

    def _first_use(self, digest: str, lease: bool) -> tuple[str, Path]:
        self._fresh.drop(digest)
        if lease and not self.leases.holds(digest):
            with self._lock_folder(digest, exclusive=False):
                self.leases.take((digest,))
        if len(self._paths) >= _PATHS_MAX:
            self._paths.clear()
        text = self.place(digest)
        place = self._paths[digest] = text, Path(text)
        return place

    def _refusal(self, digest: str, size: int | None) -> StoreFault:
        """ARTIFACT_CORRUPT, once the damaged file is removed, if it still is one and may be removed."""
        text = self.place(digest)
        self._paths.pop(digest, None)
        detail = f"object {digest} does not hold what its name says"
        try:
            with self._lock_folder(digest, exclusive=True):
                if _hash_file(text, size) != digest:
                    os.unlink(text)
                    detail += "; removed"
        except FileNotFoundError:
            pass  # another process removed it first
        except OSError as error:
            detail += f"; it can't be removed: {error}"
        return StoreFault(Fault.ARTIFACT_CORRUPT, detail)

    # --- maintenance

    def iterate(self) -> Iterator[tuple[ArtifactRef, float]]:
        """All objects, by their names (unchecked), each with its mtime in Unix time."""
        with fsio.faults(f"listing {self._root}"):
            for shard in fsio.names_in(self._root, SHARD):
                folder = os.path.join(self._root, shard)
                for name in fsio.names_in(folder, _DIGEST):
                    if not name.startswith(shard):
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        status = os.lstat(f"{folder}/{name}")
                        yield ArtifactRef(name, status.st_size), status.st_mtime

    def remove_unleased(self, digests: Collection[str], leased: LeasedArtifacts) -> list[tuple[str, os.stat_result]]:
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
            leased.refresh()
            for digest in digests:
                if digest in leased:
                    continue
                self._paths.pop(digest, None)
                with contextlib.suppress(FileNotFoundError):
                    status = os.lstat(self.place(digest))
                    os.unlink(self.place(digest))
                    removed.append((digest, status))
        return removed

    def _folder(self, digest: str) -> str:
        return f"{self._root}/{digest[:2]}"

    def place(self, digest: str) -> str:
        """Where the object of that digest is, or would be."""
        return f"{self._root}/{digest[:2]}/{digest}"

    def _lock_folder(self, digest: str, *, exclusive: bool) -> contextlib.AbstractContextManager[None]:
        """The folder of an object, locked. Raises FileNotFoundError where there is none."""
        return fsio.folder_locked(self._folder(digest), exclusive=exclusive)


def is_sealed(found: os.stat_result) -> bool:
    """Whether a file has the seal of its publication, and nothing but that happened to it then or since."""
    return found.st_mtime_ns % _SECOND == SEAL_NS and abs(found.st_ctime_ns - found.st_mtime_ns) <= SEAL_SLACK_NS


def seal(file: int | str | os.PathLike[str], time_ns: int) -> None:
    """Give a file the mtime of a seal: the last one that is not after ``time_ns``, a Unix time. Raises OSError."""
    mtime = (time_ns - SEAL_NS) // _SECOND * _SECOND + SEAL_NS
    os.utime(file, ns=(mtime, mtime))


def _hash_file(path: str, size: int | None) -> str:
    """The digest of a file, read anew; empty for what is no regular file, or a far larger one. Raises OSError."""
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode) or (size is not None and status.st_size > size + _EXCESS):
        return ""
    with fsio.closing(fsio.open_read(path, os.O_NOFOLLOW)) as fd:
        try:
            return digest_extent(fd, 0, os.fstat(fd).st_size)
        except EOFError as error:  # cut off meanwhile
            raise OSError(errno.EIO, f"shorter than it says: {error}", path) from error
