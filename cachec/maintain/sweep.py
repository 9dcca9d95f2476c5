"""What nothing needs any more beside objects: the remains of killed processes, trees, revisions, damaged databases."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

from cachec.base import file_ownership, fsio
from cachec.errors import StoreFault, WeightError
from cachec.model import Digest, Fault
from cachec.store.leases import LeasedArtifacts
from cachec.store.locks import Locks
from cachec.store.objects import REFRESH_SECONDS, SHARD
from cachec.store.store import Store
from cachec.store.trees import discard
from cachec.weights.library.revisions import Swept
from cachec.weights.library.stored_weights import WeightStore

#: Seconds that what nothing refers to is left alone. Longer than an object may go without a new mtime when it is used
#: again; processes that lease what they publish would need none.
GRACE_SECONDS = 3600.0
assert GRACE_SECONDS > REFRESH_SECONDS

#: The same for a database that was moved aside, and for what has arrived of a download.
LONG_SECONDS = 7 * 86400.0

#: After so long a memo of a command line is made again, if that is still used.
MEMO_SECONDS = 30 * 86400.0

#: The row that a memo rests on; see launcher/direct.py for the format.
_MEMO_OF = re.compile(rb"\0(\d+:entry:[^\0]+)\0")

#: Bytes of a memo: far more than the launcher writes.
_MAX_MEMO = 1 << 26

#: A database that was moved aside, and the folder of a repair that was killed (store/index.py); a download's folder.
_MOVED = re.compile(r"corrupt-\d+")
_REPAIR = re.compile(r"index\.new-corrupt-\d+.*")
_FETCHED = re.compile(r"[0-9a-f]{32}")

_DIGEST = re.compile(r"[0-9a-f]{64}")
_OWN = re.compile(r"(?:stage|tree)-(\d+)-[0-9a-f]{16}")


class Sweep:
    """Finds and removes what is left over. removed: what was, or with ``dry_run`` would be, by kind.

    Each method can be interrupted and run again. An error of one file is told to ``on_fault``, and the rest goes on.
    """

    def __init__(
        self, store: Store, held: LeasedArtifacts, now: float, on_fault: Callable[[Fault, str], None], *, dry_run: bool
    ) -> None:
        self._store = store
        self._held = held
        self._now = now
        self._on_fault = on_fault
        self._dry_run = dry_run
        self.removed: Counter[str] = Counter()

    def run(
        self, entries: Collection[str], needed_trees: Collection[Digest], unneeded: Collection[Digest] | None = None
    ) -> None:
        """Everything. entries: names of the rows of those that stay, as the index's file has them. needed_trees: those
        that they lead to. unneeded: see ``trees``."""
        self.trees(needed_trees, unneeded)
        self.staging()
        self.databases()
        self.locks()
        self.memos(entries)
        self.downloads()

    def trees(self, needed: Collection[Digest], unneeded: Collection[Digest] | None = None) -> None:
        """Trees that no entry leads to and nobody holds.

        unneeded: None where all entries are known. Entries of other versions may lead to a tree too: then only these
        go, and those that are old; a hit makes a tree again.
        """
        for name, made in self._store.objects.trees.iterate():
            if name in needed or name in self._held:
                continue
            if unneeded is None or name in unneeded or self._now - made > LONG_SECONDS:
                self._try("trees", partial(self._store.objects.trees.remove, name, self._held))

    def staging(self) -> None:
        """What killed processes left in ``tmp``."""
        for path in _list_files(self._store.folder / "tmp", _OWN):
            if self._is_old(path, GRACE_SECONDS) and not _is_alive(int(path.name.split("-")[1])):
                self._try("unfinished files", partial(discard, path))

    def databases(self) -> None:
        """Databases that were found corrupt and moved aside, and folders of a repair that was killed."""
        folder = Path(os.path.realpath(self._store.folder))
        for path in (*_list_files(folder / "index", _MOVED), *_list_files(folder, _REPAIR)):
            if self._is_old(path, LONG_SECONDS):
                self._try("damaged databases", partial(discard, path))

    def locks(self) -> None:
        """Lock files of killed processes."""
        locks = self._store.locks
        for folder in _list_files(locks.folder, SHARD):
            for path in _list_files(folder, _DIGEST):
                if self._is_old(path, GRACE_SECONDS):
                    self._try("lock files", partial(_unlock, locks, path.name))

    def memos(self, entries: Collection[str]) -> None:
        """Memos of command lines whose entry is gone, and old ones. Without one a hit takes the whole road once."""
        here = b"\0" + os.fsencode(self._store.folder) + b"\0"
        for folder in _list_files(self._store.folder / "direct", SHARD):
            for path in _list_files(folder, _DIGEST):
                if not self._is_old(path, GRACE_SECONDS):
                    continue
                if self._is_old(path, MEMO_SECONDS) or _lacks_entry(path, here, entries):
                    self._try("memos", partial(discard, path))

    def downloads(self) -> None:
        """What has arrived of weights that nobody fetches any more."""
        for folder in _list_files(self._store.folder / "weights" / "fetched", _FETCHED):
            part = folder / "part"
            if self._is_old(part if part.exists() else folder, LONG_SECONDS) and fsio.is_abandoned(part):
                self._try("unfinished downloads", partial(discard, folder))

    def revisions(self, weights: WeightStore) -> Swept:
        """Revisions of weights that no name stands for, and nobody holds: before what the others need is asked."""
        if self._dry_run:
            return Swept()
        try:
            with fsio.faults(f"sweeping {weights.folder}"):
                swept = weights.sweep(self._held)
        except WeightError as error:  # a name that can't be read: which revisions are needed is not known
            self._on_fault(Fault.IO_ERROR, str(error))
            return Swept()
        except StoreFault as fault:
            self._on_fault(fault.fault, fault.detail)
            return Swept()
        self.removed["revisions"] += len(swept.removed)
        return swept

    def _try(self, kind: str, remove: Callable[[], object]) -> None:
        if self._dry_run:
            self.removed[kind] += 1
            return
        try:
            with fsio.faults(f"removing {kind}"):
                done = remove()
        except StoreFault as fault:
            self._on_fault(fault.fault, fault.detail)
            return
        self.removed[kind] += done is not False

    def _is_old(self, path: Path, seconds: float) -> bool:
        """Whether nothing in it changed for so long; a time ahead of the clock is no age at all."""
        try:
            status = path.lstat()
        except FileNotFoundError:
            return False
        newest = status.st_mtime
        if stat.S_ISDIR(status.st_mode):
            with contextlib.suppress(OSError):
                newest = max([newest, *(entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(path))])
        return self._now - newest > seconds


def _list_files(folder: Path, form: str | re.Pattern[str]) -> Iterator[Path]:
    return (folder / name for name in fsio.names_in(folder, form))


def _lacks_entry(path: Path, here: bytes, entries: Collection[str]) -> bool:
    """Whether a memo rests on an entry of this store that is gone. It may be about another store."""
    try:
        data = file_ownership.read_regular(path, _MAX_MEMO)
    except OSError:
        return False  # gone meanwhile, or no file of ours
    match = _MEMO_OF.search(data)
    return match is not None and here in data and os.fsdecode(match[1]) not in entries


def _is_alive(pid: int) -> bool:
    """Whether a process of that number runs here. In another container it may; then age alone decides."""
    return os.path.exists(f"/proc/{pid}")


def _unlock(locks: Locks, key: str) -> bool:
    """Remove the lock file of a key that nobody holds; whether nobody does."""
    lock = locks.of(key)
    if not lock.try_acquire():
        return False
    lock.release()
    return True
