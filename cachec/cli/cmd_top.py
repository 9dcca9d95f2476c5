"""``cachec top``: what compiles now."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from cachec import report
from cachec.base.display_text import SHOWN_KEY
from cachec.cli.screen import cut, print_table
from cachec.cli.session import Session, clean, json_option, pass_session, print_as_json, wants_json

#: The other screen of a terminal, and back; to the first place of it, all after that erased (ECMA-48: CUP, ED).
_ENTER, _LEAVE, _HOME, _ERASE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l", "\x1b[H", "\x1b[J"

#: Lines of the screen that are no rows.
_AROUND = 4


@click.command("top")
@click.option("--once", is_flag=True, help="Say it once; so it is where stdout is no terminal.")
@click.option(
    "--every", type=click.FloatRange(min=0.1), default=1.0, metavar="SECONDS", help="Between two looks, by default 1."
)
@json_option
@pass_session
def command(session: Session, once: bool, every: float) -> None:
    """Show what compiles now, in all processes: which stage, for how long, how long it took last time, and who waits
    for it. On a terminal it is shown anew each second, until Ctrl-C.

    What stores nothing is not seen: calls in mode off, read-only or verify.

    \b
    Examples:
      cachec top
      cachec top --once
      cachec top --json

    \b
    JSON: {"dir", "running": [{"stage", "key", "pid", "since", "seconds", "last", "waiting": [{"pid", "seconds"}]}]}
    since is Unix time; last is seconds of the newest run of the nearest entry, or null.
    """
    from cachec.views.running import running

    if once or wants_json() or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        rows = running(session.store, time.time())
        if not print_as_json({"dir": str(session.settings.dir), "running": rows}):
            _print(rows, f"in {clean(str(session.settings.dir))}{session.if_none}")
        return
    click.echo(_ENTER, nl=False)
    try:
        while True:
            now = time.time()
            rows = running(session.store, now)
            click.echo(_HOME + _ERASE, nl=False)
            click.echo(cut(f"cachec top  {time.strftime('%H:%M:%S', time.localtime(now))}  {session.settings.dir}", 0))
            shown = max(shutil.get_terminal_size().lines - _AROUND, 1)
            _print(rows, "", shown)
            time.sleep(every)
    except KeyboardInterrupt:
        return
    finally:
        click.echo(_LEAVE, nl=False)


def _print(rows: Sequence[dict[str, Any]], where: str, most: int | None = None) -> None:
    """most: rows that are shown, the longest."""
    if not rows:
        click.echo(f"nothing runs {where}".rstrip())
        return
    waiting = sum(len(row["waiting"]) for row in rows)
    click.echo(f"{len(rows)} running, {waiting} waiting")
    print_table(
        ("stage", "runs for", "last time", "pid", "key", "waiting"),
        [
            (
                row["stage"],
                report.period(row["seconds"]),
                report.period(row["last"]),
                str(row["pid"]),
                row["key"][:SHOWN_KEY],
                ", ".join(f"pid {each['pid']} for {report.period(each['seconds'])}" for each in row["waiting"]),
            )
            for row in rows[:most]
        ],
        right=("runs for", "last time", "pid"),
        detail="waiting",
    )
