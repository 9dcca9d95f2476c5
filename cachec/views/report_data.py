"""What a page about a cache shows, as data: one pass over the log, one over the entries. Nothing is changed.

The log may hold anything: a time that no calendar has is left out of what is drawn over time, and counted.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cachec import report
from cachec.events import read_log
from cachec.maintain.eviction_score import count_use, uses
from cachec.maintain.maintainer import Maintainer
from cachec.maintain.ranking import RankedEntry, ranking
from cachec.model import Fault, Outcome

#: Spans of time that are drawn, at most, and how long one may be; more than the longest are put together by twos.
MAX_SPANS = 60
_SPANS = (60, 300, 900, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 7 * 86400)

#: Of calls that were no hits: the newest, and those that took longest.
_NEWEST, _DEAREST = 2000, 500

#: Groups of them, and entries in the order of eviction.
_GROUPS, _NEXT = 200, 50

#: Unix times that are taken for one: the end of what most calendars know, year 9999.
_LAST_TIME = 253402300800.0


class ReportData(NamedTuple):
    """data: what ``cachec report --json`` prints. build: the calls of the last build."""

    data: dict[str, Any]
    build: list[Outcome]


def gather(
    maintainer: Maintainer,
    since: float | None,
    on_fault: Callable[[Fault, str], None],
    clock: Callable[[], float] = time.time,
) -> ReportData:
    """Read log and entries. since: Unix time of the first call that counts. Raises StoreFault."""
    store = maintainer.store
    log = read_log(store.folder, since)
    counts, build = report.Statistics(), report.LastBuild()
    minutes: dict[int, report.Tally] = {}
    others: list[Outcome] = []
    undated = 0
    used = {} if since is None else uses(read_log(store.folder))
    for outcome in log:
        counts.add(outcome)
        if since is None:
            count_use(used, outcome)
        if not outcome.hit:
            others.append(outcome)
        if not 0 < outcome.time < _LAST_TIME or not 0 <= outcome.seconds < _LAST_TIME:
            undated += 1
            continue
        build.add(outcome)
        minute = int(outcome.time // 60)
        tally = minutes.get(minute)
        if tally is None:
            tally = minutes[minute] = report.Tally()
        tally.add(outcome)
    numbers = {**counts.data(), **report.faults(log)}
    standings = ranking(store, used, on_fault, clock)
    groups = report.build_details(others)["groups"]
    now = clock()
    return ReportData(
        {
            "dir": str(store.folder),
            "made": now,
            "since": since,
            "undated": undated,
            **numbers,
            "store": {**report.store_details(maintainer), "entries": len(standings)},
            "over_time": _over_time(minutes, time.localtime(now).tm_gmtoff),
            "held": _usage_by_stage(standings),
            "costs": _costs(others),
            "groups": groups[:_GROUPS],
            "groups_in_all": len(groups),
            "evicted_next": [_ranked_entry(each) for each in standings[:_NEXT]],
            "others": [report.call_details(each) for each in _choose_outcomes(others)],
            "others_in_all": len(others),
        },
        build.outcomes,
    )


def _over_time(minutes: dict[int, report.Tally], offset: int) -> dict[str, Any]:
    """Calls by spans of time that begin at round local times. offset: seconds of local time ahead of UTC."""
    first, last = min(minutes, default=0) * 60 + offset, max(minutes, default=0) * 60 + offset
    width = next((each for each in _SPANS if last // each - first // each < MAX_SPANS), _SPANS[-1])
    while last // width - first // width >= MAX_SPANS:
        width *= 2
    spans: dict[int, report.Tally] = {}
    for minute, tally in minutes.items():
        spans.setdefault((minute * 60 + offset) // width, report.Tally()).merge(tally)
    numbers = range(first // width, last // width + 1) if minutes else range(0)
    empty = report.Tally()
    return {
        "seconds": width,
        "spans": [{"began": number * width - offset, **spans.get(number, empty).data()} for number in numbers],
    }


def _usage_by_stage(standings: Sequence[RankedEntry]) -> dict[str, dict[str, Any]]:
    """Entries by stage. seconds: what a hit of each saves, summed; worth: seconds that a MiB has saved, by its uses."""
    held: dict[str, dict[str, Any]] = {}
    for each in standings:
        stage = held.setdefault(each.stage, {"entries": 0, "size": 0, "seconds": 0.0, "saves": 0.0})
        stage["entries"] += 1
        stage["size"] += each.entry.size
        stage["seconds"] += each.entry.seconds
        stage["saves"] += each.entry.seconds * each.uses
    for stage in held.values():
        stage["worth"] = stage.pop("saves") / max(stage["size"], 1) * 2**20
    return held


def _costs(others: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The reasons of calls that were no hits, those that cost most first."""
    found: dict[str, dict[str, Any]] = {}
    for each in others:
        reason = each.reason.value
        cost = found.setdefault(reason, {"reason": reason, "calls": 0, "seconds": 0.0})
        cost["calls"] += 1
        cost["seconds"] += each.seconds
    return sorted(found.values(), key=lambda each: (-each["seconds"], -each["calls"], each["reason"]))


def _ranked_entry(each: RankedEntry) -> dict[str, Any]:
    entry = each.entry
    return {
        "key": each.key,
        "stage": each.stage,
        "size": entry.size,
        "seconds": entry.seconds,
        "uses": each.uses,
        "last": entry.last,
        "worth": entry.worth * 2**20,
        "kept": each.kept,
    }


def _choose_outcomes(others: Sequence[Outcome]) -> list[Outcome]:
    """The newest, and of the others those that took longest; newest first."""
    newest = others[-_NEWEST:]
    dearest = heapq.nlargest(_DEAREST, others[: len(others) - len(newest)], key=lambda each: each.seconds)
    return sorted((*newest, *dearest), key=lambda each: -each.time)
