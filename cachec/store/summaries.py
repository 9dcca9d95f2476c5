"""What the key of an entry says, short enough to search: one row an entry, written with it.

The named parts of a key are an artifact, read when a miss is explained; a search over 100,000 entries can't open that
many files. So a publication writes beside ``entry:<namespace>:<key>``:

    summary:<namespace>:<key>    Summary: what differs from call to call
    facts:<64 hex>               Facts: code and tools, equal for all calls of a stage until one of them changes

Both are packed as every row is (packing.py), validated when read, and never needed for a hit. The name of a Facts row
is the BLAKE3 of its record, so it is shared. Where either is gone or damaged, the parts are read instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from cachec.base.hashing import digest_bytes
from cachec.model import RECORD_VERSION, Digest, Part

#: Characters of a detail that are kept.
MAX_DETAIL = 200

#: Prefixes of the parts that differ from call to call.
_OF_CALL = ("arg/", "file/", "program/", "weights/")

_REFERENCE = re.compile(r"\b[0-9a-f]{64}\b")


class Summary(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one call's key says.

    facts: the name of its Facts row, without the prefix. own: (part, detail) of arguments, files, programs and weight
    sets. kept: artifacts that details name (IR, manifests), so that a later miss can be explained. manifests: those of
    them that are manifests of weight sets.
    """

    version: int
    key: Digest
    facts: Digest
    own: tuple[tuple[str, str], ...]
    kept: tuple[Digest, ...]
    manifests: tuple[Digest, ...]


class Facts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the keys of many calls share. code: (label, detail); tools: (name, digest, detail)."""

    version: int
    code: tuple[tuple[str, str], ...]
    tools: tuple[tuple[str, Digest, str], ...]

    def name(self) -> Digest:
        """The digest that the row is named by."""
        return digest_bytes(msgspec.json.encode(self))


class Told(NamedTuple):
    """A summary with its facts."""

    summary: Summary
    facts: Facts


def told(key: Digest, parts: Sequence[Part]) -> Told:
    """What these parts say."""
    facts = Facts(
        version=RECORD_VERSION,
        code=tuple((_after(part), part.detail[:MAX_DETAIL]) for part in parts if part.name.startswith("code/")),
        tools=tuple(
            (_after(part), part.digest, part.detail[:MAX_DETAIL]) for part in parts if part.name.startswith("tool/")
        ),
    )
    own = [part for part in parts if part.name.startswith(_OF_CALL)]
    kept = {found for part in own for found in _named(part)}
    manifests = {found for part in own if part.name.startswith("weights/") for found in _named(part)}
    summary = Summary(
        version=RECORD_VERSION,
        key=key,
        facts=facts.name(),
        own=tuple((part.name, part.detail[:MAX_DETAIL]) for part in own),
        kept=tuple(sorted(kept)),
        manifests=tuple(sorted(manifests)),
    )
    return Told(summary, facts)


def _after(part: Part) -> str:
    return part.name.partition("/")[2]


def _named(part: Part) -> list[str]:
    """The artifacts that the detail of a program or of a weight set names."""
    return _REFERENCE.findall(part.detail) if part.name.startswith(("program/", "weights/")) else []
