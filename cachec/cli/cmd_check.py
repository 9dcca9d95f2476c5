"""``cachec check``: would a command line hit?"""

from __future__ import annotations

import click

from cachec import report
from cachec.cli.cmd_exec import OPTIONS_HELP, AskingLine
from cachec.cli.completion import COMMAND_WORDS
from cachec.cli.session import Session, clean, pass_session, print_as_json


@click.command(
    "check",
    cls=AskingLine,
    options_metavar="[OPTIONS] --",
    help=f"""Say whether COMMAND would be a hit, without running it. Nothing is stored or counted.

    The store is asked, and no remote: what one has is a hit for `cachec exec`, and said here to be a miss.

    {OPTIONS_HELP}
      --json           print one JSON document

    \b
    Examples:
      cachec check -- iree-compile model.mlir -o model.vmfb
      cachec check --json --strip -- iree-compile model.mlir -o model.vmfb

    \b
    JSON: {{"outcome": "hit", "miss:<reason>" or "bypass:<reason>", "stage", "key", "detail"}}
    Exit code: 0 a hit, 1 not one, 2 wrong use or an error.
    """,
)
@click.argument("args", nargs=-1, type=COMMAND_WORDS, metavar="COMMAND...")
@pass_session
def command(session: Session, args: tuple[str, ...]) -> None:
    from cachec.launcher.explain import explain

    outcome = explain(list(args), session.overrides).outcome
    if not print_as_json(report.outcome_details(outcome)):
        detail = f": {clean(outcome.detail)}" if outcome.detail else ""
        click.echo(f"{outcome.reason.value}{detail}")
    click.get_current_context().exit(0 if outcome.hit else 1)
