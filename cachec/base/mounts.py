"""Kinds of file system, and what may be believed of each: proc(5), ``/proc/self/mountinfo``."""

from __future__ import annotations

import os
from collections.abc import Iterator

#: Local file systems whose ctime shows every write, a first store through a map included (page_mkwrite). tmpfs is
#: absent on purpose: a store through a map of tmpfs leaves no mark.
TRACKED_FILESYSTEMS = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "erofs", "squashfs"}
)

#: File systems where all that is done on this machine passes the inode that inotify watches. A network file system or
#: FUSE serves others too, and what is done to the layers of an overlay itself is not told (``Mounts.kind``).
WATCHED_FILESYSTEMS = TRACKED_FILESYSTEMS | {"tmpfs", "overlay"}

NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "glusterfs", "beegfs", "orangefs"}
)

#: The options that name the layers of an overlay (Documentation/filesystems/overlayfs.rst).
_LAYERS = frozenset({"lowerdir", "upperdir", "datadir"})

#: How ``/proc/self/mountinfo`` writes what would break its lines; the backslash last, as the others begin with one.
_MOUNT_ESCAPES = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"))


class Mounts:
    """File system types by device, read from ``/proc/self/mountinfo`` when first asked (proc(5))."""

    def __init__(self, mountinfo: str | os.PathLike[str] = "/proc/self/mountinfo") -> None:
        self._mountinfo = mountinfo
        self._by_device: dict[int, str] = {}

    def kind(self, path: str | os.PathLike[str]) -> str:
        """The file system type that holds ``path`` (``ext4``, ``nfs4``, ``fuse.sshfs``), else ``unknown``.

        ``overlay`` is one whose layers nobody here can reach, as in a container; any other is ``overlay.open``.
        """
        try:
            dev = os.stat(path).st_dev
        except OSError:
            return "unknown"
        return self.kind_of_device(dev, path)

    def kind_of_device(self, dev: int, path: str | os.PathLike[str] | None = None) -> str:
        """The same by device number; ``path`` serves where the number is anonymous (btrfs subvolumes, overlays)."""
        known = self._by_device.get(dev)
        if known is None:
            known = self._by_device[dev] = self._find_mount(dev, path)
        return known

    def _find_mount(self, dev: int, path: str | os.PathLike[str] | None) -> str:
        wanted = f"{os.major(dev)}:{os.minor(dev)}"
        real = os.path.realpath(path) if path is not None else None
        best, longest = -1, "unknown"
        try:
            for line, device, mount in self._lines():
                kind = _kind(line.partition(" - ")[2])
                if device == wanted:
                    return kind
                if real is not None and len(mount) > best and (real + "/").startswith(mount.rstrip("/") + "/"):
                    best, longest = len(mount), kind
        except OSError:
            return "unknown"
        return longest

    def below(self, folder: str) -> tuple[str, ...]:
        """The lines of all that is mounted below a folder now. Raises OSError."""
        top = os.path.join(os.path.realpath(folder), "")
        return tuple(line for line, _, mount in self._lines() if mount.startswith(top))

    def _lines(self) -> Iterator[tuple[str, str, str]]:
        """Each line, with its device and the place that it is mounted on."""
        with open(self._mountinfo, encoding="utf-8") as file:
            lines = file.read().splitlines()
        for line in lines:
            fields = line.split(" ", 5)
            yield line, fields[2], _unescape(fields[4])


def _unescape(text: str) -> str:
    for code, character in _MOUNT_ESCAPES:
        text = text.replace(code, character)
    return text


def _kind(tail: str) -> str:
    """tail: type, source and options of the file system, as ``/proc/self/mountinfo`` ends a line."""
    kind, _, options = tail.partition(" ")
    if kind != "overlay":
        return kind or "unknown"
    given = [option.partition("=") for option in options.rpartition(" ")[2].split(",")]
    layers = [one for name, _, value in given if name.rstrip("+") in _LAYERS for one in _unescape(value).split(":")]
    is_closed = any(layers) and not any(os.path.lexists(one) or not one.startswith("/") for one in layers if one)
    return kind if is_closed else "overlay.open"


def is_network(kind: str) -> bool:
    """Whether a file system type is served from elsewhere, where SQLite's WAL and stat-based trust do not hold."""
    return kind in NETWORK_FILESYSTEMS or kind.startswith("fuse.sshfs") or kind.startswith("fuse.s3")
