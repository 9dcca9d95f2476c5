"""Which folders are watched while a stage runs, and which files opened there count.

No event tells what native code opens (safetensors, tokenizers), and a watch is on one folder. So those below the
current one and the stage's project are looked through, within bounds, for data of such libraries, and so are places
that the stage's code names. A watch tells not who opened a file: of sources and objects there nothing counts.
"""

from __future__ import annotations

import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import PurePath
from types import CellType, CodeType, FunctionType, ModuleType
from typing import NamedTuple

from cachec.base import fsio
from cachec.base.anchors import PROJECT_MARKS
from cachec.base.bounded_dict import BoundedDict
from cachec.base.display_text import module_of
from cachec.base.folder_names import folder_watcher
from cachec.base.instances import is_instance
from cachec.base.mounts import WATCHED_FILESYSTEMS, Mounts
from cachec.base.paths import absolute
from cachec.stage.folder_watch import FolderWatch
from cachec.weights.formats import CHECKPOINT_SUFFIXES

#: What is looked through below a folder: levels, folders in all, names in each.
LEVELS, FOLDERS, NAMES = 4, 256, 4096
#: Looks through all of them before they are followed (inotify), which costs as much as another one.
MIN_LOOKUPS = 3
#: Codes that are looked through for names of files, and names that are looked for.
CODES, TEXTS = 256, 256

#: What the names of files end with that libraries read by native code, beside checkpoints: of tokenizers, databases,
#: programs, tables.
DATA_SUFFIXES = frozenset(
    [
        *CHECKPOINT_SUFFIXES,
        *(".arrow", ".bin", ".bpe", ".caffemodel", ".db", ".engine", ".feather", ".h5", ".hdf5", ".joblib"),
        *(".keras", ".mlir", ".mlirbc", ".mlmodel", ".mnn", ".model", ".msgpack", ".onnx_data", ".param"),
        *(".params", ".parquet", ".pb", ".pbtxt", ".pdiparams", ".pdmodel", ".plan", ".pte", ".spm", ".sqlite"),
        *(".sqlite3", ".tflite", ".tiktoken", ".txt", ".vmfb", ".vocab", ".weights"),
    ]
)
#: What makes a folder one that programs fill: caches, environments, build trees.
_MARKERS = frozenset({"CACHEDIR.TAG", "pyvenv.cfg", "conda-meta", "CMakeCache.txt", "build.ninja", ".ninja_log"})
_PASSED = frozenset({"node_modules", "__pycache__", "site-packages", "dist-packages"})


