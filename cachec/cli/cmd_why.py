"""``cachec why``: what makes two keys different."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from cachec import report
from cachec.base.display_text import SHOWN_KEY, number_of, to_type
from cachec.cli.cmd_exec import AskingLine
from cachec.cli.session import Session, clean, json_option, pass_session, print_as_json, print_command, print_wrapped
from cachec.errors import CachecError
from cachec.key.key_diff import differences
from cachec.model import Entry, Part, Reason

#: Reasons of a build that a person is shown.
_SHOWN_GROUPS = 20

#: The key of the parsed command line in click's context.
_LINE = "cachec.command_line"


class _KeysOrCommandLine(AskingLine):
    """``why KEY [OTHER]``, or ``why [OPTIONS] -- COMMAND...``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """With ``--`` the arguments are a command line, and stay as they are."""
        if "--" not in args:
            return click.Command.parse_args(self, ctx, args)
        rest = super().parse_args(ctx, args)
        ctx.meta[_LINE] = list(ctx.params.pop("args"))
        ctx.params.update(key=None, other=None, is_all=False, since=None, file=None)
        return rest


@click.command("why", cls=_KeysOrCommandLine)
@click.argument("key", metavar="KEY", required=False)
@click.argument("other", metavar="[OTHER]", required=False)
@click.option("--all", "is_all", is_flag=True, help="Why the calls of the last build were no hits, the slowest first.")
@click.option("--since", metavar="WHEN", help="With --all, of all builds since then: 30m, 24h, or a date.")
@click.option("--stats-file", "file", metavar="FILE", help="With --all, of the build that wrote this one.")
@json_option
@pass_session
def command(
    session: Session, key: str | None, other: str | None, is_all: bool, since: str | None, file: str | None
) -> None:
    """Say what makes KEY another key than OTHER, or than the nearest entry of its stage.

    With -- COMMAND... (and the options of `cachec exec` before it): what `cachec exec` would do, without running it; if
    it would miss, what differs from the nearest entry, and what to do about it where that is known. The store is asked,
    and no remote.

    With --all: the reasons of the calls of the last build that were no hits, equal ones together, those that cost most
    first. A build is what had no minute without a call in it; --since and --stats-file say otherwise.

    Every differing part is named: code, tools, options, the environment; programs by the operations that differ,
    weights by their specs. "old -> new" reads from the other entry to KEY.

    \b
    Examples:
      cachec why 3fa9c2
      cachec why 3fa9c2 81be07 --json
      cachec why -- iree-compile model.mlir -o model.vmfb
      cachec why --all
      cachec why --all --since 24h --json

    \b
    JSON: {"key", "stage", "other": {"key", "stage", "chosen": "nearest" or "given"}, "reason": the first one's or null,
           "differences": [{"part", "reason", "old", "new", "words"}]}
    old and new are null where the part is absent. Exit code 1: no such entry, or none to compare with.
    JSON of a command line: {"outcome", "stage", "key", "detail", "other": null or as above, "differences", "fix"};
    exit code 0: it would be a hit, 1: it would not.
    JSON of --all: {"began", "ended": Unix times, counts as of `cachec stats`, "groups": [{"reason", "detail": of the
    call that took longest, "calls", "seconds": of all of them, "stages": [name], "keys": [key]}]}
    """
    line = click.get_current_context().meta.get(_LINE)
    if line is not None:
        _why_command(session, line)
        return
    if is_all:
        if key is not None:
            raise click.UsageError("--all is about a build; give no KEY with it")
        _why_build(session, since, file)
        return
    if key is None:
        raise click.UsageError(f"give a KEY (`{to_type('ls')}` lists them), -- and a COMMAND, or --all")
    if since is not None or file is not None:
        raise click.UsageError("--since and --stats-file go with --all")
    entry = session.entry(key)
    mine = session.parts(entry)
    chosen: Entry | None = None if other is None else session.entry(other)
    near: tuple[str, Sequence[Part]] | None
    if chosen is None:
        near = None if mine is None else _nearest(session, entry, mine)
    else:
        theirs = session.parts(chosen)
        near = None if theirs is None else (chosen.key, theirs)
    if mine is None or (chosen is not None and near is None):
        raise CachecError("the parts of a key can't be read, so the keys can't be compared")
    if near is None:
        session.fail(f"no other entry is like {entry.key[:SHOWN_KEY]} of stage {entry.stage}: what it is of is new")
    differing = differences(near[1], mine, session.store.content)
    other_stage = entry.stage if chosen is None else chosen.stage
    details = report.why_details(entry, (near[0], other_stage), "nearest" if chosen is None else "given", differing)
    if print_as_json(details):
        return
    both = [f"{key[:SHOWN_KEY]} ({stage})" for key, stage in ((entry.key, entry.stage), (near[0], other_stage))]
    print_wrapped(f"{both[0]} against {both[1]}:", indent=0)
    for each in details["differences"]:
        kind = each["reason"].partition(":")[2]
        print_wrapped(f"{kind}: {each['words']}", indent=2)
    if not differing:
        click.echo("  no part differs")


