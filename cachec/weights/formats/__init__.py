"""Formats of checkpoints: the one table of how to recognise a file, and of the module that reads or writes it.

A package offers further formats through the entry-point group ``cachec.formats``, each under what a file of it ends
with or begins with::

    [project.entry-points."cachec.formats"]
    ".toy" = "toy_checkpoints:format"
    "0x544f5921" = "toy_checkpoints:format"

The object is a ``Format`` (see ``base.py``); a module with a function ``read`` is one. It is imported when a file asks
for it that none of the formats here claims. ``cachec.testing.formats`` has the tests that every format inherits.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from cachec.base.display_text import argument_hint
from cachec.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cachec.base.distributions import Distributions
    from cachec.weights.formats.base import Format, WritableFormat

#: The entry-point group under which a package offers a format.
GROUP = "cachec.formats"


class KnownFormat(msgspec.Struct, frozen=True):
    """A format, and how to recognise it."""

    name: str
    #: ``module`` or ``module:object``.
    target: str
    suffixes: tuple[str, ...]
    magics: tuple[bytes, ...] = ()
    #: Whether ``save`` can write it.
    writes: bool = False
    #: Whether a file with such a suffix can be nothing but weights (an ``.onnx`` is a program too).
    says_weights: bool = True


#: The number of first bytes of a file that are read.
MAGIC = 32

_HERE = "cachec.weights.formats"
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")

#: What has no magic, and so is every file that nothing else claims.
SAFETENSORS = KnownFormat("safetensors", f"{_HERE}.safetensors", (".safetensors",), writes=True)
#: A zip archive without a telling name.
_ARCHIVE = KnownFormat("zip", f"{_HERE}.archive", (), _ZIP)

FORMATS = (
    SAFETENSORS,
    KnownFormat("gguf", f"{_HERE}.gguf", (".gguf",), (b"GGUF", b"FUGG")),
    KnownFormat("irpa", f"{_HERE}.irpa", (".irpa",), (b"IRPA",), writes=True),
    KnownFormat("npy", f"{_HERE}.npy", (".npy",), (b"\x93NUMPY",)),
    KnownFormat("npz", f"{_HERE}.npz", (".npz",)),
    KnownFormat("onnx", f"{_HERE}.onnx", (".onnx",), says_weights=False),
    KnownFormat("ptd", f"{_HERE}.ptd", (".ptd",), writes=True),
    KnownFormat("torch", f"{_HERE}.torch_pt", (".pt", ".pth", ".ckpt")),
    KnownFormat("tvm", f"{_HERE}.tvm", (".json",), says_weights=False),
)
_BY_SUFFIX = {suffix: known for known in FORMATS for suffix in known.suffixes}
_MAGICS = {magic: known for known in FORMATS for magic in known.magics}
_ANY_MAGIC = tuple(_MAGICS)

#: What files end with that hold nothing but weights; those of other packages are not among them.
WEIGHT_SUFFIXES = frozenset(suffix for suffix, known in _BY_SUFFIX.items() if known.says_weights)
#: What the names of checkpoints end with, the longest first.
CHECKPOINT_SUFFIXES = (".safetensors.index.json", *sorted(_BY_SUFFIX, key=len, reverse=True))
#: What the names of files end with that ``WeightSet.save`` writes.
WRITTEN_SUFFIXES = tuple(suffix for suffix, known in _BY_SUFFIX.items() if known.writes)


def format_of(path: str, start: bytes) -> KnownFormat:
    """The format of a file by its first bytes (``MAGIC``, where it has so many), then by its suffix.

    safetensors, which has no magic, where nothing tells. As a header of 64 MiB begins like a zip archive does, the
    suffixes of what is no archive decide against that one.
    """
    if start.startswith(_ANY_MAGIC):
        return next(known for magic, known in _MAGICS.items() if start.startswith(magic))
    suffix = _suffix(path)
    by_name = _BY_SUFFIX.get(suffix)
    zipped = start.startswith(_ZIP)
    if by_name is not None and not (zipped and by_name.magics):
        return by_name
    if by_name is None and (suffix or not _begins_like_safetensors(start)):
        offered = _offered_for(suffix, start)
        if offered is not None:
            return offered
    return _ARCHIVE if zipped else SAFETENSORS


def format_to_write(path: str, name: str | None = None) -> KnownFormat:
    """The format in which a file of this name is written: what its suffix says, safetensors where it has none.

    name: of the format, where the caller says so, whatever the suffix. Raises UsageError for what can't be written.
    """
    expected = f"expected {' or '.join(WRITTEN_SUFFIXES)}"
    if name is not None:
        chosen = next((known for known in FORMATS if known.name == name and known.writes), None)
        if chosen is None:
            names = " or ".join(repr(known.name) for known in FORMATS if known.writes)
            raise UsageError(f"save: format expected {names}, found {name!r}")
        return chosen
    suffix = _suffix(path)
    if not suffix:
        return SAFETENSORS
    by_name = _BY_SUFFIX.get(suffix) or _offered_for(suffix, b"")
    if by_name is None:
        raise UsageError(
            f"save: {path}: no format is known by {suffix}; {expected}, or say which: "
            f"{argument_hint('format=', '--format')}"
        )
    if not by_name.writes:
        raise UsageError(f"save: {path}: {by_name.name} can be read and not written; {expected}")
    return by_name


def load_format(known: KnownFormat) -> Format:
    """What reads files of a format. Raises PluginError where another package's can't be imported."""
    from cachec.base.entry_points import load_object
    from cachec.weights.formats.base import Format

    reader: Format = load_object(f"the format {known.name!r}", known.target, "format", Format)
    return reader


def writer(known: KnownFormat) -> WritableFormat:
    """What writes files of a format. Raises UsageError where it can't, PluginError as ``load_format``."""
    from cachec.base.entry_points import load_object
    from cachec.weights.formats.base import WritableFormat

    plugin = load_object(f"the format {known.name!r}", known.target, "format", object)
    if not isinstance(plugin, WritableFormat):
        raise UsageError(f"save: the format {known.name} ({known.target}) can be read and not written")
    return plugin


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def _begins_like_safetensors(start: bytes) -> bool:
    return start[8:9] == b"{" and start[4:8] == bytes(4)


@cache
def _distributions() -> Distributions:
    """Return the one object of the process, as ``open_weights`` is a function. It checks the folders each time."""
    from cachec.base.distributions import Distributions

    return Distributions()


def _offered_for(suffix: str, start: bytes) -> KnownFormat | None:
    """The format of another package for such a file: by its first bytes, the longest magic first, then by suffix."""
    offered: Mapping[str, str] = _distributions().plugin_entry_points(GROUP)
    for name in sorted(offered, key=len, reverse=True):
        if name.startswith("0x") and start[: len(name) // 2 - 1].hex() == name[2:].lower():
            return KnownFormat(name, offered[name], ())
    target = offered.get(suffix) if suffix else None
    return None if target is None else KnownFormat(suffix, target, (suffix,), writes=True)
