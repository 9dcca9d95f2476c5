"""Owned weights in remotes. A tensor is a blob, by content, and so is the list of tensors; a name is a row.

    row   by the digest of namespace and name: ``cachec weights 2``, a newline, digest and signature, ``NamedRevision``
          as JSON (as a node of the trie, nodes.py). The one kind of row that may be replaced.
    blob  the manifest, ``RevisionManifest`` as JSON
    blobs the tensors

What a fine-tune shares with what is there already goes neither way, and what broke off goes on where it was. Nothing
that comes is believed: the row is signed if anybody is trusted, the manifest and each tensor have the digests that the
row and the manifest say, and the name stands for the weights only when all of them are here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import file_digest, sha256
from time import monotonic
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from cachec.base import fsio
from cachec.base.display_text import to_type
from cachec.base.hashing import Hasher, digest_bytes
from cachec.errors import StoreFault, UsageError, WeightError
from cachec.model import ArtifactRef, Digest, Fault, from_json
from cachec.remote.chain import Remote
from cachec.remote.engines.base import RemoteBlob
from cachec.remote.nodes import signed_row, trusted_body
from cachec.store.objects import Objects
from cachec.weights.library.revisions import RevisionContents, RevisionRecord, check_name, checked_record
from cachec.weights.library.stored_weights import Revision, WeightStore

T = TypeVar("T")
U = TypeVar("U")

VERSION = 1
_MAGIC = b"cachec weights 2\n"
#: Bytes of a manifest: a line of JSON a tensor.
_MAX_MANIFEST = 1 << 28
#: Blobs that travel at once.
_PARALLEL = 4
#: Seconds for a row; for a blob, which gets more by its size: one slower than this, in bytes a second, is given up.
_ROW_SECONDS, _BLOB_SECONDS, _SLOWEST = 30.0, 60.0, 1 << 20

#: Called with bytes done and bytes in all.
Progress = Callable[[int, int], None]


class RevisionManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a revision consists of."""

    version: int
    record: RevisionRecord
    #: Of each tensor by its digest, as servers of Bazel's know no other.
    sha256: dict[Digest, Digest]


class NamedRevision(msgspec.Struct, frozen=True, kw_only=True):
    """What a name stands for in a remote."""

    version: int
    namespace: str
    name: str
    revision: Digest
    #: With ``size``, ``sha256``: of its manifest.
    manifest: Digest
    size: Annotated[int, msgspec.Meta(ge=0, le=_MAX_MANIFEST)]
    sha256: Digest
    #: Unix time in seconds.
    created: float


class TransferCount(NamedTuple):
    """What came of a push or a pull."""

    revision: Digest
    #: With ``nbytes``: of the revision, each object once.
    tensors: int
    nbytes: int
    #: With ``moved_nbytes``: of them, what was not there.
    moved: int
    moved_nbytes: int


class RemoteRevision(NamedTuple):
    """What a name stands for in a remote."""

    revision: Digest
    contents: RevisionContents
    #: The SHA-256 of tensors by their digests, as far as it is stated.
    sums: Mapping[Digest, Digest]


