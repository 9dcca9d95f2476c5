"""``cachec.depends``: a running stage declares a file that it reads."""

from __future__ import annotations

import os

from cachec import recording
from cachec.base.paths import absolute, entries
from cachec.key.trace_validation import listing_digest


def depends(path: str | os.PathLike[str]) -> str:
    """Record that the result of the running stage depends on ``path``; returns the absolute path.

    A file counts by content, a folder by the names in it, a missing one by its absence: if it appears later, the stored
    result no longer holds. A relative path stands for what is there in the current folder of each call. Call this
    before the file is read. Outside a stage nothing is recorded. Raises OSError where the file is there but unreadable.
    """
    recorder = recording.current()
    if recorder is None:
        return absolute(os.fsdecode(path))
    # A relative path is recorded as one: in another current folder the stage would look at another file.
    place = os.fsdecode(path)
    if os.path.isdir(place):
        recorder.listing(place, listing_digest(entries(place)))
    elif os.path.exists(place):
        recorder.file(place, recorder.digests.of_path(place))
    else:
        recorder.absent(place)
    return absolute(place)
