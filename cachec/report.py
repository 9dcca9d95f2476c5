"""What the command line says, as plain data: statistics, entries, differences. Pure: nothing here prints.

The field names are those of ``--json``; they are documented in the help of each command and do not change lightly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cachec.events import LogReader, duration
from cachec.model import Entry, Outcome, Part, Reason, Trace
from cachec.store.store import products, references

if TYPE_CHECKING:
    from cachec.key.compare import PartDifference


def statistics(log: LogReader) -> dict[str, Any]:
    """Counts by reason and stage, hit rate, seconds saved, faults. Reads the log to its end.

    hit_rate: hits over hits and misses, None without either; calls that went round the cache do not count.
    new, changed, lost, asked: the misses by what they come of (``Reason.cause``).
    seconds_saved: what the stages took when they were stored, less what the hits took, summed over hits.
    """
    reasons: Counter[str] = Counter()
    stages: dict[str, _Tally] = {}
    whole = _Tally()
    for outcome in log:
        reasons[outcome.reason.value] += 1
        whole.add(outcome)
        stages.setdefault(outcome.stage, _Tally()).add(outcome)
    return {
        **whole.data(),
        "reasons": dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
        "stages": {name: stages[name].data() for name in sorted(stages)},
        "faults": {fault.value: count for fault, count in log.faults.most_common()},
        "damaged_lines": log.damaged,
    }


#: What misses come of (``Reason.cause``).
CAUSES = ("new", "changed", "lost", "asked")


#: Seconds without a call after which the next one is of another build.
PAUSE = 60.0


def last_build(log: Iterable[Outcome]) -> list[Outcome]:
    """The newest outcomes between which no ``PAUSE`` was; they come in the order of their ends."""
    build: list[Outcome] = []
    ended = -math.inf
    for outcome in log:
        if outcome.time - outcome.seconds > ended + PAUSE:
            build.clear()
        build.append(outcome)
        ended = max(ended, outcome.time)
    return build


def build_details(build: Sequence[Outcome]) -> dict[str, Any]:
    """What ``why --all`` says: the calls that were no hits by their reasons, those that cost most first.

    Calls of one reason and detail are a group, and those of one stage whose inputs are new. seconds: of all its calls.
    """
    whole = _Tally()
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    for outcome in build:
        whole.add(outcome)
        if not outcome.hit:
            what = outcome.stage if outcome.reason.cause == "new" else outcome.detail
            groups.setdefault((outcome.reason.value, what), []).append(outcome)
    told = [_group(group) for group in groups.values()]
    return {
        "began": min((each.time - each.seconds for each in build), default=None),
        "ended": max((each.time for each in build), default=None),
        **whole.data(),
        "groups": sorted(told, key=lambda group: (-group["seconds"], -group["calls"], group["reason"])),
    }


def _group(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    dearest = sorted(outcomes, key=lambda each: -each.seconds)
    return {
        "reason": dearest[0].reason.value,
        "detail": dearest[0].detail,
        "calls": len(dearest),
        "seconds": sum(each.seconds for each in dearest),
        "stages": sorted({each.stage for each in dearest}),
        "keys": list(dict.fromkeys(each.key for each in dearest if each.key)),
    }


class _Tally:
    """Counts of one stage, or of all."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.saved = 0.0
        self.spent = 0.0

    def add(self, outcome: Outcome) -> None:
        self.kinds[outcome.reason.kind] += 1
        self.kinds[outcome.reason.cause] += 1
        if outcome.reason is Reason.HIT:
            self.saved += outcome.saved - outcome.seconds
        else:
            self.spent += outcome.seconds

    def data(self) -> dict[str, Any]:
        hits, misses = self.kinds["hit"], self.kinds["miss"]
        return {
            "calls": sum(self.kinds[kind] for kind in ("hit", "miss", "bypass", "error")),
            "hits": hits,
            "misses": misses,
            **{cause: self.kinds[cause] for cause in CAUSES},
            "bypasses": self.kinds["bypass"],
            "errors": self.kinds["error"],
            "hit_rate": hits / (hits + misses) if hits + misses else None,
            "seconds_saved": self.saved,
            "seconds_spent": self.spent,
        }


def entry_summary(entry: Entry) -> dict[str, Any]:
    """One line of ``ls``. created: Unix time of the newest trace; size: bytes of all artifacts, each counted once."""
    newest = max(entry.traces, key=lambda trace: trace.created, default=None)
    sizes = {ref.digest: ref.size for ref in references(entry)}
    return {
        "key": entry.key,
        "stage": entry.stage,
        "tags": list(entry.tags),
        "created": newest.created if newest else None,
        "traces": len(entry.traces),
        "size": sum(sizes.values()),
        "seconds": newest.seconds if newest else None,
    }


