"""Which shared objects an ELF executable loads: a small reader, and the search order of the dynamic loader.

Formats: System V gABI chapters 4 and 5 (ELF header, program headers, dynamic section), 64-bit little-endian only;
``/etc/ld.so.cache`` as in glibc's ``sysdeps/generic/dl-cache.h`` (``glibc-ld.so.cache1.1``). Order of search: ld.so(8).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from cachec.base import fsio

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_RPATH, _DT_RUNPATH = 1, 5, 10, 15, 29
_DT_FLAGS_1, _DF_1_NODEFLIB = 0x6FFFFFFB, 0x800
#: Filter libraries are loaded like needed ones, where they are found.
_DT_AUXILIARY, _DT_FILTER = 0x7FFFFFFD, 0x7FFFFFFF

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")

#: A dynamic section or string table beyond this is damage: the largest real ones are a few megabytes.
_TABLE_LIMIT = 1 << 26

_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CACHE_HEADER = struct.Struct("<20sIIB3xI12x")
_CACHE_ENTRY = struct.Struct("<iIIIQ")

DEFAULT_CACHE = "/etc/ld.so.cache"
#: Built into glibc by the distributions (Debian's multiarch folders, then the common ones).
DEFAULT_FOLDERS = ("/lib/{multiarch}", "/usr/lib/{multiarch}", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
_MULTIARCH = {62: "x86_64-linux-gnu", 183: "aarch64-linux-gnu", 243: "riscv64-linux-gnu"}


class ElfError(ValueError):
    """Not an ELF file that this reader knows, or a damaged one; the message says which."""


class Elf(NamedTuple):
    """What the dynamic loader reads of one object. machine: e_machine (62 is x86-64)."""

    machine: int
    interpreter: str | None
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]
    no_default: bool


def is_elf(head: bytes) -> bool:
    """Whether a file that starts so says that it is an ELF file."""
    return head[:4] == b"\x7fELF"


def read_elf(path: str | os.PathLike[str]) -> Elf:
    """Read the dynamic section of a file. Raises ElfError naming what is wrong, OSError where it can't be read."""
    fd = fsio.open_read(path)
    try:
        return _read(fd, os.fstat(fd).st_size)
    except ElfError as error:
        raise ElfError(f"{os.fspath(path)}: {error}") from None
    finally:
        os.close(fd)


def _read(fd: int, size: int) -> Elf:
    if size < _HEADER.size:
        raise ElfError(f"{size} bytes are too short for an ELF header of {_HEADER.size}")
    ident, _, machine, _, _, phoff, _, _, _, phentsize, phnum, _, _, _ = _HEADER.unpack(
        fsio.pread_exact(fd, 0, _HEADER.size)
    )
    if not is_elf(ident):
        raise ElfError("no ELF magic")
    if ident[4] != 2 or ident[5] != 1:
        raise ElfError(f"class {ident[4]} and byte order {ident[5]}: only 64-bit little-endian ELF is read")
    if phnum and phentsize != _PROGRAM_HEADER.size:
        raise ElfError(f"program headers of {phentsize} bytes, expected {_PROGRAM_HEADER.size}")
    table = _extent(fd, size, phoff, phnum * phentsize, "program headers")
    loads: list[tuple[int, int, int]] = []
    dynamic = interp = b""
    for kind, _, offset, vaddr, _, filesz, _, _ in _PROGRAM_HEADER.iter_unpack(table):
        if kind == _PT_LOAD:
            loads.append((vaddr, offset, filesz))
        elif kind == _PT_DYNAMIC:
            dynamic = _extent(fd, size, offset, filesz - filesz % _DYNAMIC.size, "the dynamic section")
        elif kind == _PT_INTERP:
            interp = _extent(fd, size, offset, filesz, "the interpreter's name")
    entries: list[tuple[int, int]] = []
    for tag, value in _DYNAMIC.iter_unpack(dynamic):
        if tag == 0:
            break
        entries.append((tag, value))
    strings = _string_table(fd, size, dict(entries), loads)

    def text(tag: int) -> tuple[str, ...]:
        return tuple(_string(strings, value) for found, value in entries if found == tag)

    def folders(tag: int) -> tuple[str, ...]:
        return tuple(folder for value in text(tag) for folder in value.split(":") if folder)

    runpath = folders(_DT_RUNPATH)
    return Elf(
        machine=machine,
        interpreter=os.fsdecode(interp.partition(b"\0")[0]) if interp else None,
        needed=text(_DT_NEEDED) + text(_DT_FILTER) + text(_DT_AUXILIARY),
        rpath=() if runpath else folders(_DT_RPATH),  # glibc drops DT_RPATH where DT_RUNPATH is
        runpath=runpath,
        no_default=any(tag == _DT_FLAGS_1 and value & _DF_1_NODEFLIB for tag, value in entries),
    )


