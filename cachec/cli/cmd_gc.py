"""``cachec gc``: bring the store back into its bounds."""

from __future__ import annotations

import click
import msgspec

from cachec import config, report
from cachec.base.display_text import number_of
from cachec.cli.selectors import span
from cachec.cli.session import Session, clean, json_option, pass_session, print_as_json, print_wrapped
from cachec.maintain.collect import CollectResult


def _size(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return config.parse_size(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not accepted; give bytes, 0 for no limit, or a size such as 500MB or 20GiB"
        ) from None


@click.command("gc")
@click.option("--max-size", callback=_size, metavar="SIZE", help="Come down to this, instead of the setting max_size.")
@click.option("--older-than", callback=span, metavar="SPAN", help="Evict what was not used for so long: 24h, 7d, 4w.")
@click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
@json_option
@pass_session
def command(session: Session, max_size: int | None, older_than: float | None, dry_run: bool) -> None:
    """Evict the entries that are worth least until the store is within max_size, and sweep what nothing needs.

    An entry is worth the seconds that it saves, by uses and by byte; what was not used for long falls behind. Pinned
    entries (`cachec pin`), and those that a running process was given, stay. It may be killed and run again at any
    moment, beside processes that compile. Entries of an older version of cachec's records go once unused for 30 days.

    \b
    Examples:
      cachec gc
      cachec gc --max-size 5GiB --dry-run
      cachec gc --older-than 30d --json

    \b
    JSON: {"dry_run", "before", "after", "limit", "within", "entries", "seconds", "artifacts", "freed", "kept_pinned",
           "kept_in_use", "old_versions": {version: entries}, "swept": {kind: count}, "postponed_by"}
    Sizes are bytes on disk; limit is null for none; seconds: what compiling the evicted entries again takes;
    postponed_by: the process that is cleaning already, null where none is. Exit code 1: the store is larger than the
    limit, because of what is pinned or in use.
    """
    was_there = session.settings.dir.is_dir()
    done = session.maintainer.collect(limit=max_size, older_than=older_than, dry_run=dry_run)
    if not print_as_json(_document(done, dry_run)):
        _tell(done, dry_run)
        if not was_there:
            click.echo(f"there is no store in {clean(str(session.settings.dir))}")
    if not done.is_within and not done.postponed_by:
        session.fail(
            f"the store takes {report.size(done.after)}, more than {report.size(done.limit or 0)}: "
            f"{number_of(done.kept_pinned, 'entry')} pinned, {done.kept_in_use} in use by running processes; the "
            "rest is what such a process was handed, or stored within the last hour and no entry needs"
        )


def _document(done: CollectResult, dry_run: bool) -> dict[str, object]:
    summary = msgspec.structs.asdict(done)
    return {"dry_run": dry_run, **summary, "within": done.is_within, "postponed_by": done.postponed_by or None}


def _tell(done: CollectResult, dry_run: bool) -> None:
    if done.postponed_by:
        print_wrapped(f"process {done.postponed_by} is cleaning this store already; nothing was done", indent=0)
        return
    would = "would be " if dry_run else ""
    limit = "no limit" if done.limit is None else f"limit {report.size(done.limit)}"
    click.echo(f"{report.size(done.before)} before, {report.size(done.after)} after, {limit}")
    print_wrapped(
        f"{number_of(done.entries, 'entry')} {would}evicted ({report.period(done.seconds)} to compile again), "
        f"{number_of(done.artifacts, 'artifact')} {would}removed ({report.size(done.freed)})",
        indent=0,
    )
    for version, count in sorted(done.old_versions.items()):
        words = f"{number_of(count, 'entry')} of record version {version} {would}removed: unused for 30 days"
        print_wrapped(words, indent=0)
    for kind, count in sorted(done.swept.items()):
        click.echo(f"{count:,} {kind} {would}swept")
    if done.kept_pinned or done.kept_in_use:
        print_wrapped(
            f"kept although their turn had come: {done.kept_pinned} pinned, {done.kept_in_use} in use", indent=0
        )
