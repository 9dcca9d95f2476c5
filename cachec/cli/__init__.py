"""The command line ``cachec``. Each command is a module of its own, imported when it is asked for.

Exit codes: 0 done, 1 not found, 2 wrong use or an error. With ``--json`` a command prints one JSON document.
"""

from __future__ import annotations

import errno
from typing import Any

import click

from cachec.base import __version__
from cachec.base.texts import nearest
from cachec.cli.plugin_commands import plugin_commands
from cachec.cli.session import LazyGroup, Session
from cachec.errors import CachecError

#: Command -> where it is, in the order of the help.
_COMMANDS = {
    "exec": "cachec.cli.cmd_exec:command",
    "check": "cachec.cli.cmd_check:command",
    "audit": "cachec.cli.cmd_audit:command",
    "stats": "cachec.cli.cmd_stats:command",
    "ls": "cachec.cli.cmd_ls:command",
    "show": "cachec.cli.cmd_show:command",
    "why": "cachec.cli.cmd_why:command",
    "invalidate": "cachec.cli.cmd_invalidate:command",
    "gc": "cachec.cli.cmd_gc:command",
    "pin": "cachec.cli.cmd_pin:command",
    "weights": "cachec.cli.cmd_weights:command",
    "warm": "cachec.cli.cmd_warm:command",
    "watch": "cachec.cli.cmd_watch:command",
    "repro": "cachec.cli.cmd_repro:command",
    "config": "cachec.cli.cmd_config:command",
    "completion": "cachec.cli.cmd_completion:command",
}


class _Main(LazyGroup):
    """Turns errors of cachec into one line.

    Commands of plugins come after its own; the help names them, and the package of each, without importing any.
    """

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        offered = None if cmd_name in _COMMANDS else plugin_commands(_COMMANDS).get(cmd_name)
        return super().get_command(ctx, cmd_name) if offered is None else offered.load()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_commands(ctx, formatter)
        offered = plugin_commands(_COMMANDS)
        if offered:
            with formatter.section("Commands of plugins"):
                formatter.write_dl([(each.name, f"From the package {each.package}.") for each in offered.values()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            known = [*_COMMANDS, *plugin_commands(_COMMANDS)]
            if args[0] not in known:
                close = nearest(args[0], known)
                hint = f" Did you mean {close}?" if close else ""
                ctx.fail(f"no command {args[0]!r}.{hint} The commands are {', '.join(known)}.")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CachecError as error:
            click.echo(f"cachec: error: {error}", err=True)
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of our output has gone; click ends quietly
                raise
            words = f"{error.filename!r}: {error.strerror}" if error.filename and error.strerror else error
            click.echo(f"cachec: error: {words}", err=True)
        return ctx.exit(2)


@click.group(
    cls=_Main, homes=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, prog_name="cachec")
@click.option("--dir", "folder", metavar="DIR", help="The store; wins over CACHEC_DIR and the configuration file.")
@click.pass_context
def main(ctx: click.Context, folder: str | None) -> None:
    """Look into a compilation cache: what hit, what missed and why, and where a file came from.

    \b
    Examples:
      cachec stats                    how often the cache answered, and why not
      cachec ls                       the entries, newest first
      cachec show model.vmfb          which stage made this file
      cachec why 3fa9c2               what is different from the nearest entry
      cachec --dir /tmp/other config  the settings in force

    Exit codes: 0 done, 1 not found, 2 wrong use or an error. A KEY may be cut to its first 6 characters or more.
    """
    ctx.obj = Session({} if folder is None else {"dir": folder})
    ctx.call_on_close(ctx.obj.close)
