"""``cachec invalidate``: forget entries."""

from __future__ import annotations

import click

from cachec import report
from cachec.cli.session import Session, clean, json_option, pass_session, print_json
from cachec.errors import StoreFault
from cachec.model import Fault

#: Faults of one row, which go away with it.
_DAMAGED = frozenset({Fault.ROW_CORRUPT, Fault.ROW_VERSION, Fault.ROW_FOREIGN, Fault.ROW_REFUSED})


@click.command("invalidate")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@json_option
@pass_session
def command(session: Session, keys: tuple[str, ...], as_json: bool) -> None:
    """Forget entries, so that their next call misses. Their files stay until the store is cleaned.

    Nothing is removed where one of the keys is malformed or ambiguous.

    \b
    Examples:
      cachec invalidate 3fa9c2
      cachec invalidate 3fa9c2 81be07 --json

    \b
    JSON: {"removed": [{"key", "stage"}], "not_found": [key as given]}
    stage is empty where the row was damaged. Exit code 1: one of the keys was not found.
    """
    found = [(key, _matches(session, key)) for key in keys]
    stages = {key: stage for _, matches in found for key, stage in matches}
    missing = [key for key, matches in found if not matches]
    removed = [(key, stage) for key, stage in stages.items() if session.store.invalidate(key)]
    if as_json:
        print_json({"removed": [{"key": key, "stage": stage} for key, stage in removed], "not_found": missing})
    else:
        for key, stage in removed:
            click.echo(f"removed {key[: report.SHOWN_KEY]} ({clean(stage) or 'its row was damaged'})")
    if missing:
        session.fail(f"no entry has a key that begins with {', '.join(missing)}")


def _matches(session: Session, key: str) -> list[tuple[str, str]]:
    """(key, stage) of the entry meant. A row that can't be read is there too, if its whole key is given."""
    try:
        return [(entry.key, entry.stage) for entry in session.matches(key)]
    except StoreFault as fault:
        if len(key) == 64 and fault.fault in _DAMAGED:
            return [(key.lower(), "")]
        raise
