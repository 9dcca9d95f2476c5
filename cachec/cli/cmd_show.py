"""``cachec show``: one entry, or where a file came from."""

from __future__ import annotations

import os
import time
from typing import Any, NoReturn

import click

from cachec import report
from cachec.base.display_text import MIN_PREFIX, SHOWN_KEY, is_key_prefix, number_of
from cachec.base.hashing import FileDigests
from cachec.cli.screen import cell_width, cut
from cachec.cli.session import (
    Session,
    clean,
    json_option,
    pass_session,
    print_as_json,
    print_table,
    print_wrapped,
)
from cachec.errors import CachecError, UsageError
from cachec.model import Entry, PartKind

#: Parts and reads that are shown where not all are asked for.
_SHOWN_PARTS = 10
_SHOWN_READS = 3


@click.command("show")
@click.argument("what", metavar="KEY-or-FILE")
@click.option("--full", is_flag=True, help="Every part, run and read, with digests and all that is known of them.")
@click.option("--reads", is_flag=True, help="What its runs looked up: files, paths, variables; by folder.")
@click.option("--check", is_flag=True, help="The same, and whether each of them is the same now.")
@json_option
@pass_session
def command(session: Session, what: str, full: bool, reads: bool, check: bool) -> None:
    """Show an entry by its key, or which stage and key a file came from, by its content.

    An existing file is taken for a file; anything else for a key. What does not fit a screen is left out, and told.

    \b
    Examples:
      cachec show 3fa9c2
      cachec show 3fa9c2 --full
      cachec show 3fa9c2 --reads
      cachec show build/model.vmfb --check
      cachec show build/model.vmfb --json

    \b
    JSON of a key: {"kind": "entry", "key", "stage", "tags", "created", "traces", "size", "seconds",
                    "parts": [{"part", "kind", "name", "digest", "detail", "refs", "version", "value",
                               "subject", "leaves": [[path, text]]}] or null,
                    "runs": [{"created", "seconds", "reads": [{"kind", "where", "name", "digest"}],
                              "artifacts": [{"digest", "size"}]}], "pinned"}
    JSON of --reads: {"kind": "reads", "key", "stage", "checked_in": a folder or null,
                      "runs": [{"created", "seconds", "holds",
                                "reads": [{"kind", "where", "name", "digest", "folder", "result", "holds"}]}]}
    JSON of a file: {"kind": "file", "path", "digest", "size", "origins": [{"key", "stage"}]}
    Exit code 1: no such entry, or no entry holds this content.
    """
    reads = reads or check
    if os.path.isdir(what):
        raise CachecError(f"{what!r} is a folder; give one of its files, or a key")
    if os.path.exists(what) and not reads:
        _show_file(session, what)
    elif os.path.exists(what):
        _show_reads(session, _newest_of_file(session, what), full=full, check=check)
    elif os.sep in what or "." in what:
        session.fail(f"there is no file {what!r}")
    elif not is_key_prefix(what):
        raise UsageError(
            f"{what!r} is neither a file that is there nor a key ({MIN_PREFIX} to 64 hexadecimal characters)"
        )
    elif reads:
        _show_reads(session, session.entry(what), full=full, check=check)
    else:
        _show_entry(session, what, full)


def _show_reads(session: Session, entry: Entry, *, full: bool, check: bool) -> None:
    from cachec.cli.reads_table import show_reads

    show_reads(session, entry, every=full, check=check)


def _newest_of_file(session: Session, path: str) -> Entry:
    """Return the newest entry with the content of a file; the others are named on stderr. Exits with 1 without any."""
    details = _details_of_file(session, path)
    found = [session.entry(key) for key in sorted({origin["key"] for origin in details["origins"]})]
    if not found:
        _fail_without_origin(session, details)
    found.sort(key=lambda entry: -max(trace.created for trace in entry.traces))
    if len(found) > 1:
        others = ", ".join(entry.key[:SHOWN_KEY] for entry in found[1:])
        click.echo(f"cachec: the newest of {len(found)} entries with this content; the others: {others}", err=True)
    return found[0]