class WatchedFolders:
    """What is watched for one run.

    arguments: folders that path arguments lie in, where every name counts. current: where those count that no tool is
    known by; empty where that folder is gone. is_elsewhere: whether a folder is a tool's, or the cache's own. below:
    what earlier runs found, by the same ``is_elsewhere``.
    """

    def __init__(
        self, arguments: Collection[str], current: str, is_elsewhere: Callable[[str], bool], below: Below
    ) -> None:
        self._below = below
        self._arguments = frozenset(arguments)
        self._current = current
        self._is_elsewhere = is_elsewhere
        self._folders = dict.fromkeys([*self._arguments, *([current] if current else [])])
        #: Where the kernel sees a file opened that is named by these paths.
        self._named: dict[str, dict[str, None]] = {}
        #: Data that the stage's code names, as it does, and that is not there: native code may look for it in vain.
        self.missing: list[str] = []
        self._listings: dict[str, _Listing] = {}

    @property
    def folders(self) -> Collection[str]:
        """What to watch, that which matters most first."""
        return self._folders

    def add_below(self, roots: Iterable[str]) -> None:
        """Add the folders below these that hold data, the upper ones first."""
        tops = tuple(root for root in dict.fromkeys(roots) if root.strip("/"))
        places = tuple(_place(root) for root in tops)
        known = self._below.walks.get(tops)
        if known is not None and known.token is not None and known.places == places:
            if folder_watcher().token() is known.token:
                self._folders.update(dict.fromkeys(known.found))
                for folder in (*tops, *known.found):
                    if (listed := self._below.listings.get(folder)) is not None:
                        self._listings[folder] = listed[1]
                return
            known = None
        token = folder_watcher().begin() if known is not None and known.lookups >= MIN_LOOKUPS else None
        found = self._walk(tops, is_followed=token is not None)
        if found is None or places != tuple(_place(root) for root in tops):
            self._below.walks.put(tops, _FolderWalk(0))
        else:
            self._below.walks.put(
                tops, _FolderWalk(known.lookups + 1 if known is not None else 1, token, places, found)
            )

    def _walk(self, roots: Sequence[str], *, is_followed: bool) -> tuple[str, ...] | None:
        """The folders with data, which are added; None where links, or what can't be looked at, take part in that.

        is_followed: have it told what happens in the folders, each from before it is looked at.
        """
        found: list[str] = []
        is_plain = True
        visited: set[tuple[int, int]] = set()
        # Each with its level, and the device that it has to be on.
        pending: deque[tuple[str, int, int]] = deque((root, 0, 0) for root in roots)
        remaining = FOLDERS
        while pending and remaining:
            folder, level, device = pending.popleft()
            try:
                is_plain &= not is_followed or folder_watcher().follow(folder)
                status = os.stat(folder)
                if level and status.st_dev != device:
                    continue
                remaining -= 1
                if not level:
                    is_plain &= _mounts().kind_of_device(status.st_dev, folder) in WATCHED_FILESYSTEMS
                    if status.st_mode & stat.S_ISVTX:
                        continue  # what everybody writes to (/tmp) is no project
                listing = self._listing(folder, status)
                if level and listing.is_marked:
                    continue
                if listing.has_data or listing.linked_data:
                    found.append(folder)
                    is_plain &= not listing.linked_data
                    self._add_data(folder, listing)  # also of one that was met under another name: each is a path
                place = (status.st_dev, status.st_ino)
                if place not in visited and level < LEVELS:
                    visited.add(place)
                    for path, is_link in listing.below:
                        is_plain &= not is_link
                        if not is_link or self._leads_below(path, status.st_dev):
                            pending.append((path, level + 1, status.st_dev))
            except OSError:
                is_plain = False
        return tuple(found) if is_plain else None

    def add_named(self, texts: Iterable[str]) -> None:
        """Add what these name: a file with the folder that it is in, a folder with the data in it."""
        for text in texts:
            with suppress(OSError, ValueError):
                path = absolute(text)
                if self._is_elsewhere(os.path.join(path, "")):
                    continue
                if not os.path.lexists(path):
                    if _is_data(os.path.basename(path)):
                        self.missing.append(text)
                    continue
                status = os.stat(path)
                if stat.S_ISREG(status.st_mode):
                    self._add_file(path)
                elif stat.S_ISDIR(status.st_mode) and not status.st_mode & stat.S_ISVTX:
                    self._add_data(path, self._listing(path, status))

    def was_there(self, path: str) -> bool | None:
        """Whether data was there when the folders were looked through; None where that is not known."""
        folder, name = os.path.split(path)
        listing = self._listings.get(folder)
        return name in listing.data if listing is not None and _is_data(name) else None

    def counting(self, path: str) -> Iterator[str]:
        """The paths by which a file counts that was opened at ``path``, as the watch tells it."""
        yield from self._named.get(path, ())
        folder, name = os.path.split(path)
        if folder in self._arguments:
            yield path
        elif folder == self._current:
            if not (name.startswith(".") or name in PROJECT_MARKS or name.endswith(".py")):
                yield path
        elif folder in self._folders and _is_data(name):
            yield path

    def _add_file(self, path: str) -> None:
        there = os.path.realpath(path)
        folder = os.path.dirname(there)
        self._folders.setdefault(folder)
        self._named.setdefault(there, {}).setdefault(path)

    def _add_data(self, folder: str, listing: _Listing) -> None:
        links = [path for path in listing.linked_data if not os.path.isdir(path)]
        if listing.has_data or links:
            self._folders.setdefault(folder)
        for path in links:
            if os.path.isfile(path):  # opened where it leads to, under the name that it has there
                self._add_file(path)

    def _leads_below(self, link: str, device: int) -> bool:
        """Whether a link leads to a folder that may be looked through next. device: of the folder that it is in."""
        try:
            status = os.stat(link)
            if stat.S_ISDIR(status.st_mode) and status.st_dev != device:
                self._add_data(link, self._listing(link, status))  # disks of checkpoints: no further
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) and status.st_dev == device

    def _listing(self, folder: str, status: os.stat_result) -> _Listing:
        """What is in a folder of this state; kept where a change since then would show in that. Raises OSError."""
        known = self._below.listings.get(folder)
        if known is not None and known[0] == fsio.identity_fields(status):
            self._listings[folder] = known[1]
            return known[1]
        state = fsio.identity_of(status)
        is_cached = fsio.is_settled(state) and _mounts().kind_of_device(status.st_dev, folder) in WATCHED_FILESYSTEMS
        listing = self._listings[folder] = _list_folder(folder, self._is_elsewhere)
        if is_cached:
            self._below.listings.put(folder, (state, listing))
        return listing


