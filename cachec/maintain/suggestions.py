"""What of a selector no entry has, and what may have been meant: for messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from cachec.maintain.catalogue import Item
from cachec.maintain.selector import Selector, matcher
from cachec.maintain.snapshot import Surroundings
from cachec.model import PartKind

#: The fields of a selector that name something -> their options.
_OPTIONS = {
    "stages": "--stage",
    "tags": "--tag",
    "tools": "--tool",
    "options": "--option",
    "weights": "--weight",
    "sources": "--source",
}

#: Kinds of reads of files that a project has.
_SOURCES = frozenset({"file", "source"})

#: How many names are offered, and how many are held against a word: each takes some 20 µs.
_SHOWN, _MAX_ITEMS = 3, 5000


class UnmatchedOption(NamedTuple):
    """What no entry has. option, given: as on the command line. near: what entries have instead."""

    option: str
    given: str
    near: tuple[str, ...]

    @property
    def words(self) -> str:
        """For a person."""
        return f"no entry has {self.option} {self.given}" + (f"; there is {', '.join(self.near)}" if self.near else "")

    def plain(self) -> dict[str, object]:
        """As JSON."""
        return {"option": self.option, "given": self.given, "near": list(self.near)}


def unmatched(selector: Selector, items: Iterable[Item], around: Surroundings, now: float) -> list[UnmatchedOption]:
    """Everything that is named and that no entry has, be there others that have all the rest."""
    asked = {
        (field, name): matcher(msgspec.convert({field: [name]}, Selector), around, now)
        for field in _OPTIONS
        for name in getattr(selector, field)
    }
    known: dict[str, set[str]] = {field: set() for field, _ in asked}
    remaining = dict(asked)
    for item in items:
        remaining = {named: fits for named, fits in remaining.items() if not fits(item)}
        for field, names in known.items():
            names.update(_names(field, item, around))
    return [UnmatchedOption(_OPTIONS[field], name, _near(name, known[field])) for field, name in remaining]


def _names(field: str, item: Item, around: Surroundings) -> Iterator[str]:
    """What an entry has of a kind, as a selector names it."""
    terms = item.terms
    if field == "stages":
        yield item.entry.stage
    elif field == "tags":
        yield from item.entry.tags
    elif field == "tools" and terms is not None:
        yield from (f"{tool.name}=={tool.version}" for tool in terms.facts.tools)
    elif field == "options" and terms is not None:
        given = [each for each in terms.summary.given if each.kind is PartKind.ARGUMENT]
        yield from (f"{each.name}={each.value}" if each.value else each.name for each in given)
    elif field == "weights":
        yield from (read.name for trace in item.entry.traces for read in trace.reads if read.kind == "weight")
        for manifest in () if terms is None else terms.summary.manifests:
            yield from around.weight_names(manifest)
    elif field == "sources":
        yield from (read.where for trace in item.entry.traces for read in trace.reads if read.kind in _SOURCES)


def _near(name: str, known: set[str]) -> tuple[str, ...]:
    """What has the same name before ``==`` or ``=``, then what is spelt alike, also without what is before dots."""
    base = name.partition("=")[0]
    whole = sorted(known)
    same = [each for each in whole if each.partition("=")[0] == base]
    ends = {each.rpartition(".")[2]: each for each in whole[:_MAX_ITEMS]}
    names = {each.partition("=")[0]: each for each in whole}
    alike = [
        *difflib.get_close_matches(name, same[:_MAX_ITEMS], _SHOWN),
        *same,
        *difflib.get_close_matches(name, whole[:_MAX_ITEMS], _SHOWN),
        *(ends[each] for each in difflib.get_close_matches(name, list(ends), _SHOWN)),
        *(names[each] for each in difflib.get_close_matches(base, list(names)[:_MAX_ITEMS], _SHOWN)),
    ]
    return tuple(dict.fromkeys(alike))[:_SHOWN]
