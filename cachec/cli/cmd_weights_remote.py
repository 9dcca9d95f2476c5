"""``cachec weights push`` and ``pull``: owned weights to the remotes, and from them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from cachec import report
from cachec.cli import weight_sources as sources
from cachec.cli.meter import Meter, throughput
from cachec.cli.session import Session, json_option, pass_session, print_as_json
from cachec.cli.weight_sources import SHOWN_REVISION, say
from cachec.errors import UsageError

if TYPE_CHECKING:
    from cachec.remote.chain import Remote
    from cachec.remote.revisions import TransferCount


@click.command("push")
@click.argument("name")
@click.option("--as", "to", metavar="NAME", help="The name there; by default the same.")
@click.option("--replace", is_flag=True, help="Let a name that is taken there stand for these from now on.")
@json_option
@pass_session
def push(session: Session, name: str, to: str | None, replace: bool) -> None:
    """Send owned weights to the remotes that are written: each tensor that they do not have, and the name.

    What broke off goes on where it was.

    \b
    Examples:
      CACHEC_REMOTE=s3://bucket/cache cachec weights push tuned
      cachec weights push tuned --as team/tuned --json

    \b
    JSON: {"name", "remotes": [{"url", "revision", "tensors", "size", "sent", "bytes", "seconds"}]}
    tensors and size: of the revision, each content once; sent and bytes: what was not there. Exit code 1: no such name.
    """
    from cachec.remote.revisions import RemoteWeights

    store = sources.weight_store(session)
    revision = sources.find_revision(session, store, name)
    there = to or revision.name
    rows, lines = [], []
    with _remotes(session, written=True) as remotes:
        for remote in remotes:
            started = time.monotonic()
            with Meter(f"push {name}") as meter:
                moved = RemoteWeights(remote, store).push(revision, there, replace=replace, progress=meter)
            rows.append(_row(remote, moved, "sent", time.monotonic() - started))
            lines.append(f"pushed {there} to {remote.address.shown}: {_words(moved, 'sent', rows[-1])}")
    if not print_as_json({"name": there, "remotes": rows}):
        for line in lines:
            say(line)


@click.command("pull")
@click.argument("name")
@click.option("--as", "to", metavar="NAME", help="The name here; by default the same.")
@click.option("--replace", is_flag=True, help="Let a name that is taken here stand for these from now on.")
@json_option
@pass_session
def pull(session: Session, name: str, to: str | None, replace: bool) -> None:
    """Fetch weights from the first remote that has NAME: each tensor that the store does not have. They are owned.

    What broke off goes on where it was. Everything that comes is checked before the name stands for it.

    \b
    Examples:
      CACHEC_REMOTE=s3://bucket/cache cachec weights pull tuned
      cachec weights pull team/tuned --as tuned --json

    \b
    JSON: {"name", "remotes": [{"url", "revision", "tensors", "size", "fetched", "bytes", "seconds"}]}
    tensors and size: of the revision, each content once; fetched and bytes: what was not here. Exit code 1: no such
    name.
    """
    from cachec.remote.revisions import RemoteWeights

    store = sources.weight_store(session)
    here = to or name
    with _remotes(session, written=False) as remotes:
        for remote in remotes:
            started = time.monotonic()
            with Meter(f"pull {name}") as meter:
                moved = RemoteWeights(remote, store).pull(name, here, replace=replace, progress=meter)
            if moved is None:
                continue
            row = _row(remote, moved, "fetched", time.monotonic() - started)
            if not print_as_json({"name": here, "remotes": [row]}):
                say(f"pulled {here} from {remote.address.shown}: {_words(moved, 'fetched', row)}")
            return
        session.fail(f"no weights are named {name!r} at {', '.join(remote.address.shown for remote in remotes)}")


@contextmanager
def _remotes(session: Session, *, written: bool) -> Iterator[list[Remote]]:
    """The remotes that are written, or read. Raises UsageError where there are none."""
    from cachec.remote.chain import Remotes

    chain = Remotes(session.settings.remote, session.store, lambda _fault, _detail: None)
    try:
        chosen = [each for each in chain.all if (each.address.is_written if written else each.address.is_read)]
        if not chosen:
            how = "written" if written else "read"
            others = ", ".join(f"{each.address.shown} (mode={each.address.mode})" for each in chain.all)
            found = f"those that are configured are not: {others}" if others else "none is configured"
            raise UsageError(f"no remote is {how}: {found}; set CACHEC_REMOTE (see docs/reference/remotes.md#weights)")
        yield chosen
    finally:
        chain.close()


def _row(remote: Remote, moved: TransferCount, how: str, seconds: float) -> dict[str, object]:
    return {
        "url": remote.address.shown,
        "revision": moved.revision,
        "tensors": moved.tensors,
        "size": moved.nbytes,
        how: moved.moved,
        "bytes": moved.moved_nbytes,
        "seconds": seconds,
    }


def _words(moved: TransferCount, how: str, row: dict[str, object]) -> str:
    rate = throughput(moved.moved_nbytes, float(str(row["seconds"])))
    return (
        f"{moved.tensors} tensors, {report.size(moved.nbytes)}; {moved.moved} {how} "
        f"({report.size(moved.moved_nbytes)}, {rate}); revision {moved.revision[:SHOWN_REVISION]}"
    )
