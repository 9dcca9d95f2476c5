"""When a version of the records was last in use in a store.

    index/used-<version>    empty; its time is of the last use, to within a day

Who looks an entry up touches that file, at most once a day, and so does the launcher's memo. ``gc`` removes the rows of
another version once nobody has used it for ``OLD_SECONDS``, and no row of it before that.
"""

from __future__ import annotations

import os

from cachec.store.index import Index, used_file

#: Seconds without use after which the rows of another version are removed.
OLD_SECONDS = 30 * 86400.0


def old_versions(index: Index, folder: str, own: int, now: float) -> list[int]:
    """Return the versions but ``own`` that nobody has used for ``OLD_SECONDS``. Raises StoreFault."""
    return [
        version
        for version in index.versions()
        if version != own and now - max(index.newest(version), _last_use(folder, version)) > OLD_SECONDS
    ]


def _last_use(folder: str, version: int) -> float:
    try:
        return os.stat(used_file(folder, version)).st_mtime
    except OSError:
        return 0.0  # then the time of the newest row counts
