"""Which shared objects an ELF executable loads: the dynamic loader's search order, without running anything.

``/etc/ld.so.cache`` as in glibc's ``sysdeps/generic/dl-cache.h`` (``glibc-ld.so.cache1.1``). Order of search: ld.so(8).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from typing import NamedTuple

from cachec.base import fsio
from cachec.base.elf import Dynamic, ElfError, read_dynamic, string_at
from cachec.base.fsio import Identity
from cachec.base.mounts import TRACKED_FILESYSTEMS, Mounts

_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CACHE_HEADER = struct.Struct("<20sIIB3xI12x")
_CACHE_ENTRY = struct.Struct("<iIIIQ")

DEFAULT_CACHE = "/etc/ld.so.cache"
#: Built into glibc by the distributions (Debian's multiarch folders, then the common ones).
DEFAULT_FOLDERS = ("/lib/{multiarch}", "/usr/lib/{multiarch}", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
_MULTIARCH = {62: "x86_64-linux-gnu", 183: "aarch64-linux-gnu", 243: "riscv64-linux-gnu"}


@lru_cache(maxsize=1)
def read_cache(data: bytes) -> Mapping[str, tuple[str, ...]]:
    """Library name to the paths in ``ld.so.cache``, in the loader's order. Raises ElfError on an unknown format.

    The compatible format has an old table before the magic; offsets of strings count from the magic in both.
    """
    start = data.find(_CACHE_MAGIC)
    if start < 0:
        raise ElfError(f"no {_CACHE_MAGIC.decode()!r} in the library cache")
    table = data[start:]
    if len(table) < _CACHE_HEADER.size:
        raise ElfError("the library cache ends in its header")
    _, count, _, _, _ = _CACHE_HEADER.unpack_from(table)
    end = _CACHE_HEADER.size + count * _CACHE_ENTRY.size
    if end > len(table):
        raise ElfError(f"the library cache says {count} entries and has no room for them")
    strings: dict[int, str] = {}  # all that begin where another has ended, cut at once: string by string takes longer
    at = end
    for string in table[end:].split(b"\0")[:-1]:
        strings[at] = os.fsdecode(string)
        at += len(string) + 1
    libraries: dict[str, list[str]] = {}
    for _, key, value, _, _ in _CACHE_ENTRY.iter_unpack(table[_CACHE_HEADER.size : end]):
        name, path = (strings.get(place) or string_at(table, place) for place in (key, value))
        libraries.setdefault(name, []).append(path)
    return {name: tuple(paths) for name, paths in libraries.items()}


def default_folders(library_cache: str = DEFAULT_CACHE) -> frozenset[str]:
    """The folders, by their real paths, where the loader finds a library that nothing else leads to: those that the
    library cache names, and its own."""
    folders = {each.format(multiarch=name) for each in DEFAULT_FOLDERS for name in _MULTIARCH.values()}
    with suppress(OSError, ElfError), open(library_cache, "rb") as file:
        found = read_cache(file.read())
        folders |= {os.path.dirname(place) for places in found.values() for place in places}
    return frozenset(map(os.path.realpath, folders))


@lru_cache(maxsize=4096)
def read_settled(path: str, state: Identity) -> Dynamic:
    """What ``read_dynamic`` tells of a file, which has another identity once it is written to. Raises as that does."""
    del state
    return read_dynamic(path)


class SharedObject(NamedTuple):
    """One loaded object: its name as the loader was asked for it (no folder), and where it was found."""

    name: str
    path: str


class Closure(NamedTuple):
    """All that an executable loads before ``main``."""

    libraries: tuple[SharedObject, ...]
    #: Names that were found nowhere.
    missing: tuple[str, ...]
    #: The folders that were looked into, there or not: a file that appears in one of them, and a new library cache, may
    #: change the closure.
    searched: tuple[str, ...]


class _SharedObject(NamedTuple):
    elf: Dynamic
    origin: str
    parent: _SharedObject | None


class Loader:
    """The dynamic loader's search, without running anything.

    Processor-specific variants (``glibc-hwcaps/x86-64-v3/libm.so.6``) are all part of the answer, whichever the
    processor here would take: the answer is then the same on every machine with the same files.
    """

    def __init__(self, cache: str = DEFAULT_CACHE, folders: tuple[str, ...] = DEFAULT_FOLDERS) -> None:
        self.cache = cache
        self._folders = folders
        self._mounts = Mounts()

    def closure(self, path: str, environ: Mapping[str, str]) -> Closure:
        """What the executable at ``path`` loads. Raises ElfError where it or the library cache can't be read."""
        return _Search(path, environ, self._read_cache(), self._folders, self.read).closure()

    def read(self, path: str) -> Dynamic:
        """What the loader is told in a file; remembered where a write would show. Raises OSError, ElfError."""
        state = fsio.identity(path)
        if fsio.is_settled(state) and self._mounts.kind_of_device(state.dev, path) in TRACKED_FILESYSTEMS:
            return read_settled(path, state)
        return read_dynamic(path)

    def _read_cache(self) -> Mapping[str, tuple[str, ...]]:
        try:
            with open(self.cache, "rb") as file:
                return read_cache(file.read())
        except FileNotFoundError:
            return {}


