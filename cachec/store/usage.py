"""How large the store is, kept as one row of the index (``usage:``), so that a publication knows without looking.

``gc`` measures it; each publication adds what its process has written since. So it can only be too large (an object
that was lost counts until the next ``gc``), or short of what processes wrote that died before they published. Each
version of the records has a row: what only another version needs does not count, as this one can't free it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from cachec.model import RECORD_VERSION

ROW = "usage:"
TAG = "usage"

#: Bytes in a block of the usual file systems.
_BLOCK = 4096

_Count = Annotated[int, msgspec.Meta(ge=0)]


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of disk."""

    version: int
    #: Of artifacts, and of what trees hold beside them.
    nbytes: _Count
    #: What the last ``gc`` could not go below.
    rest: _Count = 0

    def grown(self, nbytes: int) -> Usage:
        """With so many bytes more, or less where negative."""
        return Usage(version=RECORD_VERSION, nbytes=max(0, self.nbytes + nbytes), rest=self.rest)


def disk_bytes(size: int) -> int:
    """Bytes of disk that a file of ``size`` bytes takes, in blocks of 4 KiB."""
    return -(-size // _BLOCK) * _BLOCK
