"""``cachec push``: send what waits for the remotes, and what was compiled before there were any."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from cachec import report
from cachec.base.display_text import SHOWN_KEY, number_of, to_type
from cachec.cli.selectors import selector_options
from cachec.cli.session import Session, clean, json_option, pass_session, print_as_json
from cachec.errors import UsageError
from cachec.maintain.selector import Selector
from cachec.model import Fault

if TYPE_CHECKING:  # the help does without
    from cachec.remote.backfill import Backfill
    from cachec.remote.chain import Pending, Remotes


@click.command("push")
@click.argument("keys", metavar="[KEY...]", nargs=-1)
@selector_options
@click.option("--all", "everything", is_flag=True, help="All entries of the store.")
@click.option("--drop", metavar="URL", help="Send nothing; forget what waits for this remote.")
@click.option("--vouch", is_flag=True, help="Sign them too, whoever made them: the store does not know.")
@json_option
@pass_session
def command(session: Session, selector: Selector, everything: bool, drop: str | None, vouch: bool) -> None:
    """Send what was compiled here to the remotes that are written.

    Without a KEY or an option this is what waits: results that were made while the remotes were set. A result waits in
    the store until it is sent, so a remote that is down costs no build anything.

    With --all, or with what chooses entries (as for `cachec ls`), those are sent as well, whenever they were made; what
    a remote has is not sent again. An entry that looked at a path of this machine stays, and is counted as left.

    \b
    Examples:
      CACHEC_REMOTE=https://cache.example/team cachec push
      CACHEC_REMOTE=https://cache.example/team cachec push --all
      cachec push --stage lower --newer-than 7d
      cachec push --drop https://cache.example/old
      cachec push --json

    \b
    JSON: {"sent", "known", "gone", "bytes", "waiting", "stranded": {URL: count}, "faults": {fault: count},
           "left": {why: count}}, or {"dropped"} with --drop
    known ones were there already, gone ones are no longer in the store; waiting ones are tried again by the next push.
    stranded ones wait for remotes that are not configured any more, or only read; they go after a week.
    left: entries that were chosen and are not sent: "local-path", "foreign" (of JAX or torch), "unvouched".
    Exit code: 1 where something still waits, or nothing is meant.
    """
    from cachec.remote.chain import Remotes

    if drop is not None:
        _drop(session, drop, alone=selector.is_empty and not (everything or vouch))
        return
    if not session.settings.remote:
        raise UsageError("no remote is configured; set CACHEC_REMOTE (see docs/reference/remotes.md)")
    if everything and not selector.is_empty:
        raise UsageError("--all means every entry; give it alone, or what chooses some")
    faults: Counter[str] = Counter()
    messages: dict[str, str] = {}

    def on_fault(fault: Fault, detail: str) -> None:
        messages.setdefault(fault.value, detail)

    remotes = Remotes(session.settings.remote, session.store, on_fault)
    counts = {"sent": 0, "known": 0, "gone": 0, "bytes": 0}
    try:
        seeded = _queue_backfill(session, remotes, selector, vouch) if everything or not selector.is_empty else None
        for sent in remotes.drain(insist=True):
            counts["gone"] += sent.gone
            if sent.put is not None:
                counts["sent" if sent.put.is_new else "known"] += 1
                counts["bytes"] += sent.put.nbytes
            if sent.fault is not None:
                faults[sent.fault.fault.value] += 1
        waiting = remotes.pending()
    finally:
        remotes.close()
    unsent = dict(seeded.unsent) if seeded else {}
    if not print_as_json({**counts, **_waiting(waiting), "faults": dict(faults), "left": unsent}):
        if seeded is None and not (any(counts.values()) or faults or waiting.ours):
            click.echo("nothing waits; --all also sends what was compiled before the remote was set")
        else:
            click.echo(
                f"{counts['sent']} sent ({report.size(counts['bytes'])}), {counts['known']} were there, "
                f"{counts['gone']} gone, {waiting.ours.total()} wait"
            )
        for words in waiting.list_blocked():
            click.echo(clean(words))
        if seeded is not None:
            _report_unsent(seeded)
        for fault, detail in messages.items():
            click.echo(f"cachec: {fault}: {clean(detail)}", err=True)
    if waiting.ours:
        click.get_current_context().exit(1)


def _drop(session: Session, url: str, *, alone: bool) -> None:
    """Forget what waits for a remote, whether it is configured or not. Raises UsageError."""
    from cachec.base import fsio
    from cachec.config import without_secret
    from cachec.remote.spool import Spool

    if not alone:
        raise UsageError("--drop sends nothing; give it alone")
    with fsio.faults("forgetting what is to be sent"):
        dropped = Spool(session.store.folder).drop(session.settings.namespace, without_secret(url).partition("?")[0])
    if not print_as_json({"dropped": dropped}):
        click.echo(f"forgot {dropped:,} that waited for {clean(without_secret(url).partition('?')[0])}")


def _waiting(waiting: Pending) -> dict[str, Any]:
    return {"waiting": waiting.ours.total(), "stranded": dict(waiting.read_only + waiting.unknown)}


def _queue_backfill(session: Session, remotes: Remotes, selector: Selector, vouch: bool) -> Backfill:
    """Have the entries that a selector means wait; exits with 1 where it means none."""
    from cachec.remote.backfill import seed

    if not any(remote.address.is_written for remote in remotes.all):
        raise UsageError("every remote is configured with mode=read, where nothing can be sent")
    chosen = [item.entry for item in session.maintainer.find(selector)]
    if not chosen and not selector.is_empty:
        session.fail(
            f"no entry is meant in {session.settings.dir}{session.if_none}; `{to_type('ls')}` lists what there is"
        )
    return seed(remotes, chosen, vouch=vouch)


def _report_unsent(seeded: Backfill) -> None:
    from cachec.remote.backfill import UNSENT_REASONS

    for why, count in seeded.unsent.items():
        first = seeded.first[why]
        entry = f"{first.entry.key[:SHOWN_KEY]} {first.entry.stage}" + (f": {first.detail}" if first.detail else "")
        are = f"{number_of(count, 'entry')} {'is' if count == 1 else 'are'} not sent"
        click.echo(clean(f"{are}, {UNSENT_REASONS[why]} ({entry})"))
