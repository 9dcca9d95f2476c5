"""The topology hash of MLIR: equal for modules that say the same program with other names, places and weight bytes.

Left out of a text: bytes of the trailer's blobs (their size and alignment count), the order of resources, spaces,
comments, block labels, SSA names, names of aliases, locations at the end of operations and block arguments. Everything
else counts, constants that are not resources by value.

Two texts are never equal by mistake: a name is only ever replaced by another, one to one.

- An SSA name is replaced within a function (an operation of ``ISOLATED`` from its name to the end of its body, where
  that is certain), or else within the whole text, by a number in the order of appearance. Where a name appears in
  several regions (braces) and nowhere in a region around them, it means another value in each (LangRef, "Value
  scoping"), and gets a number in each.
- A block label is replaced within the region that defines it.
- An alias is replaced by its definition.
- The body of a dialect's attribute or type, ``#dialect.attr<...>``, counts to the letter, spaces, names, comments and
  locations in it too: MLIR keeps it as text if it does not know the dialect. The definitions of aliases in it count as
  well.
- A location is left out only where it ends an operation or a block argument; one that is the value of an attribute
  counts.
- In some dialects the name of a value has a meaning (ports of CIRCT's ``hw.module``). It does not count either: pass
  ``locations=True`` for these.

What two printers write differently counts as different: pretty and generic notation, ``%a:2`` and ``%a, %b``, an
escaped string and a plain one, a constant as numbers and as hexadecimal digits. So do two region arguments that are
written in front of their regions (``scf.for %i``) and share a name in one text and not in the other.

Bytecode as it is: only the bytes of its resources are left out.

With ``bindings``, and for live modules always, MLIR itself reads the module and prints it in generic notation, which is
hashed: text in any notation, bytecode and live module of one program are equal then, and what printers write
differently is too. Such a hash is never equal to one without bindings, nor meant to be to one of another MLIR's.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from cachec.base.hashing import FileDigests, Hasher, digest_bytes
from cachec.errors import UsageError
from cachec_mlir.bytecode import reader
from cachec_mlir.bytecode.reader import BLOB, BOOL, Bytecode
from cachec_mlir.live.bindings import Bindings, bindings_of, generic
from cachec_mlir.live.live_modules import BytecodeFile, parse_stripped
from cachec_mlir.module_input import ModuleInput, Source, open_input
from cachec_mlir.text.canonical_tokens import Canonical
from cachec_mlir.text.scanner import Marks, Trailer, TrailerItem, blob_of, name_of, scan, unescape
from cachec_mlir.text_cache import PACKAGE, topologies

#: The number of bytes of a text that are read at once.
_WINDOW = 1 << 20


def topology(source: Source | Any, *, bindings: str | None = None, locations: bool = False) -> str:
    """Hash a module (text, bytecode, or a live ``ir.Module``) to 64 hexadecimal characters; see above for what counts.

    ``str`` and ``PathLike`` are paths. bindings: ``iree`` or ``jax``, the MLIR that reads text and bytecode; the result
    does not depend on other installed packages. locations: for a compiler that keeps debug information: names, places,
    comments and spaces of a text count too, so every byte outside of its resources does.

    Raises CheckpointError (naming the byte), OSError; PluginError if the bindings are not installed.
    """
    live = bindings_of(source)
    if live is not None:
        if bindings not in {None, live}:
            raise UsageError(f"topology: a module of {live!r} can't be read through bindings={bindings!r}")
        with BytecodeFile(source) as written:
            return _generic(generic(source, locations=locations), _of_bytecode(written.bytecode), locations=locations)
    if reader.is_bytecode(source):
        if bindings is None:
            return reader.topology(source)  # locations count anyway
        module = Bytecode(source)
        read = parse_stripped(Bindings(bindings), module)
        return _generic(generic(read, locations=locations), _of_bytecode(module), locations=locations)
    text = open_input(source)
    marks = scan(text)
    if bindings is not None:
        read = Bindings(bindings).parse(_without_trailers(text, marks), text.label)
        digest = _generic(generic(read, locations=locations), _of_text(text, marks.trailers), locations=locations)
    else:
        hasher = Hasher("mlir-text-located" if locations else "mlir-text")
        tokens = _without_trailers(text, marks) if locations else Canonical(text, marks).tokens()
        hasher.part("operations", tokens)
        digest = _with_resources(hasher, _of_text(text, marks.trailers))
    text.check()
    return digest


def canonical(source: Source) -> str:
    """The operations of a text as they are hashed, a token a line, for a person (or a diff). Raises as ``topology``."""
    module = open_input(source)
    return Canonical(module, scan(module)).tokens().replace(b"\0", b"\n").decode("utf-8", "backslashreplace")


class Topologies:
    """A cache of ``topology``: a second call for the same bytes only checks the file's status, or the object.

    The result for a file is cached if a write to it would be noticed (see ``FileDigests``), and for immutable bytes.
    Any other source is hashed at each call. digests: those of a cache, for results between processes.
    """

    def __init__(self, digests: FileDigests | None = None, *, most: int = 64, most_nbytes: int = 64 << 20) -> None:
        """most, most_nbytes: limits for the cached bytes objects: their number, and their total size."""
        self._digests = FileDigests() if digests is None else digests
        self._by_digest: dict[tuple[str, str | None, bool], str] = {}
        self._objects: OrderedDict[int, tuple[bytes, str]] = OrderedDict()
        self._most = most
        self._most_nbytes = most_nbytes
        self._nbytes = 0

    def of(self, source: Source | Any, *, bindings: str | None = None, locations: bool = False) -> str:
        """See ``topology``."""
        if isinstance(source, str | os.PathLike):
            digest = self._digests.of_path(source)
        elif type(source) is bytes:
            digest = self._of_object(source)
        else:
            return topology(source, bindings=bindings, locations=locations)
        place = (digest, bindings, locations)
        known = self._by_digest.get(place) or self._recall(place)
        if known is None:
            known = topology(source, bindings=bindings, locations=locations)
            if isinstance(source, bytes) or self._digests.of_path(source) == digest:
                self._remember(place, known)
        return known

    def _of_object(self, source: bytes) -> str:
        cached = self._objects.get(id(source))
        if cached is not None and cached[0] is source:
            return cached[1]
        digest = digest_bytes(source)
        if len(source) <= self._most_nbytes:
            self._objects[id(source)] = (source, digest)
            self._nbytes += len(source)
            while len(self._objects) > self._most or self._nbytes > self._most_nbytes:
                self._nbytes -= len(self._objects.popitem(last=False)[1][0])
        return digest

    def _recall(self, place: tuple[str, str | None, bool]) -> str | None:
        digest, bindings, locations = place
        if bindings is not None:  # what they print changes with their version
            return None
        cached = topologies(self._digests).recall(*_about(digest, locations=locations))
        if cached is not None:
            self._by_digest[place] = cached
        return cached

    def _remember(self, place: tuple[str, str | None, bool], value: str) -> None:
        self._by_digest[place] = value
        if place[1] is None:
            topologies(self._digests).keep(value, *_about(place[0], locations=place[2]))


def cached_topology_of_text(ir: bytes, digests: FileDigests) -> str:
    """Return ``topology`` of a text, from the cache of ``digests`` if possible."""
    known, about = topologies(digests), _about(digest_bytes(ir), locations=False)
    found = known.recall(*about)
    if found is None:
        found = topology(ir)
        known.keep(found, *about)
    return found


def _about(digest: str, *, locations: bool) -> tuple[str, ...]:
    return PACKAGE, digest, str(locations)


# --- through bindings


def _generic(text: bytes, lines: Iterator[bytes], *, locations: bool) -> str:
    hasher = Hasher("mlir-generic-located" if locations else "mlir-generic")
    hasher.part("operations", text)
    return _with_resources(hasher, lines)


def _without_trailers(module: ModuleInput, marks: Marks) -> bytes:
    """The operations. The lines of a trailer stay, empty: behind them every place would be another."""
    view = module.view()
    out: list[bytes] = []
    at = 0
    for trailer in sorted(marks.trailers):
        out.append(bytes(view[at : trailer.start]))
        lines = 0
        for start in range(trailer.start, trailer.end, _WINDOW):
            lines += bytes(view[start : min(trailer.end, start + _WINDOW)]).count(b"\n")
        at = trailer.end
        if bytes(view[at : at + _WINDOW]).strip():
            out.append(b"\n" * lines)
    return b"".join([*out, bytes(view[at : module.size])])


# --- resources


def _with_resources(hasher: Hasher, lines: Iterator[bytes]) -> str:
    for line in sorted(lines):
        hasher.part("resource", line)
    return hasher.digest()


def _line(section: str, group: str, key: str, value: bytes) -> bytes:
    # NUL is in no key: a text that holds one is refused, and bytecode ends its strings with it.
    return b"\0".join((section.encode(), group.encode(), key.encode(), value))


def _blob(nbytes: int, alignment: int) -> bytes:
    return f"blob of {nbytes} bytes, aligned to {alignment}".encode()


def _of_text(module: ModuleInput, trailers: tuple[Trailer, ...]) -> Iterator[bytes]:
    for trailer in trailers:
        for entry in trailer.entries:
            blob = blob_of(module, entry, name_of(entry))
            value = _setting(module, entry) if blob is None else _blob(blob.nbytes, blob.alignment)
            yield _line(entry.section, entry.group, entry.key, value)


def _setting(module: ModuleInput, entry: TrailerItem) -> bytes:
    """The value of an external resource, or of one that is no blob, as bytecode has it."""
    size = entry.end - entry.start
    head = bytes(module.view()[entry.start : entry.start + 3])
    if head == b'"0x' and entry.digits_only and size % 2 == 0 and size >= 12:
        blob = blob_of(module, entry._replace(section="dialect_resources"), entry.key)
        assert blob is not None
        return _blob(blob.nbytes, blob.alignment) + b" " + blob.blob.digest().encode()
    raw = bytes(module.view()[entry.start : entry.end])
    return b"string " + unescape(module, raw, entry.start).encode() if head[:1] == b'"' else b"word " + raw


def _of_bytecode(module: Bytecode) -> Iterator[bytes]:
    for group in module.groups:
        section = "external_resources" if group.external else "dialect_resources"
        owner = module.strings[group.key]
        for entry in group.entries:
            key = module.strings[entry.key]
            if not entry.nbytes:
                continue  # declared; the operations use it
            if entry.kind == BLOB:
                resource = reader.resource(module.input, key, (owner, key), entry)
                value = _blob(resource.nbytes, resource.alignment)
                if group.external:
                    value += b" " + resource.blob.digest().encode()
            elif entry.kind == BOOL:
                value = b"word true" if any(module.input.at(entry.offset, entry.nbytes, key)) else b"word false"
            else:
                value = b"string " + module.string_of(entry).encode()
            yield _line(section, owner, key, value)
