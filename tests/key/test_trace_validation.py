"""What stands for a path's status: by which names code asks for it, and what changes it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cachec.key.trace_validation import STATUS_NAMES, status_digest

NAMES = {
    "st_mode": ("st_mode", "ST_MODE"),
    "st_mtime_ns": ("st_mtime", "st_mtime_ns", "ST_MTIME", "getmtime"),
    "st_ctime_ns": ("st_ctime", "st_ctime_ns", "ST_CTIME", "getctime"),
    "st_ino": ("st_ino", "ST_INO", "inode", "samefile", "samestat"),
    "st_nlink": ("st_nlink", "ST_NLINK"),
    "st_uid": ("st_uid", "ST_UID", "owner"),
    "st_gid": ("st_gid", "ST_GID", "group"),
}


@pytest.mark.parametrize(("field", "name"), [(field, name) for field, names in NAMES.items() for name in names])
def test_the_names_by_which_code_asks(tmp_path: Path, field: str, name: str) -> None:
    asked = STATUS_NAMES[name]
    status = os.stat(tmp_path)
    times = {each: getattr(status, each) + 1 for each in NAMES if each.endswith("_ns")}
    other = os.stat_result([value + 1 for value in status], times)
    assert status_digest(status, asked) == status_digest(status, field) != status_digest(other, asked)