def _extent(fd: int, size: int, offset: int, nbytes: int, what: str) -> bytes:
    if nbytes > _TABLE_LIMIT or offset + nbytes > size:
        raise ElfError(f"{what} at {offset} + {nbytes} bytes lies outside the file of {size} bytes")
    return fsio.pread_exact(fd, offset, nbytes)


def _string_table(fd: int, size: int, tags: Mapping[int, int], loads: list[tuple[int, int, int]]) -> bytes:
    if _DT_STRTAB not in tags:
        return b""
    address, nbytes = tags[_DT_STRTAB], tags.get(_DT_STRSZ, 0)
    for vaddr, offset, filesz in loads:
        if vaddr <= address and address + nbytes <= vaddr + filesz:
            return _extent(fd, size, offset + address - vaddr, nbytes, "the string table")
    raise ElfError(f"the string table at address {address:#x} lies in no segment")


def _string(strings: bytes, start: int) -> str:
    end = strings.find(b"\0", start)
    if start >= len(strings) or end < 0:
        raise ElfError(f"string {start} lies outside the string table of {len(strings)} bytes")
    return os.fsdecode(strings[start:end])


def read_cache(data: bytes) -> dict[str, tuple[str, ...]]:
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
    found: dict[str, list[str]] = {}
    for _, key, value, _, _ in _CACHE_ENTRY.iter_unpack(table[_CACHE_HEADER.size : end]):
        found.setdefault(_string(table, key), []).append(_string(table, value))
    return {name: tuple(paths) for name, paths in found.items()}


class Library(NamedTuple):
    """One loaded object: its name as the loader was asked for it (no folder), and where it was found."""

    name: str
    path: str


class Closure(NamedTuple):
    """All that an executable loads before ``main``.

    missing: names that were found nowhere. A file that appears earlier in the search is loaded instead, and a new
    library cache changes it: only taking the closure again shows that.
    """

    libraries: tuple[Library, ...]
    missing: tuple[str, ...]


class _Loaded(NamedTuple):
    elf: Elf
    origin: str
    parent: _Loaded | None


