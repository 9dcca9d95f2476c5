"""The difference between two keys, in words: the reason of a miss, and the output of ``cachec why``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from cachec.base.display_text import shown_pair
from cachec.errors import PluginError, StoreFault
from cachec.key.content_diff import code_difference, content_difference
from cachec.key.flatten import leaf_difference
from cachec.model import MALFORMED_JSON, Part, PartKind, Reason, WeightSpec

__all__ = ["KeyDifference", "PartDifference", "differences", "first_difference", "spec_difference"]

#: The reason that a part's kind gives and the word before its name, in the order in which differences are told: what a
#: user did on purpose (the stage, its code) before what follows from it, the program and the weights last.
_KINDS: Mapping[PartKind, tuple[Reason, str]] = {
    PartKind.STAGE: (Reason.STAGE_CHANGED, "stage "),
    PartKind.CODE: (Reason.CODE_CHANGED, "helper "),
    PartKind.DISTRIBUTION: (Reason.TOOL_CHANGED, "tool "),
    PartKind.REQUIREMENT: (Reason.TOOL_CHANGED, "required "),
    PartKind.EXECUTABLE: (Reason.TOOL_CHANGED, "tool "),
    PartKind.AMBIENT: (Reason.AMBIENT_CHANGED, "ambient "),
    PartKind.ENVIRONMENT: (Reason.ENVIRONMENT_CHANGED, "environment "),
    PartKind.PLATFORM: (Reason.PLATFORM_CHANGED, ""),
    PartKind.ARGUMENT: (Reason.OPTION_CHANGED, ""),
    PartKind.PROGRAM: (Reason.TOPOLOGY_CHANGED, "program "),
    PartKind.WEIGHTS: (Reason.WEIGHT_SPEC_CHANGED, "weights "),
    PartKind.FILE: (Reason.FILE_CHANGED, "file "),
    PartKind.ORDER: (Reason.OPTION_CHANGED, ""),
}
_RANKS = {kind: rank for rank, kind in enumerate(_KINDS)}

#: How many weights one difference of specs spells out.
_SHOWN_SPECS = 6

#: How many features of processors one difference names.
_SHOWN_FEATURES = 24

#: What an argument may hold, and be told of in its place.
_CONTENT = frozenset({PartKind.PROGRAM, PartKind.WEIGHTS, PartKind.FILE})

#: Fetches an artifact (stripped IR, a manifest) by digest; None where it is not there.
Fetch = Callable[[str], bytes | None]


class PartDifference(msgspec.Struct, frozen=True):
    """One part that two keys disagree on."""

    #: ``old``, ``new``: as each has it, None where absent.
    old: Part | None
    new: Part | None
    reason: Reason
    #: For a person.
    words: str

    @property
    def part(self) -> Part:
        """The newer of both, for what they have in common."""
        return _either(self.old, self.new)


class KeyDifference(msgspec.Struct, frozen=True):
    """How a key differs from an older one: the first difference, and every part that differs."""

    reason: Reason
    detail: str
    parts: tuple[PartDifference, ...]


#: A part of an older key and its like in a newer one.
_Pair = tuple[Part | None, Part | None]


def _either(old: Part | None, new: Part | None) -> Part:
    part = new or old
    assert part is not None, "a part that neither key has"
    return part


def first_difference(old: Sequence[Part], new: Sequence[Part], fetch: Fetch | None = None) -> KeyDifference:
    """The reason of a miss against an older key. ``fetch`` lets programs and specs be told by content.

    ``parts`` names every differing part; only the first one is looked into. Where none differs, the reason is
    ``entry-gone``: the same key was known.
    """
    pairs = _differing(old, new)
    if not pairs:
        return KeyDifference(Reason.ENTRY_GONE, "no part of the key differs", ())
    functions = _stage_functions(new)
    parts = tuple(_difference(*pair, functions, None if at else fetch) for at, pair in enumerate(pairs))
    return KeyDifference(parts[0].reason, parts[0].words, parts)


def differences(old: Sequence[Part], new: Sequence[Part], fetch: Fetch | None = None) -> tuple[PartDifference, ...]:
    """Every differing part, each one looked into."""
    functions = _stage_functions(new)
    return tuple(_difference(*pair, functions, fetch) for pair in _differing(old, new))


def spec_difference(old: Mapping[str, WeightSpec], new: Mapping[str, WeightSpec]) -> str:
    """What differs between two sets of weight specs: added, removed and changed ones. Empty where nothing does."""
    added = [name for name in new if name not in old]
    removed = [name for name in old if name not in new]
    changed = [name for name in old if name in new and old[name] != new[name]]
    words = [f"{name!r}: {_fields(old[name], new[name])}" for name in changed[:_SHOWN_SPECS]]
    if len(changed) > _SHOWN_SPECS:
        words.append(f"and {len(changed) - _SHOWN_SPECS} more changed")
    words += [_list_names(kind, names) for kind, names in (("added", added), ("removed", removed)) if names]
    return "; ".join(words)


def _list_names(kind: str, names: Sequence[str]) -> str:
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
    before, after = _by_label(old), _by_label(new)
    pairs: list[_Pair] = [(before.get(place), part) for place, part in after.items()]
    pairs += [(part, None) for place, part in before.items() if place not in after]
    pairs = [(old, new) for old, new in pairs if old is None or new is None or old.digest != new.digest]
    inner = [part.name for part in (_either(*pair) for pair in pairs) if part.kind in _CONTENT]
    inner += [part.name for part in (_either(*pair) for pair in pairs) if part.kind is PartKind.ARGUMENT]

    def order(pair: _Pair) -> tuple[bool, int, bool, bool]:
        # An argument that holds a program changes with it; the program says more.
        part = _either(*pair)
        container = part.kind is PartKind.ARGUMENT and any(_is_inside(path, part.name) for path in inner)
        return container, _RANKS[part.kind], pair[1] is None, pair[0] is None

    return sorted(pairs, key=order)


def _by_label(parts: Sequence[Part]) -> dict[tuple[str, int], Part]:
    """Parts by label and, as two stages may bring a part of one label, by how often the label came before."""
    labelled: dict[tuple[str, int], Part] = {}
    times: dict[str, int] = {}
    for part in parts:
        nth = times[part.label] = times.get(part.label, -1) + 1
        labelled[part.label, nth] = part
    return labelled


def _is_inside(path: str, container: str) -> bool:
    return path.startswith(container) and path[len(container) : len(container) + 1] in {".", "["}


def _stage_functions(parts: Sequence[Part]) -> frozenset[str]:
    """The names of the stages that a key is of, to tell a stage's own function from its helpers.

    A script's stage is named after ``__main__``, its code after the file.
    """
    return frozenset(part.name.removeprefix("__main__.") for part in parts if part.kind is PartKind.STAGE)


def _difference(old: Part | None, new: Part | None, functions: frozenset[str], fetch: Fetch | None) -> PartDifference:
    part = _either(old, new)
    reason, word = _KINDS[part.kind]
    is_code = part.kind is PartKind.CODE
    is_value = is_code and any(each is not None and each.value for each in (old, new))
    if is_code:
        word = "value " if is_value else _code_word(part.name, functions)
    words = word + (part.name or part.kind)
    if old is None:
        words += " added" if is_code or not part.detail else f" added: {shown_pair('', part.detail)[1]}"
    elif new is None:
        words += " removed" if is_code or not part.detail else f" removed, was {shown_pair(part.detail, '')[0]}"
    elif part.kind is PartKind.PLATFORM and (inside := _platform(old.detail, new.detail)):
        words += f": {inside}"
    elif part.kind is PartKind.PROGRAM:
        words += f": {_program(old, new, fetch)}"
    elif part.kind is PartKind.WEIGHTS:
        words += f": {_weights(old, new, fetch)}"
    elif part.kind is PartKind.FILE and (inside := _file(old, new, fetch)):
        words += f": {inside}"
    elif inside := leaf_difference(old.leaves, new.leaves):
        words = inside if not is_code else f"{word}{inside}"
    elif is_code and not is_value:
        words += f" changed ({new.detail})" if new.detail else " changed"
        words += _code(old, new, fetch)
    elif old.detail == new.detail:
        words += f" changed (both are shown as {shown_pair(old.detail, old.detail)[0]})" if old.detail else " changed"
    else:
        before, after = shown_pair(old.detail or "''", new.detail or "''")
        words += f": {before} -> {after}"
    return PartDifference(old, new, reason, words)


def _platform(old: str, new: str) -> str:
    """What differs between two machines, each as ``SYSTEM AND PYTHON; PROCESSOR: FEATURES``; empty for another form."""
    sides = [text.partition("; ") for text in (old, new)]
    if not all(": " in processor for _, _, processor in sides):
        return ""
    before, after = [set(processor.rpartition(": ")[2].split()) for _, _, processor in sides]
    words = [] if sides[0][0] == sides[1][0] else [" -> ".join(shown_pair(sides[0][0], sides[1][0]))]
    for features, what in ((before - after, "lacks"), (after - before, "has also")):
        if features:
            more = f" and {len(features) - _SHOWN_FEATURES} more" if len(features) > _SHOWN_FEATURES else ""
            words.append(f"the processor {what} {' '.join(sorted(features)[:_SHOWN_FEATURES])}{more}")
    return "; ".join(words)


def _code_word(name: str, functions: frozenset[str]) -> str:
    if any(name == function or name.endswith("." + function) for function in functions):
        return "stage function "
    return "helper "


def _program(old: Part, new: Part, fetch: Fetch | None) -> str:
    before, after = _reference(old), _reference(new)
    if before and after and old.version != new.version:
        return f"{old.version} -> {new.version}"
    if before and before == after:
        return "the same operations, but they are linked with other weights"
    contents = (_bytes(before, fetch), _bytes(after, fetch))
    if contents[0] is None or contents[1] is None:
        return _digests_only("IR", before, after, contents)
    from cachec.programs import ir  # with what plugins import, which most differences do without

    try:
        return ir.difference(new.version, contents[0], contents[1])
    except PluginError as error:
        return f"IR {before[:12]} -> {after[:12]} ({error})"


def _code(old: Part, new: Part, fetch: Fetch | None) -> str:
    """The lines that differ, behind what comes before; empty where they are not known."""
    contents = (_bytes(_reference(old), fetch), _bytes(_reference(new), fetch))
    words = "" if contents[0] is None or contents[1] is None else code_difference(new.name, contents[0], contents[1])
    return words and f": {words}"


def _file(old: Part, new: Part, fetch: Fetch | None) -> str:
    """What differs in a file, where both contents are at hand and can be told of."""
    contents = (_bytes(_reference(old), fetch), _bytes(_reference(new), fetch))
    if contents[0] is None or contents[1] is None or contents[0] == contents[1]:
        return ""
    return content_difference(new.value or new.name, contents[0], contents[1])


def _weights(old: Part, new: Part, fetch: Fetch | None) -> str:
    before, after = _reference(old), _reference(new)
    details = f"{old.detail} -> {new.detail}"
    if before and before == after:
        return details  # they say what else counts: the rank
    specs = (_specs(before, fetch), _specs(after, fetch))
    if specs[0] is not None and specs[1] is not None:
        words = spec_difference(specs[0], specs[1])
        if words:
            return words
    return f"{details}; " + _digests_only("manifest", before, after, specs)


def _digests_only(what: str, before: str, after: str, fetched: tuple[object, object]) -> str:
    missing = [side for side, value in zip(("old", "new"), fetched, strict=True) if value is None]
    digests = f"{before[:12] or 'unknown'} -> {after[:12] or 'unknown'}"
    return f"{what} {digests} (only digests are known of the {' and the '.join(missing)} one)"


def _reference(part: Part) -> str:
    """The IR of a program, a weight set's manifest, a file's content, the texts of code; empty for none."""
    return part.refs[0] if part.refs else ""


def _bytes(digest: str, fetch: Fetch | None) -> bytes | None:
    if fetch is None or not digest:
        return None
    try:
        return fetch(digest)
    except StoreFault:  # counted where it was met; here it only makes the words poorer, and they say so
        return None


def _specs(digest: str, fetch: Fetch | None) -> dict[str, WeightSpec] | None:
    data = _bytes(digest, fetch)
    try:
        specs = None if data is None else msgspec.json.decode(data, type=list[WeightSpec])
    except MALFORMED_JSON:
        return None
    return None if specs is None else {spec.name: spec for spec in specs}
