"""What a selector looks at beside the entries themselves: tools and files as they are now, manifests, owned weights."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from cachec.base.display_text import to_type
from cachec.errors import StoreFault, UsageError
from cachec.maintain.catalogue import Item
from cachec.model import BELOW_BASE, MALFORMED_JSON, Digest, Fault
from cachec.store.store import Store

if TYPE_CHECKING:
    from cachec.maintain.stale import Staleness  # few selectors ask for it


class Surroundings:
    """What selectors ask of the store beside the entries."""

    def __init__(self, store: Store, base_dir: str | None, on_fault: Callable[[Fault, str], None]) -> None:
        self._store = store
        self._base_dir = base_dir
        self._on_fault = on_fault

    @cached_property
    def _staleness(self) -> Staleness:
        from cachec.maintain.stale import Staleness

        return Staleness(self._store.digests, self.place)

    def place(self, where: str) -> str:
        """The path of what a read names; empty where it counts from a folder that only the stage's process knows, or
        from a base folder, and none is set."""
        if not where.startswith(BELOW_BASE):
            from cachec.base.anchors import is_anchored  # few selectors ask for it

            return "" if is_anchored(where) else where
        return "" if self._base_dir is None else os.path.join(self._base_dir, where.removeprefix(BELOW_BASE))

    def stale(self, item: Item) -> str:
        """Why the entry can't hit any more; empty where it may."""
        return self._staleness.reason(item)

    def weight_names(self, manifest: Digest) -> tuple[str, ...]:
        """The names in a manifest; none where it can't be read, which is told."""
        try:
            data = self._store.content(manifest)
            return () if data is None else names_in(data)
        except StoreFault as fault:
            self._on_fault(fault.fault, fault.detail)
        except MALFORMED_JSON as error:
            self._on_fault(Fault.ARTIFACT_CORRUPT, f"artifact {manifest} is no manifest: {error}")
        return ()

    def revision_digests(self, revision: str) -> frozenset[Digest]:
        """The digests of the weights of an owned revision. Raises UsageError where there is none, or it has none."""
        from cachec.weights.library.stored_weights import WeightStore

        weights = WeightStore(self._store).find(revision)
        if weights is None:
            raise UsageError(
                f"{revision!r}: no weights of the store are named so; `{to_type('weights ls')}` lists them"
            )
        digests = frozenset(weights.digests.values())
        if not digests:
            raise UsageError(f"{revision!r} are weights in place, of which the store has no digests; add them owned")
        return digests


class _NamedValue(msgspec.Struct, gc=False):
    name: str


def names_in(manifest: bytes) -> tuple[str, ...]:
    """The weights that a stored manifest names. Raises one of ``MALFORMED_JSON`` where it is none."""
    return tuple(each.name for each in msgspec.json.decode(manifest, type=list[_NamedValue]))
