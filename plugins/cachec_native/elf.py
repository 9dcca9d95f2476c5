"""The dynamic symbols of a shared library: its undefined symbols, and a copy of the file with addresses for some.

ELF-64, little-endian, x86-64 or AArch64 (System V ABI, chapters 4 and 5; relocation types from the two processor
supplements). The module reads files from the linker of the host only, and checks each offset before it uses it.

An undefined symbol gets its address by becoming *local* and *absolute* (``STB_LOCAL``, ``STV_HIDDEN``, ``SHN_ABS``).
The dynamic loader then does not look its name up, so that no symbol of another library can replace it. It uses the
value unchanged, wherever it loads the library (glibc 2.28 and later: ``SYMBOL_ADDRESS`` in its ldsodefs.h).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from cachec.base.elf import SHT_NOBITS, ElfError, ElfFile, Section, string_at
from cachec.errors import LinkError

#: The section of a library with the requirements of its code: JSON, name of a weight -> ``Needs``.
SECTION = ".cachec.weights"

#: The largest possible alignment: that of maps of files and of memory.
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
    """The requirements of compiled code on a weight."""

    #: The alignment of its address, in bytes.
    alignment: int
    #: Whether the weight is read-only. Otherwise the code may write to it, as to each non-constant ``memref.global``.
    constant: bool


class UndefinedSymbol(NamedTuple):
    """A symbol that the library does not define."""

    name: str
    #: The offset of its entry in the file.
    at: int
    #: Whether a library defined it when this one was linked.
    versioned: bool
    weak: bool
    #: Whether the code needs more than its plain address, as of a function.
    called: bool


class Library:
    """A shared library in memory. The constructor raises LinkError, with ``where``, for other bytes."""

    def __init__(self, data: bytes, where: str) -> None:
        self._data = data
        #: Exported symbols that it defines itself.
        self.defined: frozenset[str] = frozenset()
        try:
            self._file = ElfFile.of_bytes(data)
            if self._file.kind != 3 or self._file.machine not in _ADDRESSES:
                raise ElfError("expected a shared library for x86-64 or AArch64")
            self._sections = self._file.sections()
            self.undefined: Mapping[str, UndefinedSymbol] = {each.name: each for each in self._symbols()}
            needs = next((each for each in self._sections if each.name == SECTION and each.type != SHT_NOBITS), None)
            #: The content of ``SECTION``, or None.
            self.needs = None if needs is None else self._file.content(needs)
        except ElfError as error:
            raise LinkError(f"{where} is no library that can be linked: {error}") from error

    def bind(self, addresses: Mapping[str, int]) -> bytearray:
        """Return a copy of the file with these addresses, of the process that will load it, for undefined symbols."""
        copy = bytearray(self._data)
        for name, address in addresses.items():
            at = self.undefined[name].at
            text, info, _, _, _, size = _SYMBOL.unpack_from(copy, at)
            kind = info & 0xF
            _SYMBOL.pack_into(copy, at, text, _STB_LOCAL << 4 | kind, _STV_HIDDEN, _SHN_ABS, address, size)
        return copy

    def _symbols(self) -> Iterator[UndefinedSymbol]:
        table = self._only(_SHT_DYNSYM)
        if table is None:
            return
        number = self._sections.index(table)
        versions = self._only(_SHT_VERSYM)
        version = self._file.content(versions) if versions is not None else b""
        strings = self._sections[table.link] if table.link < len(self._sections) else table
        text = self._file.content(strings)
        called = set(self._called_symbols(number))
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
            yield UndefinedSymbol(string_at(text, name), at, its > 1, info >> 4 == _STB_WEAK, i in called)
        self.defined = frozenset(defined)

    def _called_symbols(self, dynsym: int) -> Iterator[int]:
        for section in self._sections:
            if section.type == _SHT_RELA and section.link == dynsym:
                data = self._file.content(section, _RELOCATION.size)
                for _, info, _ in _RELOCATION.iter_unpack(data):
                    if info & 0xFFFFFFFF not in _ADDRESSES[self._file.machine]:
                        yield info >> 32

    def _only(self, kind: int) -> Section | None:
        return next((section for section in self._sections if section.type == kind), None)
