"""For plugins with weights in their formats: sets over bytes in place, and files that are written as a whole.

A set is ``WeightSet(Layout(tensors), source)``: ``FileSource`` for ranges of a file, a ``Source`` of the plugin's own
for anything else. With ``cachec.weights`` this is all that plugins see of weights and files. ``Conclusions`` keep what
a plugin found out about content, in the store of the cache that ``digests_here`` are of.
"""

from __future__ import annotations

from cachec import recording
from cachec.base.audit_events import tell_read
from cachec.base.fsio import Identity, Staging, identity, map_read, map_untracked, open_read, pread_exact
from cachec.base.hashing import FileDigests
from cachec.store.derived_cache import Conclusions
from cachec.weights.formats import WRITTEN_SUFFIXES
from cachec.weights.io.copying import Copier
from cachec.weights.layout import Layout
from cachec.weights.sources import Extent, FileSource, OpenedFile, Ranges, Source, Ways
from cachec.weights.tensor import Tensor

__all__ = [
    "WRITTEN_SUFFIXES",
    "Conclusions",
    "Copier",
    "Extent",
    "FileSource",
    "Identity",
    "Layout",
    "OpenedFile",
    "Ranges",
    "Source",
    "Staging",
    "Tensor",
    "Ways",
    "digests_here",
    "identity",
    "map_read",
    "map_untracked",
    "open_read",
    "pread_exact",
    "tell_read",
]


def digests_here() -> FileDigests:
    """Return the digests of the running stage's cache; outside of stages new ones, which are not stored."""
    running = recording.current()
    return FileDigests() if running is None else running.digests
