"""Records of a compiler's names for the resources of its input, so that its output can be linked again.

A compiler renames resources: it adds a suffix to a key that its context knows already (``w0`` becomes ``w0_2``), and
later phases make new keys. So a name of the output is ambiguous: ``w0_2`` may be the old ``w0`` or the old ``w0_2``.
There are two ways to find out:

- ``mark`` a module *before* the compilation: each key becomes one that no other module has, and that no suffix of
  another key can form. Such a key in the output, with or without a suffix of digits, is that resource, because the
  compiler had no bytes to make another one from.
- ``find_renames`` compares the bytes of resources before and after. A blob that occurs once before is the same resource
  in the output. This can't distinguish equal weights: mark those.

Any other case is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from cachec.base.hashing import Hasher
from cachec.errors import LinkError, UsageError
from cachec.model import from_json
from cachec_mlir.blobs import ELIDED, Resource
from cachec_mlir.bytecode.reader import Bytecode, is_bytecode
from cachec_mlir.module_input import Source, open_input
from cachec_mlir.text.references import reference_text, references
from cachec_mlir.text.scanner import apply_edits, name_of, scan
from cachec_mlir.text.skeleton import Skeleton
from cachec_mlir.text.stripper import strip_text

#: Marked keys: this, a digest, ``_``, a number, and an end that is no digit, so that a suffix can't make another one.
_MARK = "cachec_"
_END = "_w"
_SUFFIX = re.compile(r"(?:_[0-9]+)+")
_VERSION = 1


class Renames(NamedTuple):
    """A record. names: key that came out -> name that went in. dropped: names that did not come out."""

    names: Mapping[str, str]
    dropped: tuple[str, ...]

    def encode(self) -> bytes:
        """As JSON: ``{"version": 1, "names": {...}, "dropped": [...]}``, sorted."""
        names = {new: self.names[new] for new in sorted(self.names)}
        return msgspec.json.encode({"version": _VERSION, "names": names, "dropped": sorted(self.dropped)})

    @classmethod
    def decode(cls, data: bytes) -> Renames:
        """Raises LinkError for what is no such record."""
        record = from_json(data, _Record, LinkError, "the record of renames is malformed")
        if record.version != _VERSION:
            raise LinkError(f"the record of renames expected version {_VERSION}, found {record.version}")
        return cls(record.names, tuple(record.dropped))


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    names: dict[str, str]
    dropped: list[str]


class MarkedModule(NamedTuple):
    """A stripped text with keys of its own. names: key -> name before."""

    ir: bytes
    names: Mapping[str, str]

    def find_renames(self, after: Source) -> Renames:
        """Return the names of the keys in ``after``, the compiler's output, text or bytecode.

        Raises LinkError for a resource that was not marked.
        """
        names: dict[str, str] = {}
        for key in sorted(_keys(after)):
            name = self._name(key)
            if name is None:
                raise LinkError(
                    f"resource {key!r} of the output was made by the compiler, it is none of the {len(self.names)} "
                    "that went in; it has to be compiled with these weights, and keyed by their content"
                )
            names[key] = name
        return Renames(names, tuple(sorted(set(self.names.values()) - set(names.values()))))

    def _name(self, key: str) -> str | None:
        end = key.rfind(_END)
        stem, suffix = key[: end + len(_END)], key[end + len(_END) :]
        if end < 0 or (suffix and _SUFFIX.fullmatch(suffix) is None):
            return None
        return self.names.get(stem)


def mark(ir: Source, salt: str = "") -> MarkedModule:
    """Return a stripped text with unambiguous keys of its resources. The same text gets the same keys each time.

    salt: what tells it from another module of the same text that will be in the same module as it one day.
    Raises UsageError for bytecode, LinkError for a text that has bytes of its own (the compiler could make others from
    them; strip it), CheckpointError, OSError.
    """
    if is_bytecode(ir):
        raise UsageError("mark: expected a text; print the bytecode with its own MLIR first")
    stripped = strip_text(ir)
    if stripped.resources:
        raise LinkError(f"mark: the module has bytes of {next(iter(stripped.resources))!r}; strip it first")
    text = stripped.ir
    used = references(open_input(text), text, "resource", "")
    if any(each.name == ELIDED for each in used):
        raise LinkError("mark: constants of the module were elided when it was printed, and are lost; print it in full")
    hasher = Hasher("mlir-marks")
    hasher.part("text", text)
    hasher.part("salt", salt.encode())
    stem = f"{_MARK}{hasher.digest()[:32]}"
    if stem.encode() in text:
        raise LinkError("mark: the text holds its own digest")
    numbers: dict[str, int] = {}
    edits: list[tuple[int, int, bytes]] = []
    for each in used:
        number = numbers.setdefault(each.name, len(numbers))
        edits.append((each.start, each.end, reference_text("resource", "", f"{stem}_{number}{_END}")))
    return MarkedModule(apply_edits(text, edits), {f"{stem}_{number}{_END}": name for name, number in numbers.items()})


def find_renames(before: Mapping[str, Resource], after: Mapping[str, Resource]) -> Renames:
    """Match each resource of ``after`` with one of ``before`` by their bytes; both are ``strip(module).resources``.

    Reads all of them. Raises LinkError if one of ``after`` matches none or several of ``before``.
    """
    by_digest: dict[str, list[str]] = {}
    for name, resource in before.items():
        by_digest.setdefault(resource.blob.digest(), []).append(name)
    names: dict[str, str] = {}
    for name, resource in after.items():
        candidates = by_digest.get(resource.blob.digest(), [])
        if len(candidates) > 1:
            raise LinkError(
                f"resource {name!r} of the output has the bytes of {candidates[0]!r} and of {candidates[1]!r}, which "
                "are equal; mark() the module before it is compiled"
            )
        if not candidates:
            raise LinkError(
                f"resource {name!r} of the output has the bytes of none that went in: the compiler made it from them, "
                "so the result depends on their content"
            )
        names[name] = candidates[0]
    return Renames(names, tuple(sorted(set(before) - set(names.values()))))


def _keys(source: Source) -> set[str]:
    """Names of all resources that a module uses or declares."""
    if is_bytecode(source):
        return {name for name, _, _ in Bytecode(source).named}
    module = open_input(source)
    marks = scan(module)
    names = {name_of(entry) for entry in marks.resources() if entry.group == "builtin"}
    return names | {each.name for each in references(module, Skeleton(module, marks).text, "resource", "")}
