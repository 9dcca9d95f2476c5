"""What differs between two keys, in words: the reason of a miss, and all that ``cachec why`` says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from cachec.errors import StoreFault
from cachec.key.operations import shown_pair, topology_difference
from cachec.model import Part, Reason, WeightSpec

__all__ = ["Difference", "PartDifference", "differences", "first_difference", "nearest", "spec_difference"]

#: What a part is about, by the first piece of its name, in the order in which differences are told: what a user did on
#: purpose (the stage, its code) before what follows from it, the program and the weights last.
_KINDS: Mapping[str, tuple[Reason, str]] = {
    "stage": (Reason.STAGE_CHANGED, "stage "),
    "code": (Reason.CODE_CHANGED, "helper "),
    "tool": (Reason.TOOL_CHANGED, "tool "),
    "ambient": (Reason.AMBIENT_CHANGED, "ambient "),
    "env": (Reason.ENVIRONMENT_CHANGED, "environment "),
    "platform": (Reason.PLATFORM_CHANGED, ""),
    "arg": (Reason.OPTION_CHANGED, ""),
    "program": (Reason.TOPOLOGY_CHANGED, "program "),
    "weights": (Reason.WEIGHT_SPEC_CHANGED, "weights "),
    "file": (Reason.FILE_CHANGED, "file "),
}
_RANKS = {kind: rank for rank, kind in enumerate(_KINDS)}

#: How many weights one difference of specs spells out.
_SHOWN_SPECS = 6

#: The detail of a part that is code, not a value that code reads: a place in a file, a digest, or nothing.
_CODE = re.compile(r"|[0-9a-f]{8,64}|no source.*|[^\s'\"]+\.\w+(:\d+|, .*)?")

#: Fetches an artifact (stripped IR, a manifest) by digest; None where it is not there.
Fetch = Callable[[str], bytes | None]


class PartDifference(msgspec.Struct, frozen=True):
    """One part that two keys disagree on. old, new: its detail in each, None where absent. words: for a person."""

    name: str
    reason: Reason
    old: str | None
    new: str | None
    words: str


class Difference(msgspec.Struct, frozen=True):
    """How a key differs from an older one: the first difference, and every part that differs."""

    reason: Reason
    detail: str
    parts: tuple[PartDifference, ...]


class _Pair(NamedTuple):
    name: str
    old: Part | None
    new: Part | None


def nearest(candidates: Iterable[tuple[str, Sequence[Part]]], new: Sequence[Part]) -> tuple[str, Sequence[Part]] | None:
    """The candidate (key, parts) that shares most parts with ``new``; of equals the first, so give the newest first."""
    wanted = {(part.name, part.digest) for part in new}
    best, most = None, -1
    for key, parts in candidates:
        shared = len(wanted.intersection((part.name, part.digest) for part in parts))
        if shared > most:
            best, most = (key, parts), shared
    return best


def first_difference(old: Sequence[Part], new: Sequence[Part], fetch: Fetch | None = None) -> Difference:
    """The reason of a miss against an older key. ``fetch`` lets programs and specs be told by content.

    ``parts`` names every differing part; only the first one is looked into. Where none differs, the reason is
    ``entry-gone``: the same key was known.
    """
    pairs = _differing(old, new)
    if not pairs:
        return Difference(Reason.ENTRY_GONE, "no part of the key differs", ())
    functions = _stage_functions(new)
    parts = tuple(_told(pair, functions, None if at else fetch) for at, pair in enumerate(pairs))
    return Difference(parts[0].reason, parts[0].words, parts)


def differences(old: Sequence[Part], new: Sequence[Part], fetch: Fetch | None = None) -> tuple[PartDifference, ...]:
    """Every differing part, each one looked into."""
    functions = _stage_functions(new)
    return tuple(_told(pair, functions, fetch) for pair in _differing(old, new))


def spec_difference(old: Mapping[str, WeightSpec], new: Mapping[str, WeightSpec]) -> str:
    """What differs between two sets of weight specs: added, removed and changed ones. Empty where nothing does."""
    added = [name for name in new if name not in old]
    removed = [name for name in old if name not in new]
    changed = [name for name in old if name in new and old[name] != new[name]]
    words = [f"{name!r}: {_fields(old[name], new[name])}" for name in changed[:_SHOWN_SPECS]]
    if len(changed) > _SHOWN_SPECS:
        words.append(f"and {len(changed) - _SHOWN_SPECS} more changed")
    words += [_listed(kind, names) for kind, names in (("added", added), ("removed", removed)) if names]
    return "; ".join(words)


def _listed(kind: str, names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_SHOWN_SPECS])
    more = f" and {len(names) - _SHOWN_SPECS} more" if len(names) > _SHOWN_SPECS else ""
    return f"{len(names)} {kind}: {shown}{more}"


def _fields(old: WeightSpec, new: WeightSpec) -> str:
    return ", ".join(
        f"{field} expected {getattr(old, field)!r}, found {getattr(new, field)!r}"
        for field in WeightSpec.__struct_fields__
        if getattr(old, field) != getattr(new, field)
    )


def _differing(old: Sequence[Part], new: Sequence[Part]) -> list[_Pair]:
    """The parts that differ, in the order in which they are told."""
    before, after = _by_name(old), _by_name(new)
    pairs = [_Pair(place[0], before.get(place), part) for place, part in after.items()]
    pairs += [_Pair(place[0], part, None) for place, part in before.items() if place not in after]
    pairs = [p for p in pairs if p.old is None or p.new is None or p.old.digest != p.new.digest]
    inner = [_subject(pair.name) for pair in pairs if _kind(pair.name) in {"program", "weights", "file"}]

    def order(pair: _Pair) -> tuple[bool, int, bool, bool]:
        # An argument that holds a program changes with it; the program says more.
        container = _kind(pair.name) == "arg" and any(_is_inside(path, _subject(pair.name)) for path in inner)
        return container, _RANKS.get(_kind(pair.name), len(_RANKS)), pair.new is None, pair.old is None

    return sorted(pairs, key=order)


def _by_name(parts: Sequence[Part]) -> dict[tuple[str, int], Part]:
    """Parts by name and, as two stages may bring a part of one name, by how often the name came before."""
    found: dict[tuple[str, int], Part] = {}
    times: dict[str, int] = {}
    for part in parts:
        nth = times[part.name] = times.get(part.name, -1) + 1
        found[part.name, nth] = part
    return found


def _is_inside(path: str, container: str) -> bool:
    return path.startswith(container) and path[len(container) : len(container) + 1] in {".", "["}


def _kind(name: str) -> str:
    return name.partition("/")[0]


def _subject(name: str) -> str:
    return name.partition("/")[2] or name


def _stage_functions(parts: Sequence[Part]) -> frozenset[str]:
    """The names of the stages that a key is of, to tell a stage's own function from its helpers.

    A script's stage is named after ``__main__``, its code after the file.
    """
    return frozenset(_subject(part.name).removeprefix("__main__.") for part in parts if _kind(part.name) == "stage")


def _told(pair: _Pair, functions: frozenset[str], fetch: Fetch | None) -> PartDifference:
    kind, subject = _kind(pair.name), _subject(pair.name)
    reason, label = _KINDS.get(kind, (Reason.OPTION_CHANGED, ""))
    old = pair.old.detail if pair.old is not None else None
    new = pair.new.detail if pair.new is not None else None
    if kind == "code":
        label = _code_label(subject, functions, old, new)
    words = label + subject
    if old is None:
        words += f" added: {shown_pair('', new)[1]}" if new and kind != "code" else " added"
    elif new is None:
        words += f" removed, was {shown_pair(old, '')[0]}" if old and kind != "code" else " removed"
    elif kind == "program":
        words += f": {_program(old, new, fetch)}"
    elif kind == "weights":
        words += f": {_weights(old, new, fetch)}"
    elif kind == "code" and not label.startswith("value"):
        words += f" changed ({new})" if ":" in new else " changed"
    elif old == new:
        words += f" changed (both are shown as {shown_pair(old, old)[0]})" if old else " changed"
    else:
        before, after = shown_pair(old or "''", new or "''")
        words += f": {before} -> {after}"
    return PartDifference(pair.name, reason, old, new, words)


def _code_label(subject: str, functions: frozenset[str], old: str | None, new: str | None) -> str:
    if not all(detail is None or _CODE.fullmatch(detail) for detail in (old, new)):
        return "value "  # a global, a default, a closure
    if any(subject == name or subject.endswith("." + name) for name in functions):
        return "stage function "
    return "helper "


def _program(old: str, new: str, fetch: Fetch | None) -> str:
    before, after = _reference("ir", old), _reference("ir", new)
    if before and before == after:
        if old.partition(",")[0] != new.partition(",")[0]:
            return f"{old.partition(',')[0]} -> {new.partition(',')[0]}"
        return "the same operations, but they are linked with other weights"
    texts = (_text(before, fetch), _text(after, fetch))
    if texts[0] is not None and texts[1] is not None:
        return topology_difference(texts[0], texts[1])
    return _digests_only("IR", before, after, texts)


def _weights(old: str, new: str, fetch: Fetch | None) -> str:
    before, after = _reference("manifest", old), _reference("manifest", new)
    if before and before == after:
        # what else the detail says: the rank
        return f"{_without_digest(old)} -> {_without_digest(new)}"
    specs = (_specs(before, fetch), _specs(after, fetch))
    if specs[0] is not None and specs[1] is not None:
        words = spec_difference(specs[0], specs[1])
        if words:
            return words
    return f"{_without_digest(old)} -> {_without_digest(new)}; " + _digests_only("manifest", before, after, specs)


def _digests_only(what: str, before: str, after: str, fetched: tuple[object, object]) -> str:
    missing = [side for side, value in zip(("old", "new"), fetched, strict=True) if value is None]
    digests = f"{before[:12] or 'unknown'} -> {after[:12] or 'unknown'}"
    return f"{what} {digests} (only digests are known of the {' and the '.join(missing)} one)"


def _reference(what: str, detail: str) -> str:
    """The digest in ``..., ir <64 hex>`` or ``..., manifest <64 hex>``; empty where there is none."""
    match = re.search(rf"\b{what} ([0-9a-f]{{64}})\b", detail)
    return match[1] if match else ""


def _without_digest(detail: str) -> str:
    return re.sub(r",? ?\bmanifest [0-9a-f]{64}\b", "", detail)


def _bytes(digest: str, fetch: Fetch | None) -> bytes | None:
    if fetch is None or not digest:
        return None
    try:
        return fetch(digest)
    except StoreFault:  # counted where it was met; here it only makes the words poorer, and they say so
        return None


def _text(digest: str, fetch: Fetch | None) -> str | None:
    data = _bytes(digest, fetch)
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:  # a binary format
        return None


def _specs(digest: str, fetch: Fetch | None) -> dict[str, WeightSpec] | None:
    data = _bytes(digest, fetch)
    try:
        specs = None if data is None else msgspec.json.decode(data, type=list[WeightSpec])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return None if specs is None else {spec.name: spec for spec in specs}
