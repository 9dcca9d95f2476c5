"""``cachec ls``: the entries."""

from __future__ import annotations

import time

import click

from cachec import report
from cachec.base.display_text import SHOWN_KEY
from cachec.cli.selectors import selector_options
from cachec.cli.session import Session, clean, json_option, pass_session, print_as_json, print_table
from cachec.maintain.selector import Selector


@click.command("ls")
@click.argument("keys", metavar="[KEY...]", nargs=-1)
@selector_options
@json_option
@pass_session
def command(session: Session, selector: Selector) -> None:
    """List the entries, newest first: all, or those that a selector means.

    A stage is named as in the table, or by the end of its name after a dot: "lower" for "demo.pipeline.lower".
    Everything that is given must hold; of several KEYs and of several --stage one.

    \b
    Examples:
      cachec ls
      cachec ls --stage lower --tool "jax==0.10*" --json
      cachec ls --option target=cuda --newer-than 24h
      cachec ls --source src/pipeline.py

    \b
    JSON: {"dir", "entries": [{"key", "stage", "tags", "created", "traces", "size", "seconds", "pinned"}]}
    created is Unix time, size is bytes of all artifacts, seconds is how long the stage ran.
    """
    pinned = session.maintainer.pins.read()
    entries = sorted(
        (
            {**report.entry_summary(item.entry), "pinned": pinned.holds(item.name, item.entry.tags)}
            for item in session.maintainer.find(selector)
            if item.entry.traces
        ),
        key=lambda each: -each["created"],
    )
    if print_as_json({"dir": str(session.settings.dir), "entries": entries}):
        return
    if not entries:
        of = "" if selector.is_empty else _of(selector)
        click.echo(f"no entries{of} in {clean(str(session.settings.dir))}{session.if_none}")
        for each in session.maintainer.unmatched(selector) if session.settings.dir.is_dir() else ():
            if each.near:
                click.echo(clean(each.words))
        return
    now = time.time()
    pins = any(each["pinned"] for each in entries)
    rows = [
        (
            each["key"][:SHOWN_KEY],
            each["stage"],
            report.age(each["created"], now),
            str(each["traces"]),
            report.size(each["size"]),
            report.period(each["seconds"]),
            *(("pinned" if each["pinned"] else "",) if pins else ()),
        )
        for each in entries
    ]
    numbers = ("runs", "size", "took")
    columns = ("key", "stage", "created", *numbers, *(("",) if pins else ()))
    print_table(columns, rows, right=numbers, tells="stage")


def _of(selector: Selector) -> str:
    if selector == Selector(stages=selector.stages):
        return f" of a stage {clean(' or '.join(selector.stages))}"
    return " that this selector means"
