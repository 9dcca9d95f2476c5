"""Stored folders, put together from artifacts as immutable trees that a stage's ``Dir`` leads to.

    trees/<64 hex>/...       hard links to objects (mode 0444), copies for executables (mode 0555), folders 0555

The digest is over all names, contents, executable bits and link targets. A tree is built in ``tmp``, published by one
rename; each use checks it against its description, and a tree that was meddled with is moved away and built again.
A name comes from a row, so it is validated before anything is made: relative, no empty, ``.`` or ``..`` part, no NUL,
nothing below a file or a link; a link may climb only first (``../../a/b``) and never out of the tree.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import msgspec

from cachec.base import fsio
from cachec.base.hashing import Hasher
from cachec.errors import StoreFault
from cachec.model import ArtifactRef, Fault
from cachec.store.leases import LeasedArtifacts, Leases
from cachec.store.store_size import disk_bytes

_NAME = "[0-9a-f]{64}"

#: Of a folder that is done: nobody adds to it; in a shared store its group can remove it (see ``base.fsio``).
_FOLDER_MODE, _SHARED_FOLDER_MODE = 0o555, 0o2575
_FILE_MODE = 0o444
_EXECUTABLE_MODE = 0o555
#: What ``link`` says where a hard link can't be had: another device, too many links, a file system without them.
_NO_LINK = frozenset({errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})


class _Plan(msgspec.Struct, frozen=True):
    """A validated tree: files with content and executable bit, links with targets, all folders parents first."""

    files: dict[str, tuple[ArtifactRef, bool]]
    links: dict[str, str]
    folders: list[str]

    def digest(self) -> str:
        hasher = Hasher("tree")
        for name in self.folders:
            hasher.part("folder", os.fsencode(name))
        for name, (ref, executable) in sorted(self.files.items()):
            hasher.part("executable" if executable else "file", os.fsencode(name))
            hasher.part("content", ref.digest.encode())
        for name, target in sorted(self.links.items()):
            hasher.part("link", os.fsencode(name))
            hasher.part("target", os.fsencode(target))
        return hasher.digest()


class Trees:
    """The trees in a folder."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        tmp: str | os.PathLike[str],
        is_whole: Callable[[str, ArtifactRef], bool],
        path_of: Callable[[ArtifactRef], Path],
        leases: Leases,
        on_copied: Callable[[int], None],
    ) -> None:
        """root, tmp: on one file system. is_whole: whether a file holds an artifact, raises OSError. path_of: where an
        artifact is, once it is checked. leases: a tree that is handed out is leased; its files are links, or copies.
        on_copied: told the size of each copy.
        """
        self.root = Path(root)
        self.tmp = Path(tmp)
        self._holds = is_whole
        self._path_of = path_of
        self._leases = leases
        self._on_copied = on_copied

    def tree(
        self,
        files: Mapping[str, tuple[ArtifactRef, bool]],
        links: Mapping[str, str] | None = None,
        folders: Collection[str] = (),
    ) -> Path:
        """The tree of these files (content, executable), symbolic links (target) and folders (those without files too).

        Raises StoreFault: ROW_CORRUPT for a name or target that is refused, ARTIFACT_... for content that is not there.
        """
        plan = _plan(files, links or {}, folders)
        name = plan.digest()
        target = self.root / name
        with fsio.faults(f"making the tree {target}"):
            self._lease(name)
            if self._is_whole(target, plan):
                return target
            fsio.make_dir(self.root)
            fsio.make_dir(self.tmp)
            with fsio.folder_locked(self.root, exclusive=True):
                if not self._is_whole(target, plan):  # nobody else made it meanwhile
                    staged = self._build(plan)
                    self._move_away(target)
                    staged.rename(target)
                    target.chmod(self._folder_mode())
        return target

    def _folder_mode(self) -> int:
        return _SHARED_FOLDER_MODE if fsio.is_shared(os.stat(self.root)) else _FOLDER_MODE

    def _lease(self, name: str) -> None:
        """Lease the tree, in such a way that whoever removes trees has either done so or sees the lease."""
        if self._leases.holds(name):
            return
        try:
            with fsio.folder_locked(self.root, exclusive=False):
                self._leases.take((name,))
        except FileNotFoundError:  # no tree was made yet
            self._leases.take((name,))

    def iterate(self) -> Iterator[tuple[str, float]]:
        """Name (a digest) and mtime of every tree."""
        with fsio.faults(f"listing {self.root}"):
            for name in fsio.names_in(self.root, _NAME):
                with contextlib.suppress(FileNotFoundError):
                    yield name, os.lstat(self.root / name).st_mtime

    def copied_bytes(self, names: Collection[str] | None = None) -> int:
        """Bytes on disk of all files in trees that are no links to artifacts. names: of these trees alone."""
        nbytes = 0
        with fsio.faults(f"listing {self.root}"):
            for folder, folders, files in os.walk(self.root, onerror=_raise_unless_gone):
                if names is not None and folder == os.fspath(self.root):
                    folders[:] = [name for name in folders if name in names]
                for name in files:
                    with contextlib.suppress(FileNotFoundError):
                        status = os.lstat(os.path.join(folder, name))
                        nbytes += (
                            disk_bytes(status.st_size) if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 else 0
                        )
        return nbytes

    def remove(self, name: str, leased: LeasedArtifacts | None = None) -> bool:
        """Remove a tree; whether it was there. With ``leased`` only if nobody holds it."""
        if "/" in name or name in {"", ".", ".."}:
            raise ValueError(f"{name!r} is no name of a tree")
        with fsio.faults(f"removing the tree {name}"):
            fsio.make_dir(self.tmp)
            try:
                with fsio.folder_locked(self.root, exclusive=True):
                    if leased is not None:
                        leased.refresh()
                        if name in leased:
                            return False
                    return self._move_away(self.root / name)
            except FileNotFoundError:
                return False

    def _build(self, plan: _Plan) -> Path:
        staged = self.tmp / f"tree-{os.getpid()}-{os.urandom(8).hex()}"
        fsio.make_dir(staged)
        try:
            for name in plan.folders:
                fsio.make_dir(staged / name)
            for name, (ref, executable) in plan.files.items():
                source, place = self._path_of(ref), staged / name
                if executable:
                    self._copy(source, place, _EXECUTABLE_MODE)
                    continue
                try:
                    os.link(source, place)
                except OSError as error:
                    if error.errno not in _NO_LINK:
                        raise
                    self._copy(source, place, _FILE_MODE)
            for name, to in plan.links.items():
                os.symlink(to, staged / name)
            for name in reversed(plan.folders):
                (staged / name).chmod(self._folder_mode())
        except BaseException:
            discard(staged)
            raise
        return staged

    def _copy(self, source: Path, place: Path, mode: int) -> None:
        with fsio.closing(fsio.open_read(source)) as fd:
            with fsio.Staging(self.tmp) as copy:
                for chunk in fsio.pread_chunks(fd, 0, os.fstat(fd).st_size):
                    copy.write(chunk)
                copy.commit(place, mode=mode, fsync=False)
            self._on_copied(os.fstat(fd).st_size)

    def _is_whole(self, top: Path, plan: _Plan) -> bool:
        """Whether there is exactly what the plan says, nothing less, nothing more."""
        remaining = set(plan.files) | set(plan.links) | set(plan.folders)
        pending = [""]
        while pending:
            folder = pending.pop()
            try:
                with os.scandir(top / folder) as entries:
                    names = list(entries)
            except (FileNotFoundError, NotADirectoryError):
                return False
            for entry in names:
                name = f"{folder}/{entry.name}" if folder else entry.name
                if name not in remaining or not self._matches(entry, name, plan):
                    return False
                remaining.discard(name)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(name)
        return not remaining

    def _matches(self, entry: os.DirEntry[str], name: str, plan: _Plan) -> bool:
        if name in plan.links:
            return entry.is_symlink() and os.readlink(entry.path) == plan.links[name]
        if name not in plan.files:
            return entry.is_dir(follow_symlinks=False)
        ref, executable = plan.files[name]
        if not entry.is_file(follow_symlinks=False):
            return False
        if bool(entry.stat(follow_symlinks=False).st_mode & stat.S_IXUSR) != executable:
            return False
        try:
            return self._holds(entry.path, ref)
        except FileNotFoundError:
            return False

    def _move_away(self, top: Path) -> bool:
        """Remove a tree in one step for those who look; whether it was there."""
        away = self.tmp / f"tree-{os.getpid()}-{os.urandom(8).hex()}"
        try:
            if not top.is_symlink():
                _let_change(top)  # a folder without write permission can't be moved
            top.rename(away)
        except FileNotFoundError:
            return False
        discard(away)
        return True