class _Search:
    """The search for one executable."""

    def __init__(
        self,
        path: str,
        environ: Mapping[str, str],
        cached: Mapping[str, tuple[str, ...]],
        folders: tuple[str, ...],
        read: Callable[[str], Dynamic],
    ) -> None:
        real = os.path.realpath(path)
        self._read = cache(read)  # a file is asked for by each that needs it, and is one and the same in one search
        self._main = _SharedObject(read(real), os.path.dirname(real), None)
        self._environ = environ
        self._cached = cached
        self._folders = folders
        self._machine = self._main.elf.machine
        self._searched: dict[str, None] = {}

    def closure(self) -> Closure:
        main = self._main
        libraries: dict[str, str] = {}
        missing: set[str] = set()
        queue: list[tuple[str, _SharedObject]] = [(name, main) for name in _preloads(self._environ)]
        interpreter = main.elf.interpreter
        if interpreter is not None:
            self._searched[os.path.dirname(interpreter)] = None
            if os.path.exists(interpreter):
                libraries[os.path.basename(interpreter)] = interpreter
            else:
                missing.add(os.path.basename(interpreter))
        queue += [(name, main) for name in main.elf.needed]
        visited = set(libraries)
        for name, parent in queue:  # the queue grows while it is walked: breadth first, as the loader does
            if name in visited:
                continue
            visited.add(name)
            variants = list(self._find(name, parent))
            if not any(is_base for _, _, is_base in variants):
                missing.add(os.path.basename(name))
            for label, place, _ in variants:
                libraries.setdefault(label, place)
                loaded = _SharedObject(self._read(place), os.path.dirname(os.path.abspath(place)), parent)
                queue += [(needed, loaded) for needed in loaded.elf.needed]
        return Closure(
            tuple(SharedObject(name, place) for name, place in sorted(libraries.items())),
            tuple(sorted(missing)),
            tuple(sorted(self._searched)),
        )

    def _find(self, name: str, parent: _SharedObject) -> Iterator[tuple[str, str, bool]]:
        """(label, path, whether it is the plain one) of every variant up to the plain one, which ends the search."""
        label = os.path.basename(name)
        if "/" in name:
            place = _expand(name, parent.origin)
            self._searched[os.path.dirname(place)] = None
            if self._fits(place):
                yield label, place, True
            return
        for folder in self._before_cache(parent):
            yield from self._variants(folder, label)
            if self._fits(f"{folder}/{name}"):
                yield label, f"{folder}/{name}", True
                return
        if parent.elf.no_default:
            return
        plain = ""
        for place in self._cached.get(name, ()):
            _, marker, variant = place.partition("/glibc-hwcaps/")
            self._searched[os.path.dirname(place)] = None
            if not self._fits(place):
                continue
            if marker:
                yield f"glibc-hwcaps/{variant}", place, False
            elif not plain:
                plain = place
        if plain:
            yield label, plain, True
            return
        multiarch = _MULTIARCH.get(self._machine, "")
        for template in self._folders:
            folder = template.format(multiarch=multiarch)
            yield from self._variants(folder, label)
            if self._fits(f"{folder}/{name}"):
                yield label, f"{folder}/{name}", True
                return

    def _before_cache(self, parent: _SharedObject) -> Iterator[str]:
        main = self._main
        if not parent.elf.runpath:
            above: _SharedObject | None = parent
            last = parent
            while above is not None:
                for folder in above.elf.rpath:
                    yield _expand(folder, above.origin)
                last, above = above, above.parent
            if last is not main:
                for folder in main.elf.rpath:
                    yield _expand(folder, main.origin)
        library_path = self._environ.get("LD_LIBRARY_PATH", "")
        if library_path:
            for folder in library_path.replace(";", ":").split(":"):
                yield _expand(folder, main.origin) if folder else os.curdir
        for folder in parent.elf.runpath:
            yield _expand(folder, parent.origin)

    def _fits(self, path: str) -> bool:
        """Whether the loader would take the file: an ELF object of the same class and machine."""
        try:
            return self._read(path).machine == self._machine
        except (OSError, ElfError):
            return False

    def _variants(self, folder: str, name: str) -> Iterator[tuple[str, str, bool]]:
        self._searched[folder] = None
        try:
            levels = sorted(os.listdir(f"{folder}/glibc-hwcaps"))
        except OSError:
            return
        self._searched[f"{folder}/glibc-hwcaps"] = None
        for level in levels:
            place = f"{folder}/glibc-hwcaps/{level}/{name}"
            self._searched[os.path.dirname(place)] = None
            if self._fits(place):
                yield f"glibc-hwcaps/{level}/{name}", place, False


def _preloads(environ: Mapping[str, str]) -> list[str]:
    names = environ.get("LD_PRELOAD", "").replace(":", " ").split()
    try:
        with open("/etc/ld.so.preload", encoding="utf-8", errors="surrogateescape") as file:
            names += file.read().replace(":", " ").split()
    except FileNotFoundError:
        return names
    return names


def _expand(folder: str, origin: str) -> str:
    for token, value in (("ORIGIN", origin), ("LIB", "lib64"), ("PLATFORM", os.uname().machine)):
        folder = folder.replace("${" + token + "}", value).replace("$" + token, value)
    return folder.rstrip("/") or "/"
