"""Weights from elsewhere: an identifier is fetched once by the resolver of its scheme, checked, and then owned.

A download goes to ``$CACHEC_DIR/weights/fetched/<32 hex>/``, named by the identifier:

    part          what has arrived; locked by who fetches, continued by the next
    state.json    what the server called the version that ``part`` is of (see the resolver)

A download without progress for a week is removed by the next fetch.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cachec.base import fsio
from cachec.base.entry_points import load_object
from cachec.base.hashing import digest_by, digest_bytes
from cachec.errors import CheckpointError, UsageError, WeightError
from cachec.weights.io.copying import Progress
from cachec.weights.library.http_ranges import HttpResolver
from cachec.weights.library.identifier import Identifier, Resolver
from cachec.weights.library.stored_weights import Revision, WeightStore
from cachec.weights.sets import open_weights

#: The entry-point group under which a package offers a resolver for a scheme.
GROUP = "cachec.resolvers"

#: Seconds without a new byte after which a download is given up.
_FOLDER = re.compile(r"[0-9a-f]{32}")
_ABANDONED = 7 * 86400.0


class Resolvers:
    """Resolvers by scheme."""

    def __init__(self, resolvers: Mapping[str, Resolver], offered: Mapping[str, str] | None = None) -> None:
        """offered: as for ``discovered``."""
        self._resolvers = dict(resolvers)
        self._offered = dict(offered or {})

    @classmethod
    def discover(cls, entry_points: Mapping[str, str]) -> Resolvers:
        """The shipped ones (``http``, ``https``) and those of other packages, which win a scheme.

        entry_points: scheme -> ``module:object`` of the group ``cachec.resolvers``. An object is imported when its
        scheme is first asked for; one that can't be is a PluginError then.
        """
        shipped = HttpResolver()
        return cls({"http": shipped, "https": shipped}, entry_points)

    def of(self, scheme: str) -> Resolver:
        """Return the resolver of a scheme. Raises UsageError for an unknown one, PluginError if the import fails."""
        target = self._offered.get(scheme)
        if target is not None:
            self._resolvers[scheme] = load_object(f"the resolver of {scheme!r}", target, "resolver", Resolver)
            del self._offered[scheme]
        resolver = self._resolvers.get(scheme)
        if resolver is None:
            known = ", ".join(sorted(self._resolvers | self._offered)) or "none"
            raise UsageError(f"no resolver for {scheme!r} (there are: {known}); install the package that offers it")
        return resolver


def resolve(
    store: WeightStore,
    identifiers: str | Sequence[str],
    name: str,
    resolvers: Resolvers,
    *,
    progress: Progress | None = None,
) -> Revision:
    """Own the checkpoint that these identifiers are the files of, under ``name``; fetched only if it is not there yet.

    progress: called with bytes done and bytes in all (0 while unknown), anew for each file and for the copy.

    Raises UsageError (malformed identifier, unknown scheme, name of something else), WeightError (other bytes than the
    identifier states), CheckpointError (no checkpoint), OSError.
    """
    texts = (identifiers,) if isinstance(identifiers, str) else tuple(identifiers)
    wanted = [Identifier.parse(text) for text in texts]
    source = " ".join(texts)
    for revision in store.revisions():
        if revision.name == name:
            if revision.source == source:
                return revision
            raise UsageError(f"{name!r} is the name of weights from {revision.source or 'elsewhere'}; choose another")
        if revision.source == source and revision.owned:
            with store.open(revision.id) as weights:
                return store.add(weights, name, source=source, progress=progress)
    if len({identifier.file for identifier in wanted}) != len(wanted) or not wanted:
        raise UsageError(f"{name!r}: expected files with names of their own, found {[i.file for i in wanted]}")
    with contextlib.ExitStack() as stack:
        paths = [stack.enter_context(fetch_file(store.folder, one, resolvers, progress=progress)) for one in wanted]
        with open_weights(paths[0] if len(paths) == 1 else paths) as weights:
            return store.add(weights, name, source=source, progress=progress)


@contextlib.contextmanager
def fetch_file(
    folder: Path, identifier: Identifier, resolvers: Resolvers, *, progress: Progress | None = None
) -> Iterator[Path]:
    """A file with the bytes of an identifier, checked; removed when the body ends without an exception.

    folder: of the weight store. If the fetch fails, what has arrived stays and is continued; if the body fails, the
    file stays and is not fetched again, unless it is no checkpoint. Raises WeightError where the bytes are others than
    stated; they are removed.
    """
    resolver = resolvers.of(identifier.scheme)
    place = folder / "fetched" / digest_bytes(identifier.text.encode())[:32]
    _remove_abandoned(place.parent, place.name)
    with _lock_download(place / "part") as fd:
        if not _is_whole(identifier, fd):
            resolver.fetch(identifier, fd, place / "state.json", progress)
            _check(identifier, fd, place)
        path = place / identifier.file
        with contextlib.suppress(FileExistsError):
            path.symlink_to("part")  # the suffix may say what format it has
        try:
            yield path
        except CheckpointError:
            _remove(place)  # these are the bytes, and they are no checkpoint: a second look changes nothing
            raise
        _remove(place)


def _remove(place: Path) -> None:
    """Remove the folder of a download. The caller has locked its ``part``.

    It is renamed first, to a name of the same form: who waits for the download makes its files in a folder that is
    new, never in one that is half removed, and what a kill leaves is removed after a week like any other.
    """
    leaving = place.with_name(uuid.uuid4().hex)
    place.rename(leaving)
    shutil.rmtree(leaving)


@contextlib.contextmanager
def _lock_download(part: Path) -> Iterator[int]:
    """The file of a download, made if need be and locked: whoever wants the same waits, and finds it done."""
    while True:
        fsio.make_inner_dir(part.parent)
        try:
            fd = fsio.open_own(part, os.O_RDWR)
        except FileNotFoundError:
            continue  # who had it before removed the folder
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                yield fd
                return
        finally:
            os.close(fd)


def _remove_abandoned(folder: Path, wanted: str) -> None:
    """Remove the downloads that no process fetches and that have not grown for a week, except ``wanted``."""
    for name in fsio.names_in(folder, _FOLDER):
        part = folder / name / "part"
        if name == wanted:
            continue
        try:
            fd = os.open(part, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue  # removed, or another user's
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - os.fstat(fd).st_mtime > _ABANDONED and os.fstat(fd).st_nlink:
                _remove(part.parent)
        except (BlockingIOError, FileNotFoundError, PermissionError):
            continue
        finally:
            os.close(fd)


def _is_whole(identifier: Identifier, fd: int) -> bool:
    size = os.fstat(fd).st_size
    return (
        size > 0 and identifier.size in {None, size} and digest_by(identifier.algorithm, fd, size) == identifier.digest
    )


def _check(identifier: Identifier, fd: int, place: Path) -> None:
    size = os.fstat(fd).st_size
    if identifier.size is not None and size != identifier.size:
        _remove(place)
        raise WeightError(f"{identifier.url}: expected {identifier.size} bytes, found {size}; nothing of it was kept")
    digest = digest_by(identifier.algorithm, fd, size)
    if digest != identifier.digest:
        _remove(place)
        raise WeightError(
            f"{identifier.url}: expected {identifier.algorithm} {identifier.digest}, found {digest} of {size} bytes; "
            "nothing was kept"
        )
