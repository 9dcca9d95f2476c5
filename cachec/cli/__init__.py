"""The command line ``cachec``. Each command is a module of its own, imported when it is asked for.

Exit codes: 0 done, 1 not found, 2 wrong use or an error. With ``--json`` a command prints one JSON document.
"""

from __future__ import annotations

import errno
from importlib import import_module
from typing import Any

import click

from cachec.base import __version__
from cachec.cli.plugin_commands import plugin_commands
from cachec.cli.session import Session
from cachec.errors import CachecError

#: Command -> module, in the order of the help.
_COMMANDS = {
    "exec": "cachec.cli.cmd_exec",
    "check": "cachec.cli.cmd_check",
    "audit": "cachec.cli.cmd_audit",
    "stats": "cachec.cli.cmd_stats",
    "ls": "cachec.cli.cmd_ls",
    "show": "cachec.cli.cmd_show",
    "why": "cachec.cli.cmd_why",
    "invalidate": "cachec.cli.cmd_invalidate",
    "gc": "cachec.cli.cmd_gc",
    "pin": "cachec.cli.cmd_pin",
    "weights": "cachec.cli.cmd_weights",
    "warm": "cachec.cli.cmd_warm",
    "watch": "cachec.cli.cmd_watch",
    "repro": "cachec.cli.cmd_repro",
    "config": "cachec.cli.cmd_config",
    "completion": "cachec.cli.cmd_completion",
}


class _Commands(click.Group):
    """A group that imports a command when it is used, and turns errors of cachec into one line.

    Commands of plugins come after its own; the help names them, and the package of each, without importing any.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _COMMANDS.get(cmd_name)
        if module is None:
            offered = plugin_commands(_COMMANDS).get(cmd_name)
            return None if offered is None else offered.load()
        command: click.Command = import_module(module).command
        return command

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
                import difflib

                close = difflib.get_close_matches(args[0], known, 1)
                hint = f" Did you mean {close[0]}?" if close else ""
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
            click.echo(f"cachec: error: {error}", err=True)
        return ctx.exit(2)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
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
