"""Bundles of what their maker likes."""

from __future__ import annotations

from typing import Any

import msgspec

from cachec.bundle.format import END, TABLE, header, padding


def packed(table: Any, contents: dict[str, bytes], signature: bytes = b"") -> bytes:
    """A bundle with this table and these files, as one that lies would be written."""
    data = table if isinstance(table, bytes) else msgspec.json.encode(table)
    members = {TABLE: data, **({"signature.json": signature} if signature else {}), **contents}
    return b"".join(header(name, len(each)) + each + bytes(padding(len(each))) for name, each in members.items()) + END
