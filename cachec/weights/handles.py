"""Handles by name: a layout over a source. What overlays, shards and streams are made of, and what sets build on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NoReturn, Self, TypeVar

import msgspec

from cachec.base.hashing import Hasher
from cachec.errors import UsageError, WeightReadError
from cachec.model import WeightSpec
from cachec.weights.layout import Layout
from cachec.weights.manifest import Manifest
from cachec.weights.sources import Origin, Source
from cachec.weights.weight import Weight
from cachec.weights.wrappers import GuardSource

D = TypeVar("D")


class WorkerRank(msgspec.Struct, frozen=True):
    """The worker of a weight set's shards: its rank, from 0, and the stage that may not read it (empty for none)."""

    rank: int
    hidden_from: str = ""


class Handles(Mapping[str, Weight]):
    """An immutable mapping name -> Weight at one revision, sorted by name. Handles are made when asked for."""

    __slots__ = ("__weakref__", "_guarded", "_layout", "_old", "_source", "_worker")

    def __init__(
        self,
        layout: Layout,
        source: Source,
        *,
        rank: int | WorkerRank | None = None,
        old: tuple[Mapping[str, str], ...] = (),
        guarded: Layout | None = None,
    ) -> None:
        """Use ``open_weights`` or one of the ``from_`` methods.

        old: one mapping new name -> old name for each rename since the source was opened, the latest first.
        guarded: the layout of the guarded set that this one came from.
        """
        self._layout = layout
        self._source = source
        self._worker = WorkerRank(rank) if isinstance(rank, int) else rank
        self._old = old
        self._guarded = guarded

    def __getitem__(self, name: str) -> Weight:
        """The handle. Raises UnknownWeight (a KeyError) with the nearest name."""
        if name not in self._layout.tensors:
            raise self._layout.unknown(name)
        return Weight(name, self._layout, self._source, self._there(name))

    def get(self, name: str, default: D | None = None) -> Weight | D | None:  # type: ignore[override]
        """The handle, or ``default``."""
        return self[name] if name in self._layout.tensors else default

    def __contains__(self, name: object) -> bool:
        return name in self._layout.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout.tensors)

    def __len__(self) -> int:
        return len(self._layout.tensors)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def specs(self) -> Mapping[str, WeightSpec]:
        """The specs by name, read-only."""
        return self._layout.specs

    @property
    def spec_digest(self) -> str:
        """64 hexadecimal characters over the specs: equal for equal names, types, shapes, ties and shards."""
        return self._layout.spec_digest

    @property
    def manifest(self) -> Manifest:
        """What an artifact compiled for these weights is to be linked with."""
        return self._layout.manifest

    @property
    def rank(self) -> int | None:
        """The worker whose shards these are, from 0, or None. In no spec: workers share what was compiled.

        Raises WeightReadError inside a stage without ``per_rank=True``: there it is not in the key.
        """
        if self._worker is None:
            return None
        if self._worker.hidden_from:
            raise WeightReadError(
                f"the rank is not in the key of stage {self._worker.hidden_from!r}, so its result must not "
                "depend on it; declare the stage with per_rank=True"
            )
        return self._worker.rank

    @property
    def worker(self) -> WorkerRank | None:
        """The same for what composes sets, who pass it on unseen."""
        return self._worker

    @property
    def layout(self) -> Layout:
        """What the names mean, for what composes sets."""
        return self._layout

    @property
    def source(self) -> Source:
        """Where the bytes come from, for what composes sets."""
        return self._source

    @property
    def nbytes(self) -> int:
        """Bytes of all weights together."""
        return sum(tensor.nbytes for tensor in self._layout.tensors.values())

    @property
    def revision(self) -> str:
        """64 hexadecimal characters that change when a file is replaced or written; no content is read for it.

        Raises WeightReadError inside a stage: the revision is not in its key.
        """
        hasher = Hasher("weight-revision")
        hasher.part("specs", self._layout.spec_digest.encode())
        hasher.part("places", self._layout.place_digest.encode())
        hasher.part("source", self._source.state())
        return hasher.digest()

    def origin(self, name: str) -> Origin | None:
        """Which caller's weight ``name`` is: (argument path, name there); None for one that no stage was given.

        Raises UnknownWeight.
        """
        return self[name].origin()

    def whole_origin(self) -> str | None:
        """The argument path, if this is the whole of a guarded set, under the same names; else None."""
        if isinstance(self._source, GuardSource) and self._layout is self._guarded and not self._old:
            return self._source.where
        return None

    def overlaid_on(self) -> tuple[str, tuple[str, ...]] | None:
        """The argument path and the names over it, if this is the whole of a guarded set with others over it."""
        whole = self._source.overlaid_on(self._layout)
        return None if self._old else whole

    def changed(self) -> str | None:
        """The path of a file that was bound and is not what was opened any more, or None."""
        return self._source.changed()

    def release(self) -> None:
        """Close the files. Later reads raise HandleClosed; arrays that were handed out stay valid."""
        self._source.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _there(self, name: str) -> str:
        for old in self._old:
            name = old[name]
        return name

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a weight set holds open files and can't be pickled or copied; pass the path and open it there"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} weights, {self.nbytes} bytes)"
