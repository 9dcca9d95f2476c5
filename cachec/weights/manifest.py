"""Manifests: which weights an artifact is to be linked with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from cachec.base.hashing import digest_bytes
from cachec.errors import LinkError
from cachec.model import ROW_MAJOR, WeightSpec, from_json

#: How many differences one LinkError spells out.
_SHOWN = 8

#: Name of a weight -> the contents (``content_of``) that it may have. None at all: it was seen with different ones.
Folded = Mapping[str, tuple[str, ...]]


def content_of(spec: WeightSpec, digest: str) -> str:
    """Return the text for an inlined weight: its digest, and its dtype and shape."""
    return f"{digest} {spec.dtype}[{','.join(map(str, spec.shape))}]"


def merge_ties(*each: Folded) -> dict[str, tuple[str, ...]]:
    """What holds where all of these do."""
    both: dict[str, tuple[str, ...]] = {}
    for folded in each:
        for name, digests in folded.items():
            known = both.get(name)
            both[name] = digests if known is None else tuple(digest for digest in known if digest in digests)
    return both


def renaming_hint(wanted: Collection[str], there: Collection[str]) -> str:
    """How to rename weights, as the end of a message, where all ``wanted`` names are ``there`` but for one prefix.

    Empty where they are not. A single name says little: the prefix must then be one that all names share.
    """
    if not wanted or not there:
        return ""
    first, names = min(wanted), set(there)
    for name in sorted(names, key=len):
        if name.endswith(first) and name != first:
            prefix = name.removesuffix(first)
            enough = len(wanted) > 1 or all(each.startswith(prefix) for each in names)
            if enough and all(prefix + each in names for each in wanted):
                return f"; did you mean weights.rename(lambda n: n.removeprefix({prefix!r}))?"
        elif first.endswith(name) and name != first:
            prefix = first.removesuffix(name)
            if len(wanted) > 1 and all(each.startswith(prefix) and each[len(prefix) :] in names for each in wanted):
                return f"; did you mean weights.rename(lambda n: {prefix!r} + n)?"
    return ""


class Manifest:
    """What an artifact expects to be linked with: weight specs by name. Immutable; decoded only when looked at.

    Stored as JSON: a list of the specs sorted by name, so equal manifests have equal digests. callers: name in the
    artifact -> the caller's name, for the weights that a plugin renamed so that programs which differ in names alone
    share an entry. folded: the caller's weights that were read on the way to the artifact, which may hold their bytes.
    Neither is in digest or stored form: the same artifact may come of other names, and of other bytes.
    """

    __slots__ = ("_encoded", "_load", "_weights", "callers", "digest", "folded")

    def __init__(
        self,
        digest: str,
        load: Callable[[], bytes],
        callers: Mapping[str, str] | None = None,
        folded: Folded | None = None,
    ) -> None:
        """A manifest whose encoded form ``load`` fetches (and has checked against ``digest``)."""
        self.digest = digest
        self.callers: Mapping[str, str] = {} if callers is None else dict(callers)
        self.folded: Folded = {} if folded is None else dict(folded)
        self._load = load
        self._encoded: bytes | None = None
        self._weights: dict[str, WeightSpec] | None = None

    @classmethod
    def of(cls, specs: Mapping[str, WeightSpec]) -> Manifest:
        """The manifest of these specs."""
        encoded = msgspec.json.encode([_plain(specs[name]) for name in sorted(specs)])
        return cls(digest_bytes(encoded), lambda: encoded)

    def with_callers(self, callers: Mapping[str, str]) -> Manifest:
        """The same manifest with these names of the caller's; those of other weights are passed over."""
        return Manifest(self.digest, self.encode, callers, self.folded)

    def folding(self, folded: Folded) -> Manifest:
        """The same manifest of an artifact that these weights are in, too."""
        return Manifest(self.digest, self.encode, self.callers, merge_ties(self.folded, folded))

    def bare(self) -> Manifest:
        """The same manifest with nothing that is in no key."""
        return Manifest(self.digest, self.encode)

    def for_caller(self, callers: Mapping[str, str], folded: Folded) -> Manifest:
        """The same manifest of a stage's result, as the caller gets it.

        callers: what the call says of the names of its arguments, which explains those that the result says of its own.
        folded: the weights of the call that are in the result.
        """
        own = {name: callers.get(there, there) for name, there in self.callers.items()}
        renamed_folds = [{callers.get(name, name): digests} for name, digests in self.folded.items()]
        return Manifest(self.digest, self.encode, own or callers, merge_ties(*renamed_folds, folded))

    def encode(self) -> bytes:
        """The stored form."""
        if self._encoded is None:
            self._encoded = self._load()
        return self._encoded

    @property
    def weights(self) -> Mapping[str, WeightSpec]:
        """The specs by name. Raises LinkError where the stored form is malformed."""
        if self._weights is None:
            words = f"manifest {self.digest[:12]} is malformed"
            specs = from_json(self.encode(), list[WeightSpec], LinkError, words)
            self._weights = {spec.name: spec for spec in specs}
        return self._weights

    def check(self, offered: Mapping[str, WeightSpec]) -> None:
        """Raise LinkError unless ``offered`` has exactly these names with the same shape, dtype, layout and ties."""
        wanted = self.weights
        problems = [f"missing {name!r}" for name in wanted if name not in offered]
        problems += [f"extra {name!r}" for name in offered if name not in wanted]
        for name, spec in wanted.items():
            given = offered.get(name)
            if given is not None and given != spec:
                problems.append(f"{name!r}: {_difference(spec, given)}")
        if problems:
            hint = renaming_hint([name for name in wanted if name not in offered], offered)
            more = f", and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
            raise LinkError(
                f"the weight set does not fit the artifact: {'; '.join(problems[:_SHOWN])}{more}. "
                "Select, rename or tie the weights as they were when the artifact was compiled, or compile for these"
                f"{hint or '.'}"
            )

    def without(self, name: str) -> Manifest:
        """The manifest of the other weights. Ties hold among these alone, as in a set without that weight."""
        remaining = {other: spec for other, spec in self.weights.items() if other != name}
        tied: dict[str, list[str]] = {}
        for other, spec in sorted(remaining.items()):
            if spec.alias is not None:
                tied.setdefault(spec.alias, []).append(other)
        for names in tied.values():
            alias = names[0] if len(names) > 1 else None
            remaining |= {other: msgspec.structs.replace(remaining[other], alias=alias) for other in names}
        callers = {other: there for other, there in self.callers.items() if other != name}
        return Manifest.of(remaining).with_callers(callers).folding(self.folded)

    def merge(self, other: Manifest) -> Manifest:
        """Both together. Raises LinkError where they disagree on a name, or on what the caller calls it."""
        if other.digest == self.digest and other.callers == self.callers:
            return self.folding(other.folded)
        both = dict(self.weights)
        for name, spec in other.weights.items():
            if both.setdefault(name, spec) != spec:
                raise LinkError(f"two programs disagree on weight {name!r}: {_difference(both[name], spec)}")
            if name in self.weights and self.callers.get(name, name) != other.callers.get(name, name):
                raise LinkError(
                    f"two programs mean different weights by {name!r}: {self.callers.get(name, name)!r} and "
                    f"{other.callers.get(name, name)!r}; give only one of them symbols='alpha'"
                )
        return (
            Manifest.of(both)
            .with_callers({**self.callers, **other.callers})
            .folding(merge_ties(self.folded, other.folded))
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Manifest) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Manifest({self.digest[:12]})"


def _plain(spec: WeightSpec) -> WeightSpec:
    """The spec with the one object that stands for the common layout: equal specs are then encoded alike."""
    layout = spec.layout
    return spec if layout is ROW_MAJOR or layout != ROW_MAJOR else msgspec.structs.replace(spec, layout=ROW_MAJOR)


def differing_fields(old: WeightSpec, new: WeightSpec) -> tuple[tuple[str, object, object], ...]:
    """(field, old value, new value) of what differs."""
    if old == new:
        return ()
    pairs = ((field, getattr(old, field), getattr(new, field)) for field in WeightSpec.__struct_fields__)
    return tuple(pair for pair in pairs if pair[1] != pair[2])


def _difference(wanted: WeightSpec, given: WeightSpec) -> str:
    differing = differing_fields(wanted, given)
    return ", ".join(f"{field} expected {ours!r}, found {theirs!r}" for field, ours, theirs in differing)