def _fail_without_origin(session: Session, details: dict[str, Any]) -> NoReturn:
    session.fail(
        f"no entry of {session.settings.dir} holds the content of {details['path']!r} (BLAKE3 {details['digest']})"
    )


def _details_of_file(session: Session, path: str) -> dict[str, Any]:
    digest = FileDigests().of_path(path)
    return report.file_details(path, digest, os.stat(path).st_size, session.store.find_artifact(digest))


def _show_file(session: Session, path: str) -> None:
    details = _details_of_file(session, path)
    if not print_as_json(details):
        for origin in details["origins"]:
            click.echo(f"{clean(path)} came from stage {clean(origin['stage'])}, key {origin['key']}")
    if not details["origins"]:
        _fail_without_origin(session, details)


def _show_entry(session: Session, prefix: str, full: bool) -> None:
    entry = session.entry(prefix)
    pins = session.maintainer.pins.read()
    pinned = pins.holds(session.store.quoted + entry.key, entry.tags)
    details = {**report.entry_details(entry, session.parts(entry)), "pinned": pinned}
    if print_as_json(details):
        return
    now = time.time()
    click.echo(f"key     {details['key']}\nstage   {clean(details['stage'])}")
    if details["tags"]:
        click.echo(f"tags    {clean(', '.join(details['tags']))}")
    click.echo(f"size    {report.size(details['size'])}{', pinned' if pinned else ''}\n")
    if full:
        _print_whole(details, now)
    else:
        _print_short(details, now)


def _print_whole(details: dict[str, Any], now: float) -> None:
    if details["parts"] is not None:
        rows = [(part["part"], part["digest"][:SHOWN_KEY], part["detail"]) for part in details["parts"]]
        print_table(("part of the key", "digest", "detail"), rows, detail="detail")
    for number, run in enumerate(details["runs"], 1):
        click.echo(f"\n{_run(number, run, now)}")
        for read in run["reads"]:
            print_wrapped(f"read {_read(read)}", indent=2)
        click.echo("  made")
        for artifact in run["artifacts"]:
            click.echo(f"  {artifact['digest']}  {report.size(artifact['size'])}")


def _print_short(details: dict[str, Any], now: float) -> None:
    """What fits a screen of 24 lines: the parts that are of this call alone before its code, and the newest run."""
    omitted = []
    if details["parts"] is not None:
        shown = _telling(details["parts"])
        size = max(cell_width(clean(part["part"])) for part in shown) + 2
        rows = [(part["part"], cut(clean(part["detail"]), size)) for part in shown]
        print_table(("part of the key", "detail"), rows, detail="detail")
        omitted += _more(len(details["parts"]) - len(shown), "more part")
    run, *older = details["runs"]
    click.echo(f"\n{_run(1, run, now)}")
    for read in run["reads"][:_SHOWN_READS]:
        click.echo(f"  {cut(f'read {_read(read)}', 2)}")
    omitted += _more(len(run["reads"]) - _SHOWN_READS, "more read")
    size = sum(each["size"] for each in run["artifacts"])
    click.echo(f"  made {number_of(len(run['artifacts']), 'artifact')} ({report.size(size)})")
    omitted += _more(len(older), "older run")
    if omitted:
        click.echo(f"\n{', '.join(omitted)}: --full")


def _telling(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As many parts as are shown, in their order: what the call was given and made with first, then its code."""
    code = [number for number, part in enumerate(parts) if part["kind"] == PartKind.CODE]
    others = [number for number, part in enumerate(parts) if part["kind"] != PartKind.CODE]
    return [parts[number] for number in sorted([*others, *code][:_SHOWN_PARTS])]


def _more(count: int, what: str) -> list[str]:
    return [number_of(count, what)] if count > 0 else []


def _run(number: int, run: dict[str, Any], now: float) -> str:
    return f"run {number}: {report.age(run['created'], now)}, took {report.period(run['seconds'])}"


def _read(read: dict[str, Any]) -> str:
    name = f" {read['name']!r}" if read["name"] else ""
    return clean(f"{read['kind']} {read['where']}{name} {read['digest'][:SHOWN_KEY]}")
