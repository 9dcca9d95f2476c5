"""How large a store may be."""

from __future__ import annotations

import os
from pathlib import Path

from cachec.base import fsio
from cachec.store.usage import Usage

#: Of what the disk has free, and what the store has already: a cache must not be what fills it.
DISK_SHARE = 0.5

#: Where ``gc`` after a publication comes down to, of the limit.
LOW_WATER = 0.9


def limit(max_size: int, folder: Path, nbytes: int) -> int | None:
    """The bytes that a store of ``nbytes`` in ``folder`` may have; None for no limit (``max_size`` 0).

    Raises StoreFault where the file system can't be asked.
    """
    if not max_size:
        return None
    place = folder
    with fsio.faults(f"asking for the free space of {place}"):
        while not place.exists() and place.parent != place:
            place = place.parent
        space = os.statvfs(place)
    return min(max_size, int((space.f_bavail * space.f_frsize + nbytes) * DISK_SHARE))


def is_due(usage: Usage, limit: int) -> bool:
    """Whether a ``gc`` may help: over the limit, and by a tenth of it over what the last one could not go below."""
    return usage.nbytes > max(limit, usage.rest + int(limit * (1 - LOW_WATER)) if usage.rest else limit)


def is_over(usage: Usage, max_size: int, folder: Path) -> bool:
    """Whether a store of this size is to come down. Raises StoreFault as ``limit``."""
    allowed = limit(max_size, folder, usage.nbytes)
    return allowed is not None and is_due(usage, allowed)
