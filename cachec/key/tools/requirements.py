"""What distributions require, by their METADATA: a compiler's library may be another distribution.

Requirements are those of the core metadata specification (``Requires-Dist``, dependency specifiers of PEP 508), each as
it is installed, with what that requires. One for an extra counts where the extra is asked for; other markers are not
evaluated: what is required elsewhere, or where one of several markers holds, and is installed here, counts too. Of
these the version counts, not each file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator

import msgspec

from cachec.base.distributions import Distribution, Distributions, normalise
from cachec.base.fsio import Identity, identity_if_there
from cachec.base.hashing import Hasher
from cachec.model import Part, PartKind

#: What a dependency specifier may have behind the name.
_ENDS = " \t[(<>=!~;@"
#: Between clauses of a marker of which one has to hold.
_OR = re.compile(r"\bor\b")


class Requirement(msgspec.Struct, frozen=True):
    """A distribution that another one requires."""

    #: In its normal form.
    name: str
    extras: tuple[str, ...]
    #: The extra by which, empty for none.
    of: str


class _Requirements(msgspec.Struct, frozen=True):
    """The requirements of some distributions."""

    #: Every name that was looked up.
    asked: tuple[str, ...]
    #: The distribution of each name, where there is one.
    found: list[Distribution | None]
    #: The state of the METADATA files, before they were read.
    identities: list[Identity | None]
    parts: tuple[Part, ...]
    checked: float


class Requirements:
    """Parts for what distributions require, looked up again at most once in so many seconds, by a clock."""

    def __init__(self, distributions: Distributions, clock: Callable[[], float], seconds: float) -> None:
        self._distributions = distributions
        self._clock = clock
        self._seconds = seconds
        self._known: dict[frozenset[str], _Requirements] = {}

    def parts(self, names: Collection[str], *, fresh: bool = False) -> tuple[Part, ...]:
        """The parts ``requirement/<name>`` of all that these require and that is none of them, by name."""
        key = frozenset(names)
        known, now = self._known.get(key), self._clock()
        if known is not None and not fresh and now - known.checked < self._seconds:
            return known.parts
        if known is None or not self._is_as_it_was(known):
            known = self._resolve(key, now)
        self._known[key] = msgspec.structs.replace(known, checked=now)
        return known.parts

    def _is_as_it_was(self, known: _Requirements) -> bool:
        found = self._distributions.find_required(known.asked)
        return found == known.found and _metadata_identities(found) == known.identities

    def _resolve(self, names: frozenset[str], now: float) -> _Requirements:
        asked: dict[str, Distribution | None] = {}
        visited: dict[str, set[str]] = {}
        identities: list[Identity | None] = []
        # What cachec itself requires makes no result: compilers and libraries that it calls are tools of their own.
        pending: list[tuple[str, tuple[str, ...]]] = [(normalise(name), ()) for name in sorted(names - {"cachec"})]
        while pending:
            name, extras = pending.pop()
            new = {"", *extras} - visited.setdefault(name, set())
            visited[name] |= new
            if name not in asked:
                found_one = self._distributions.find_required((name,))
                asked[name], identities = found_one[0], [*identities, *_metadata_identities(found_one)]
            distribution = asked[name]
            if distribution is not None and new:
                pending += [
                    (each.name, each.extras)
                    for each in parse_requirements(distribution.read("METADATA"))
                    if each.of in new
                ]
        given = set(map(normalise, names))
        found = sorted((name, each.version) for name, each in asked.items() if each is not None and name not in given)
        return _Requirements(tuple(asked), list(asked.values()), identities, tuple(_part(*each) for each in found), now)


def _metadata_identities(found: list[Distribution | None]) -> list[Identity | None]:
    return [None if each is None else identity_if_there(f"{each.folder}/METADATA") for each in found]


def _part(name: str, version: str) -> Part:
    hasher = Hasher("requirement")
    hasher.part("version", version.encode())
    return Part(PartKind.REQUIREMENT, name, hasher.digest(), f"{name} {version}", version=version)


def parse_requirements(metadata: str) -> Iterator[Requirement]:
    """The requirements in the head of a METADATA file. What is malformed there is passed over, as installers do."""
    head = metadata.replace("\r\n", "\n").partition("\n\n")[0]
    for line in head.splitlines():
        field, colon, specifier = line.partition(":")
        if not colon or field.lower() != "requires-dist":
            continue
        wanted, _, marker = specifier.strip().partition(";")
        name = wanted[: next((at for at, letter in enumerate(wanted) if letter in _ENDS), len(wanted))]
        if name:
            extras = wanted.partition("[")[2].partition("]")[0] if "[" in wanted else ""
            listed = tuple(normalise(each.strip()) for each in extras.split(",") if each.strip())
            for of in _extras(marker):
                yield Requirement(normalise(name), listed, of)


def _extras(marker: str) -> tuple[str, ...]:
    """The extras that a marker asks for (``extra == "test"``), an empty one where it may hold without any."""
    return tuple(dict.fromkeys(each for clause in _OR.split(marker) for each in _named_extras(clause) or ("",)))


def _named_extras(clause: str) -> list[str]:
    pieces = clause.replace("'", '"').split('"')
    return [
        normalise(value)
        for before, value in zip(pieces[::2], pieces[1::2], strict=False)
        if before.replace("(", " ").replace("==", " == ").split()[-2:] == ["extra", "=="]
    ]
