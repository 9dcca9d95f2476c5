"""Which entries: a selector, and how one entry is held against it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec

from cachec.base.anchors import is_anchored
from cachec.base.display_text import key_prefix
from cachec.errors import UsageError
from cachec.model import BELOW_BASE, Digest, PartKind, Trace
from cachec.store.search_index import Facts, SearchedArgument

if TYPE_CHECKING:
    from cachec.maintain.catalogue import Item
    from cachec.maintain.snapshot import Surroundings  # whoever only makes a selector needs nothing of it

Match = Callable[["Item"], bool]


class Selector(msgspec.Struct, frozen=True, kw_only=True):
    """Entries by what is known of them. Everything that is given must hold; of ``keys`` and of ``stages`` one of each.

    keys: first characters of keys, 6 or more. stages: names, or the last part of one. tags: exact. tools: ``NAME`` or
    ``NAME==VERSION`` of a distribution or executable, both with ``*`` and ``?``; commands that a run called count.
    options: ``NAME`` or ``NAME=VALUE`` of an argument, whose value takes at most 200 characters. weights: names of
    weights that the stage was given or has read, with ``*`` and ``?``. revisions: names or first digits of revisions
    that the store owns: entries that depend on the bytes of one of their weights. sources: files, or folders, that the
    code, an argument or a read comes from.
    older_than, newer_than: seconds since the entry was last made. stale: only those that can't hit any more, as far as
    their tools and the files they read tell.

    Raises UsageError for a key prefix, or an age, that can't be one.
    """

    keys: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    revisions: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    older_than: float | None = None
    newer_than: float | None = None
    stale: bool = False

    def __post_init__(self) -> None:
        for key in self.keys:
            key_prefix(key)
        for name in ("older_than", "newer_than"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise UsageError(f"{name} expected seconds, 0 or more; found {value!r}")
        for field in self.__struct_fields__:
            if isinstance(getattr(self, field), str):
                raise UsageError(f"{field} expected a tuple of str; found one str: give ({field}=(...,))")

    @property
    def needs_summaries(self) -> bool:
        """Whether rows of entries alone do not tell which are meant."""
        return bool(self.tools or self.options or self.weights or self.sources or self.stale)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked for, so that every entry is meant."""
        return self == Selector()


def matcher(selector: Selector, around: Surroundings, now: float) -> Match:
    """The test of one entry. Raises CachecError for a revision that is not there."""
    tests: list[Match] = []
    if selector.keys:
        tests.append(_key(selector.keys))
    if selector.stages:
        tests.append(lambda item: any(is_stage(item.entry.stage, name) for name in selector.stages))
    if selector.tags:
        tags = set(selector.tags)
        tests.append(lambda item: tags <= {*item.entry.tags})
    if selector.older_than is not None:
        before = now - selector.older_than
        tests.append(lambda item: item.created < before)
    if selector.newer_than is not None:
        after = now - selector.newer_than
        tests.append(lambda item: item.created >= after)
    tests += [_option(text) for text in selector.options]
    tests += [_tool(text) for text in selector.tools]
    tests += [_source(text, around) for text in selector.sources]
    tests += [_weight(text, around) for text in selector.weights]
    tests += [_revision(around.revision_digests(text)) for text in selector.revisions]
    if selector.stale:
        tests.append(lambda item: bool(around.stale(item)))
    return lambda item: all(test(item) for test in tests)


def is_stage(stage: str, name: str) -> bool:
    """Whether ``name`` means this stage: all of its name, or the end of it after a dot."""
    return stage == name or stage.endswith("." + name)


def _key(prefixes: Iterable[str]) -> Match:
    """By length, so that a key is looked up among 100,000 prefixes as fast as among two."""
    of_length: dict[int, set[str]] = {}
    for prefix in prefixes:
        of_length.setdefault(len(prefix), set()).add(prefix.lower())
    known = tuple(of_length.items())
    return lambda item: any(item.entry.key[:length] in cut for length, cut in known)


def _option(text: str) -> Match:
    name, given, value = text.partition("=")
    accepted = {value, repr(value)} - {""}  # a part's empty value stands for one that can't be written
    return _of_given(
        lambda each: each.kind is PartKind.ARGUMENT and each.name == name and (not given or each.value in accepted)
    )


def _of_given(holds: Callable[[SearchedArgument], bool]) -> Match:
    """A test of what was given to a call: whether it holds for any of that."""
    return lambda item: item.terms is not None and any(map(holds, item.terms.summary.given))


