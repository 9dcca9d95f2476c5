"""Ranges of files copied by the kernel: shared where that can be, else written from a map; none of it is looked at.

A file that is cut while it is mapped makes a ``write`` fail, and no signal, as this process never looks at the map.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator

#: Bytes that the kernel is asked to copy at once.
CHUNK = 4 << 20
#: The page cache takes folios as large as a write; finding them takes several times longer from 1 MiB on.
WRITE = 1 << 19
_WINDOW = 16 << 20
#: Pages are mapped before the kernel copies from them: a fault inside a write ends its fast path.
_MAPPED = mmap.MAP_SHARED | mmap.MAP_POPULATE

#: What the kernel says where it can't copy between these two files; they are then copied by hand.
NO_KERNEL_COPY = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.ENOTTY, errno.ETXTBSY}
)


def on_pages(begin: int, offset: int) -> bool:
    """Whether what begins there lies on its pages as at ``offset``, so that the kernel can share them."""
    return (begin - offset) % mmap.PAGESIZE == 0


def shared_or_mapped(
    source: int, begin: int, nbytes: int, target: int, offset: int, *, least: int = 0
) -> Iterator[int]:
    """Copy a range of the open file ``source`` to ``offset`` of ``target`` as far as that goes; yields bytes, by steps.

    It ends early where the source ends, or can't be copied so: what is left is the caller's to read. least: bytes that
    are worth a map. Raises OSError.
    """
    if on_pages(begin, offset):
        return _by_kernel(source, begin, nbytes, target, offset)
    return _by_map(source, begin, nbytes, target, offset) if nbytes > least else iter(())


def _by_kernel(source: int, begin: int, nbytes: int, target: int, offset: int) -> Iterator[int]:
    """Copy by ``copy_file_range`` as far as that goes between these files."""
    done = 0
    while done < nbytes:
        length = min(CHUNK - (offset + done) % CHUNK, nbytes - done)
        try:
            step = os.copy_file_range(source, target, length, begin + done, offset + done)
        except OSError as error:
            if error.errno not in NO_KERNEL_COPY:
                raise
            return
        if step == 0:
            return
        done += step
        yield step


def _by_map(source: int, begin: int, nbytes: int, target: int, offset: int) -> Iterator[int]:
    """Copy by writing from maps of the source, as far as it can be mapped.

    Windows and writes end where the target is aligned, for a page that is written in two halves costs two writes.
    """
    done = 0
    while done < nbytes:
        skip = (begin + done) % mmap.ALLOCATIONGRANULARITY
        length = skip + min(_WINDOW - (offset + done) % WRITE, nbytes - done)
        try:
            window = mmap.mmap(source, length, _MAPPED, mmap.PROT_READ, offset=begin + done - skip)
        except (OSError, ValueError):  # no map of such a file, or the file ends before
            return
        with window, memoryview(window) as view:
            while skip < length:
                end = min(length, skip + WRITE - (offset + done) % WRITE)
                try:
                    with view[skip:end] as part:
                        step = os.pwrite(target, part, offset + done)
                except OSError as error:
                    if error.errno == errno.EFAULT:  # the file was cut
                        return
                    raise
                skip += step
                done += step
                yield step
