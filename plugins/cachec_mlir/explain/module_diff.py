"""The difference between two modules: operations by their place, weights by their specs, and no lines of digits.

Lines are aligned without names of values, labels and aliases, so that renumbering is no difference. Equal beginnings
and ends are aligned first, then lines that are in both exactly once (Bram Cohen's patience diff). Python's difflib
aligns the rest.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from cachec.base.display_text import shown_pair
from cachec.errors import UsageError
from cachec_mlir.blobs import Resource
from cachec_mlir.bytecode.reader import Bytecode, is_bytecode
from cachec_mlir.explain.readable_text import (
    Operation,
    ReadableModule,
    make_readable,
    operations,
    pair_changes,
    typed_resources,
)
from cachec_mlir.module_input import Source
from cachec_mlir.strip_and_link import strip
from cachec_mlir.topology_hash import canonical, topology

#: The limit of lines times lines for difflib; larger blocks are reported as removed and added.
_MAX_CELLS = 4_000_000
#: Tokens around the place where two modules are connected otherwise.
_NEAR = 6

_NAMES = re.compile(
    r"%(?:\d+|[A-Za-z_$.\-][\w$.\-]*)(?:[:#]\d+)?|\^(?:\d+|[A-Za-z_$.\-][\w$.\-]*)|[#!][A-Za-z_]\w*(?![\w.<])"
)


class OperationChange(msgspec.Struct, frozen=True):
    """An operation that differs. kind: ``added``, ``removed``, ``changed``, or ``connected`` where all operations are
    alike, and their order or operands are not. function: that it is in. old, new: line number and text in each, null
    where it is absent. after: the operation before it.
    """

    kind: str
    function: str
    old_line: int | None
    new_line: int | None
    old: str | None
    new: str | None
    after: str = ""


class WeightChange(msgspec.Struct, frozen=True):
    """A weight that differs. kind: ``added``, ``removed``, ``changed``, or ``values`` where only its bytes do."""

    kind: str
    name: str
    old: str | None
    new: str | None


class Difference(msgspec.Struct, frozen=True):
    """Two modules against each other. same: one program, and weights of the same specs (and values, if they were asked
    for). notation: see ``ReadableModule``. old, new: topology hashes.
    """

    same: bool
    old: str
    new: str
    notation: str
    operations: tuple[OperationChange, ...]
    weights: tuple[WeightChange, ...]


def difference(old: Source, new: Source, *, values: bool = False, bindings: str | None = None) -> Difference:
    """Compare two modules. values: compare the bytes of weights, too. bindings: the MLIR that reads both.

    Raises CheckpointError, OSError, PluginError (bytecode that no installed MLIR reads), UsageError.
    """
    if bindings is None and is_bytecode(old) != is_bytecode(new):
        raise UsageError("one module is text, the other bytecode; say --bindings iree or jax to read both alike")
    hashes = topology(old, bindings=bindings), topology(new, bindings=bindings)
    weights = tuple(_weights(_specs(old, bindings), _specs(new, bindings), values=values))
    if hashes[0] == hashes[1]:
        return Difference(not weights, *hashes, "", (), weights)
    texts = make_readable(old, bindings), make_readable(new, bindings)
    if texts[0].notation != texts[1].notation:
        raise UsageError(
            f"the modules are read by different MLIRs ({texts[0].notation} and {texts[1].notation}); say --bindings"
        )
    changes = tuple(_changes(operations(texts[0].text), operations(texts[1].text)))
    if not changes and not weights:
        changes = (_first_reconnected(old, new, texts),)
    return Difference(False, *hashes, texts[0].notation, changes, weights)


# --- operations


def _changes(old: Sequence[Operation], new: Sequence[Operation]) -> Iterator[OperationChange]:
    before, after = [_neutral(each) for each in old], [_neutral(each) for each in new]
    for i1, i2, j1, j2 in _blocks(before, after, 0, len(before), 0, len(after)):
        pairs = pair_changes(
            [each for each in old[i1:i2] if _has_content(each)], [each for each in new[j1:j2] if _has_content(each)]
        )
        previous = _previous(new, j1) or _previous(old, i1)
        for one, other in pairs:
            yield _change(one, other, previous)


def _has_content(operation: Operation) -> bool:
    """Whether a line has content of its own; a brace has none."""
    return any(map(str.isalnum, operation.text))


def _previous(lines: Sequence[Operation], index: int) -> str:
    for each in reversed(lines[max(0, index - 20) : index]):
        if each.name:
            return shown_pair(each.text.strip(), "")[0]
    return ""


def _change(old: Operation | None, new: Operation | None, previous: str) -> OperationChange:
    kind = "added" if old is None else "removed" if new is None else "changed"
    function = (new or old or Operation(0, "", "", "")).function
    before, after = shown_pair(old and old.text.strip(), new and new.text.strip())
    return OperationChange(
        kind,
        function,
        None if old is None else old.number,
        None if new is None else new.number,
        None if old is None else before,
        None if new is None else after,
        previous,
    )


def _neutral(operation: Operation) -> str:
    return _NAMES.sub(lambda match: match[0][0], operation.text).strip()


def _blocks(
    a: Sequence[str], b: Sequence[str], alo: int, ahi: int, blo: int, bhi: int
) -> Iterator[tuple[int, int, int, int]]:
    """The blocks ``a[i1:i2]``, ``b[j1:j2]`` that differ, in order."""
    while alo < ahi and blo < bhi and a[alo] == b[blo]:
        alo, blo = alo + 1, blo + 1
    while alo < ahi and blo < bhi and a[ahi - 1] == b[bhi - 1]:
        ahi, bhi = ahi - 1, bhi - 1
    if alo == ahi or blo == bhi:
        if alo != ahi or blo != bhi:
            yield alo, ahi, blo, bhi
        return
    anchors = _anchors(a, b, alo, ahi, blo, bhi)
    if anchors:
        for i, j in [*anchors, (ahi, bhi)]:
            yield from _blocks(a, b, alo, i, blo, j)
            alo, blo = i + 1, j + 1
    elif (ahi - alo) * (bhi - blo) > _MAX_CELLS:
        yield alo, ahi, blo, bhi
    else:
        matcher = difflib.SequenceMatcher(None, a[alo:ahi], b[blo:bhi], autojunk=False)
        for tag, i1, i2, j1, j2 in matcher.get_opcodes():
            if tag != "equal":
                yield alo + i1, alo + i2, blo + j1, blo + j2


def _anchors(a: Sequence[str], b: Sequence[str], alo: int, ahi: int, blo: int, bhi: int) -> list[tuple[int, int]]:
    """Lines that are in both blocks exactly once, the longest run of them that is in order in both."""
    ours, theirs = Counter(a[alo:ahi]), Counter(b[blo:bhi])
    places = {b[j]: j for j in range(blo, bhi) if theirs[b[j]] == 1}
    pairs = [(i, places[a[i]]) for i in range(alo, ahi) if ours[a[i]] == 1 and a[i] in places]
    tails: list[int] = []
    ends: list[int] = []
    back: list[int] = []
    for number, (_, j) in enumerate(pairs):
        at = bisect_left(tails, j)
        back.append(ends[at - 1] if at else -1)
        if at == len(tails):
            tails.append(j)
            ends.append(number)
        else:
            tails[at], ends[at] = j, number
    run: list[tuple[int, int]] = []
    number = ends[-1] if ends else -1
    while number >= 0:
        run.append(pairs[number])
        number = back[number]
    return run[::-1]


def _first_reconnected(old: Source, new: Source, texts: tuple[ReadableModule, ReadableModule]) -> OperationChange:
    """The first place where two modules of the same operations differ."""
    if texts[0].notation == "text":
        one, other = canonical(old).split("\n"), canonical(new).split("\n")
    else:
        one, other = texts[0].text.split(), texts[1].text.split()
    at = next((i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other)))
    around = slice(max(0, at - _NEAR), at + _NEAR)
    return OperationChange("connected", "", None, None, *shown_pair(" ".join(one[around]), " ".join(other[around])))


# --- weights


class _WeightForm(NamedTuple):
    words: str
    resource: Resource | None


def _weights(
    before: Mapping[str, _WeightForm], after: Mapping[str, _WeightForm], *, values: bool
) -> Iterator[WeightChange]:
    for name in [*before, *(name for name in after if name not in before)]:
        one, other = before.get(name), after.get(name)
        words = (None if one is None else one.words, None if other is None else other.words)
        if one is None or other is None:
            yield WeightChange("added" if one is None else "removed", name, *words)
        elif one.words != other.words:
            yield WeightChange("changed", name, *words)
        elif values and one.resource is not None and other.resource is not None:
            digests = one.resource.blob.digest(), other.resource.blob.digest()
            if digests[0] != digests[1]:
                yield WeightChange("values", name, *(f"{one.words}, BLAKE3 {each[:12]}" for each in digests))


def _specs(source: Source, bindings: str | None) -> Mapping[str, _WeightForm]:
    stripped = strip(source)
    readable = make_readable(source, bindings) if bindings is not None else None
    weights = {each.name: _WeightForm(each.words(), each) for each in typed_resources(stripped, readable)}
    if is_bytecode(source):
        weights |= {name: _WeightForm("declared, without bytes", None) for name in Bytecode(source).names_without_bytes}
    return weights
