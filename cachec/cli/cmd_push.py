"""``cachec push``: send what waits for the remotes."""

from __future__ import annotations

from collections import Counter

import click

from cachec import report
from cachec.cli.session import Session, json_option, pass_session, told_as_json
from cachec.errors import UsageError
from cachec.model import Fault


@click.command("push")
@json_option
@pass_session
def command(session: Session) -> None:
    """Send what was compiled here to the remotes that are written.

    A result waits in the store until it is sent, so a remote that is down costs no build anything.

    \b
    Examples:
      CACHEC_REMOTE=https://cache.example/team cachec push
      cachec push --json

    \b
    JSON: {"sent", "known", "gone", "bytes", "waiting", "faults": {fault: count}}
    known ones were there already, gone ones are no longer in the store; waiting ones are tried again by the next push.
    Exit code: 1 where something still waits.
    """
    from cachec.remote.chain import Remotes

    if not session.settings.remote:
        raise UsageError("no remote is configured; set CACHEC_REMOTE (see docs/remote.md)")
    faults: Counter[str] = Counter()
    told: dict[str, str] = {}

    def on_fault(fault: Fault, detail: str) -> None:
        told.setdefault(fault.value, detail)

    remotes = Remotes(session.settings.remote, session.store, on_fault)
    counts = {"sent": 0, "known": 0, "gone": 0, "bytes": 0}
    try:
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
    if not told_as_json({**counts, "waiting": sum(waiting.values()), "faults": dict(faults)}):
        click.echo(
            f"{counts['sent']} sent ({report.size(counts['bytes'])}), {counts['known']} were there, "
            f"{counts['gone']} gone, {sum(waiting.values())} wait"
        )
        for fault, detail in told.items():
            click.echo(f"cachec: {fault}: {detail}", err=True)
    if any(waiting.values()):
        click.get_current_context().exit(1)
