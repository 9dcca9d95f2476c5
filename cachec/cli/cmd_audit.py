"""``cachec audit``: does the key of a command cover what the command does?"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

import click

from cachec.base.texts import number_of
from cachec.cli.cmd_exec import OPTIONS_HELP, AskingLine
from cachec.cli.completing import COMMAND_WORDS
from cachec.cli.session import Session, clean, pass_session, told_as_json

if TYPE_CHECKING:
    from cachec.audit.findings import Audit, Finding

#: Notes that are printed; --json has all.
_SHOWN_NOTES = 12


@click.command(
    "audit",
    cls=AskingLine,
    options_metavar="[OPTIONS] --",
    help=f"""Run COMMAND under strace, and say what it does that its key does not cover.

    Looked for: files that are read, programs that are started and folders that are listed without being in the key;
    files that are written and are no outputs; whether two runs give the same bytes; whether the result changes with the
    bytes of declared weights (by a run on synthetic ones, whose outputs go to a temporary folder); and paths that come
    into an output. What is missing is printed as options of exec, or as an adapter. Nothing is stored.

    {OPTIONS_HELP}
      --json           print one JSON document

    \b
    Examples:
      cachec audit -- iree-compile model.mlir -o model.vmfb --iree-hal-target-backends=llvm-cpu
      cachec audit --input in.txt --output out.bin -- ./mytool in.txt out.bin

    \b
    JSON: {{"command", "stage", "outcome", "detail", "problems": [finding], "notes": [finding],
           "covered": {{path: by what}}, "outputs": [path], "deterministic",
           "weights": [{{"path", "key", "opened", "changes", "words"}}], "options": [word], "adapter", "seconds"}}
    A finding is {{"kind", "path", "words", "fix"}}. outcome is "described", or why exec would let the command pass;
    deterministic and changes are null where that is not known.
    Exit code: 0 the key covers it, 1 there are problems, 2 wrong use, or the command failed.
    """,
)
@click.argument("args", nargs=-1, type=COMMAND_WORDS, metavar="COMMAND...")
@pass_session
def command(session: Session, args: tuple[str, ...]) -> None:
    from cachec.audit.look import audit
    from cachec.audit.runs import CommandEnded

    try:
        result = audit(args, session.overrides)
    except CommandEnded as error:
        click.echo(error.ended.stderr or error.ended.stdout, err=True, nl=False)  # its own words come first
        raise
    if not told_as_json(dataclasses.asdict(result)):
        _print(result, args[: args.index("--")])
    click.get_current_context().exit(1 if result.problems else 0)


def _print(result: Audit, given: tuple[str, ...]) -> None:
    """given: the options that were on the command line."""
    from cachec.audit.advice import command_line

    if result.outcome != "described":
        click.echo(f"{result.stage}: exec would let it pass: {result.outcome}: {clean(result.detail)}")
    counts = Counter("inputs" if words.startswith("input ") else words for words in result.covered.values())
    listed = ", ".join(f"{count} of {name}" for name, count in counts.most_common(6))
    more = f", {len(result.covered)} files in all" if len(counts) > 6 else ""
    click.echo(f"in the key: {clean(listed) or 'nothing that was read'}{more}")
    same = {True: "the same bytes", False: "different bytes", None: "nothing"}[result.deterministic]
    click.echo(
        f"two runs wrote {same} ({result.seconds['traced']:.2f} s under strace, {result.seconds['again']:.2f} s)"
    )
    for each in result.weights:
        changes = {
            True: "the result changes with its bytes",
            False: "the result is the same with other bytes",
            None: f"whether its bytes count is not known: {each.words}",
        }[each.changes]
        opened = "opened" if each.opened else "not opened"
        click.echo(f"weights {clean(each.path)} (={each.key}): {opened}; {clean(changes)}")
    _print_findings("problem", result.problems, len(result.problems))
    _print_findings("note", result.notes, _SHOWN_NOTES)
    if result.options:
        click.echo("\nto have it in the key:\n")
        click.echo(f"  {clean(command_line(result.command, (*given, *result.options)))}")
    if result.adapter:
        click.echo("\nor, in cachec.toml:\n")
        for line in result.adapter.splitlines():
            click.echo(f"  {clean(line)}")
    if not result.problems:
        click.echo("no problems")


def _print_findings(kind: str, findings: tuple[Finding, ...], shown: int) -> None:
    for each in findings[:shown]:
        where = f"{clean(each.path)} " if each.path else ""
        click.echo(f"{kind} [{each.kind}]: {where}{clean(each.words)}")
        if each.fix:
            click.echo(f"  {clean(each.fix)}")
    if len(findings) > shown:
        click.echo(f"and {number_of(len(findings) - shown, f'more {kind}')}; see --json")
