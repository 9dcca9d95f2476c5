"""Whether the files of installed distributions are unchanged, by inotify(7) instead of a check of each file.

A look is a ``stat`` a file; torch has 12,000. Followed are the inode of each file, which hard links and other mounts
lead to as well, and each folder on the way to it. So all is seen that a look would show: a file written to, cut,
touched, renamed, replaced or removed, a folder moved. What inotify does not tell is seen to otherwise:

- A store through a shared map. It takes somebody who has opened the file for writing, and when he lets go of file and
  map, that is told. So a file that was opened since is asked for a read lease, as each is at first: while none is to be
  had, there is somebody, and all files are looked at, as without this.
- What lies outside of the site folder or behind a symbolic link, or is not there, or not on a local file system: such a
  file is looked at each time, and so is the site folder itself.
- What is mounted over a folder of the distribution: the table of mounts is polled (proc(5)).
- Events that the kernel dropped (``max_queued_events``), and those before a fork: nothing is known then.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from cachec.base import fsio
from cachec.base.distributions import Distribution
from cachec.base.fsio import Identity, identity_if_there
from cachec.base.hashing import is_foreign
from cachec.base.mounts import WATCHED_FILESYSTEMS, Mounts
from cachec.key.tools.record_files import Listing

if TYPE_CHECKING:
    from cachec.base.inotify import Inotify  # with ctypes, which no short-lived process needs

#: Looks at all files of a distribution before it is followed: to begin costs as much as four (150 ms for torch).
MIN_LOOKUPS = 3

#: The part of the user's watches that distributions may have in one process.
_SHARE = 8
_MAX_WATCHES = "/proc/sys/fs/inotify/max_user_watches"

#: Files that are held open at once to ask for leases.
_AT_ONCE = 64


class _Tree:
    """One followed distribution. token: another object after each change.

    opened: files that somebody may write to through a map. stale: those to be watched anew. loose: those that have no
    watch, as they were. folders: those on the way to the files, without a link among them.
    """

    def __init__(self, root: str, listing: Listing, mounts: tuple[str, ...]) -> None:
        self.root = root
        self.listing = listing
        self.mounts = mounts
        self.token = object()
        self.opened: set[str] = set()
        self.stale: set[str] = set()
        self.loose: dict[str, Identity | None] = {}
        self.folders: set[str] = set()


class DistributionWatch:
    """Follows the files of distributions, once that pays. Safe among threads; a forked child begins anew."""

    def __init__(self, mounts: Mounts | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._mounts = mounts or Mounts()
        self._clock = clock
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._refused: set[str] = set()
        self._lookup_counts: Counter[str] = Counter()
        self._trees: dict[str, _Tree] = {}
        self._queue: Inotify | None = None
        self._files: dict[int, set[tuple[str, str]]] = {}  # of a watch: distribution and path
        self._folders: set[int] = set()

    def token(self, name: str) -> object | None:
        """The same object as long as nothing happened to the files of a distribution; None where that can't be told."""
        return self.tokens((name,))[0]

    def tokens(self, names: Sequence[str]) -> list[object | None]:
        """The same of some distributions, which takes hardly longer."""
        if self._trees.keys().isdisjoint(names):
            return [None] * len(names)
        with self._own_lock():
            try:
                self._hear()
                states: dict[str, Identity | None] = {}
                return [self._token(name, states) for name in names]
            except OSError:
                self._forget()
                return [None] * len(names)

    def follow(self, distribution: Distribution, listing: Listing) -> None:
        """Be told of what happens to the files of a distribution from now on, if they have been looked at often enough.

        To be called before all of them are looked at again; the first time is not told.
        """
        name = distribution.folder
        with self._own_lock():
            try:
                self._hear()
                tree = self._trees.get(name)
                if tree is not None and tree.listing is listing:
                    self._watch(name, tree, tree.stale)
                    return
                if tree is not None:
                    self._forget()
                self._lookup_counts[name] += 1
                if self._lookup_counts[name] >= MIN_LOOKUPS and name not in self._refused:
                    self._begin(name, distribution, listing)
            except OSError:  # no watch or descriptor is left, or no /proc: looking has to do
                self._refused.add(name)
                self._forget()

    def _token(self, name: str, states: dict[str, Identity | None]) -> object | None:
        """states: of files, as they were found for others just now."""
        tree = self._trees.get(name)
        if tree is None:
            return None
        for path in tree.loose:
            if path not in states:
                states[path] = identity_if_there(path)
        now = {path: states[path] for path in tree.loose}
        if now != tree.loose:
            tree.loose, tree.token = now, object()
        if tree.opened:
            self._ask(tree)
        # What changed just now may change again without another time stamp.
        seconds = self._clock()
        is_settled = all(state is None or fsio.is_settled(state, seconds) for state in now.values())
        return tree.token if is_settled and not tree.opened and name in self._trees else None

    def _begin(self, name: str, distribution: Distribution, listing: Listing) -> None:
        from cachec.base import inotify

        root = distribution.root
        files = [os.path.normpath(os.path.join(root, path)) for path in listing.each_path()]
        tree = _Tree(root, listing, self._mounts.below(root))
        ways = _folders(root, files)
        with open(_MAX_WATCHES, encoding="ascii") as limit:
            available = int(limit.read()) // _SHARE - len(self._files) - len(self._folders)
        if len(ways) + len(files) > available or self._mounts.kind(root) not in WATCHED_FILESYSTEMS:
            self._refused.add(name)
            return
        if self._queue is None:
            self._queue = inotify.Inotify()
            self._queue.poll()
        tree.folders.add(root)
        mask = inotify.IN_MOVE_SELF | inotify.IN_ONLYDIR | inotify.IN_DONT_FOLLOW
        for folder in ways:  # before what is in it: if it moves from now on, that is told
            if os.path.dirname(folder) in tree.folders:
                try:
                    self._folders.add(self._queue.watch(folder, mask))
                except OSError as error:
                    if error.errno in {errno.ENOSPC, errno.ENOMEM}:
                        raise
                else:
                    tree.folders.add(folder)
        for path in (root, distribution.direct_url_path):
            tree.loose[path] = identity_if_there(path)
        self._trees[name] = tree
        self._watch(name, tree, files)

    def _watch(self, name: str, tree: _Tree, paths: Iterable[str]) -> None:
        """Watch files, and see whether anybody writes to them already. Raises OSError where there is no watch."""
        from cachec.base import inotify

        assert self._queue is not None
        mask = inotify.IN_MODIFY | inotify.IN_ATTRIB | inotify.IN_CLOSE_WRITE | inotify.IN_OPEN | inotify.IN_MOVE_SELF
        for path in paths:
            fd = _open_path(path) if os.path.dirname(path) in tree.folders else -1
            try:
                if fd < 0 or not self._is_local(fd, path):
                    tree.loose[path] = identity_if_there(path)
                    continue
                tree.loose.pop(path, None)
                watch = self._queue.watch(f"/proc/self/fd/{fd}", mask)
                self._files.setdefault(watch, set()).add((name, path))
                if not _is_calm(fd, path):
                    tree.opened.add(path)
            finally:
                if fd >= 0:
                    os.close(fd)
        tree.stale = set()

    def _is_local(self, fd: int, path: str) -> bool:
        return self._mounts.kind_of_device(os.fstat(fd).st_dev, path) in WATCHED_FILESYSTEMS

    def _ask(self, tree: _Tree) -> None:
        """Take those files for closed again that a lease is granted on: nobody can write to them."""
        paths = sorted(tree.opened)
        for at in range(0, len(paths), _AT_ONCE):
            opened = {path: _open_path(path) for path in paths[at : at + _AT_ONCE]}
            try:
                tree.opened.difference_update(opened)
                self._hear(own=opened)
                tree.opened.update(path for path, fd in opened.items() if fd >= 0 and not _is_calm(fd, path))
            finally:
                for fd in opened.values():
                    if fd >= 0:
                        os.close(fd)

    def _hear(self, *, own: Collection[str] = ()) -> None:
        """Take note of what happened since the last time. own: files that were opened here, and are asked for next."""
        if self._queue is None:
            return
        is_waiting, is_remounted = self._queue.poll()
        if is_remounted and any(self._mounts.below(each.root) != each.mounts for each in self._trees.values()):
            self._forget()
            return
        if not is_waiting:
            return
        from cachec.base.inotify import IN_IGNORED, IN_OPEN

        for event in self._queue.events():  # also of IN_IGNORED: the inode is gone
            if event.watch < 0 or event.watch in self._folders:  # the queue ran over, or a folder is elsewhere
                self._forget()
                return
            for name, path in self._files.get(event.watch, ()):
                tree = self._trees[name]
                if event.mask != IN_OPEN:
                    tree.token = object()
                    tree.stale.add(path)
                elif path not in own:
                    tree.opened.add(path)
            if event.mask & IN_IGNORED:
                self._files.pop(event.watch, None)

    def _forget(self) -> None:
        """Follow nothing, as at first."""
        if self._queue is not None:
            self._queue.close()
        self._queue = None
        self._trees, self._files, self._folders = {}, {}, set()
        self._lookup_counts.clear()

    def _own_lock(self) -> threading.Lock:
        if self._pid != os.getpid():  # a forked child: the lock may have been held by a thread that is not here
            self._lock, self._pid = threading.Lock(), os.getpid()
            self._forget()
        return self._lock


def _folders(root: str, files: Iterable[str]) -> list[str]:
    """The folders on the way from ``root`` to files, each after the one that it is in."""
    top = os.path.join(root, "")
    found: set[str] = set()
    for path in files:
        folder = os.path.dirname(path)
        while folder not in found and folder.startswith(top):
            found.add(folder)
            folder = os.path.dirname(folder)
    return sorted(found)


def _open_path(path: str) -> int:
    """A descriptor of a file, not of what a link leads to; -1 where there is none to be had."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return -1


def _is_calm(fd: int, path: str) -> bool:
    return fsio.no_writer(fd) or is_foreign(fd, path)
