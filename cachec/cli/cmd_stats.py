"""``cachec stats``: how often the cache answered, and why not."""

from __future__ import annotations

import re
import time
from typing import Any

import click

from cachec import report
from cachec.cli.session import Session, clean, json_option, pass_session, print_json, print_table
from cachec.events import read_log

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_since(text: str, now: float) -> float:
    """The Unix time of ``30m``, ``24h``, ``7d`` before now, or of an ISO date or time (local). Raises BadParameter."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if match:
        return now - float(match[1]) * _UNITS[match[2]]
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        accepted = "a span such as 30m, 24h or 7d, or a date such as 2026-01-31"
        raise click.BadParameter(f"{text!r} is not accepted; give {accepted}") from None


@click.command("stats")
@click.option("--since", metavar="WHEN", help="Only calls since then: 30m, 24h, 7d, or a date such as 2026-01-31.")
@json_option
@pass_session
def command(session: Session, since: str | None, as_json: bool) -> None:
    """How often the cache answered, why not, and how many seconds it saved.

    \b
    Examples:
      cachec stats --since 24h
      cachec stats --json

    \b
    JSON: {"dir", "since", "calls", "hits", "misses", "bypasses", "errors", "hit_rate", "seconds_saved",
           "seconds_spent", "reasons": {reason: count}, "faults": {fault: count}, "damaged_lines",
           "stages": {name: {"calls", "hits", "misses", "bypasses", "errors", "hit_rate", "seconds_saved",
                             "seconds_spent"}},
           "store": {"size", "limit", "pinned_keys", "pinned_tags"}}
    size and limit are bytes on disk, limit null for none (`cachec gc` keeps it); since is Unix time or null; hit_rate
    is hits over hits and misses, or null.
    """
    start = None if since is None else parse_since(since, time.time())
    numbers = report.statistics(read_log(session.settings.dir, start))
    held = _held(session)
    if as_json:
        print_json({"dir": str(session.settings.dir), "since": start, **numbers, "store": held})
        return
    if not numbers["calls"]:
        when = f" since {since}" if since else ""
        click.echo(f"no calls are recorded in {clean(str(session.settings.dir))}{when}")
    else:
        click.echo(
            f"{numbers['calls']} calls, {numbers['hits']} hits ({report.share(numbers['hit_rate'])}), "
            f"{report.period(numbers['seconds_saved'])} saved, {report.period(numbers['seconds_spent'])} spent\n"
        )
        print_table(("outcome", "calls"), [(k, str(n)) for k, n in numbers["reasons"].items()], right=("calls",))
        click.echo()
        rows = [
            (name, str(s["calls"]), str(s["hits"]), report.share(s["hit_rate"]), report.period(s["seconds_saved"]))
            for name, s in numbers["stages"].items()
        ]
        print_table(("stage", "calls", "hits", "rate", "saved"), rows, right=("calls", "hits", "rate", "saved"))
    if held["size"] or held["pinned_keys"] or held["pinned_tags"]:
        bounds = "no limit" if held["limit"] is None else f"limit {report.size(held['limit'])}"
        click.echo(
            f"\n{report.size(held['size'])} in the store, {bounds}; "
            f"{held['pinned_keys']} keys and {held['pinned_tags']} tags pinned"
        )
    if numbers["faults"]:
        click.echo()
        faults = [(fault, str(count)) for fault, count in numbers["faults"].items()]
        print_table(("fault of the cache", "times"), faults, right=("times",))
    if numbers["damaged_lines"]:
        click.echo(f"\n{numbers['damaged_lines']} lines of the log could not be read")


def _held(session: Session) -> dict[str, Any]:
    """What is in the store. Counted where nobody has yet; nothing is written."""
    maintainer = session.maintainer
    pins, namespace = maintainer.pins.read(), session.store.quoted
    size = maintainer.estimate().nbytes
    return {
        "size": size,
        "limit": maintainer.limit(size),
        "pinned_keys": len(pins.of(namespace, "key")),
        "pinned_tags": len(pins.of(namespace, "tag")),
    }
