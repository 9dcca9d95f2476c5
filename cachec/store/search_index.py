"""What the key of an entry says, short enough to search: one row an entry, written with it.

The named parts of a key are an artifact, read when a miss is explained; a search over 100,000 entries can't open that
many files. So a publication writes beside ``entry:<namespace>:<key>``:

    summary:<namespace>:<key>    CallSummary: what differs from call to call
    facts:<64 hex>               Facts: code and tools, equal for all calls of a stage until one of them changes

Both are packed as every row is (packing.py), validated when read, and never needed for a hit. The name of a Facts row
is the BLAKE3 of its record, so it is shared. Where either is gone or damaged, the parts are read instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cachec.base.hashing import digest_bytes
from cachec.model import RECORD_VERSION, Digest, Part, PartKind

#: Parts that differ from call to call.
_OF_CALL = frozenset({PartKind.ARGUMENT, PartKind.FILE, PartKind.PROGRAM, PartKind.WEIGHTS})

_TOOLS = frozenset({PartKind.DISTRIBUTION, PartKind.REQUIREMENT, PartKind.EXECUTABLE})


class SearchedArgument(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An argument, file, program or weight set of a call, as its part has it."""

    kind: PartKind
    name: str
    value: str


class KeyedTool(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A distribution or executable, as its part has it."""

    kind: PartKind
    name: str
    digest: Digest
    version: str


class CallSummary(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one call's key says."""

    version: int
    key: Digest
    #: The name of its Facts row, without the prefix.
    facts: Digest
    given: tuple[SearchedArgument, ...]
    #: Artifacts that parts refer to (IR, manifests), so that a later miss can be explained.
    artifacts: tuple[Digest, ...] = msgspec.field(name="kept")
    #: Those of them that are manifests of weight sets.
    manifests: tuple[Digest, ...]


class Facts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the keys of many calls share."""

    version: int
    #: Names of its parts.
    code: tuple[str, ...]
    tools: tuple[KeyedTool, ...]

    def name(self) -> Digest:
        """The digest that the row is named by."""
        return digest_bytes(msgspec.json.encode(self))


class SearchTerms(msgspec.Struct, frozen=True):
    """All that an entry is searched by: its summary with the facts."""

    summary: CallSummary
    facts: Facts


def search_terms(key: Digest, parts: Sequence[Part]) -> SearchTerms:
    """The terms of the entry of ``key``, whose parts these are."""
    facts = Facts(
        version=RECORD_VERSION,
        code=tuple(part.name for part in parts if part.kind is PartKind.CODE),
        tools=tuple(
            KeyedTool(part.kind, part.name, part.digest, part.version) for part in parts if part.kind in _TOOLS
        ),
    )
    summary = CallSummary(
        version=RECORD_VERSION,
        key=key,
        facts=facts.name(),
        given=tuple(SearchedArgument(part.kind, part.name, part.value) for part in parts if part.kind in _OF_CALL),
        artifacts=_digests_of_parts(parts),
        manifests=_digests_of_parts([part for part in parts if part.kind is PartKind.WEIGHTS]),
    )
    return SearchTerms(summary, facts)


def _digests_of_parts(parts: Sequence[Part]) -> tuple[Digest, ...]:
    return tuple(sorted({ref for part in parts for ref in part.refs}))
