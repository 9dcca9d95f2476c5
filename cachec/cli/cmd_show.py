"""``cachec show``: one entry, or where a file came from."""

from __future__ import annotations

import os
import time
from typing import Any

import click

from cachec import report
from cachec.base.hashing import FileDigests
from cachec.base.texts import SHOWN_KEY
from cachec.cli.session import Session, clean, json_option, pass_session, print_table, told_as_json
from cachec.errors import CachecError


@click.command("show")
@click.argument("what", metavar="KEY-or-FILE")
@json_option
@pass_session
def command(session: Session, what: str) -> None:
    """Show an entry by its key, or which stage and key a file came from, by its content.

    An existing file is taken for a file; anything else for a key.

    \b
    Examples:
      cachec show 3fa9c2
      cachec show build/model.vmfb --json

    \b
    JSON of a key: {"kind": "entry", "key", "stage", "tags", "created", "traces", "size", "seconds",
                    "parts": [{"part", "kind", "name", "digest", "detail", "refs", "version", "value",
                               "subject", "leaves": [[path, text]]}] or null,
                    "runs": [{"created", "seconds", "reads": [{"kind", "where", "name", "digest"}],
                              "artifacts": [{"digest", "size"}]}], "pinned"}
    JSON of a file: {"kind": "file", "path", "digest", "size", "origins": [{"key", "stage"}]}
    Exit code 1: no such entry, or no entry holds this content.
    """
    if os.path.isdir(what):
        raise CachecError(f"{what!r} is a folder; give one of its files, or a key")
    if os.path.exists(what):
        _show_file(session, what)
    elif os.sep in what or "." in what:
        session.fail(f"there is no file {what!r}")
    else:
        _show_entry(session, what)


def _show_file(session: Session, path: str) -> None:
    digest = FileDigests().of_path(path)
    details = report.file_details(path, digest, os.stat(path).st_size, session.store.find_artifact(digest))
    if not told_as_json(details):
        for origin in details["origins"]:
            click.echo(f"{clean(path)} came from stage {clean(origin['stage'])}, key {origin['key']}")
    if not details["origins"]:
        session.fail(f"no entry of {session.settings.dir} holds the content of {path!r} (BLAKE3 {digest})")


def _show_entry(session: Session, prefix: str) -> None:
    entry = session.entry(prefix)
    pins = session.maintainer.pins.read()
    pinned = pins.holds(session.store.quoted + entry.key, entry.tags)
    details = {**report.entry_details(entry, session.parts(entry)), "pinned": pinned}
    if told_as_json(details):
        return
    now = time.time()
    click.echo(f"key     {details['key']}\nstage   {clean(details['stage'])}")
    if details["tags"]:
        click.echo(f"tags    {clean(', '.join(details['tags']))}")
    click.echo(f"size    {report.size(details['size'])}{', pinned' if pinned else ''}\n")
    if details["parts"] is not None:
        rows = [(part["part"], part["digest"][:SHOWN_KEY], part["detail"]) for part in details["parts"]]
        print_table(("part of the key", "digest", "detail"), rows)
    for number, run in enumerate(details["runs"], 1):
        click.echo(f"\nrun {number}: {report.age(run['created'], now)}, took {report.period(run['seconds'])}")
        for read in run["reads"]:
            click.echo(f"  read {_read(read)}")
        for artifact in run["artifacts"]:
            click.echo(f"  made {artifact['digest']} ({report.size(artifact['size'])})")


def _read(read: dict[str, Any]) -> str:
    name = f" {read['name']!r}" if read["name"] else ""
    return clean(f"{read['kind']} {read['where']}{name} {read['digest'][:SHOWN_KEY]}")
