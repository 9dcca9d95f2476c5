"""``cachec remote``: the stores that machines share, and whether one can be used."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from cachec.cli.session import Session, clean, json_option, pass_session, print_as_json, print_table, print_wrapped
from cachec.errors import UsageError
from cachec.events import duration

if TYPE_CHECKING:  # the help does without
    from cachec.remote.chain import Pending


@click.group("remote", invoke_without_command=True)
@json_option
@pass_session
def command(session: Session) -> None:
    """List the remotes: is each used, does it answer, what waits for it.

    \b
    Examples:
      cachec remote
      cachec remote check https://cache.example/team

    \b
    JSON: {"remotes": [{"url", "mode", "namespace", "state", "detail", "seconds", "waiting", "refused"}]}
    state is "ok", "off" (left alone for a minute after faults) or the fault of a question, of which detail says more;
    seconds is how long that took, or null. waiting: results that `cachec push` would send; refused: why the last that
    was sent was not taken, or empty.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    from cachec.remote.chain import ProbeReply, Remotes

    remotes = Remotes(session.settings.remote, session.store, lambda _fault, _detail: None)
    waiting = remotes.pending()
    rows: list[dict[str, Any]] = []
    for remote in remotes.all:
        address = remote.address
        reply = ProbeReply("off", None, "it is left alone for a minute") if remote.breaker.is_off() else remote.probe()
        rows.append(
            {
                "url": address.shown,
                "mode": address.mode,
                "namespace": address.namespace,
                "state": reply.state,
                "detail": reply.detail,
                "seconds": reply.seconds,
                "waiting": waiting.ours[address.name],
                "refused": remotes.spool.last_refusal(address.name) if waiting.ours[address.name] else "",
            }
        )
    remotes.close()
    if print_as_json({"remotes": rows}):
        return
    if not rows:
        click.echo("no remote is configured (CACHEC_REMOTE)")
        _tell_stranded(waiting)
        return
    columns = ("remote", "mode", "namespace", "state", "answers in", "waiting")
    shown = [("-" if row["seconds"] is None else duration(row["seconds"])) for row in rows]
    cells = [
        (row["url"], row["mode"], row["namespace"], row["state"], took, str(row["waiting"]))
        for row, took in zip(rows, shown, strict=True)
    ]
    print_table(columns, cells, right=("answers in", "waiting"))
    for row in rows:
        if row["detail"]:
            print_wrapped(clean(f"{row['url']}: {row['detail']}"), indent=0)
        if row["refused"]:
            print_wrapped(clean(f"{row['url']}: {row['waiting']} wait, last refused: {row['refused']}"), indent=0)
    _tell_stranded(waiting)


def _tell_stranded(waiting: Pending) -> None:
    for words in waiting.list_blocked():
        click.echo(clean(words))


@command.command("keygen")
@click.argument("name")
@click.option(
    "-o", "--output", "path", metavar="FILE", help="Write the secret key to FILE, the public one to FILE.pub."
)
@json_option
@pass_session
def keygen(session: Session, name: str, path: str | None) -> None:
    """Make a key that results and bundles are signed with. Without -o keep what is printed: nothing is written.

    \b
    Examples:
      cachec remote keygen ci-main-1
      cachec remote keygen release-1 -o release.key

    \b
    JSON: {"secret", "public", "path"}
    secret is empty where it was written to path, which is null where nothing was. No file is ever replaced.
    """
    from cachec.remote.keys import keypair

    del session
    pair = keypair(name)
    if path is not None:
        _write(path, pair.secret, 0o600)
        _write(f"{path}.pub", pair.public, 0o644)
    if print_as_json({"secret": "" if path else pair.secret, "public": pair.public, "path": path}):
        return
    if path is None:
        click.echo(f"who signs, as a secret:  CACHEC_REMOTE_KEY={pair.secret}")
    else:
        click.echo(f"who signs, as a secret:  {path}")
    click.echo(f"who reads, in the URL:   trust={pair.public}")


def _write(path: str, key: str, mode: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "w") as file:
        file.write(f"{key}\n")


@command.command("check")
@click.argument("urls", metavar="[URL...]", nargs=-1)
@json_option
@pass_session
def check(session: Session, urls: tuple[str, ...]) -> None:
    """Write, read and remove a probe: what can be done with a remote, and what it can't do. Without URL: with
    those that are configured.

    A folder that is not there is made, in one that is.

    \b
    Examples:
      cachec remote check
      cachec remote check file:///mnt/team-cache
      cachec remote check "http://cache.example:8080?layout=bazel"

    \b
    JSON: {"url", "ok", "steps": [{"step", "result", "seconds"}], "hint"}, or {"remotes": [of these]} unless one URL is
    given. result is "ok", "no" for what is of use and not needed, or a fault. Exit code: 1 where one can't be used.
    """
    from cachec.remote.probe import probe

    if not (urls or session.settings.remote):
        raise UsageError("no remote is configured; give a URL, or set CACHEC_REMOTE (see docs/reference/remotes.md)")
    probed = [probe(url, session.settings.namespace) for url in urls or session.settings.remote]
    documents = [
        {
            "url": each.url,
            "ok": each.is_usable,
            "steps": [{"step": step.what, "result": step.result, "seconds": step.seconds} for step in each.steps],
            "hint": each.hint,
        }
        for each in probed
    ]
    if not print_as_json(documents[0] if len(urls) == 1 else {"remotes": documents}):
        for number, each in enumerate(probed):
            rows = [(step.what, step.result, duration(step.seconds)) for step in each.steps]
            click.echo("\n" * bool(number), nl=False)
            print_table(("step", "result", "took"), rows, right=("took",))
            click.echo(f"\n{each.url} {'can be used' if each.is_usable else 'can not be used as it is'}")
            if each.hint:
                print_wrapped(each.hint, indent=0)
    if not all(each.is_usable for each in probed):
        click.get_current_context().exit(1)
