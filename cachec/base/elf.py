"""ELF objects: the header, segments and sections of a file, and its entries for the dynamic loader.

System V gABI, chapters 4 and 5; 64-bit little-endian only. Every offset is checked before it is followed.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import NamedTuple

from cachec.base import fsio

SHT_NOBITS = 8

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_RPATH, _DT_RUNPATH = 1, 5, 10, 15, 29
_DT_FLAGS_1, _DF_1_NODEFLIB = 0x6FFFFFFB, 0x800
#: Filter libraries are loaded like needed ones, where they are found.
_DT_AUXILIARY, _DT_FILTER = 0x7FFFFFFD, 0x7FFFFFFF

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC = struct.Struct("<qQ")

#: A table beyond this is damage: the largest real ones are a few megabytes.
_TABLE_LIMIT = 1 << 26

#: Bytes of a string table that are read at once: a name or two.
_STRING = 256


class ElfError(ValueError):
    """Not an ELF file that this reader knows, or a damaged one; the message says which."""


class Section(NamedTuple):
    """One section header."""

    name: str
    #: With ``link``, ``info``: as the gABI has them.
    type: int
    #: With ``size``: bytes in the file.
    offset: int
    size: int
    link: int
    info: int


class Dynamic(NamedTuple):
    """What the dynamic loader reads of one object."""

    #: e_machine (62 is x86-64).
    machine: int
    interpreter: str | None
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]
    no_default: bool


def is_elf(head: bytes) -> bool:
    """Whether a file that starts so says that it is an ELF file."""
    return head[:4] == b"\x7fELF"


def read_dynamic(path: str | os.PathLike[str]) -> Dynamic:
    """Read the dynamic section of a file. Raises ElfError naming what is wrong, OSError where it can't be read."""
    fd = fsio.open_read(path)
    try:
        return ElfFile(lambda offset, size: fsio.pread_exact(fd, offset, size), os.fstat(fd).st_size).dynamic()
    except ElfError as error:
        raise ElfError(f"{os.fspath(path)}: {error}") from None
    finally:
        os.close(fd)


def string_at(strings: bytes, start: int) -> str:
    """The string that begins at ``start`` of a string table. Raises ElfError where it has no end in the table."""
    end = strings.find(b"\0", start)
    if start >= len(strings) or end < 0:
        raise ElfError(f"string {start} lies outside the string table of {len(strings)} bytes")
    return os.fsdecode(strings[start:end])


