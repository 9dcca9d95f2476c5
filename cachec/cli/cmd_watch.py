"""``cachec watch``: what a change makes stale, told beside an editor."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import TYPE_CHECKING

import click
import msgspec

from cachec import report
from cachec.base.display_text import number_of
from cachec.cli.session import Session, clean, pass_session
from cachec.errors import UsageError

if TYPE_CHECKING:
    from cachec.watch import Event

#: Paths of a change that are named.
_SHOWN = 3


@click.command("watch")
@click.argument("targets", nargs=-1, metavar="[TARGET...]")
@click.option("--warm", "compile_stale", is_flag=True, help="Compile what is stale; a newer change cancels it.")
@click.option("--jobs", "-j", type=click.IntRange(1), metavar="N", help="Rows at a time; by default one a processor.")
@click.option("--debounce", type=click.FloatRange(0.01, 60), default=0.1, show_default=True, metavar="SECONDS",
              help="A change has settled when nothing happened for so long.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document a line instead of text.")
@pass_session
def command(
    session: Session, targets: tuple[str, ...], compile_stale: bool, jobs: int | None, debounce: float, as_json: bool
) -> None:
    """Watch the files of the declared targets, and say what a change makes stale and why. Ctrl-C ends it.

    The files are what a look at the targets opens: sources of stages, models, tools, owned weights, and files that were
    looked for and absent. An event is only a reason to look again: what is told comes from the keys.

    \b
    Examples:
      cachec watch
      cachec watch minilm --warm

    \b
    JSON, one a line: {"kind": "watching" | "changed" | "stale" | "warm" | "failed" | "compiled" | "cancelled" |
                       "error", "target", "why", "paths", "files", "seconds"}; fields without a value are left out
    """
    try:
        from cachec.watch import Watcher
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "watchdog":
            raise
        raise UsageError("cachec watch needs watchdog: pip install 'cachec[watch]'") from error
    from cachec.warm import load

    declared = load()
    if not declared.rows:
        raise UsageError("no targets are declared; `cachec warm --help` says how")

    def tell(event: Event) -> None:
        click.echo(msgspec.json.encode(event).decode() if as_json else _line(event))

    def stop(_number: int, _frame: FrameType | None) -> None:
        watcher.stop()

    watcher = Watcher(
        session.settings, tell, wanted=targets, warm=compile_stale, jobs=jobs or declared.jobs, debounce=debounce
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    watcher.run()


def _line(event: Event) -> str:
    kind, target, why, seconds = event.kind, clean(event.target), clean(event.why), report.period(event.seconds)
    if kind == "watching":
        return f"watching {number_of(event.files, 'file')}"
    if kind == "changed":
        named = ", ".join(clean(os.path.relpath(path)) for path in event.paths[:_SHOWN])
        more = f" and {len(event.paths) - _SHOWN} more" if len(event.paths) > _SHOWN else ""
        return f"changed: {named}{more}"
    if kind == "cancelled":
        return "a newer change: looking again"
    if kind == "error":
        return f"error: {why}; the targets are as they were"
    return f"{kind:8} {target} ({seconds})" + (f": {why}" if why else "")
