"""The digest of a path: of the content of a file, or of everything in a folder."""

from __future__ import annotations

import os
from stat import S_IXUSR

from cachec.base.hashing import FileDigests, Hasher


def path_digest(path: str, digests: FileDigests) -> str:
    """The content of a file, or of a folder as in ``dir_digest``. Raises OSError where it can't be read."""
    return dir_digest(path, digests) if os.path.isdir(path) else digests.of_path(path)


def dir_digest(root: str | os.PathLike[str], digests: FileDigests) -> str:
    """The digest of a folder: relative names, contents, executable bits, empty folders, targets of symbolic links, and
    what lies behind a link that leads out of it. Raises OSError where any of it can't be read.
    """
    return _dir_digest(os.fspath(root), digests, ())


def _dir_digest(base: str, digests: FileDigests, above: tuple[str, ...]) -> str:
    hasher = Hasher("dir")
    above = (*above, os.path.join(os.path.realpath(base), ""))
    for folder, names, files in os.walk(base, onerror=_raise):
        names.sort()
        where = os.path.relpath(folder, base)
        hasher.part("folder", os.fsencode(where))
        for name in sorted(files + [n for n in names if os.path.islink(os.path.join(folder, n))]):
            path = os.path.join(folder, name)
            hasher.part("name", os.fsencode(name))
            if os.path.islink(path):
                hasher.part("link", os.fsencode(os.readlink(path)))
                _behind(path, hasher, digests, above)
            else:
                hasher.part("executable", b"1" if os.stat(path).st_mode & S_IXUSR else b"0")
                hasher.part("content", digests.of_path(path).encode())
    return hasher.digest()


def _behind(link: str, hasher: Hasher, digests: FileDigests, above: tuple[str, ...]) -> None:
    """Feed what a link leads to, unless it is hashed already: in one of the folders ``above`` (real paths)."""
    real = os.path.realpath(link)
    folder = os.path.join(real, "")
    if any(folder.startswith(each) or each.startswith(folder) for each in above):
        return
    if os.path.isdir(real):
        hasher.part("outside", _dir_digest(real, digests, above).encode())
    elif os.path.exists(real):
        hasher.part("outside", digests.of_path(real).encode())


def _raise(error: OSError) -> None:
    raise error
