"""The first differing operations of two programs printed as MLIR.

Lines are compared as a bag, not aligned, so the time is linear in the size of the texts: two programs of 100,000
operations take less than a second. An operation that only moved is no difference.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from cachec.base.display_text import MAX_SHOWN, shown_pair
from cachec.errors import PluginError
from cachec_mlir.explain.readable_text import Operation, name_of, pair_changes

#: Operations that one difference spells out.
MAX_OPERATIONS = 6

#: The number of characters that are compared in each text, between the equal beginnings and ends.
MAX_COMPARED = 1 << 24

# MLIR language reference, "Identifiers and keywords": value-id, with the count or the index of results, and block-id.
_SSA_NAME = re.compile(r"%(?:\d+|[A-Za-z_$.-][\w$.-]*)(?:[:#]\d+)?|\^(?:\d+|[A-Za-z_$.-][\w$.-]*)")
_RESULTS = re.compile(r"^\s*[%, ]+ = ")
_HEX_BLOB = re.compile(r'"0x([0-9A-Fa-f]{16})([0-9A-Fa-f]+)"')
_DENSE_LIST = re.compile(r"dense<(\[[^>]{32})[^>]{32,}>")


def difference(before: bytes, after: bytes) -> str:
    """The first operations that differ, at most ``MAX_OPERATIONS``, joined by ``"; "``. Empty for equal texts.

    SSA names do not count, so that renumbering is no difference. If only they differ, the result says that the same
    operations are connected in another way. Long literals are compared in full and shown cut. Raises PluginError for
    bytes that are not text.
    """
    try:
        return _difference(before.decode(), after.decode())
    except UnicodeDecodeError as error:
        raise PluginError("bytecode, whose operations `cachec mlir diff` tells apart") from error


def _difference(old_text: str, new_text: str) -> str:
    if old_text == new_text:
        return ""
    old, new, offset, cut = _middles(old_text.split("\n"), new_text.split("\n"))
    before, after = [_neutral(line) for line in old], [_neutral(line) for line in new]
    counts = Counter(before)
    counts.subtract(after)
    words = _changes(_excess(before, counts, 1), _excess(after, counts, -1), counts)
    if not words:
        words = [_describe_rearrangement(old, new, before, after, offset)]
    shown = words[:MAX_OPERATIONS]
    if len(words) > MAX_OPERATIONS:
        shown.append(f"and {len(words) - MAX_OPERATIONS} more operations")
    if cut:
        shown.append(f"only the first {MAX_COMPARED >> 20} MiB that differ were compared")
    return "; ".join(shown)


def _middles(old: list[str], new: list[str]) -> tuple[list[str], list[str], int, bool]:
    """Both without the lines that they begin and end with alike, the number of the former, and whether cut short."""
    shorter = min(len(old), len(new))
    head = 0
    while head < shorter and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < shorter - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    before, after = _take_bounded(old[head : len(old) - tail]), _take_bounded(new[head : len(new) - tail])
    cut = len(before) + len(after) < len(old) + len(new) - 2 * (head + tail)
    return before, after, head, cut


def _take_bounded(lines: list[str]) -> list[str]:
    budget = MAX_COMPARED
    for at, line in enumerate(lines):
        budget -= len(line)
        if budget < 0:
            return lines[: at + 1]
    return lines


def _neutral(line: str) -> str:
    return _SSA_NAME.sub("%", line).strip()


def _excess(lines: Sequence[str], counts: Counter[str], sign: int) -> list[Operation]:
    """The lines of which this side has more, at their first place. Braces and empty lines are no operations."""
    operations: dict[str, Operation] = {}
    for at, line in enumerate(lines):
        if counts[line] * sign > 0 and line not in operations and any(map(str.isalnum, line)):
            operations[line] = Operation(at, line, name_of(line), "")
    return list(operations.values())


def _changes(removed: list[Operation], added: list[Operation], counts: Counter[str]) -> list[str]:
    """Differences in words, by place."""
    messages: list[tuple[int, str]] = []
    for old, new in pair_changes(removed, added):
        if old is not None and new is not None:
            messages.append((old.number, _describe_change(old, new)))
        elif one := old or new:
            times = abs(counts[one.text])
            words = shown_pair(_short(one.text), "")[0] + (f" (x{times})" if times > 1 else "")
            messages.append((one.number, f"{'+' if old is None else '-'} {words}"))
    return [words for _, words in sorted(messages, key=lambda pair: pair[0])]


def _describe_change(old: Operation, new: Operation) -> str:
    before, after = shown_pair(_short(old.text), _short(new.text))
    return f"{before} (its literal differs)" if before == after else f"{before} -> {after}"


def _short(line: str) -> str:
    """A line without the names of its results, and with long literals cut."""
    line = _HEX_BLOB.sub(lambda m: f'"0x{m[1]}…" ({(len(m[2]) + 16) // 2} bytes)', line)
    return _RESULTS.sub("", _DENSE_LIST.sub(r"dense<\1…>", line))


def _describe_rearrangement(old: list[str], new: list[str], before: list[str], after: list[str], offset: int) -> str:
    """The words for two texts with the same operations."""
    for at, (one, other) in enumerate(zip(before, after, strict=False)):
        if one != other:
            return f"the same operations in another order, first at line {offset + at + 1}: {_short(other)[:MAX_SHOWN]}"
    for at, (one, other) in enumerate(zip(old, new, strict=False)):
        if one != other:
            old_line, new_line = shown_pair(one.strip(), other.strip())
            change = f"{old_line} -> {new_line}"
            return f"the same operations, named or connected otherwise, first at line {offset + at + 1}: {change}"
    return "only empty lines or brackets differ"
