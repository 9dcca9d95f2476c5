"""``cachec ls``: the entries."""

from __future__ import annotations

import time

import click

from cachec import report
from cachec.cli.session import Session, clean, json_option, pass_session, print_json, print_table


@click.command("ls")
@click.option("--stage", metavar="NAME", help="Only entries of this stage: its name, or the last part of it.")
@json_option
@pass_session
def command(session: Session, stage: str | None, as_json: bool) -> None:
    """List the entries, newest first.

    A stage is named as in the table, or by the end of its name after a dot: "lower" for "demo.pipeline.lower".

    \b
    Examples:
      cachec ls
      cachec ls --stage lower --json

    \b
    JSON: {"dir", "entries": [{"key", "stage", "tags", "created", "traces", "size", "seconds"}]}
    created is Unix time, size is bytes of all artifacts, seconds is how long the stage ran.
    """
    entries = [
        report.entry_summary(entry)
        for entry in session.entries()
        if stage is None or entry.stage == stage or entry.stage.endswith("." + stage)
    ]
    if as_json:
        print_json({"dir": str(session.settings.dir), "entries": entries})
        return
    if not entries:
        of = f" of a stage {clean(stage)}" if stage else ""
        click.echo(f"no entries{of} in {clean(str(session.settings.dir))}")
        return
    now = time.time()
    rows = [
        (
            each["key"][: report.SHOWN_KEY],
            each["stage"],
            report.age(each["created"], now),
            str(each["traces"]),
            report.size(each["size"]),
            report.period(each["seconds"]),
        )
        for each in entries
    ]
    numbers = ("traces", "size", "took")
    print_table(("key", "stage", "created", *numbers), rows, right=numbers)
