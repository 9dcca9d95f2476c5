"""``cachec stats``: how often the cache answered, and why not."""

from __future__ import annotations

import os
import re
import time
from typing import Any

import click

from cachec import report
from cachec.base.display_text import number_of
from cachec.cli.selectors import seconds_of
from cachec.cli.session import (
    Session,
    clean,
    json_option,
    pass_session,
    print_as_json,
    print_table,
    print_wrapped,
    wants_json,
)
from cachec.events import read_log, read_outcomes
from cachec.model import Reason


def parse_since(text: str, now: float) -> float:
    """The Unix time of ``30m``, ``24h``, ``7d`` before now, or of an ISO date or time (local). Raises BadParameter."""
    span = seconds_of(text)
    if span is not None:
        return now - span
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        accepted = "a span such as 30m, 24h or 7d, or a date such as 2026-01-31"
        raise click.BadParameter(f"{text!r} is not accepted; give {accepted}") from None


def parse_bound(text: str) -> float:
    """The share of ``80%`` or ``80``: 0.8. Raises BadParameter."""
    match = re.fullmatch(r"(\d{1,3}(?:\.\d+)?)\s*%?", text.strip())
    if match is None or float(match[1]) > 100 or ("%" not in text and 0 < float(match[1]) < 1):
        raise click.BadParameter(f"{text!r} is not accepted; give a percentage from 0% to 100%, such as 80%")
    return float(match[1]) / 100


@click.command("stats")
@click.option("--since", metavar="WHEN", help="Only calls since then: 30m, 24h, 7d, or a date such as 2026-01-31.")
@click.option(
    "--stats-file",
    "file",
    metavar="FILE",
    help="The calls in this file, which CACHEC_STATS_FILE named during a build, not all that the store has seen.",
)
@click.option("--fail-under", metavar="PERCENT", help="Exit with 1 where fewer of the calls were hits, such as 80%.")
@click.option("--markdown", is_flag=True, help="Print Markdown, for the summary of a CI run.")
@click.option("--prometheus", is_flag=True, help="Print text that Prometheus reads.")
@json_option
@pass_session
def command(
    session: Session, since: str | None, file: str | None, fail_under: str | None, markdown: bool, prometheus: bool
) -> None:
    """How often the cache answered, why not, and how many seconds it saved.

    \b
    Examples:
      cachec stats --since 24h
      cachec stats --json
      CACHEC_STATS_FILE=$PWD/stats ninja && cachec stats --stats-file stats --fail-under 80%
      cachec stats --stats-file stats --markdown >> "$GITHUB_STEP_SUMMARY"
      cachec stats --prometheus > /var/lib/node_exporter/cachec.prom

    \b
    JSON: {"dir", "since", "calls", "counted", "hits", "misses", "new", "changed", "lost", "asked", "bypasses",
           "untimed", "errors", "hit_rate", "remote": {"asked", "hits", "bytes", "seconds"},
           "seconds_saved", "seconds_spent", "reasons": {reason: count}, "reason_seconds": {reason: seconds},
           "faults": {fault: count},
           "damaged_lines", "stages": {name: as of all calls, from "calls" to "seconds_spent"},
           "store": {"size", "limit", "pinned_keys", "pinned_tags"}}
    remote: calls that asked remotes, those of them that one answered, what came, and how long they waited.
    size and limit are bytes on disk, limit null for none (`cachec gc` keeps it); since is Unix time or null; hit_rate
    is hits over "counted", or null: hits, misses and bypasses, without calls in mode off, build helpers and errors;
    untimed are bypasses whose seconds are not known, as a command that `cachec exec` lets pass takes its place, and
    count as 0; seconds_saved is below 0 where hits took
    longer than the runs that they spared. With --stats-file there is "file" instead of "dir" and "store".
    Of the misses those that are new were never compiled, changed ones differ from what was, lost ones were evicted,
    invalidated or damaged, and asked ones are of a mode that runs the stage all the same.
    Exit code with --fail-under: 1 where hit_rate is below, or null, as a build that called no stage proves nothing.
    """
    if markdown + prometheus + wants_json() > 1:
        raise click.UsageError("--markdown, --prometheus and --json exclude each other; give one of them")
    start = None if since is None else parse_since(since, time.time())
    bound = None if fail_under is None else parse_bound(fail_under)
    if file is not None and not os.path.isfile(file):
        raise click.BadParameter(
            f"{file!r} is not there; set CACHEC_STATS_FILE to it for the build", param_hint="--stats-file"
        )
    place = clean(f"{session.settings.dir}{session.if_none}" if file is None else file)
    log = read_log(session.settings.dir, start) if file is None else read_outcomes(file, start)
    counts = report.count_outcomes(log)
    numbers = {**counts.data(), **report.faults(log)}
    in_store = None if file is not None or markdown else report.store_details(session.maintainer)
    where = {"dir": str(session.settings.dir)} if file is None else {"file": file}
    if markdown:
        click.echo("\n".join(markdown_summary(numbers)))
    elif prometheus:
        from cachec.views.prometheus import exposition

        click.echo(exposition(counts, numbers["faults"], in_store), nl=False)
    elif not print_as_json({**where, "since": start, **numbers, **({} if in_store is None else {"store": in_store})}):
        _print(numbers, f"{place}{f' since {since}' if since else ''}", in_store)
    _check(numbers["hit_rate"], bound)


def _check(rate: float | None, bound: float | None) -> None:
    """Exit with 1 where the hit rate is below the bound."""
    if bound is None or (rate is not None and rate >= bound):
        return
    words = "no call counts in the hit rate" if rate is None else f"the hit rate is {report.share(rate)}"
    click.echo(f"cachec: {words}; --fail-under wants {report.share(bound)}", err=True)
    click.get_current_context().exit(1)


