"""``cachec verify``: is what is stored what it should be?"""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cachec import report
from cachec.base.display_text import SHOWN_KEY, number_of
from cachec.cli.cmd_stats import parse_bound
from cachec.cli.meter import Meter, throughput
from cachec.cli.session import (
    Session,
    clean,
    json_option,
    pass_session,
    print_as_json,
    print_command,
    print_wrapped,
    wants_json,
)

if TYPE_CHECKING:
    from cachec.model import Entry

#: Problems that are listed.
_LISTED = 40


@click.command("verify")
@click.option("--sample", metavar="PERCENT", help="Hash a share of the artifacts, another one each time: 5%.")
@click.option("--restart", is_flag=True, help="Begin anew, and not where an earlier run was ended.")
@click.option("--recompute", type=click.IntRange(min=0), default=0, metavar="N", help="Compile N entries again.")
@click.option("--path", multiple=True, metavar="DIR", help="Import the project's code from DIR first.")
@click.option("-o", "--output", metavar="DIR", help="For reproducers; by default repro_dir, or the current folder.")
@json_option
@pass_session
def command(
    session: Session, sample: str | None, restart: bool, recompute: int, path: tuple[str, ...], output: str | None
) -> None:
    """Hash what is stored, and hold rows against files. It may run beside builds, be ended, and run again.

    Artifacts that are not what their names say are removed; entries that can't be handed out without them are put away,
    so that their next call compiles. With --recompute, entries that are chosen by chance are compiled again as they
    were, and compared by their bytes, or as the plugin of their compiler does; what differs is put away, and a
    reproducer (`cachec repro`) is left.

    \b
    Examples:
      cachec verify
      cachec verify --sample 5%
      cachec verify --sample 0% --recompute 3 --path src

    \b
    JSON: {"dir", "artifacts", "size", "seconds", "resumed", "problems": [{"kind", "name", "stage", "words",
           "put_away"}], "recomputed": [{"key", "stage", "result", "words", "reproducer"}], "skipped": {why: count}}
    kind is "index", "artifact", "row", "entry" or "weights", name a digest, a key or the name of weights. artifacts
    and size say what was hashed, resumed whether an earlier run had begun it. result: "same", "differs", or "failed",
    as it had not before. skipped: entries that can't be compiled again.
    Exit code: 0 all is as it should be, 1 something is not, 2 it can't be looked at.
    """
    from cachec.verify.artifacts import finish, hash_artifacts
    from cachec.verify.recompute import Recompute
    from cachec.verify.rows import Problem, check_index, check_rows

    share = 1.0 if sample is None else parse_bound(sample)
    started = time.monotonic()
    store = session.store
    if session.if_none and not wants_json():
        click.echo(f"there is no store in {clean(str(session.settings.dir))}")
        return
    problems = [*check_index(store)]
    is_readable = not problems
    with Meter("verify") as meter:
        hashed = hash_artifacts(store, share, meter, restart=restart)
    problems += [Problem("artifact", digest, words) for digest, words in hashed.damaged.items()]
    if is_readable:
        problems += check_rows(store, hashed.damaged, hashed.there, session.note_fault)
        finish(store)
    seconds = time.monotonic() - started
    again = Recompute(store, Path(output or session.settings.repro_dir or ""), path)
    made = list(again.run(recompute, _begin)) if recompute else []
    document = {
        "dir": str(session.settings.dir),
        "artifacts": hashed.artifacts,
        "size": hashed.nbytes,
        "seconds": seconds,
        "resumed": hashed.resumed,
        "problems": [each._asdict() for each in problems],
        "recomputed": [each._asdict() for each in made],
        "skipped": dict(again.skipped),
    }
    if not print_as_json(document):
        _tell(document)
    if problems or any(each.result != "same" for each in made):
        click.get_current_context().exit(1)


def _begin(entry: Entry) -> None:
    took = report.period(entry.traces[0].seconds)
    click.echo(f"cachec: verify: {entry.key[:SHOWN_KEY]} {clean(entry.stage)} runs again; it took {took}", err=True)


def _tell(document: dict[str, Any]) -> None:
    for each in document["problems"][:_LISTED]:
        name = each["name"][:SHOWN_KEY] if each["kind"] in {"artifact", "row", "entry"} else each["name"]
        stage = f" ({each['stage']})" if each["stage"] else ""
        away = "; put away" if each["put_away"] else ""
        print_wrapped(f"{each['kind']} {name}{stage}: {each['words']}{away}", indent=0)
    if len(document["problems"]) > _LISTED:
        click.echo(f"and {len(document['problems']) - _LISTED:,} more (--json has all)")
    nbytes, seconds = document["size"], document["seconds"]
    went_on = ", of which an earlier run had done some" if document["resumed"] else ""
    hashed = f"{number_of(document['artifacts'], 'artifact')} hashed, {report.size(nbytes)}"
    click.echo(f"{hashed}{went_on}: {throughput(nbytes, seconds)}")
    for each in document["recomputed"]:
        words = f": {each['words']}" if each["words"] else ""
        print_wrapped(f"{each['result']} {each['key'][:SHOWN_KEY]} ({each['stage']}){words}", indent=0)
        if each["reproducer"]:
            print_command(f"repro run {shlex.quote(each['reproducer'])}", indent=4)
    for why, number in document["skipped"].items():
        print_wrapped(f"{number} not compiled again: {why}", indent=0)
    if document["skipped"] and not document["recomputed"]:
        click.echo("no entry was compiled again")
    count = len(document["problems"]) + sum(each["result"] != "same" for each in document["recomputed"])
    click.echo("all is as it should be" if not count else number_of(count, "problem"))
