"""Parts of keys as tests write them: by label, with a digest of what they are said to hold."""

from __future__ import annotations

from typing import Any

from cachec.base.hashing import digest_bytes
from cachec.model import Part, PartKind
from cachec.store.row_codec import unpack
from cachec.store.store import QuarantinedRow, Store


def quarantined(store: Store) -> list[QuarantinedRow]:
    """The entries of a store's namespace that were put away."""
    return [unpack(row or b"", QuarantinedRow, name) for name, row in store.index.rows(f"quarantine:{store.quoted}")]


def part(label: str, detail: str = "", content: str | None = None, **fields: Any) -> Part:
    """The part of this label (``arg/batch``), whose digest is of ``content``, by default of its detail."""
    kind, _, name = label.partition("/")
    return Part(PartKind(kind), name, digest_bytes((detail if content is None else content).encode()), detail, **fields)


def tool(name: str, version: str, notes: str = "") -> Part:
    """The part of a distribution. notes: what its detail says beside name and version."""
    return part(f"distribution/{name}", f"{name} {version}{notes}", version=version)


def option(name: str, value: str) -> Part:
    """The part of a plain argument, as it is written."""
    return part(f"arg/{name}", value, value=value)
