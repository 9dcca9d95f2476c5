"""``cachec exec``: a compiler behind the cache. Alone on the line it takes a shorter road (see ``__main__``)."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from cachec.cli.completion import COMMAND_WORDS, LINE_OPTIONS
from cachec.cli.session import Session, keep_json, pass_session


class CommandLine(click.Command):
    """A command that takes its arguments as they are: click would take out ``--``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep everything, except that ``--help`` before ``--`` asks for help."""
        own = args[: args.index("--")] if "--" in args else args
        if {"-h", "--help"} & set(own):
            return super().parse_args(ctx, ["--help"])
        ctx.params["args"] = tuple(args)
        return []

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Options, which click does not know."""
        return COMMAND_WORDS.shell_complete(ctx, self.params[-1], incomplete)


class AskingLine(CommandLine):
    """The same, for questions about a command line: a ``--json`` before ``--`` is theirs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep everything but that."""
        rest = super().parse_args(ctx, args)
        given: tuple[str, ...] = ctx.params.get("args", ())
        end = given.index("--") if "--" in given else len(given)
        own = tuple(arg for arg in given[:end] if arg != "--json")
        ctx.params["args"] = own + given[end:]
        keep_json(ctx, None, len(own) != end)
        return rest


def _line(name: str, metavar: str, words: str) -> str:
    heading = f"  {name} {metavar}".rstrip()
    return f"    {heading:<19}{words}" if len(heading) < 19 else f"    {heading}\n    {'':19}{words}"


#: Help for the options that ``exec``, ``check`` and ``why`` share.
OPTIONS_HELP = "\n".join(["\b", "    Options:", *(_line(name, *each) for name, each in LINE_OPTIONS.items())])


@click.command(
    "exec",
    cls=CommandLine,
    options_metavar="[OPTIONS] --",
    help=f"""Run a command, or hand out what it wrote before for the same inputs.

    A tracer sees which files COMMAND looks up and writes. What it writes below the current folder, or where an argument
    points, is its result. A command that does more (removes files, uses the network) runs, and is not stored.

    {OPTIONS_HELP}

    \b
    Examples:
      cachec exec -- iree-compile model.mlir -o model.vmfb --iree-hal-target-backends=llvm-cpu
      cachec exec -- clang -c a.c -o a.o
      cachec exec --outputs '*.log' -- python3 generate.py

    Exit code: that of COMMAND; 2 for wrong use of cachec; 127 where COMMAND is not there.
    """,
)
@click.argument("args", nargs=-1, type=COMMAND_WORDS, metavar="COMMAND...")
@pass_session
def command(session: Session, args: tuple[str, ...]) -> None:
    from cachec.launcher.execute import main

    click.get_current_context().exit(main(args, session.overrides))
