"""The command line ``cachec``. Each command is a module of its own, imported when it is asked for.

Exit codes: 0 done, 1 not found, 2 wrong use or an error. With ``--json`` a command prints one JSON document.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import click

from cachec.base import __version__
from cachec.base.display_text import naming_options, nearest
from cachec.base.lazy import later
from cachec.cli.help_layout import with_help
from cachec.cli.session import LazyGroup, Session
from cachec.errors import CachecError

if TYPE_CHECKING:  # for the help, and for what is no command of ours
    from cachec.cli import plugin_commands as plugins
else:
    plugins = later("cachec.cli.plugin_commands")

#: Command -> what it does, in the order of the help, which imports none of them.
_COMMANDS = {
    "exec": "Run a command, or hand out what it wrote before.",
    "python": "Run a Python program with the plugins of JAX and torch installed.",
    "check": "Say whether a command would be a hit, without running it.",
    "stats": "How often the cache answered, why not, and what it saved.",
    "log": "The calls one by one, as they end, and as a trace.",
    "top": "What compiles now, for how long, and who waits.",
    "report": "Write a page for a browser: what hit, missed and why.",
    "ls": "List entries, newest first.",
    "show": "Show an entry, or which stage and key a file came from.",
    "why": "Say what makes a key, or a command's, another one.",
    "invalidate": "Forget entries, so that their next call misses.",
    "gc": "Evict what is worth least, and sweep what nothing needs.",
    "pin": "Keep entries: neither gc nor invalidate takes them.",
    "weights": "Keep, look at, compare and write weights.",
    "bundle": "Entries, artifacts and weights as one file, and back.",
    "warm": "Compile the declared targets that would miss.",
    "watch": "Watch declared targets: what does a change make stale?",
    "doctor": "What is wrong with the store or this machine?",
    "verify": "Is what is stored what it should be?",
    "repro": "Make a reproducer of a run, or run one again.",
    "remote": "List the stores that machines share, or try one.",
    "push": "Send what was compiled here to the remotes.",
    "server": "List the processes that exec leaves behind, or stop them.",
    "init": "Write a commented cachec.toml for what is found here.",
    "config": "Print each setting and where it comes from.",
    "man": "Write the pages of the manual.",
    "completion": "Print the script that completes commands in a shell.",
}


class _Main(LazyGroup):
    """Turns errors of cachec into one line.

    Commands of plugins come after its own; the help names them, and the package of each, without importing any.
    """

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        offered = None if cmd_name in _COMMANDS else plugins.plugin_commands(_COMMANDS).get(cmd_name)
        return super().get_command(ctx, cmd_name) if offered is None else with_help(offered.load())

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([*_COMMANDS.items()])
        offered = plugins.plugin_commands(_COMMANDS)
        if offered:
            with formatter.section("Commands of plugins"):
                formatter.write_dl([(each.name, f"From the package {each.package}.") for each in offered.values()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            known = [*_COMMANDS, *plugins.plugin_commands(_COMMANDS)]
            if args[0] not in known:
                close = nearest(args[0], known)
                hint = f" Did you mean {close}?" if close else ""
                ctx.fail(f"no command {args[0]!r}.{hint} The commands are {', '.join(known)}.")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with naming_options(ctx.params.get("folder")):
                return super().invoke(ctx)
        except click.NoSuchOption as error:
            if error.option_name != "--dir":
                raise
            raise click.UsageError("--dir goes before the command: cachec --dir DIR COMMAND", error.ctx) from error
        except CachecError as error:
            click.echo(f"cachec: error: {error}", err=True)
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of our output has gone; click ends quietly
                raise
            words = f"{error.filename!r}: {error.strerror}" if error.filename and error.strerror else error
            click.echo(f"cachec: error: {words}", err=True)
        return ctx.exit(2)


@click.group(
    cls=_Main,
    homes={name: f"cachec.cli.cmd_{name}:command" for name in _COMMANDS},
    context_settings={"help_option_names": ["-h", "--help"]},
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
