"""What an engine of a remote promises: rows by name and blobs by content, both written once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from cachec.errors import StoreFault
from cachec.model import Digest, Fault

T = TypeVar("T")

#: Bytes of a row.
MAX_ROW = 1 << 20

#: Bytes that are read, or written, at once.
CHUNK = 1 << 18

#: Seconds without a byte after which a server is given up, whatever time is left.
STALL_SECONDS = 5.0


class RemoteBlob(NamedTuple):
    """Bytes by content: their BLAKE3-256 and, as Bazel's servers know no other, their SHA-256, in hexadecimal."""

    digest: Digest
    size: int
    sha256: str


class LostLink(Exception):
    """The other side closed a connection; a reused connection is then opened again."""


class RemoteEngine(Protocol):
    """A store of rows and blobs. Its answers are not trusted.

    until: the time (``time.monotonic``) at which the call gives up. Every method raises StoreFault with a fault
    ``REMOTE_...`` and nothing else.
    """

    def get_row(self, name: Digest, until: float) -> bytes | None:
        """Return the row of that name, of at most ``MAX_ROW`` bytes, or None."""

    def put_row(self, name: Digest, row: bytes, blobs: Sequence[RemoteBlob], until: float, *, replace: bool) -> bool:
        """Write a row that needs these blobs; False if there is one already that must not be replaced.

        An engine that can't tell writes it anyway.
        """

    def delete_row(self, name: Digest, until: float) -> bool:
        """Remove the row; return whether there was one, as far as the server reports it."""

    def has_blob(self, blob: RemoteBlob, until: float) -> bool:
        """Whether the blob seems to be there."""

    def get_blob(self, blob: RemoteBlob, until: float) -> Iterator[bytes] | None:
        """The bytes of the blob, as they come; None where it is not there."""

    def put_blob(self, blob: RemoteBlob, path: str, until: float) -> None:
        """Store the content of a file as the blob. Raises OSError too, where that can't be read."""

    def close(self) -> None:
        """Let go of connections. A later call makes new ones."""


@runtime_checkable
class PlacedEngine(Protocol):
    """The additional method of an engine with a place that may be missing without an error: an unmounted folder."""

    def is_there(self, until: float) -> bool:
        """Whether there is such a place. Raises StoreFault, as the others do."""

    def make(self, until: float) -> bool:
        """Make it; True."""

    def expect_writable(self, until: float) -> None:
        """Raise StoreFault where this user can't write."""


def run_with_deadline(call: Callable[[], T], until: float, what: str) -> T:
    """What ``call`` gives, in a thread of its own, which is left to itself where it takes longer.

    For what no time-out ends: a shared folder whose server is gone, the resolver. Raises StoreFault REMOTE_TIMEOUT, and
    what ``call`` raises.
    """
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:  # noqa: BLE001 - raised below, in the thread that waits
            errors.append(error)

    if (remaining := until - monotonic()) > 0:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(remaining)
    if errors:
        raise errors[0]
    if not results:
        raise StoreFault(Fault.REMOTE_TIMEOUT, f"{what} did not answer in time")
    return results[0]
