"""``cachec why``: what makes two keys different."""

from __future__ import annotations

import click

from cachec import report
from cachec.cli.session import Session, clean, json_option, pass_session, print_json
from cachec.errors import CachecError
from cachec.key.compare import differences, nearest
from cachec.model import Entry


@click.command("why")
@click.argument("key", metavar="KEY")
@click.argument("other", metavar="[OTHER]", required=False)
@json_option
@pass_session
def command(session: Session, key: str, other: str | None, as_json: bool) -> None:
    """Say what makes KEY another key than OTHER, or than the nearest entry of its stage.

    Every differing part is named: code, tools, options, the environment; programs by the operations that differ,
    weights by their specs. "old -> new" reads from the other entry to KEY.

    \b
    Examples:
      cachec why 3fa9c2
      cachec why 3fa9c2 81be07 --json

    \b
    JSON: {"key", "stage", "other": {"key", "stage", "chosen": "nearest" or "given"}, "reason": the first one's or null,
           "differences": [{"part", "reason", "old", "new", "words"}]}
    old and new are null where the part is absent. Exit code 1: no such entry, or none to compare with.
    """
    entry = session.entry(key)
    mine = session.parts(entry)
    if other is not None:
        chosen: Entry | None = session.entry(other)
    else:
        chosen = _nearest(session, entry)
    if chosen is None:
        session.fail(f"{entry.key[: report.SHOWN_KEY]} is the only entry of stage {entry.stage}")
    theirs = session.parts(chosen)
    if mine is None or theirs is None:
        raise CachecError("the parts of a key can't be read, so the keys can't be compared")
    found = differences(theirs, mine, session.store.content)
    details = report.why_details(entry, chosen, "given" if other is not None else "nearest", found)
    if as_json:
        print_json(details)
        return
    short = chosen.key[: report.SHOWN_KEY]
    click.echo(f"{entry.key[: report.SHOWN_KEY]} ({clean(entry.stage)}) against {short} ({clean(chosen.stage)}):")
    for each in details["differences"]:
        kind = each["reason"].partition(":")[2]
        click.echo(f"  {kind}: {clean(each['words'])}")
    if not found:
        click.echo("  no part differs")


def _nearest(session: Session, entry: Entry) -> Entry | None:
    """The entry of the same stage that shares most parts, the newest of equals; entries without parts are left out."""
    mine = session.parts(entry)
    others = {each.key: each for each in session.entries() if each.stage == entry.stage and each.key != entry.key}
    candidates = [(key, parts) for key, each in others.items() if (parts := session.parts(each)) is not None]
    found = nearest(candidates, mine or ())
    return None if found is None else others[found[0]]