class RemoteWeights:
    """The owned weights of a store, and those of one remote. Raises StoreFault where the remote fails."""

    def __init__(self, remote: Remote, store: WeightStore) -> None:
        self._remote = remote
        self._store = store

    def push(
        self, revision: Revision, name: str, *, replace: bool = False, progress: Progress | None = None
    ) -> TransferCount:
        """Send what the remote does not have of a revision, and let ``name`` stand for it there.

        replace: also where it stands for another. Raises UsageError where it does, or the weights are in place.
        """
        check_name(name)
        if not revision.owned:
            raise UsageError(
                f"{revision.name!r} is noted in place, so its bytes are not in the store; own them first: "
                + to_type(f"weights add SOURCE {name} --own --replace")
            )
        before, is_there = self._present_name(name, replace=replace)
        if before is not None and before.revision != revision.id and not replace:
            raise UsageError(
                f"{name!r} stands for revision {before.revision[:12]} at {self._remote.address.shown}, not for "
                f"{revision.id[:12]}; push under another name, or with --replace"
            )
        weights = self._store.open(revision.id)  # an open set is not swept
        with weights:
            contents = self._store.contents(revision.id)
            blobs = list(_each(self._blob_of, contents.refs))
            moved = self._carry(blobs, self._send, progress)
            manifest = msgspec.json.encode(
                RevisionManifest(
                    version=VERSION,
                    record=contents.record,
                    sha256={blob.digest: blob.sha256 for blob in blobs},
                )
            )
            self._name(name, revision.id, self._send_manifest(manifest), is_new=not is_there)
        return TransferCount(revision.id, len(blobs), sum(blob.size for blob in blobs), *moved)

    def pull(
        self, name: str, to: str, *, replace: bool = False, progress: Progress | None = None
    ) -> TransferCount | None:
        """Fetch what the store does not have of the revision that ``name`` stands for, and name it ``to`` here.

        None where the remote has no such name. replace: also where ``to`` stands for others. Raises UsageError where it
        does, OSError.
        """
        check_name(name)
        check_name(to)
        named = self._fetch_named(name)
        if named is None:
            return None
        if not replace:
            self._store.check_free((to,), named.revision)
        contents, sums = self._manifest(named)
        objects = self._store.objects.leasing()
        try:
            blobs = [RemoteBlob(ref.digest, ref.size, sums.get(ref.digest, "")) for ref in contents.refs]

            def receive(blob: RemoteBlob) -> bool:
                ref = ArtifactRef(blob.digest, blob.size)
                objects.leases.take((ref.digest,))
                if objects.has(ref):
                    return False
                self.receive(blob, objects, name)
                return True

            moved = self._carry(blobs, receive, progress)
            self._store.adopt(contents, (to,), self._remote.address.shown)
        finally:
            objects.release()
        return TransferCount(named.revision, len(blobs), sum(blob.size for blob in blobs), *moved)

    def find(self, name: str) -> RemoteRevision | None:
        """Return the checked revision of ``name``, without its tensors; None if the remote has no such name."""
        check_name(name)
        named = self._fetch_named(name)
        return None if named is None else RemoteRevision(named.revision, *self._manifest(named))

    def receive(self, blob: RemoteBlob, objects: Objects, name: str) -> None:
        """Store a tensor of the weights ``name``, once it was found to be what its digest says."""
        pieces = self._remote.engine.get_blob(blob, monotonic() + longest(blob.size))
        if pieces is None or not objects.receive(ArtifactRef(blob.digest, blob.size), pieces):
            why = "gone" if pieces is None else "not what its name says"
            raise StoreFault(Fault.REMOTE_CORRUPT, f"tensor {blob.digest[:12]} of {name!r} is {why}")

    # --- one remote

    def _row_name(self, name: str) -> Digest:
        hasher = Hasher("remote-weights")
        parts = ("form", _MAGIC.decode()), ("namespace", self._remote.address.namespace), ("name", name)
        for label, value in parts:
            hasher.part(label, value.encode())
        return hasher.digest()

    def _present_name(self, name: str, *, replace: bool) -> tuple[NamedRevision | None, bool]:
        """Return the revision of a name, and whether there is a row, even an unusable one, which may be replaced."""
        try:
            named = self._fetch_named(name)
        except StoreFault as fault:
            if not replace or fault.fault not in {Fault.REMOTE_CORRUPT, Fault.REMOTE_UNTRUSTED}:
                raise
            return None, True
        return named, named is not None

    def _fetch_named(self, name: str) -> NamedRevision | None:
        row_name = self._row_name(name)
        row = self._remote.engine.get_row(row_name, monotonic() + _ROW_SECONDS)
        if row is None:
            return None
        body = trusted_body(_MAGIC, row, row_name, self._remote.address.trust)
        named = from_json(body, NamedRevision, _corrupt(f"row {row_name[:12]}"), "is malformed")
        if (named.version, named.namespace, named.name) != (VERSION, self._remote.address.namespace, name):
            raise StoreFault(Fault.REMOTE_CORRUPT, f"row {row_name[:12]} is that of {named.name!r}")
        return named

    def _name(self, name: str, revision: Digest, manifest: RemoteBlob, *, is_new: bool) -> None:
        named = NamedRevision(
            version=VERSION,
            namespace=self._remote.address.namespace,
            name=name,
            revision=revision,
            manifest=manifest.digest,
            size=manifest.size,
            sha256=manifest.sha256,
            created=time.time(),
        )
        row = signed_row(_MAGIC, msgspec.json.encode(named), self._remote.address.trust)
        until = monotonic() + _ROW_SECONDS
        if not self._remote.engine.put_row(self._row_name(name), row, (manifest,), until, replace=not is_new):
            raise StoreFault(Fault.REMOTE_REFUSED, f"somebody else pushed {name!r} meanwhile; push again")

    def _manifest(self, named: NamedRevision) -> tuple[RevisionContents, dict[Digest, Digest]]:
        """What a revision consists of, checked against its number."""
        blob = RemoteBlob(named.manifest, named.size, named.sha256)
        body = bytearray()
        for piece in self._remote.engine.get_blob(blob, monotonic() + longest(blob.size)) or ():
            body += piece
            if len(body) > blob.size:
                break
        refused = _corrupt(f"the manifest of {named.name!r}")
        if len(body) != blob.size or digest_bytes(body) != blob.digest:
            raise refused("is not what its row says, or gone")
        manifest = from_json(bytes(body), RevisionManifest, refused, "is malformed")
        record = manifest.record
        if manifest.version != VERSION or record.placed or digest_bytes(msgspec.json.encode(record)) != named.revision:
            raise refused("is of another revision")
        try:
            return checked_record(f"{self._remote.address.shown} {named.name}", record), manifest.sha256
        except WeightError as error:
            raise refused(str(error)) from error

    # --- blobs

    def _blob_of(self, ref: ArtifactRef) -> RemoteBlob:
        with fsio.faults("reading weights"), self._store.objects.path(ref).open("rb") as file:
            return RemoteBlob(ref.digest, ref.size, file_digest(file, "sha256").hexdigest())

    def _send(self, blob: RemoteBlob) -> bool:
        until = monotonic() + longest(blob.size)
        if self._remote.engine.has_blob(blob, until):
            return False
        path = self._store.objects.path(ArtifactRef(blob.digest, blob.size))
        with fsio.faults("reading weights"):
            self._remote.engine.put_blob(blob, str(path), until)
        return True

    def _send_manifest(self, body: bytes) -> RemoteBlob:
        blob = RemoteBlob(digest_bytes(body), len(body), sha256(body).hexdigest())
        if len(body) > _MAX_MANIFEST:
            raise UsageError(f"a manifest of {len(body)} bytes; at most {_MAX_MANIFEST} are sent")
        objects = self._store.objects
        with fsio.faults("writing a manifest"):
            fsio.make_dir(objects.tmp)
            with fsio.Staging(objects.tmp) as staged:
                staged.write(body)
                self._remote.engine.put_blob(blob, f"/proc/self/fd/{staged.fd}", monotonic() + longest(blob.size))
        return blob

    def _carry(
        self, blobs: list[RemoteBlob], carry: Callable[[RemoteBlob], bool], progress: Progress | None
    ) -> tuple[int, int]:
        """How many blobs were carried, and their bytes; those that were there already count as done."""
        total, done, count, nbytes = sum(blob.size for blob in blobs), 0, 0, 0
        for blob, moved in zip(blobs, _each(carry, blobs), strict=True):
            done += blob.size
            count += moved
            nbytes += blob.size * moved
            if progress is not None:
                progress(done, total)
        return count, nbytes


def _each(call: Callable[[T], U], given: Iterable[T]) -> Iterator[U]:
    """What ``call`` gives of each, in order; several at once. The first error ends it, and nothing more begins."""
    with ThreadPoolExecutor(_PARALLEL) as pool:
        try:
            yield from pool.map(call, given)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def longest(nbytes: int) -> float:
    """The seconds after which a blob is given up."""
    return _BLOB_SECONDS + nbytes / _SLOWEST


def _corrupt(what: str) -> Callable[[str], StoreFault]:
    return lambda why: StoreFault(Fault.REMOTE_CORRUPT, f"{what} {why}")