def _why_build(session: Session, since: str | None, file: str | None) -> None:
    """The reasons of a build, for a person or as JSON."""
    from cachec.cli.cmd_stats import parse_since
    from cachec.events import read_log, read_outcomes

    start = None if since is None else parse_since(since, time.time())
    log = read_log(session.settings.dir, start) if file is None else read_outcomes(file, start)
    build = report.last_build(log) if since is None and file is None else list(log)
    details = report.build_details(build)
    if print_as_json(details):
        return
    if not build:
        click.echo(f"no calls are recorded in {clean(file or f'{session.settings.dir}{session.if_none}')}")
        return
    what = "the last build" if since is None and file is None else clean(f"since {since}" if since else str(file))
    times = f"{report.period(details['seconds_spent'])} spent, ended {report.age(details['ended'], time.time())}"
    print_wrapped(
        f"{what}: {number_of(details['calls'], 'call')}, {number_of(details['hits'], 'hit')}, {times}", indent=0
    )
    click.echo(
        f"{number_of(details['misses'], 'miss')}: {', '.join(f'{details[each]} {each}' for each in report.CAUSES)}"
    )
    for group in details["groups"][:_SHOWN_GROUPS]:
        kind = group["reason"].removeprefix("miss:")
        stages = ", ".join(group["stages"][:3]) + (", ..." if len(group["stages"]) > 3 else "")
        head = f"{report.period(group['seconds']):>9} {group['calls']:>5} x {kind}"
        click.echo()
        print_wrapped(f"{head}  {stages}", indent=0)
        if group["detail"]:
            others = group["calls"] - 1 if Reason(group["reason"]).cause == "new" else 0
            print_wrapped(group["detail"] + (f" (and {others} more)" if others else ""), indent=18)
        if group["keys"] and group["reason"].startswith("miss:"):
            print_command(f"why {group['keys'][0][:SHOWN_KEY]}", indent=18)
    rest = details["groups"][_SHOWN_GROUPS:]
    if rest:
        calls, seconds = sum(each["calls"] for each in rest), sum(each["seconds"] for each in rest)
        click.echo(f"{report.period(seconds):>9} {calls:>5} x {number_of(len(rest), 'more reason')}; --json has all")


def _why_command(session: Session, line: list[str]) -> None:
    from cachec.launcher.explain import explain

    explanation = explain(line, session.overrides)
    outcome = explanation.outcome
    other = {"key": explanation.nearest, "stage": outcome.stage, "chosen": "nearest"} if explanation.nearest else None
    differing = [report.difference_details(each) for each in explanation.differences]
    document = {**report.outcome_details(outcome), "other": other, "differences": differing, "fix": explanation.fix}
    if not print_as_json(document):
        detail = f": {outcome.detail}" if outcome.detail and not explanation.differences else ""
        print_wrapped(f"{outcome.reason.value} ({outcome.stage}){detail}", indent=0)
        if explanation.nearest:
            nothing = "" if explanation.differences else " nothing differs"
            click.echo(f"against {explanation.nearest[:SHOWN_KEY]}:{nothing}")
        for each in explanation.differences:
            print_wrapped(f"{each.reason.value.partition(':')[2]}: {each.words}", indent=2)
        if explanation.fix:
            print_wrapped(f"fix: {explanation.fix}", indent=0)
    click.get_current_context().exit(0 if outcome.hit else 1)


def _nearest(session: Session, entry: Entry, parts: Sequence[Part]) -> tuple[str, Sequence[Part]] | None:
    """The key of the same stage that is most like this one, the newest of equals, with its parts."""
    found = session.store.neighbours(entry.stage, parts)
    return session.store.nearest(near for near in found.nearest if near.key != entry.key)
