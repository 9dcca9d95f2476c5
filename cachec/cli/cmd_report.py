"""``cachec report``: what a cache did and holds, as a page for a browser."""

from __future__ import annotations

import time

import click

from cachec.base.display_text import number_of
from cachec.cli.cmd_stats import parse_since
from cachec.cli.session import Session, clean, json_option, pass_session, print_as_json, wants_json, write_file


@click.command("report")
@click.option(
    "-o", "--output", metavar="FILE", help="Write the page to this file, by default to report.html; - for stdout."
)
@click.option("--since", metavar="WHEN", help="Only calls since then: 30m, 24h, 7d, or a date such as 2026-01-31.")
@json_option
@pass_session
def command(session: Session, output: str | None, since: str | None) -> None:
    """Write one page for a browser: how the cache did over time and by stage, why calls missed and what that cost, the
    last build on a time line, and what would be evicted next.

    The page needs no network and no other file, and may be sent to others: it holds names of stages, reasons of misses
    and beginnings of keys, none of the content that is stored.

    \b
    Examples:
      cachec report && xdg-open report.html
      cachec report --since 7d -o week.html
      cachec report --json

    \b
    JSON: as `cachec stats`, and "made", "over_time": {"seconds", "spans": [{"began", counts as of all calls}]},
          "held": {stage: {"entries", "size", "seconds", "worth"}}, "costs": [{"reason", "calls", "seconds"}],
          "groups": as of `cachec why --all`, "evicted_next": [{"key", "stage", "size", "seconds", "uses", "last",
          "worth", "kept"}], "others": the calls that were no hits, newest first, as of `cachec log`, "groups_in_all",
          "others_in_all": how many there are
    worth is in seconds a MiB; last and began are Unix times. With --json no page is written unless -o is given.
    """
    from cachec.views.page import page
    from cachec.views.report_data import gather

    path = output or ("" if wants_json() else "report.html")
    if path == "-" and wants_json():
        raise click.UsageError("the page and --json would both go to stdout; give -o a file")
    start = None if since is None else parse_since(since, time.time())
    gathered = gather(session.maintainer, start, session.note_fault)
    if path == "-":
        click.echo(page(gathered), nl=False)
        return
    if path:
        write_file(path, page(gathered).encode())
    if not print_as_json(gathered.data):
        numbers = gathered.data
        entry_count = number_of(numbers["store"]["entries"], "entry")
        click.echo(f"{number_of(numbers['calls'], 'call')}, {entry_count}: {clean(path)}{session.if_none}")