def _of_facts(holds: Callable[[Facts], bool]) -> Match:
    """A test of facts, asked once for all entries that share them."""
    known: dict[Digest, bool] = {}

    def test(item: Item) -> bool:
        if item.terms is None:
            return False
        name = item.terms.summary.facts
        if name not in known:
            known[name] = holds(item.terms.facts)
        return known[name]

    return test


def _tool(text: str) -> Match:
    from cachec.base.distributions import normalise  # most selectors name no tool

    name, _, version = text.partition("==")
    wanted = normalise(name.strip())

    def holds(facts: Facts) -> bool:
        return any(
            fnmatchcase(normalise(tool.name), wanted) and (not version or fnmatchcase(tool.version, version.strip()))
            for tool in facts.tools
        )

    declared = _of_facts(holds)

    def called(item: Item) -> bool:
        return not version and any(
            read.kind == "tool" and fnmatchcase(normalise(os.path.basename(read.where)), wanted)
            for trace in item.entry.traces
            for read in trace.reads
        )

    return lambda item: declared(item) or called(item)


def _source(text: str, around: Surroundings) -> Match:
    place = os.path.abspath(text)
    places = {place, os.path.realpath(place)}
    inside = tuple(os.path.join(each, "") for each in places)
    base = os.path.basename(place)
    modules = tuple(module_names(place))

    def in_code(facts: Facts) -> bool:
        return any(_is_of_module(label, modules) for label in facts.code)

    code = _of_facts(in_code)
    # Where a file lay is not in the key.
    given = _of_given(lambda each: each.kind in {PartKind.FILE, PartKind.PROGRAM} and each.value == base != "")

    def was_accessed(item: Item) -> bool:
        return any(
            read.kind in {"file", "absent", "listing", "tool", "content", "lookup", "names", "source"}
            and (
                (where := around.place(read.where)) in places
                or where.startswith(inside)
                or (_is_of_a_stage(read.where) and _may_be_below(read.where.partition(":")[2], places))
                # One by a relative name is of whichever folder it is looked at in.
                or (not where.startswith("/") and os.path.basename(where) == base != "")
            )
            for trace in item.entry.traces
            for read in trace.reads
        )

    return lambda item: (bool(modules) and code(item)) or given(item) or was_accessed(item)


def _is_of_a_stage(where: str) -> bool:
    """Whether a path counts from a folder that only the process of a stage knows."""
    return is_anchored(where) and not where.startswith(BELOW_BASE)


def _may_be_below(path: str, places: Iterable[str]) -> bool:
    """Whether a path from an unknown folder may be one of these places or below one: it shares their last names."""
    while path:
        if any(place.endswith("/" + path) for place in places):
            return True
        path = os.path.dirname(path)
    return False


def module_names(path: str) -> Iterator[str]:
    """The names under which a Python file may be imported, the shortest first; none for other files.

    A name has at least the packages that the file lies in (folders with ``__init__.py``); more folders may be
    namespace packages.
    """
    folder, base = os.path.split(path)
    stem, suffix = os.path.splitext(base)
    if suffix not in {".py", ".pyi"}:
        return
    names = [] if stem == "__init__" else [stem]
    while os.path.exists(os.path.join(folder, "__init__.py")):
        folder, package = os.path.split(folder)
        names.insert(0, package)
    while names and all(name.isidentifier() for name in names):
        yield ".".join(names)
        folder, package = os.path.split(folder)
        if not package:
            return
        names.insert(0, package)


def _is_of_module(label: str, modules: Iterable[str]) -> bool:
    plain = label.removeprefix("namespace ").partition("#")[0].partition(" ")[0]
    return any(plain == module or plain.startswith(module + ".") for module in modules)


def _weight(pattern: str, around: Surroundings) -> Match:
    known: dict[Digest, bool] = {}

    def named(manifest: Digest) -> bool:
        if manifest not in known:
            known[manifest] = any(fnmatchcase(name, pattern) for name in around.weight_names(manifest))
        return known[manifest]

    def read(trace: Trace) -> bool:
        return any(each.kind == "weight" and fnmatchcase(each.name, pattern) for each in trace.reads)

    def test(item: Item) -> bool:
        manifests = {trace.manifest.digest for trace in item.entry.traces if trace.manifest is not None}
        manifests.update(() if item.terms is None else item.terms.summary.manifests)
        return any(map(named, manifests)) or any(map(read, item.entry.traces))

    return test


def _revision(digests: frozenset[Digest]) -> Match:
    return lambda item: any(
        read.kind == "weight" and read.digest in digests for trace in item.entry.traces for read in trace.reads
    )