class ElfFile:
    """One object. kind: e_type (3: a shared library). machine: e_machine."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        """read: gives ``size`` bytes from an offset. size: of the file, in bytes. Raises ElfError."""
        self._read = read
        self._size = size
        if size < _HEADER.size:
            raise ElfError(f"{size} bytes are too short for an ELF header of {_HEADER.size}")
        header = _HEADER.unpack(read(0, _HEADER.size))
        ident, self.kind, self.machine = header[:3]
        self._segments_at, self._sections_at = header[5:7]
        self._segment_size, self._segment_count, self._section_size, self._section_count, self._names = header[9:]
        if not is_elf(ident):
            raise ElfError("no ELF magic")
        if ident[4] != 2 or ident[5] != 1:
            raise ElfError(f"class {ident[4]} and byte order {ident[5]}: only 64-bit little-endian ELF is read")

    @classmethod
    def of_bytes(cls, data: bytes) -> ElfFile:
        """The object in memory."""
        return cls(lambda offset, size: data[offset : offset + size], len(data))

    def piece(self, offset: int, nbytes: int, what: str) -> bytes:
        """Return bytes of the file. Raises ElfError, with ``what``, if they are outside of it."""
        self._check(offset, nbytes, what)
        return self._read(offset, nbytes)

    def _check(self, offset: int, nbytes: int, what: str) -> None:
        if nbytes > _TABLE_LIMIT or offset + nbytes > self._size:
            raise ElfError(f"{what} at {offset} + {nbytes} bytes lies outside the file of {self._size} bytes")

    def sections(self) -> tuple[Section, ...]:
        """All sections, in order. Raises ElfError where there are none."""
        if self._section_size != _SECTION.size or not 0 < self._names < self._section_count:
            raise ElfError("it has no section headers")
        table = self.piece(self._sections_at, self._section_count * _SECTION.size, "section headers")
        raw = list(
            _SECTION.iter_unpack(table)
        )  # name, type, flags, address, offset, size, link, info, alignment, entry
        names = self.piece(raw[self._names][4], raw[self._names][5], "the names of sections")
        return tuple(Section(string_at(names, s[0]), s[1], s[4], s[5], s[6], s[7]) for s in raw)

    def content(self, section: Section, item: int = 1) -> bytes:
        """The bytes of a section, in whole items of so many."""
        return self.piece(section.offset, section.size - section.size % item, f"section {section.name!r}")

    def dynamic(self) -> Dynamic:
        """The interpreter's name and the dynamic section; empty where there are none."""
        if self._segment_count and self._segment_size != _SEGMENT.size:
            raise ElfError(f"program headers of {self._segment_size} bytes, expected {_SEGMENT.size}")
        table = self.piece(self._segments_at, self._segment_count * _SEGMENT.size, "program headers")
        loads: list[tuple[int, int, int]] = []
        dynamic = interpreter = b""
        for kind, _, offset, address, _, size, _, _ in _SEGMENT.iter_unpack(table):
            if kind == _PT_LOAD:
                loads.append((address, offset, size))
            elif kind == _PT_DYNAMIC:
                dynamic = self.piece(offset, size - size % _DYNAMIC.size, "the dynamic section")
            elif kind == _PT_INTERP:
                interpreter = self.piece(offset, size, "the interpreter's name")
        entries: list[tuple[int, int]] = []
        for tag, value in _DYNAMIC.iter_unpack(dynamic):
            if tag == 0:
                break
            entries.append((tag, value))
        strings = self._dynamic_strings(dict(entries), loads)
        by_tag: dict[int, list[int]] = {}
        for tag, value in entries:
            by_tag.setdefault(tag, []).append(value)

        def text(tag: int) -> tuple[str, ...]:
            return tuple(self._string(strings, value) for value in by_tag.get(tag, ()))

        def folders(tag: int) -> tuple[str, ...]:
            return tuple(folder for value in text(tag) for folder in value.split(":") if folder)

        runpath = folders(_DT_RUNPATH)
        return Dynamic(
            machine=self.machine,
            interpreter=os.fsdecode(interpreter.partition(b"\0")[0]) if interpreter else None,
            needed=text(_DT_NEEDED) + text(_DT_FILTER) + text(_DT_AUXILIARY),
            rpath=() if runpath else folders(_DT_RPATH),  # glibc drops DT_RPATH where DT_RUNPATH is
            runpath=runpath,
            no_default=any(tag == _DT_FLAGS_1 and value & _DF_1_NODEFLIB for tag, value in entries),
        )

    def _dynamic_strings(self, tags: dict[int, int], loads: list[tuple[int, int, int]]) -> tuple[int, int]:
        """(offset, bytes) of the string table."""
        if _DT_STRTAB not in tags:
            return 0, 0
        start, nbytes = tags[_DT_STRTAB], tags.get(_DT_STRSZ, 0)
        for address, offset, size in loads:
            if address <= start and start + nbytes <= address + size:
                at = offset + start - address
                self._check(at, nbytes, "the string table")
                return at, nbytes
        raise ElfError(f"the string table at address {start:#x} lies in no segment")

    def _string(self, table: tuple[int, int], start: int) -> str:
        """``string_at`` of a table that is not read: it has the names of all symbols, and a few are asked for."""
        offset, nbytes = table
        found = b""
        while b"\0" not in found and start + len(found) < nbytes:
            found += self._read(offset + start + len(found), min(_STRING, nbytes - start - len(found)))
        if b"\0" not in found:
            raise ElfError(f"string {start} lies outside the string table of {nbytes} bytes")
        return os.fsdecode(found.partition(b"\0")[0])
