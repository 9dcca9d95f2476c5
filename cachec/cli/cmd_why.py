"""``cachec why``: what makes two keys different."""

from __future__ import annotations

import click

from cachec import report
from cachec.base.texts import SHOWN_KEY
from cachec.cli.cmd_exec import AskingLine
from cachec.cli.session import Session, clean, json_option, pass_session, told_as_json
from cachec.errors import CachecError
from cachec.key.compare import differences, nearest
from cachec.model import Entry

#: Where the parsed command line is kept in click's context.
_LINE = "cachec.command_line"


class _KeysOrCommandLine(AskingLine):
    """``why KEY [OTHER]``, or ``why [OPTIONS] -- COMMAND...``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """With ``--`` it is a command line, and kept as it is."""
        if "--" not in args:
            return click.Command.parse_args(self, ctx, args)
        rest = super().parse_args(ctx, args)
        ctx.meta[_LINE] = list(ctx.params.pop("args"))
        ctx.params.update(key="", other=None)
        return rest


@click.command("why", cls=_KeysOrCommandLine)
@click.argument("key", metavar="KEY")
@click.argument("other", metavar="[OTHER]", required=False)
@json_option
@pass_session
def command(session: Session, key: str, other: str | None) -> None:
    """Say what makes KEY another key than OTHER, or than the nearest entry of its stage.

    With -- COMMAND... (and the options of `cachec exec` before it): what `cachec exec` would do, without running it; if
    it would miss, what differs from the nearest entry, and what to do about it where that is known.

    Every differing part is named: code, tools, options, the environment; programs by the operations that differ,
    weights by their specs. "old -> new" reads from the other entry to KEY.

    \b
    Examples:
      cachec why 3fa9c2
      cachec why 3fa9c2 81be07 --json
      cachec why -- iree-compile model.mlir -o model.vmfb

    \b
    JSON: {"key", "stage", "other": {"key", "stage", "chosen": "nearest" or "given"}, "reason": the first one's or null,
           "differences": [{"part", "reason", "old", "new", "words"}]}
    old and new are null where the part is absent. Exit code 1: no such entry, or none to compare with.
    JSON of a command line: {"outcome", "stage", "key", "detail", "other": null or as above, "differences", "fix"};
    exit code 0: it would be a hit, 1: it would not.
    """
    line = click.get_current_context().meta.get(_LINE)
    if line is not None:
        _why_command(session, line)
        return
    entry = session.entry(key)
    mine = session.parts(entry)
    if other is not None:
        chosen: Entry | None = session.entry(other)
    else:
        chosen = _nearest(session, entry)
    if chosen is None:
        session.fail(f"{entry.key[:SHOWN_KEY]} is the only entry of stage {entry.stage}")
    theirs = session.parts(chosen)
    if mine is None or theirs is None:
        raise CachecError("the parts of a key can't be read, so the keys can't be compared")
    differing = differences(theirs, mine, session.store.content)
    details = report.why_details(entry, chosen, "given" if other is not None else "nearest", differing)
    if told_as_json(details):
        return
    short = chosen.key[:SHOWN_KEY]
    click.echo(f"{entry.key[:SHOWN_KEY]} ({clean(entry.stage)}) against {short} ({clean(chosen.stage)}):")
    for each in details["differences"]:
        kind = each["reason"].partition(":")[2]
        click.echo(f"  {kind}: {clean(each['words'])}")
    if not differing:
        click.echo("  no part differs")


def _why_command(session: Session, line: list[str]) -> None:
    from cachec.launcher.explain import explain

    explanation = explain(line, session.overrides)
    outcome = explanation.outcome
    other = {"key": explanation.nearest, "stage": outcome.stage, "chosen": "nearest"} if explanation.nearest else None
    differing = [report.difference_details(each) for each in explanation.differences]
    document = {**report.outcome_details(outcome), "other": other, "differences": differing, "fix": explanation.fix}
    if not told_as_json(document):
        detail = f": {clean(outcome.detail)}" if outcome.detail and not explanation.differences else ""
        click.echo(f"{outcome.reason.value} ({clean(outcome.stage)}){detail}")
        if explanation.nearest:
            click.echo(f"against {explanation.nearest[:SHOWN_KEY]}:")
        for each in explanation.differences:
            click.echo(f"  {each.reason.value.partition(':')[2]}: {clean(each.words)}")
        if explanation.fix:
            click.echo(f"fix: {clean(explanation.fix)}")
    click.get_current_context().exit(0 if outcome.hit else 1)


def _nearest(session: Session, entry: Entry) -> Entry | None:
    """The entry of the same stage that shares most parts, the newest of equals; entries without parts are left out."""
    mine = session.parts(entry)
    others = {each.key: each for each in session.entries() if each.stage == entry.stage and each.key != entry.key}
    candidates = [(key, parts) for key, each in others.items() if (parts := session.parts(each)) is not None]
    other = nearest(candidates, mine or ())
    return None if other is None else others[other[0]]
