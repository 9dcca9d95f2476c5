"""``cachec show KEY --reads``: what the runs of an entry looked up, by folder."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import click

from cachec import report
from cachec.base.display_text import number_of
from cachec.cli.session import Session, clean, print_as_json, print_table, print_wrapped
from cachec.model import Entry, Read, Trace
from cachec.stage.lookup import describe_change
from cachec.verify.reads import ReadChecker, place_of, result_of

#: Without --full: folders of a run that are listed, reads up to which each is listed too, and changes.
_SHOWN_FOLDERS = 20
_SHOWN_READS = 20
_SHOWN_CHANGES = 10


class _DisplayedRead(NamedTuple):
    """A read with its place and result."""

    read: Read
    folder: str
    name: str
    result: str
    #: Whether it is the same now; None where that is not known.
    holds: bool | None


def show_reads(session: Session, entry: Entry, *, every: bool, check: bool) -> None:
    """Print the reads of each run. every: all of them. check: look each up again."""
    base = session.settings.base_dir
    base_dir = None if base is None else os.fspath(base).rstrip("/") or None
    checker = ReadChecker(session.store, entry, base_dir, os.environ) if check else None
    runs = [(trace, _displayed_reads(trace, checker)) for trace in entry.traces]
    document = {
        "kind": "reads",
        "key": entry.key,
        "stage": entry.stage,
        "checked_in": None if checker is None else checker.folder,
        "runs": [
            {
                "created": trace.created,
                "seconds": trace.seconds,
                "holds": _hold(reads),
                "reads": [
                    {
                        **{name: getattr(each.read, name) for name in Read.__struct_fields__},
                        **{"folder": each.folder, "result": each.result, "holds": each.holds},
                    }
                    for each in reads
                ],
            }
            for trace, reads in runs
        ],
    }
    if print_as_json(document):
        return
    click.echo(f"key     {entry.key}\nstage   {clean(entry.stage)}")
    if checker is not None:
        click.echo(f"folder  {clean(checker.folder)}")
    for number, (trace, reads) in enumerate(runs, 1):
        click.echo()
        _print_run(number, trace, reads, every=every, check=check)


def _displayed_reads(trace: Trace, checker: ReadChecker | None) -> list[_DisplayedRead]:
    shown = [
        _DisplayedRead(read, *place_of(read), result_of(read), None if checker is None else checker.holds(read))
        for read in trace.reads
    ]
    return sorted(shown, key=lambda each: (each.folder, each.name, each.result))


def _hold(reads: Sequence[_DisplayedRead]) -> bool | None:
    found = {each.holds for each in reads}
    return False if False in found else None if None in found else True


def _print_run(number: int, trace: Trace, reads: Sequence[_DisplayedRead], *, every: bool, check: bool) -> None:
    times = f"{report.age(trace.created, time.time())}, took {report.period(trace.seconds)}"
    print_wrapped(f"run {number}: {times}, {number_of(len(reads), 'lookup')}{_results(reads, ': ')}", indent=0)
    if check:
        _print_check(reads, every=every)
    folders: dict[str, list[_DisplayedRead]] = {}
    for each in reads:
        folders.setdefault(each.folder, []).append(each)
    listed = set(folders)
    if not every:
        listed = set(sorted(folders, key=lambda name: -len(folders[name]))[:_SHOWN_FOLDERS])
    shows_names = every or len(reads) <= _SHOWN_READS
    rows = []
    for folder, reads_below in folders.items():
        if folder in listed:
            rows.append((folder, str(len(reads_below)), _results(reads_below)))
            if shows_names:
                rows += [(f"  {each.name}", "", _words(each)) for each in reads_below]
    if rows:
        print_table(("folder", "lookups", "found"), rows, right=("lookups",), detail="found")
    if len(listed) < len(folders):
        click.echo(f"{number_of(len(folders) - len(listed), 'more folder')}, and each name: --full")
    elif not shows_names:
        click.echo("each name: --full")


def _words(shown: _DisplayedRead) -> str:
    fields = f" ({shown.read.name})" if shown.read.kind == "status" else ""
    return f"{shown.result}{fields}{', changed' if shown.holds is False else ''}"


def _results(reads: Sequence[_DisplayedRead], before: str = "") -> str:
    counts = Counter(each.result for each in reads)
    words = ", ".join(f"{count:,} {result}" for result, count in counts.most_common())
    return f"{before}{words}" if words else ""


def _print_check(reads: Sequence[_DisplayedRead], *, every: bool) -> None:
    changed = [each.read for each in reads if each.holds is False]
    unknown = sum(each.holds is None for each in reads)
    limits = f"; {number_of(unknown, 'lookup')} can be checked by a call alone" if unknown else ""
    if not changed:
        print_wrapped(f"nothing has changed{limits}", indent=2)
        return
    print_wrapped(f"{number_of(len(changed), 'lookup')} changed{limits}:", indent=2)
    shown = changed if every else changed[:_SHOWN_CHANGES]
    for read in shown:
        print_wrapped(describe_change(read), indent=4)
    if len(shown) < len(changed):
        click.echo(f"    {len(changed) - len(shown):,} more: --full")