class Loader:
    """The dynamic loader's search, without running anything.

    Processor-specific variants (``glibc-hwcaps/x86-64-v3/libm.so.6``) are all part of the answer, whichever the
    processor here would take: the answer is then the same on every machine with the same files.
    """

    def __init__(self, cache: str = DEFAULT_CACHE, folders: tuple[str, ...] = DEFAULT_FOLDERS) -> None:
        self.cache = cache
        self._folders = folders

    def closure(self, path: str, environ: Mapping[str, str]) -> Closure:
        """What the executable at ``path`` loads. Raises ElfError where it or the library cache can't be read."""
        real = os.path.realpath(path)
        main = _Loaded(read_elf(real), os.path.dirname(real), None)
        libraries: dict[str, str] = {}
        missing: set[str] = set()
        cached = self._read_cache()
        queue: list[tuple[str, _Loaded]] = [(name, main) for name in _preloads(environ)]
        interpreter = main.elf.interpreter
        if interpreter is not None and os.path.exists(interpreter):
            libraries[os.path.basename(interpreter)] = interpreter
        elif interpreter is not None:
            missing.add(os.path.basename(interpreter))
        queue += [(name, main) for name in main.elf.needed]
        seen = set(libraries)
        for name, parent in queue:  # the queue grows while it is walked: breadth first, as the loader does
            if name in seen:
                continue
            seen.add(name)
            found = list(self._find(name, parent, main, environ, cached))
            if not any(is_base for _, _, is_base in found):
                missing.add(os.path.basename(name))
            for label, place, _ in found:
                libraries.setdefault(label, place)
                loaded = _Loaded(read_elf(place), os.path.dirname(os.path.abspath(place)), parent)
                queue += [(needed, loaded) for needed in loaded.elf.needed]
        return Closure(
            tuple(Library(name, place) for name, place in sorted(libraries.items())),
            tuple(sorted(missing)),
        )

    def _read_cache(self) -> dict[str, tuple[str, ...]]:
        try:
            with open(self.cache, "rb") as file:
                return read_cache(file.read())
        except FileNotFoundError:
            return {}

    def _find(
        self,
        name: str,
        parent: _Loaded,
        main: _Loaded,
        environ: Mapping[str, str],
        cached: Mapping[str, tuple[str, ...]],
    ) -> Iterator[tuple[str, str, bool]]:
        """(label, path, whether it is the plain one) of every variant up to the plain one, which ends the search."""
        label = os.path.basename(name)
        if "/" in name:
            place = _expand(name, parent.origin)
            if _fits(place, main.elf.machine):
                yield label, place, True
            return
        for folder in self._before_cache(parent, main, environ):
            yield from _variants(folder, label, main.elf.machine)
            if _fits(f"{folder}/{name}", main.elf.machine):
                yield label, f"{folder}/{name}", True
                return
        if parent.elf.no_default:
            return
        plain = ""
        for place in cached.get(name, ()):
            _, marker, variant = place.partition("/glibc-hwcaps/")
            if not _fits(place, main.elf.machine):
                continue
            if marker:
                yield f"glibc-hwcaps/{variant}", place, False
            elif not plain:
                plain = place
        if plain:
            yield label, plain, True
            return
        multiarch = _MULTIARCH.get(main.elf.machine, "")
        for template in self._folders:
            folder = template.format(multiarch=multiarch)
            yield from _variants(folder, label, main.elf.machine)
            if _fits(f"{folder}/{name}", main.elf.machine):
                yield label, f"{folder}/{name}", True
                return

    def _before_cache(self, parent: _Loaded, main: _Loaded, environ: Mapping[str, str]) -> Iterator[str]:
        if not parent.elf.runpath:
            above: _Loaded | None = parent
            last = parent
            while above is not None:
                for folder in above.elf.rpath:
                    yield _expand(folder, above.origin)
                last, above = above, above.parent
            if last is not main:
                for folder in main.elf.rpath:
                    yield _expand(folder, main.origin)
        library_path = environ.get("LD_LIBRARY_PATH", "")
        if library_path:
            for folder in library_path.replace(";", ":").split(":"):
                yield _expand(folder, main.origin) if folder else os.curdir
        for folder in parent.elf.runpath:
            yield _expand(folder, parent.origin)


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


def _fits(path: str, machine: int) -> bool:
    """Whether the loader would take the file: an ELF object of the same class and machine."""
    try:
        return read_elf(path).machine == machine
    except (OSError, ElfError):
        return False


def _variants(folder: str, name: str, machine: int) -> Iterator[tuple[str, str, bool]]:
    try:
        levels = sorted(os.listdir(f"{folder}/glibc-hwcaps"))
    except OSError:
        return
    for level in levels:
        place = f"{folder}/glibc-hwcaps/{level}/{name}"
        if _fits(place, machine):
            yield f"glibc-hwcaps/{level}/{name}", place, False
