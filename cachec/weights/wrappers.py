"""Sources around other sources: guards that record what a stage reads, handles of several sets under new names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cachec.base.hashing import FileDigests, Hasher
from cachec.errors import HandleClosed, WeightReadError
from cachec.weights.sources import Origin, Source, Ways
from cachec.weights.tensor import Tensor
from cachec.weights.weight import Callers, MadeOfWeights, Weight

if TYPE_CHECKING:
    from cachec.recording import ReadRecorder


class RelayedSource(Source):
    """Base of the sources that have no bytes of their own: whatever is asked is asked of the source ``within``."""

    def within(self, name: str) -> tuple[Source, str]:
        """The source that has a weight, and its name there."""
        raise NotImplementedError

    def expose(self, name: str, tensor: Tensor, digests: FileDigests | None) -> None:
        source, there = self.within(name)
        source.expose(there, tensor, digests)

    def digest(self, name: str, tensor: Tensor, digests: FileDigests | None) -> str:
        source, there = self.within(name)
        return source.digest(there, tensor, digests)

    def ways(self, name: str, tensor: Tensor) -> Ways:
        source, there = self.within(name)
        return source.ways(there, tensor)

    def tells_place(self, name: str) -> bool:
        source, there = self.within(name)
        return source.tells_place(there)

    def origin(self, name: str) -> Origin | None:
        source, there = self.within(name)
        return source.origin(there)


class GuardSource(RelayedSource):
    """The weights that a stage was given: every exposure is recorded first, and ends when the stage returns.

    outer: the source of the caller's set; it may be a guard itself (a stage inside a stage), which then records too.
    translate: from a name in the guarded set to the name in ``outer``.
    """

    def __init__(
        self, outer: Source, translate: Callable[[str], str], where: str, recorder: ReadRecorder, digests: FileDigests
    ) -> None:
        self.where = where
        self.recorder = recorder
        self._outer = outer
        self._translate = translate
        self._digests = digests
        self._closed = False

    def within(self, name: str) -> tuple[Source, str]:
        return self._outer, self._translate(name)

    def expose(self, name: str, tensor: Tensor, digests: FileDigests | None) -> None:
        self.digest(name, tensor, digests)

    def digest(self, name: str, tensor: Tensor, digests: FileDigests | None) -> str:
        if self._closed:
            raise HandleClosed(
                f"weight {name!r} of {self.where!r}: stage {self.recorder.stage!r} has returned, so a read can't be "
                "recorded any more; read inside the stage, or use the caller's weights"
            )
        digest = self._outer.digest(self._translate(name), tensor, self._digests)
        self.recorder.weight(self.where, name, digest)
        return digest

    def tells_place(self, name: str) -> bool:
        return False

    def origin(self, name: str) -> Origin | None:
        return self.where, name

    def arguments(self) -> tuple[str, ...]:
        return (self.where,)

    def changed(self) -> str | None:
        return self._outer.changed()

    def state(self) -> bytes:
        raise WeightReadError(
            f"the revision of {self.where!r} is not in the key of stage {self.recorder.stage!r}: its result must not "
            "depend on it; use the digest() of the weights that matter"
        )

    def release(self) -> None:
        self._closed = True


class ComposedSource(RelayedSource, MadeOfWeights):
    """Handles of several sets under new names."""

    def __init__(self, weights: Mapping[str, Weight]) -> None:
        self.weights = weights

    def within(self, name: str) -> tuple[Source, str]:
        return self.weights[name].within()

    def unguard(self, weight: Weight, there: str, callers: Callers) -> Weight:
        inner = self.weights[there]
        outer = inner.unguard(callers)
        return weight if outer is inner else outer

    def arguments(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(path for source in self.sources() for path in source.arguments()))

    def sources(self) -> list[Source]:
        """The sources behind the handles, each once, by the first name that uses it."""
        by_identity: dict[int, Source] = {}
        for name in sorted(self.weights):
            source, _ = self.weights[name].within()
            by_identity.setdefault(id(source), source)
        return list(by_identity.values())

    def changed(self) -> str | None:
        return next((path for source in self.sources() if (path := source.changed()) is not None), None)

    def state(self) -> bytes:
        hasher = Hasher("composed")
        numbers = {id(source): number for number, source in enumerate(self.sources())}
        for source in self.sources():
            hasher.part("source", source.state())
        for name in sorted(self.weights):
            source, there = self.weights[name].within()
            hasher.part(name, f"{numbers[id(source)]}:{there}".encode())
        return hasher.digest().encode()

    def release(self) -> None:
        for source in self.sources():
            source.release()
