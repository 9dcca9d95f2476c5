"""The spool: offers that wait to be sent to remotes.

    $CACHEC_DIR/remote/spool/<64 hex>    an Offer as JSON; its name is the digest of what it names
    $CACHEC_DIR/remote/<name>.refused    why a remote did not take the last that was sent, for people

An offer names an entry, and holds none: what was evicted or invalidated before it was sent is not sent.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator

import msgspec

from cachec.base import file_ownership, fsio
from cachec.base.hashing import Hasher
from cachec.model import MALFORMED_JSON, RECORD_VERSION, Digest
from cachec.remote.nodes import Name

#: Seconds after which an unsent offer is dropped.
RETENTION_SECONDS = 7 * 86400.0

#: Bytes of an offer: more than any has.
_MAX_OFFER = 1 << 24

#: Characters of why a remote took nothing.
_MAX_WHY = 500


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """One run of an entry, for one remote (``Address.name``)."""

    remote: str
    namespace: str
    key: Digest
    #: When its trace was made, Unix time.
    created: float
    #: With ``anew``: see ``Trie.put``.
    known_reads: tuple[tuple[Name, Digest], ...] = msgspec.field(default=(), name="seen")
    anew: bool = False
    #: What the remote's URL was, without secrets; for people.
    shown: str = ""
    #: The version of the entry's record.
    record: int = RECORD_VERSION

    @property
    def name(self) -> Digest:
        """The name of its file."""
        hasher = Hasher("remote-offer")
        for label, value in (
            ("remote", self.remote),
            ("namespace", self.namespace),
            ("key", self.key),
            ("created", repr(self.created)),
            ("record", str(self.record)),
        ):
            hasher.part(label, value.encode())
        return hasher.digest()


class Spool:
    """The offers of one store. Raises OSError."""

    def __init__(self, store: str | os.PathLike[str]) -> None:
        self.folder = os.path.join(store, "remote", "spool")
        self._tmp = os.path.join(store, "tmp")

    def add(self, offer: Offer) -> None:
        """Keep an offer."""
        fsio.make_dir(self.folder)
        with fsio.Staging(self._tmp) as staged:
            staged.write(msgspec.json.encode(offer))
            _, mode = fsio.modes_below(self.folder)
            staged.commit(os.path.join(self.folder, offer.name), mode=mode, fsync=False)

    def names(self) -> frozenset[str] | None:
        """Return the names of the offers; None if there was never one."""
        try:
            return frozenset(os.listdir(self.folder))
        except FileNotFoundError:
            return None

    def offers(self, *, tidy: bool = True) -> Iterator[Offer]:
        """Return all offers, the oldest first. tidy: remove malformed and old files."""
        waiting = []
        for name in self.names() or ():
            with contextlib.suppress(FileNotFoundError):  # another process has sent it
                waiting.append((os.lstat(os.path.join(self.folder, name)).st_mtime, name))
        for written, name in sorted(waiting):
            path = os.path.join(self.folder, name)
            try:
                offer = msgspec.json.decode(file_ownership.read_regular(path, _MAX_OFFER), type=Offer)
                is_current = offer.name == name and abs(time.time() - written) < RETENTION_SECONDS
            except (FileNotFoundError, PermissionError):  # sent by now; or another user's, who sends it
                continue
            except (*MALFORMED_JSON, OSError):
                is_current = False
            if is_current:
                if offer.record == RECORD_VERSION:  # else another cachec has the entry, and sends it
                    yield offer
            elif tidy and re.fullmatch("[0-9a-f]{64}", name):
                self._remove(path)

    def drop(self, namespace: str, remote: str) -> int:
        """Remove the offers of a namespace for the remote of that name, or shown URL; how many there were."""
        dropped = 0
        for offer in self.offers():
            if offer.namespace == namespace and remote in (offer.remote, offer.shown):
                self.remove(offer)
                dropped += 1
        return dropped

    def remove(self, offer: Offer) -> None:
        """Remove an offer, unless another process has removed it."""
        self._remove(os.path.join(self.folder, offer.name))

    def record_refusal(self, remote: str, why: str) -> None:
        """Record that a remote refused an offer. A failure to write the record is ignored."""
        with contextlib.suppress(OSError):
            fd = fsio.open_own(self._refusal(remote), os.O_WRONLY | os.O_TRUNC)
            try:
                os.write(fd, why[:_MAX_WHY].encode(errors="replace"))
            finally:
                os.close(fd)

    def record_success(self, remote: str) -> None:
        """It took what was sent last."""
        with contextlib.suppress(OSError):
            os.unlink(self._refusal(remote))

    def last_refusal(self, remote: str) -> str:
        """Why it did not take what was sent last; empty where it did, or nothing was sent."""
        try:
            return file_ownership.read_regular(self._refusal(remote), 4 * _MAX_WHY).decode(errors="replace")
        except OSError:
            return ""

    def _refusal(self, remote: str) -> str:
        return os.path.join(os.path.dirname(self.folder), f"{remote}.refused")

    def _remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(path)
