"""Brings the bytes of weights into side files of the store, each content once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from cachec.base import fsio
from cachec.base.hashing import digest_bytes
from cachec.errors import WeightsChanged
from cachec.weights.library.sidefiles import MODE, SEAL_NS, holds
from cachec.weights.moving.copying import Copied, Copier, source_of
from cachec.weights.sources import Extent
from cachec.weights.weight import Weight

_FOLDER = re.compile(r"[0-9a-f]{2}")
_NAME = re.compile(r"[0-9a-f]{64}")


class Intake:
    """One addition of weights. To be used by one thread, while the folder of the store is locked against sweeps."""

    def __init__(
        self,
        tensors: Path,
        tmp: Path,
        copier: Copier,
        *,
        fsync: bool,
        check: Callable[[str, str], None] | None = None,
    ) -> None:
        """check: called with name and digest of each weight before anything of it is copied; raises to refuse it."""
        # As text: thousands of paths are made of them.
        self._tensors = os.fspath(tensors)
        self._tmp = os.fspath(tmp)
        self._copier = copier
        self._fsync = fsync
        self._check = check
        # Listed once: asking for each of thousands of small tensors takes longer than copying it.
        listed = [(name, found.st_size) for _, name, found in side_files(tensors)]
        self._there = {name for name, _ in listed}
        self._sizes = {size for _, size in listed}
        self._folders = {name[:2] for name in self._there}

    def own(self, weight: Weight) -> str:
        """The digest of a weight, once its side file is there. Raises OSError, WeightsChanged."""
        source, nbytes = source_of(weight), weight.nbytes
        stated = source.digest if isinstance(source, Extent) else ""
        if not stated:
            data = self._copier.load(source)
            if data is not None:
                return self._own_small(weight, data)
        known = stated
        if not known and (self._check is not None or nbytes in self._sizes):
            known = self._copier.hash(source)  # cheaper than a copy that is thrown away
        if self._is_there(weight, known, nbytes):
            return known
        return self._own_copied(weight, source, stated)

    def _own_small(self, weight: Weight, data: memoryview) -> str:
        digest = digest_bytes(data)
        if not self._is_there(weight, digest, data.nbytes):
            with fsio.Staging(self._tmp) as staged:
                staged.write(data)
                self._publish(staged, digest, data.nbytes)
            self._copier.skip(data.nbytes)
        return digest

    def _own_copied(self, weight: Weight, source: Copied, stated: str) -> str:
        with fsio.Staging(self._tmp) as staged:
            taken = self._copier.copy(source, staged.fd)
            digest = taken.result() if taken is not None else stated
            if stated and digest != stated:
                raise WeightsChanged(
                    f"weight {weight.name!r}: its bytes expected the digest {stated}, found {digest}: damaged"
                )
            self._publish(staged, digest, source.nbytes)
        return digest

    def _is_there(self, weight: Weight, digest: str, nbytes: int) -> bool:
        """Whether the side file is there already, and nothing is left to do. digest: empty where it is not known."""
        if self._check is not None:
            self._check(weight.name, digest)
        if digest not in self._there or not _holds(self._path(digest), digest, nbytes):
            return False
        self._copier.skip(nbytes)
        return True

    def _publish(self, staged: fsio.Staging, digest: str, nbytes: int) -> None:
        path = self._path(digest)
        folder = os.path.dirname(path)
        if digest[:2] not in self._folders:
            fsio.make_dir(folder)
            self._folders.add(digest[:2])
        with fsio.folder_locked(folder, exclusive=True):
            if not _holds(path, digest, nbytes):  # else another process was faster; its file may be mapped already
                os.utime(staged.fd, ns=(SEAL_NS, SEAL_NS))
                staged.commit(path, mode=MODE, fsync=self._fsync)
        self._there.add(digest)  # but not its size: weights of one model have the same size, and other bytes

    def _path(self, digest: str) -> str:
        return f"{self._tensors}/{digest[:2]}/{digest}"


def side_files(tensors: Path) -> Iterator[tuple[str, str, os.stat_result]]:
    """Path, name and state of every side file in the folder ``tensors``, which need not be there.

    What else somebody put there is none of ours, and is passed over.
    """
    try:
        folders = sorted(folder for folder in os.listdir(tensors) if _FOLDER.fullmatch(folder))
    except FileNotFoundError:
        return
    for folder in folders:
        with os.scandir(tensors / folder) as entries:
            for entry in entries:
                if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    yield entry.path, entry.name, entry.stat(follow_symlinks=False)


def _holds(path: str, digest: str, nbytes: int) -> bool:
    try:
        return holds(path, digest, nbytes)
    except FileNotFoundError:
        return False
