"""Brings the bytes of weights into the store, each content once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from cachec.base.hashing import digest_bytes
from cachec.errors import WeightsChanged
from cachec.model import ArtifactRef
from cachec.store.objects import Objects
from cachec.weights.io.copying import Copier, source_of
from cachec.weights.sources import Extent
from cachec.weights.weight import Weight


class Intake:
    """One addition of weights, to be used by one thread. What it finds or stores is leased in ``objects``."""

    def __init__(self, objects: Objects, copier: Copier, check: Callable[[str, str], None] | None = None) -> None:
        """check: called with name and digest of each weight before anything of it is copied; raises to refuse it."""
        self._objects = objects
        self._copier = copier
        self._check = check

    def own(self, weight: Weight) -> str:
        """The digest of a weight, once the store has its bytes. Raises OSError, StoreFault, WeightsChanged."""
        source, nbytes = source_of(weight), weight.nbytes
        stated = source.digest if isinstance(source, Extent) else ""
        data = None if stated else self._copier.load(source)
        if data is not None:
            known = digest_bytes(data)
        elif not stated and (self._check is not None or nbytes in self._sizes):
            known = self._copier.hash(source)  # cheaper than a copy that is thrown away
        else:
            known = stated
        if known and self._check is not None:
            self._check(weight.name, known)
        if known and self._objects.has(ArtifactRef(known, nbytes)):
            self._copier.skip(nbytes)
            return known
        with self._objects.new_staging() as staged:
            if data is not None:
                staged.write(data)
                self._objects.publish(staged, ArtifactRef(known, nbytes))
                self._copier.skip(nbytes)
                return known
            taken = self._copier.copy(source, staged.fd)
            digest = taken.result() if taken is not None else stated
            if stated and digest != stated:
                raise WeightsChanged(
                    f"weight {weight.name!r}: its bytes expected the digest {stated}, found {digest}: damaged"
                )
            self._objects.publish(staged, ArtifactRef(digest, nbytes))
        return digest

    @cached_property
    def _sizes(self) -> frozenset[int]:
        """The sizes of what the store had at first: weights of one model have the same size, and other bytes."""
        return frozenset(ref.size for ref, _ in self._objects.iterate())