def entry_details(entry: Entry, parts: Sequence[Part] | None) -> dict[str, Any]:
    """Everything that ``show`` says of an entry. ``parts`` is None where their artifact can't be read."""
    return {
        "kind": "entry",
        **entry_summary(entry),
        "parts": None if parts is None else [{"part": part.label, **_fields(part)} for part in parts],
        "runs": [_run(trace) for trace in entry.traces],
    }


def _run(trace: Trace) -> dict[str, Any]:
    held = {ref.digest: ref.size for ref in products(trace)}
    return {
        "created": trace.created,
        "seconds": trace.seconds,
        "reads": [_fields(read) for read in trace.reads],
        "artifacts": [{"digest": digest, "size": size} for digest, size in held.items()],
    }


def file_details(path: str, digest: str, size: int, origins: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """What ``show FILE`` says: which entries hold this very content."""
    holders = [{"key": key, "stage": stage} for key, stage in origins]
    return {"kind": "file", "path": path, "digest": digest, "size": size, "origins": holders}


def outcome_details(outcome: Outcome) -> dict[str, Any]:
    """What ``check`` says: how a command line would end."""
    return {"outcome": outcome.reason.value, "stage": outcome.stage, "key": outcome.key, "detail": outcome.detail}


def why_details(
    entry: Entry, other: tuple[str, str], how: str, differences: Sequence[PartDifference]
) -> dict[str, Any]:
    """What ``why`` says. other: key and stage. how: ``nearest`` or ``given``: how the other one was chosen."""
    return {
        "key": entry.key,
        "stage": entry.stage,
        "other": {"key": other[0], "stage": other[1], "chosen": how},
        "reason": differences[0].reason.value if differences else None,
        "differences": [difference_details(each) for each in differences],
    }


def diff_details(old: Entry, new: Entry, differences: Sequence[PartDifference], count: int) -> dict[str, Any]:
    """What ``diff`` says. count: of the parts of ``new``."""
    return {
        "old": {"key": old.key, "stage": old.stage},
        "new": {"key": new.key, "stage": new.stage},
        "same": count - sum(each.new is not None for each in differences),
        "differences": [difference_details(each) for each in differences],
    }


def difference_details(difference: PartDifference) -> dict[str, Any]:
    """One part that two keys disagree on."""
    return {
        "part": difference.part.label,
        "reason": difference.reason.value,
        "old": None if difference.old is None else difference.old.detail,
        "new": None if difference.new is None else difference.new.detail,
        "words": difference.words,
    }


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


# --- values for a person


def size(nbytes: int) -> str:
    """``512 B``, ``1.5 MiB``."""
    value, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{nbytes} B" if unit == "B" else f"{value:.1f} {unit}"


def age(created: float | None, now: float) -> str:
    """``12 s ago``, ``3 h ago``; a time ahead of the clock is ``now``."""
    if created is None:
        return "never"
    past = now - created
    if past < 1:
        return "now"
    for limit, unit, length in ((60, "s", 1), (3600, "min", 60), (86400, "h", 3600), (math.inf, "d", 86400)):
        if past < limit:
            return f"{past / length:.0f} {unit} ago"
    raise AssertionError(past)


def period(value: float | None) -> str:
    """Seconds for a person, from microseconds to hours."""
    if value is None:
        return "-"
    magnitude = abs(value)
    if magnitude >= 3600:
        return f"{value / 3600:.1f} h"
    if magnitude >= 60:
        return f"{value / 60:.1f} min"
    return duration(value)


def markdown_cell(text: str, limit: int = 300) -> str:
    """Text in a table of GitHub's Markdown: at most ``limit`` characters, no line ends, no markup of its own."""
    text = " ".join(text.split())
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    text = "".join(c if c.isprintable() else "\ufffd" for c in text)
    for mark in "\\`*_{}[]<>|#!~":
        text = text.replace(mark, "\\" + mark)
    return text


def share(value: float | None) -> str:
    """A ratio as a percentage."""
    return "-" if value is None else f"{value:.1%}"


def settings_details(
    values: Mapping[str, object], origins: Mapping[str, str], warnings: Sequence[str]
) -> dict[str, Any]:
    """What ``config`` says; each value as it would be written in a file, None where there is none."""
    return {
        "settings": {key: {"value": value, "origin": origins[key]} for key, value in values.items()},
        "warnings": list(warnings),
    }