class _Listing(NamedTuple):
    """What of the names in a folder counts here."""

    #: Whether programs fill it.
    is_marked: bool
    #: The names of data.
    data: frozenset[str]
    #: Whether a file of data is there.
    has_data: bool
    #: Links with such names.
    linked_data: tuple[str, ...]
    #: Folders that may be looked through, and links, which may lead to such; whether each is one.
    below: tuple[tuple[str, bool], ...]


class _FolderWalk(NamedTuple):
    """What was found below some roots, so often in a row."""

    lookups: int
    #: It holds as long as this is that of ``folder_watcher``, and the roots are at their places (device and inode).
    token: object | None = None
    places: tuple[tuple[int, int] | None, ...] = ()
    found: tuple[str, ...] = ()


class Below:
    """What is below projects, as far as one opened cache has seen it.

    listings: of folders, each with its state of then: it has another one once a name comes or goes.
    """

    def __init__(self) -> None:
        self.listings: BoundedDict[tuple[fsio.Identity, _Listing]] = BoundedDict(4 * FOLDERS)
        self.walks: BoundedDict[_FolderWalk] = BoundedDict(16)


def _place(folder: str) -> tuple[int, int] | None:
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return status.st_dev, status.st_ino


@lru_cache(maxsize=1)
def _mounts() -> Mounts:
    return Mounts()


def _list_folder(folder: str, is_elsewhere: Callable[[str], bool]) -> _Listing:
    with os.scandir(folder) as found:
        entries = [entry for entry, _ in zip(found, range(NAMES), strict=False)]
    data = [entry for entry in entries if _is_data(entry.name)]
    below = [entry for entry in entries if _may_be_below(entry) and not is_elsewhere(entry.path + "/")]
    return _Listing(
        not _MARKERS.isdisjoint(entry.name for entry in entries),
        frozenset(entry.name for entry in data),
        any(not (entry.is_symlink() or entry.is_dir()) for entry in data),
        tuple(entry.path for entry in data if entry.is_symlink()),
        tuple(sorted((entry.path, entry.is_symlink()) for entry in below)),
    )


def _may_be_below(entry: os.DirEntry[str]) -> bool:
    if not (entry.is_symlink() or entry.is_dir()):
        return False
    name = entry.name
    return not (name.startswith((".", "bazel-")) or name in _PASSED or name.endswith(("-info", ".app", ".git")))


class PlacesWatch(FolderWatch):
    """Watches places, and knows what counts there."""

    def __init__(self, places: WatchedFolders) -> None:
        super().__init__(places.folders, places.was_there)
        self.counting = places.counting
        self.missing = places.missing


def texts_of(function: object, is_project: Callable[[str], bool]) -> list[str]:
    """Texts in a function's code that may name files, and in what it names of the project, as far as that is there."""
    texts: dict[str, None] = {}
    pending: deque[object] = deque([function])
    visited: set[int] = set()
    while pending and len(visited) < CODES and len(texts) < TEXTS:
        value = pending.popleft()
        if id(value) in visited:
            continue
        visited.add(id(value))
        if is_instance(value, FunctionType) and is_project(value.__code__.co_filename):
            pending.extend(value.__defaults__ or ())
            pending.extend((value.__kwdefaults__ or {}).values())
            pending.extend(cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell))
            for code in _nested_code(value.__code__):
                pending.extend(code.co_consts)
                for name in code.co_names:
                    found = value.__globals__.get(name)
                    pending.append(found)
                    if is_instance(found, ModuleType) and is_project(getattr(found, "__file__", None) or ""):
                        pending.extend(vars(found)[each] for each in code.co_names if each in vars(found))
        elif type(value) in _CONTAINERS:
            pending.extend(value.values() if isinstance(value, dict) else value)  # type: ignore[arg-type]
        elif is_instance(value, type) and is_project(
            getattr(sys.modules.get(module_of(value)), "__file__", None) or ""
        ):
            pending.extend(vars(value).values())
        elif is_instance(value, PurePath) or type(value) is str:
            text = os.fspath(value)
            if _may_name_a_file(text):
                texts.setdefault(text)
    return list(texts)


#: What is looked through for texts; of a dict, its values.
_CONTAINERS = (tuple, list, set, frozenset, dict)


def _may_name_a_file(text: str) -> bool:
    is_short = 1 < len(text) < 1024 and not any(each in text for each in "\0\n*{<")
    return is_short and bool(text.strip("./")) and ("/" in text or "." in text)


def _nested_code(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _nested_code(each)


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _is_data(name: str) -> bool:
    """Whether a file of this name may be one that libraries read. A name without a suffix is not."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in DATA_SUFFIXES
