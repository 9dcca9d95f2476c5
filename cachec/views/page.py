"""The report page about a cache: one file that loads no other file or host, and forbids the browser to do so.

The plots are ours (``svg``): they follow the colours of the reader's system, print, need no script, and add nothing to
what is installed; libraries that draw in a browser are megabytes, or draw on a canvas, which neither prints well nor
can be read aloud. Behind each plot is a table. Its script may do nothing but sort, filter and show: a Content Security
Policy names the digests of script and style, so text that was taken for markup could still run nothing.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Sequence
from importlib.resources import files
from itertools import accumulate
from typing import Any

from cachec import report
from cachec.base.display_text import SHOWN_KEY, number_of, to_type
from cachec.errors import clip as cut
from cachec.model import Outcome
from cachec.views import svg
from cachec.views.html import Cell, Content, Markup, element, join_markup, table, text
from cachec.views.report_data import ReportData
from cachec.views.rows import Bar, by_process, tracks
from cachec.views.svg import Series, Stroke

#: Characters of a name, and of a reason's words, in a table.
_NAME, _WORDS = 120, 400

#: Bars in a plot, rows in a timeline.
_BARS, _ROWS = 12, 60

#: Bytes of a timeline, and of the table of calls that were no hits; the page as a whole stays below three million.
_TIMELINE_BYTES, _CALLS_BYTES = 400_000, 1_200_000

_KINDS = (("hits", "hit"), ("misses", "miss"), ("bypasses", "bypass"), ("errors", "error"))


def page(gathered: ReportData) -> str:
    """The whole document."""
    data = gathered.data
    sections = [
        ("time", "Over time", _over_time(data["over_time"], data["undated"])),
        ("stages", "Stages", _stages(data)),
        ("reasons", "Why calls were no hits", _reasons(data)),
        ("build", "The last build", _build(gathered.build)),
        ("evicted", "What would be evicted next", _eviction_section(data)),
        ("misses", "Calls that were no hits", _others(data)),
    ]
    links = [element("li", element("a", title, href=f"#{name}")) for name, title, _ in sections]
    body = join_markup(
        (
            element("a", "Skip to the figures", class_="skip", href="#figures"),
            element("header", *_head(data)),
            element("nav", element("ul", *links), aria_label="Sections"),
            element(
                "main",
                *(
                    element(
                        "section",
                        element("h2", title, id=f"{name}-title"),
                        *parts,
                        id=name,
                        aria_labelledby=f"{name}-title",
                    )
                    for name, title, parts in sections
                ),
                id="figures",
                tabindex="-1",
            ),
            element("footer", element("p", f"Made by cachec report on {_when(data['made'])} ({_zone(data['made'])}).")),
        )
    )
    style, script = (files("cachec.views").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    allowed = f"style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>cachec report: {text(cut(data['dir'], _NAME))}</title>\n<style>{style}</style>\n</head>\n"
        f"<body>\n{body}\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _digest(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


# --- the sections


def _head(data: dict[str, Any]) -> list[Content]:
    store = data["store"]
    limit = "no limit" if store["limit"] is None else f"of {report.size(store['limit'])}"
    causes = ", ".join(f"{data[cause]:,} {cause}" for cause in report.CAUSES if data[cause])
    tiles = (
        ("Hit rate", report.share(data["hit_rate"]), f"of {data['counted']:,} hits, misses and bypasses"),
        ("Saved by hits", report.period(data["seconds_saved"]), ""),
        ("Spent otherwise", report.period(data["seconds_spent"]), ""),
        ("Misses", f"{data['misses']:,}", causes),
        (
            "Other calls",
            f"{data['bypasses'] + data['errors']:,}",
            f"{data['bypasses']:,} bypasses, {data['errors']:,} errors",
        ),
        ("Entries", f"{store['entries']:,}", f"in {number_of(len(data['held']), 'stage')}"),
        ("Stored", report.size(store["size"]), limit),
    )
    since = "all that its log has" if data["since"] is None else f"since {_when(data['since'])}"
    notes = [f"{count:,} times: {fault}" for fault, count in data["faults"].items()]
    if data["damaged_lines"]:
        notes.append(f"{number_of(data['damaged_lines'], 'line')} of the log could not be read")
    return [
        element("h1", "cachec report"),
        element("p", element("code", cut(data["dir"], _WORDS)), f", {since}", class_="quiet"),
        element(
            "dl",
            *(element("div", element("dt", name), element("dd", value), *_note(note)) for name, value, note in tiles),
            class_="tiles",
        ),
        *([element("p", "Faults of the cache itself: " + "; ".join(notes))] if notes else []),
    ]


def _note(words: str) -> list[Markup]:
    return [element("dd", words, class_="note")] if words else []


def _over_time(over: dict[str, Any], undated: int) -> list[Content]:
    spans, width = over["spans"], over["seconds"]
    if not spans:
        return [_nothing("No calls are recorded.")]
    labels = [_when(each["began"], "%m-%d" if width >= 86400 else "%m-%d %H:%M") for each in spans]
    counts = [Series(name, color, [each[name] for each in spans]) for name, color in _KINDS]
    counts = [each for each in counts if any(each.values)]
    total = list(accumulate(each["seconds_saved"] for each in spans))
    saved = Series("saved until then", "saved", [max(value, 0.0) for value in total])
    named = f"spans of {_width(width)}"
    rows = [
        [
            Cell(_when(each["began"])),
            *(_count(each[name]) for name, _ in _KINDS),
            _share(each["hit_rate"]),
            _period(each["seconds_saved"]),
            _period(each["seconds_spent"]),
        ]
        for each in spans
    ]
    heads = ("from", "hits", "misses", "bypasses", "errors", "hit rate", "saved", "spent")
    note = f"{number_of(undated, 'call')} left out here: no time that a calendar has."
    return [
        *([_nothing(note)] if undated else []),
        _figure("Calls", svg.columns(f"Calls over {len(spans)} {named}", labels, counts, "{:,.0f}".format), counts),
        _figure("Hit rate", svg.line(f"Hit rate over {named}", labels, [each["hit_rate"] for each in spans], _percent)),
        _figure(
            "Seconds saved, added up",
            svg.columns(
                f"Seconds saved since the first call, by {named}",
                labels,
                [saved],
                report.period,
                scale=svg.time_ticks,
                height=160,
            ),
            [saved],
        ),
        _behind(table(f"Calls by {named}", heads, rows)),
    ]


def _stages(data: dict[str, Any]) -> list[Content]:
    calls, held = data["stages"], data["held"]
    none = report.Tally().data()
    empty = {"entries": 0, "size": 0, "seconds": 0.0, "worth": 0.0}
    every = {
        name: {**calls.get(name, none), **{f"held_{key}": value for key, value in held.get(name, empty).items()}}
        for name in {**calls, **held}
    }
    if not every:
        return [_nothing("There is no stage.")]
    by_time = sorted(every, key=lambda name: -abs(every[name]["seconds_saved"]) - every[name]["seconds_spent"])
    by_size = sorted((name for name in every if every[name]["held_size"]), key=lambda name: -every[name]["held_size"])
    times = [
        Series("saved", "saved", [every[name]["seconds_saved"] for name in by_time[:_BARS]]),
        Series("spent", "spent", [every[name]["seconds_spent"] for name in by_time[:_BARS]]),
    ]
    sizes = [Series("size", "size", [every[name]["held_size"] for name in by_size[:_BARS]])]
    rows = [
        [
            _name(name),
            *(_count(stage[each]) for each in ("calls", "hits", "misses")),
            _share(stage["hit_rate"]),
            _period(stage["seconds_saved"]),
            _period(stage["seconds_spent"]),
            _count(stage["held_entries"]),
            _size(stage["held_size"]),
            _period(stage["held_seconds"]),
            _number(stage["held_worth"]),
        ]
        for name, stage in ((name, every[name]) for name in by_time)
    ]
    heads = (
        "stage",
        "calls",
        "hits",
        "misses",
        "hit rate",
        "saved",
        "spent",
        "entries",
        "size",
        "to make again",
        "s saved per MiB",
    )
    return [
        _figure(
            "Seconds by stage",
            svg.bars("Seconds saved and spent by stage", _cut(by_time), times, report.period),
            times,
        ),
        *(
            [_figure("Bytes by stage", svg.bars("Bytes on disk by stage", _cut(by_size), sizes, _bytes), sizes)]
            if by_size
            else []
        ),
        table("Stages", heads, rows),
    ]


def _reasons(data: dict[str, Any]) -> list[Content]:
    costs = data["costs"]
    if not costs:
        return [_nothing("Every call was a hit.")]
    names = [each["reason"] for each in costs[:_BARS]]
    series = [Series("seconds", "spent", [each["seconds"] for each in costs[:_BARS]])]
    rows = [[Cell(each["reason"]), _count(each["calls"]), _period(each["seconds"])] for each in costs]
    groups = [
        [
            Cell(each["reason"]),
            _words(each["detail"]),
            _count(each["calls"]),
            _period(each["seconds"]),
            Cell(cut(", ".join(each["stages"][:3]) + (", …" if len(each["stages"]) > 3 else ""), _NAME)),
            Cell(element("code", to_type(f"why {each['keys'][0][:SHOWN_KEY]}")) if each["keys"] else ""),
        ]
        for each in data["groups"]
    ]
    return [
        _figure("Seconds by reason", svg.bars("Seconds spent by reason", names, series, report.period), series),
        _behind(table("Reasons", ("reason", "calls", "seconds"), rows)),
        table(
            "Alike calls together, those that cost most first",
            ("reason", "what", "calls", "seconds", "stages", "more"),
            groups,
            whole=data["groups_in_all"],
        ),
    ]


def _build(build: Sequence[Outcome]) -> list[Content]:
    if not build:
        return [_nothing("No calls are recorded.")]
    processes = by_process(build)
    began = min(bars[0].begin for bars in processes.values())
    seconds = max(each.time for each in build) - began
    names: list[str] = []
    strokes: list[Stroke] = []
    omitted = 0
    for pids in tracks(processes):
        start = len(names)
        heights: dict[int, int] = {}  # of each row of calls how deep they go
        for pid in pids:
            for bar in processes[pid]:
                heights[bar.row] = max(heights.get(bar.row, 0), bar.depth + 1)
        if start + sum(heights.values()) > _ROWS:
            omitted += len(pids)
            continue
        at = {row: start + sum(heights[other] for other in heights if other < row) for row in heights}
        label = (
            f"pid {pids[0]}"
            if len(pids) == 1 and pids[0]
            else number_of(len(pids), "process")
            if pids != [0]
            else "not recorded"
        )
        names += [label, *[""] * (sum(heights.values()) - 1)]
        for pid in pids:
            strokes += [_stroke(bar, at[bar.row] + bar.depth, began) for bar in processes[pid]]
    shown = svg.visible(strokes, seconds or 1.0, _TIMELINE_BYTES)
    kinds = [Series(name, color, ()) for name, color in _KINDS if any(stroke.color == color for stroke in shown)]
    longest = sorted(build, key=lambda each: -each.seconds)[:200]
    rows = [
        [
            _name(each.stage),
            Cell(each.reason.value),
            Cell(report.period(max(each.time - each.seconds - began, 0.0)), each.time - each.seconds - began),
            _period(each.seconds),
            Cell(str(each.pid or "?"), each.pid),
            _words(each.detail),
        ]
        for each in longest
    ]
    processes_text = number_of(len(processes), "process")
    words = f"{number_of(len(build), 'call')} of {processes_text} from {_when(began)}, in {report.period(seconds)}."
    note = (
        f"{number_of(len(strokes) - len(shown), 'call')} too short to be told apart here"
        if len(strokes) > len(shown)
        else ""
    )
    more = f"{number_of(omitted, 'more process')} not drawn" if omitted else ""
    trace = element("code", to_type("log --build --trace build.json"))
    return [
        element("p", " ".join(filter(None, (words, *(f"{each}." for each in (note, more) if each))))),
        element("p", "To look closer: ", trace, " writes it for Perfetto.", class_="quiet"),
        _figure("Calls by process", svg.timeline(words, names, shown, seconds, report.period), kinds),
        _behind(table("Its longest calls", ("stage", "outcome", "begun after", "took", "pid", "what"), rows)),
    ]


def _stroke(bar: Bar, row: int, began: float) -> Stroke:
    outcome = bar.outcome
    took, after = report.period(outcome.seconds), report.period(max(bar.begin - began, 0.0))
    words = f"{cut(outcome.stage, _NAME)}: {outcome.reason.value}, {took}, after {after}, pid {outcome.pid or '?'}"
    words += f"; {cut(outcome.detail, _NAME)}" if outcome.detail else ""
    return Stroke(bar.begin - began, bar.end - began, row, outcome.reason.kind, words)


def _eviction_section(data: dict[str, Any]) -> list[Content]:
    listed, store = data["evicted_next"], data["store"]
    if not listed:
        return [_nothing("There are no entries.")]
    size, limit = store["size"], store["limit"]
    if limit is None:
        words = "The store has no limit, so nothing is evicted."
    else:
        words = f"{report.size(size)} of {report.size(limit)} are taken: " + (
            "the next gc evicts from the top of this table."
            if size > limit
            else f"{report.size(limit - size)} more, and gc evicts from the top of this table."
        )
    rows = [
        [
            Cell(element("code", each["key"][:SHOWN_KEY])),
            _name(each["stage"]),
            _size(each["size"]),
            _period(each["seconds"]),
            _count(each["uses"]),
            Cell(_when(each["last"]), each["last"]),
            _number(each["worth"]),
            Cell(each["kept"]),
        ]
        for each in listed
    ]
    heads = ("key", "stage", "size", "took", "uses", "last use", "worth, s/MiB", "kept")
    return [
        element("p", words),
        table("Worth least first", heads, rows, whole=store["entries"]),
    ]


def _others(data: dict[str, Any]) -> list[Content]:
    rows = [
        [
            Cell(_when(each["time"]), each["time"]),
            _name(each["stage"]),
            Cell(each["reason"]),
            _words(each["detail"]),
            _period(each["seconds"]),
            Cell(element("code", each["key"][:SHOWN_KEY])),
        ]
        for each in data["others"]
    ]
    if not rows:
        return [_nothing("Every call was a hit.")]
    hint = element(
        "p", element("code", to_type("why KEY")), " compares an entry with the nearest one now.", class_="quiet"
    )
    heads = ("ended", "stage", "outcome", "why", "took", "key")
    return [hint, table("Newest first", heads, rows, whole=data["others_in_all"], most=_CALLS_BYTES)]


# --- pieces


def _figure(title: str, plot: Markup, series: Sequence[Series] = ()) -> Markup:
    swatch = {each.color: svg.swatch(each.color) for each in series}
    legend = element("ul", *(element("li", swatch[each.color], each.name) for each in series), class_="legend")
    caption = element("figcaption", element("h3", title), *([legend] if len(series) > 1 else []))
    return element("figure", caption, element("div", plot, class_="wide"))


def _behind(data: Markup) -> Markup:
    return element("details", element("summary", "The figures as a table"), data)


def _nothing(words: str) -> Markup:
    return element("p", words, class_="quiet")


def _cut(names: Sequence[str]) -> list[str]:
    return [cut(name, _NAME) for name in names[:_BARS]]


def _name(name: str) -> Cell:
    return Cell(cut(name, _NAME))


def _words(words: str) -> Cell:
    return Cell(cut(words, _WORDS))


def _count(value: int) -> Cell:
    return Cell(f"{value:,}", value)


def _number(value: float) -> Cell:
    return Cell(f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}", value)


def _period(value: float) -> Cell:
    return Cell(report.period(value), value)


def _size(value: int) -> Cell:
    return Cell(report.size(value), value)


def _share(value: float | None) -> Cell:
    return Cell(report.share(value), -1 if value is None else value)


def _percent(value: float) -> str:
    return f"{value:.0%}"


def _bytes(value: float) -> str:
    return report.size(round(value))


def _when(moment: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    try:
        return time.strftime(form, time.localtime(moment))
    except (OverflowError, ValueError, OSError):  # a damaged log, or a clock that was wrong
        return "?"


def _zone(moment: float) -> str:
    return time.strftime("%Z, UTC%z", time.localtime(moment))


def _width(seconds: float) -> str:
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds / length:g} {unit}"
    raise AssertionError(seconds)
