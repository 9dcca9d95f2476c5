"""The dynamic symbols of a shared library: which are undefined, and a copy of the file where some have an address.

ELF-64, little-endian, x86-64 or AArch64 (System V ABI, chapters 4 and 5; relocation types from the two processor
supplements). Only what the linker of the host makes is read; offsets are checked before they are followed.

An undefined symbol gets its address by becoming *local* and *absolute* (``STB_LOCAL``, ``STV_HIDDEN``, ``SHN_ABS``).
The dynamic loader then looks its name up nowhere, so that no symbol of another library can take its place, and takes
its value as it stands, wherever the library lies (glibc 2.28 and later: ``SYMBOL_ADDRESS`` in its ldsodefs.h).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from cachec.base.elf import SHT_NOBITS, ElfError, ElfFile, Section, string_at
from cachec.errors import LinkError

#: The section of a library that says what its code counts on: JSON, name of a weight -> ``Needs``.
SECTION = ".cachec.weights"

#: Maps of files and of memory are aligned to this; no more can be had.
LARGEST_ALIGNMENT = mmap.PAGESIZE

_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")

_SHT_RELA = 4
_SHT_DYNSYM = 11
_SHT_VERSYM = 0x6FFFFFFF
_SHN_UNDEF = 0
_SHN_ABS = 0xFFF1
_STB_LOCAL = 0
_STB_WEAK = 2
_STV_HIDDEN = 2

#: Machine -> relocations that store the whole address of a symbol (``GLOB_DAT``, and a 64-bit word of data).
_ADDRESSES = {62: frozenset({1, 6}), 183: frozenset({257, 1025})}


class Needs(msgspec.Struct, frozen=True):
    """What code counts on in a weight.

    alignment: of its address, in bytes. constant: that nobody writes to it. Otherwise the code itself may (MLIR allows
    it for every ``memref.global`` that is not ``constant``).
    """

    alignment: int
    constant: bool


class Undefined(NamedTuple):
    """A symbol that the library does not define. at: offset of its entry in the file.

    versioned: another library was there for it when this one was linked. called: something but its plain address is
    wanted, as for a function.
    """

    name: str
    at: int
    versioned: bool
    weak: bool
    called: bool


class Library:
    """A shared library in memory. Raises LinkError, naming ``where``, for what is none."""

    def __init__(self, data: bytes, where: str) -> None:
        self._data = data
        #: Exported symbols that it defines itself.
        self.defined: frozenset[str] = frozenset()
        try:
            self._file = ElfFile.of_bytes(data)
            if self._file.kind != 3 or self._file.machine not in _ADDRESSES:
                raise ElfError("expected a shared library for x86-64 or AArch64")
            self._sections = self._file.sections()
            self.undefined: Mapping[str, Undefined] = {each.name: each for each in self._symbols()}
            needs = next((each for each in self._sections if each.name == SECTION and each.type != SHT_NOBITS), None)
            #: The content of ``SECTION``, None where there is none.
            self.needs = None if needs is None else self._file.content(needs)
        except ElfError as error:
            raise LinkError(f"{where} is no library that can be linked: {error}") from error

    def bound(self, addresses: Mapping[str, int]) -> bytearray:
        """A copy of the file where undefined symbols lie at these addresses of the process that will load it."""
        copy = bytearray(self._data)
        for name, address in addresses.items():
            at = self.undefined[name].at
            text, info, _, _, _, size = _SYMBOL.unpack_from(copy, at)
            kind = info & 0xF
            _SYMBOL.pack_into(copy, at, text, _STB_LOCAL << 4 | kind, _STV_HIDDEN, _SHN_ABS, address, size)
        return copy

    def _symbols(self) -> Iterator[Undefined]:
        table = self._only(_SHT_DYNSYM)
        if table is None:
            return
        number = self._sections.index(table)
        versions = self._only(_SHT_VERSYM)
        version = self._file.content(versions) if versions is not None else b""
        strings = self._sections[table.link] if table.link < len(self._sections) else table
        text = self._file.content(strings)
        called = set(self._called(number))
        symbols = self._file.content(table, _SYMBOL.size)
        defined = set()
        for i, (name, info, _, section, _, _) in enumerate(_SYMBOL.iter_unpack(symbols)):
            if i == 0 or info >> 4 == _STB_LOCAL:
                continue
            if section != _SHN_UNDEF:
                defined.add(string_at(text, name))
                continue
            # Version 0 is local and 1 global, without a name (Symbol Versioning, LSB 5.0 section 10.7.2).
            its = int.from_bytes(version[2 * i : 2 * i + 2], "little") & 0x7FFF
            at = table.offset + i * _SYMBOL.size
            yield Undefined(string_at(text, name), at, its > 1, info >> 4 == _STB_WEAK, i in called)
        self.defined = frozenset(defined)

    def _called(self, dynsym: int) -> Iterator[int]:
        for section in self._sections:
            if section.type == _SHT_RELA and section.link == dynsym:
                data = self._file.content(section, _RELOCATION.size)
                for _, info, _ in _RELOCATION.iter_unpack(data):
                    if info & 0xFFFFFFFF not in _ADDRESSES[self._file.machine]:
                        yield info >> 32

    def _only(self, kind: int) -> Section | None:
        return next((section for section in self._sections if section.type == kind), None)
