"""What the command line says, as plain data: statistics, entries, differences. Pure: nothing here prints.

The field names are those of ``--json``; they are documented in the help of each command and do not change lightly.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from cachec.events import LogReader, duration
from cachec.model import Entry, Outcome, Part, Reason, Trace
from cachec.store.store import products, references

if TYPE_CHECKING:
    from cachec.key.key_diff import PartDifference
    from cachec.maintain.maintainer import Maintainer


def statistics(log: LogReader) -> dict[str, Any]:
    """Counts by reason and stage, hit rate, seconds saved, faults. Reads the log to its end.

    counted: hits, misses and bypasses; without calls in mode off, helpers of build systems and errors. hit_rate: hits
    over those, None without any. untimed: bypasses whose seconds are not known, as a command took cachec's place.
    new, changed, lost, asked: the misses by what they come of (``Reason.cause``).
    seconds_saved: what the stages took when they were stored, less what the hits took, summed over hits.
    remote: calls that asked remotes, how many of them one answered, what came, and how long they waited.
    """
    return {**count_outcomes(log).data(), **faults(log)}


def count_outcomes(log: Iterable[Outcome]) -> Statistics:
    """The calls of a log, which is read to its end."""
    counts = Statistics()
    for outcome in log:
        counts.add(outcome)
    return counts


class Statistics:
    """The same, outcome by outcome, without what the log itself says. stages: name -> its counts."""

    def __init__(self) -> None:
        self.stages: dict[str, Tally] = {}
        self._remote: dict[str, float] = {"asked": 0, "hits": 0, "bytes": 0, "seconds": 0.0}

    def add(self, outcome: Outcome) -> None:
        """Count a call."""
        if outcome.remote is not None:
            self._remote["asked"] += 1
            self._remote["hits"] += outcome.remote.hit
            self._remote["bytes"] += outcome.remote.nbytes
            self._remote["seconds"] += outcome.remote.seconds
        stage = self.stages.get(outcome.stage)
        if stage is None:
            stage = self.stages[outcome.stage] = Tally()
        stage.add(outcome)

    def data(self) -> dict[str, Any]:
        """What was counted."""
        whole = Tally()
        for stage in self.stages.values():
            whole.merge(stage)
        ordered = sorted(whole.reasons.items(), key=lambda item: (-item[1], item[0].value))
        return {
            **whole.data(),
            "remote": self._remote,
            "reasons": {reason.value: count for reason, count in ordered},
            "reason_seconds": {reason.value: whole.seconds[reason] for reason, _ in ordered},
            "stages": {name: self.stages[name].data() for name in sorted(self.stages)},
        }


def faults(log: LogReader) -> dict[str, Any]:
    """Faults of the cache, and lines that are no record, of a log that was read."""
    return {"faults": {fault.value: count for fault, count in log.faults.most_common()}, "damaged_lines": log.damaged}


#: What misses come of (``Reason.cause``).
CAUSES = ("new", "changed", "lost", "asked")


#: Seconds without a call after which the next one is of another build.
PAUSE = 60.0


class LastBuild:
    """The newest outcomes between which no ``PAUSE`` was; they come in the order of their ends."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self._ended = -math.inf

    def add(self, outcome: Outcome) -> None:
        """The next one of the log."""
        if outcome.time - outcome.seconds > self._ended + PAUSE:
            self.outcomes = []
        self.outcomes.append(outcome)
        self._ended = max(self._ended, outcome.time)


def last_build(log: Iterable[Outcome]) -> list[Outcome]:
    """The outcomes of the last build in a log."""
    build = LastBuild()
    for outcome in log:
        build.add(outcome)
    return build.outcomes


