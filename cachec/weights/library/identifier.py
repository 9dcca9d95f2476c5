"""What is to be fetched, and the protocol of what fetches it.

An identifier is a URL whose fragment states what must come out, as ``key=value`` pairs joined by ``&``:

    https://example.org/model.safetensors#sha256=<64 hex>&size=268435456

``blake3`` or ``sha256`` is required, for a URL says nothing about content; ``size``, in bytes, ends a wrong download
early. A package offers further schemes through the entry-point group ``cachec.resolvers``: ``scheme = module:object``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from cachec.errors import UsageError
from cachec.weights.io.copying import Progress

_HEX = re.compile(r"[0-9a-f]{64}")
_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://[^#\s]+/(?P<file>[^/#?\s]+)(\?[^#\s]*)?")
_SAFE_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")


class Identifier(NamedTuple):
    """What is to be fetched."""

    text: str
    scheme: str
    url: str
    file: str
    #: ``blake3`` or ``sha256``.
    algorithm: str
    #: Of all bytes.
    digest: str
    #: In bytes, if known.
    size: int | None

    @staticmethod
    def parse(text: str) -> Identifier:
        """Raises UsageError saying what an identifier looks like."""
        url, _, fragment = text.partition("#")
        match = _URL.fullmatch(url)
        stated = dict(pair.partition("=")[::2] for pair in fragment.split("&"))
        algorithm = next((known for known in ("blake3", "sha256") if known in stated), "")
        digest, size = stated.pop(algorithm, ""), stated.pop("size", "")
        fine = match and _SAFE_FILE.fullmatch(match["file"]) and _HEX.fullmatch(digest) and not stated
        if match is None or not fine or (size and not (size.isascii() and size.isdigit())):
            raise UsageError(
                "an identifier of weights expected as <scheme>://<host>/<path>/<file>#sha256=<64 hex digits>, or "
                f"#blake3=..., with &size=<bytes> where it is known; found {text!r}"
            )
        return Identifier(text, match["scheme"], url, match["file"], algorithm, digest, int(size) if size else None)


@runtime_checkable
class Resolver(Protocol):
    """Brings the bytes of an identifier here."""

    def fetch(self, identifier: Identifier, fd: int, state: Path, progress: Progress | None) -> None:
        """Make the open file ``fd`` hold all bytes.

        It may hold the beginning already; ``state`` is a file for whatever tells whether that is of the same version.
        No more than ``identifier.size`` bytes are written, if that is known. The content is checked by the caller.
        Raises OSError or WeightError; what has arrived stays for the next call.
        """