def tree_name(files: Mapping[str, tuple[ArtifactRef, bool]], links: Mapping[str, str], folders: Collection[str]) -> str:
    """The name of a tree with this content. Raises StoreFault ROW_CORRUPT as ``Trees.tree`` does."""
    return _plan(files, links, folders).digest()


def _plan(files: Mapping[str, tuple[ArtifactRef, bool]], links: Mapping[str, str], folders: Collection[str]) -> _Plan:
    every = [*files, *links, *folders]
    if len(set(every)) != len(every):
        raise _refusal(sorted(name for name in set(every) if every.count(name) > 1)[0], "is there twice")
    ends = set(files) | set(links)
    parents: set[str] = set(folders)
    for name in every:
        parts = name.split("/")
        if "\0" in name or any(part in {"", ".", ".."} for part in parts):
            raise _refusal(name, "is no relative path of plain names")
        for depth in range(1, len(parts)):
            above = "/".join(parts[:depth])
            if above in ends:
                raise _refusal(name, f"lies below {above!r}, which is no folder")
            parents.add(above)
    for name, target in links.items():
        steps = target.split("/")
        climbs = 0
        while climbs < len(steps) and steps[climbs] == "..":
            climbs += 1
        if climbs > name.count("/") or "\0" in target or any(step in {"", ".", ".."} for step in steps[climbs:]):
            raise _refusal(name, f"is a link to {target!r}, which may lead out of the tree")
    return _Plan(dict(files), dict(links), sorted(parents))


def _refusal(name: str, why: str) -> StoreFault:
    return StoreFault(Fault.ROW_CORRUPT, f"stored folder refused: {name!r} {why}")


def discard(top: Path) -> None:
    """Remove a file, or a folder with everything in it, also where its folders are read-only.

    What somebody else removes first is no error.
    """
    if top.is_symlink() or not top.is_dir():
        top.unlink(missing_ok=True)
        return
    import shutil  # 4 ms, and only a damaged tree needs it

    for folder, _, _ in os.walk(top):
        with contextlib.suppress(FileNotFoundError):
            _let_change(folder)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(top)


def _let_change(folder: str | os.PathLike[str]) -> None:
    """Make a folder writable, unless another user owns it: the group of a shared store can write it."""
    if os.stat(folder).st_uid == os.geteuid():
        os.chmod(folder, 0o700)


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
