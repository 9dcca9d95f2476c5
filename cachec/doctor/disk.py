"""The file system of the store: what it can do, and how much room there is."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cachec import report
from cachec.base import fsio
from cachec.base.display_text import to_type
from cachec.base.mounts import is_network
from cachec.doctor.case import Case, Finding
from cachec.errors import StoreFault
from cachec.store import store_size
from cachec.store.objects import SEAL_SLACK_NS, is_sealed, seal
from cachec.store.store_size import Usage

#: What a disk needs for the next few results, and for SQLite.
_ROOM = 64 << 20
#: With less a gc can't write what it needs to: its lock, and rows.
_LEAST = 1 << 20
_FULL = "remove something else first, or folders of its objects/ (that costs results, nothing else); then"
_FILES = 1000

#: ioctl of linux/fs.h: share the blocks of another file.
_FICLONE = 0x40049409

_LOCAL = "set CACHEC_DIR to a folder on a local disk"


def file_system(case: Case) -> Iterator[Finding]:
    """Kind, devices, and what is tried out with a file in ``tmp``."""
    kind = case.mounts.kind(case.place)
    if is_network(kind):
        yield Finding(
            "network", f"{case.place} is on {kind}, where SQLite's log does not work: nothing is kept", _LOCAL
        )
        return
    parts = [case.folder / name for name in ("tmp", "objects", "trees", "index") if (case.folder / name).is_dir()]
    apart = [part for part in parts if part.stat().st_dev != case.folder.stat().st_dev]
    if apart:
        yield Finding(
            "devices",
            f"{apart[0]} is on another file system than the store, into which nothing can be moved then",
            f"unmount {apart[0]}, and mount one for all of {case.folder}",
        )
    with contextlib.suppress(OSError), fsio.Staging(case.folder / "tmp") as staged:  # rights and room tell why not
        staged.write(b"cachec")
        yield from _try_writing(staged, case)


def _try_writing(staged: fsio.Staging, case: Case) -> Iterator[Finding]:
    if not _locks(staged):
        yield Finding("locks", f"{case.folder} is on a file system where flock does nothing", _LOCAL)
    if not _maps(staged.fd):
        yield Finding("maps", f"{case.folder} is on a file system where SQLite can't map files", _LOCAL)
    now = time.time_ns()
    seal(staged.fd, now)
    status = os.fstat(staged.fd)
    if abs(status.st_ctime_ns - now) > SEAL_SLACK_NS:
        yield Finding(
            "disk-clock",
            f"the disk's clock is {abs(status.st_ctime_ns - now) / 1e9:.0f} s from this machine's, so that each "
            "process hashes artifacts again before it uses them",
            "set both clocks (NTP)",
        )
    elif not is_sealed(status):
        yield Finding(
            "times",
            f"{case.folder} is on a file system that keeps no nanoseconds, so that each process hashes artifacts again",
            "set CACHEC_DIR to a folder on ext4, xfs, btrfs, zfs or tmpfs",
        )


def _locks(staged: fsio.Staging) -> bool:
    """Whether two can't lock one file."""
    with fsio.closing(os.open(staged.path, os.O_RDONLY | os.O_CLOEXEC)) as other:
        try:
            fcntl.flock(staged.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return False


def _maps(fd: int) -> bool:
    """Whether what is written through a shared map is in the file."""
    try:
        with mmap.mmap(fd, 6) as mapped:
            mapped[:6] = b"mapped"
    except OSError:
        return False
    return os.pread(fd, 6, 0) == b"mapped"


def can_share_blocks(folder: Path) -> bool | None:
    """Whether files are copied without copying their bytes (reflink); None where that can't be tried."""
    try:
        with fsio.Staging(folder) as one, fsio.Staging(folder) as other:
            one.write(b"\0" * 4096)
            fcntl.ioctl(other.fd, _FICLONE, one.fd)
    except OSError as error:
        return False if error.errno in {errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EXDEV} else None
    return True


def check_free_space(case: Case) -> Iterator[Finding]:
    """Bytes, inodes, and the bound of the store."""
    space = case.space(case.place)
    if space.f_flag & os.ST_RDONLY:
        return  # of an image, say, which is as full as it is large
    free = space.f_bavail * space.f_frsize
    if free < _ROOM:
        yield Finding(
            "space",
            f"{report.size(free)} are free on the disk of {case.place}",
            f"make room: {to_type('gc --max-size SIZE')}" if free > _LEAST else f"{_FULL} {to_type('gc')}",
        )
    if space.f_files > 0 and space.f_favail < _FILES:
        yield Finding(
            "inodes",
            f"{space.f_favail} more files fit on the disk of {case.place} (df -i)",
            "remove files",
        )
    usage, limit = _usage_and_limit(case)
    # Right after a publication it may be larger, until that has called gc.
    if usage is not None and limit is not None and (usage.rest > limit or usage.nbytes > 2 * limit):
        most = "half of what the disk has room for" if limit < case.settings.max_size else "max_size"
        yield Finding(
            "bound",
            f"the store takes {report.size(usage.nbytes)}, and {most} is {report.size(limit)}",
            f"{to_type('gc')} says what keeps it so large; raise max_size, or make room on the disk",
        )


def _usage_and_limit(case: Case) -> tuple[Usage | None, int | None]:
    """What the store takes, None where nobody has counted, and the bytes that it may take, None for no limit."""
    try:
        usage = case.store.usage()
        return usage, store_size.limit(case.settings.max_size, case.folder, 0 if usage is None else usage.nbytes)
    except StoreFault:
        return None, None  # the index is examined by itself


def disk_facts(case: Case) -> dict[str, Any]:
    """What is told of the disk, wrong or not."""
    space = case.space(case.place)
    usage, limit = _usage_and_limit(case)
    return {
        "kind": case.mounts.kind(case.place),
        "reflink": can_share_blocks(case.folder / "tmp") if case.folder.is_dir() else None,
        "free": space.f_bavail * space.f_frsize,
        "size": None if usage is None else usage.nbytes,
        "limit": limit,
    }