def build_details(build: Sequence[Outcome]) -> dict[str, Any]:
    """What ``why --all`` says: the calls that were no hits by their reasons, those that cost most first.

    Calls of one reason and detail are a group, and those of one stage whose inputs are new. seconds: of all its calls.
    """
    whole = Tally()
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    for outcome in build:
        whole.add(outcome)
        if not outcome.hit:
            what = outcome.stage if outcome.reason.cause == "new" else outcome.detail
            groups.setdefault((outcome.reason.value, what), []).append(outcome)
    groups_text = [_group(group) for group in groups.values()]
    return {
        "began": min((each.time - each.seconds for each in build), default=None),
        "ended": max((each.time for each in build), default=None),
        **whole.data(),
        "groups": sorted(groups_text, key=lambda group: (-group["seconds"], -group["calls"], group["reason"])),
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


class Tally:
    """Counts of one stage, or of all. seconds: that the calls took. saved: in seconds, as in ``statistics``."""

    def __init__(self) -> None:
        self.reasons: Counter[Reason] = Counter()
        self.seconds: defaultdict[Reason, float] = defaultdict(float)
        self.saved = 0.0
        self.untimed = 0

    def add(self, outcome: Outcome) -> None:
        """Count a call."""
        self.reasons[outcome.reason] += 1
        self.seconds[outcome.reason] += outcome.seconds
        if outcome.reason is Reason.HIT:
            self.saved += outcome.saved - outcome.seconds
        elif not outcome.seconds and outcome.reason.kind == "bypass":
            self.untimed += 1

    def merge(self, other: Tally) -> None:
        """Count the calls of another one too."""
        self.reasons.update(other.reasons)
        for reason, seconds in other.seconds.items():
            self.seconds[reason] += seconds
        self.saved += other.saved
        self.untimed += other.untimed

    def data(self) -> dict[str, Any]:
        """What was counted."""
        kinds: Counter[str] = Counter()
        for reason, count in self.reasons.items():
            kinds[reason.kind] += count
            kinds[reason.cause] += count
        rated = sum(count for reason, count in self.reasons.items() if reason.counts_in_rate)
        return {
            "calls": self.reasons.total(),
            "counted": rated,
            "hits": kinds["hit"],
            "misses": kinds["miss"],
            **{cause: kinds[cause] for cause in CAUSES},
            "bypasses": kinds["bypass"],
            "untimed": self.untimed,
            "errors": kinds["error"],
            "hit_rate": kinds["hit"] / rated if rated else None,
            "seconds_saved": self.saved,
            "seconds_spent": sum(seconds for reason, seconds in self.seconds.items() if reason is not Reason.HIT),
        }


def store_details(maintainer: Maintainer) -> dict[str, Any]:
    """What is in the store. Counted where nobody has yet; nothing is written. Raises StoreFault."""
    pins, namespace = maintainer.pins.read(), maintainer.store.quoted
    size = maintainer.estimate().nbytes
    return {
        "size": size,
        "limit": maintainer.limit(size),
        "pinned_keys": len(pins.of(namespace, "key")),
        "pinned_tags": len(pins.of(namespace, "tag")),
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
    artifact_sizes = {ref.digest: ref.size for ref in products(trace)}
    return {
        "created": trace.created,
        "seconds": trace.seconds,
        "reads": [_fields(read) for read in trace.reads],
        "artifacts": [{"digest": digest, "size": size} for digest, size in artifact_sizes.items()],
    }


def file_details(path: str, digest: str, size: int, origins: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """What ``show FILE`` says: which entries hold this very content."""
    holders = [{"key": key, "stage": stage} for key, stage in origins]
    return {"kind": "file", "path": path, "digest": digest, "size": size, "origins": holders}


def call_details(outcome: Outcome) -> dict[str, Any]:
    """A call as ``log`` says it."""
    return {
        "time": outcome.time,
        "stage": outcome.stage,
        "reason": outcome.reason.value,
        "seconds": outcome.seconds,
        "saved": outcome.saved,
        "stored": outcome.stored,
        "key": outcome.key,
        "detail": outcome.detail,
        "fault": None if outcome.fault is None else outcome.fault.value,
        "pid": outcome.pid,
    }


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


def difference_details(difference: PartDifference) -> dict[str, Any]:
    """One part that two keys disagree on."""
    return {
        "part": difference.part.label,
        "reason": difference.reason.value,
        "old": None if difference.old is None else difference.old.detail,
        "new": None if difference.new is None else difference.new.detail,
        "words": difference.words,
    }


def _fields(record: msgspec.Struct) -> dict[str, Any]:
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


def gain(value: float) -> str:
    """Seconds that hits saved. Below nothing where they took longer than the runs that they spared: those of a stage
    that runs for milliseconds, or that waited for another process.
    """
    return period(value) if value >= 0 else f"lost {period(-value)}"


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