def _print(numbers: dict[str, Any], where: str, in_store: dict[str, Any] | None) -> None:
    if not numbers["calls"]:
        click.echo(f"no calls are recorded in {where}")
    else:
        calls, hits = number_of(numbers["calls"], "call"), number_of(numbers["hits"], "hit")
        print_wrapped(
            f"{calls}, {hits} ({report.share(numbers['hit_rate'])}), "
            f"{_display_saved(numbers['seconds_saved'])}, {report.period(numbers['seconds_spent'])} spent",
            indent=0,
        )
        split = [f"{numbers[cause]} {cause}" for cause in report.CAUSES if numbers[cause] or cause != "asked"]
        click.echo(f"{number_of(numbers['misses'], 'miss')}: {', '.join(split)}")
        _print_bypasses(numbers)
        click.echo()
        if (remote := numbers["remote"])["asked"]:
            click.echo(
                f"{number_of(remote['asked'], 'call')} asked remotes, {remote['hits']} answered: "
                f"{report.size(remote['bytes'])} came, {report.period(remote['seconds'])} waited\n"
            )
        took = _took(numbers)
        outcomes = [(reason, str(count), took[reason]) for reason, count in numbers["reasons"].items()]
        print_table(("outcome", "calls", "took"), outcomes, right=("calls", "took"))
        click.echo()
        rows = [
            (name, str(s["calls"]), str(s["hits"]), report.share(s["hit_rate"]), report.gain(s["seconds_saved"]))
            for name, s in numbers["stages"].items()
        ]
        print_table(("stage", "calls", "hits", "rate", "saved"), rows, right=("calls", "hits", "rate", "saved"))
        slow = [name for name, s in numbers["stages"].items() if s["seconds_saved"] < 0]
        if slow:
            print_wrapped(f"lost: hits of {', '.join(slow)} took longer than the runs that they spared.", indent=0)
    if in_store is not None and (in_store["size"] or in_store["pinned_keys"] or in_store["pinned_tags"]):
        bounds = "no limit" if in_store["limit"] is None else f"limit {report.size(in_store['limit'])}"
        click.echo()
        print_wrapped(
            f"{report.size(in_store['size'])} in the store, {bounds}; "
            f"{number_of(in_store['pinned_keys'], 'key')} and {number_of(in_store['pinned_tags'], 'tag')} pinned",
            indent=0,
        )
    if numbers["faults"]:
        click.echo()
        faults = [(fault, str(count)) for fault, count in numbers["faults"].items()]
        print_table(("fault of the cache", "times"), faults, right=("times",))
    if numbers["damaged_lines"]:
        click.echo(f"\n{number_of(numbers['damaged_lines'], 'line')} of the log could not be read")


def _took(numbers: dict[str, Any]) -> dict[str, str]:
    """Reason -> the seconds of its calls, for a person."""
    return {
        reason: "-" if reason.startswith("bypass:") and not seconds else report.period(seconds)
        for reason, seconds in numbers["reason_seconds"].items()
    }


def _print_bypasses(numbers: dict[str, Any]) -> None:
    """What went round the cache, and what the hit rate leaves out."""
    if numbers["bypasses"]:
        seconds = sum(each for name, each in numbers["reason_seconds"].items() if name.startswith("bypass:"))
        unknown = f"; the seconds of {numbers['untimed']} are not known"
        words = f"{number_of(numbers['bypasses'], 'bypass')}, {report.period(seconds)}"
        print_wrapped(words + (unknown if numbers["untimed"] else ""), indent=0)
    omitted = [
        f"{count} {name.partition(':')[2]}"
        for name, count in numbers["reasons"].items()
        if not Reason(name).counts_in_rate
    ]
    if omitted:
        count = numbers["calls"] - numbers["counted"]
        print_wrapped(f"{number_of(count, 'call')} not in the rate: {', '.join(omitted)}", indent=0)


def _display_saved(seconds: float) -> str:
    return f"{report.gain(seconds)} {'saved' if seconds >= 0 else 'by hits'}"


def markdown_summary(numbers: dict[str, Any]) -> list[str]:
    """The statistics as lines of GitHub's Markdown: a table of stages, and one of why calls were no hits."""
    columns = ("calls", "hits", "misses", "bypasses", "errors")
    lines = [
        f"### cachec: {report.share(numbers['hit_rate'])} hits",
        "",
        "| stage | " + " | ".join(columns) + " | hit rate | saved | spent |",
        "|---|" + "---:|" * (len(columns) + 3),
    ]
    for name, each in (*numbers["stages"].items(), ("", numbers)):
        counts = (str(each[column]) for column in columns)
        times = (report.gain(each["seconds_saved"]), report.period(each["seconds_spent"]))
        label = report.markdown_cell(name) if name else "**all**"
        lines.append(f"| {' | '.join((label, *counts, report.share(each['hit_rate']), *times))} |")
    others = {reason: count for reason, count in numbers["reasons"].items() if reason != "hit"}
    others |= {f"fault: {fault}": count for fault, count in numbers["faults"].items()}
    if others:
        took, cell = _took(numbers), report.markdown_cell
        lines += ["", "| no hit, because | calls | took |", "|---|---:|---:|"]
        lines += [f"| {cell(each)} | {count} | {took.get(each, '')} |" for each, count in others.items()]
    if numbers["untimed"]:
        lines += ["", f"The seconds of {number_of(numbers['untimed'], 'bypass')} are not known."]
    return lines
