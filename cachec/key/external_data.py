"""Files that belong to a file argument: the external data of an ONNX model, which is part of the key.

A compiler opens them by itself, where nobody may see it (in a folder below, or where nothing is recorded).
"""

from __future__ import annotations

import os

from cachec.base.bounded_dict import BoundedDict
from cachec.base.hashing import FileDigests, Hasher

#: Models of which a process remembers what they name.
_REMEMBERED = 64


class Companions:
    """What files name beside them, remembered by their content."""

    def __init__(self, digests: FileDigests) -> None:
        self._digests = digests
        self._named: BoundedDict[tuple[str, ...]] = BoundedDict(_REMEMBERED)

    def of(self, path: str, digest: str) -> list[tuple[str, str]]:
        """Name and content of each; the content is empty where there is no such file. digest: of ``path``.

        Raises OSError where one can't be read.
        """
        if not path.endswith(".onnx") or not os.path.isfile(path):
            return []
        named = self._named.get(digest)
        if named is None:
            from cachec.weights.formats.onnx import external_files  # for few calls

            named = external_files(path)
            if self._digests.of_path(path) == digest:  # else it was replaced meanwhile
                self._named.put(digest, named)
        return [(name, self._content(os.path.join(os.path.dirname(path), name))) for name in named]

    def whole(self, path: str, digest: str) -> str:
        """One digest for the file and them: its own, where it names none."""
        named = self.of(path, digest)
        if not named:
            return digest
        hasher = Hasher("companions")
        hasher.part("file", digest.encode())
        for name, content in named:
            hasher.part(name, content.encode())
        return hasher.digest()

    def _content(self, path: str) -> str:
        return self._digests.of_path(path) if os.path.isfile(path) else ""
