"""``cachec diff``: what makes two keys different."""

from __future__ import annotations

import click

from cachec import report
from cachec.base.texts import SHOWN_KEY, number_of
from cachec.cli.session import Session, clean, json_option, pass_session, print_as_json, print_wrapped
from cachec.errors import CachecError
from cachec.key.key_diff import differences


@click.command("diff")
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@json_option
@pass_session
def command(session: Session, old: str, new: str) -> None:
    """Say what differs between the entries of two keys, of whatever stages.

    Every differing part is named: code, tools, options, the environment; programs by the operations that differ,
    weights by their specs. "old -> new" reads from OLD to NEW.

    \b
    Examples:
      cachec diff 3fa9c2 81be07
      cachec diff 3fa9c2 81be07 --json

    \b
    JSON: {"old": {"key", "stage"}, "new": as old, "same": how many parts are equal,
           "differences": [{"part", "reason", "old", "new", "words"}]}
    Exit code 1: no such entry.
    """
    entries = [session.entry(each) for each in (old, new)]
    parts = [session.parts(each) for each in entries]
    if parts[0] is None or parts[1] is None:
        raise CachecError("the parts of a key can't be read, so the keys can't be compared")
    found = differences(parts[0], parts[1], session.store.content)
    details = report.diff_details(entries[0], entries[1], found, len(parts[1]))
    if print_as_json(details):
        return
    for mark, each in zip("-+", entries, strict=True):
        click.echo(f"{mark} {each.key[:SHOWN_KEY]} {clean(each.stage)}")
    for difference in found:
        print_wrapped(f"{difference.reason.value.partition(':')[2]}: {difference.words}", indent=2)
    click.echo(
        f"  {number_of(details['same'], 'part')} {'is' if details['same'] == 1 else 'are'} equal"
        if found
        else "  no part differs"
    )
