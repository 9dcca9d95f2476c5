"""``cachec python``: a program whose frameworks are cached, unchanged. Alone on the line it takes a shorter path (see
``__main__``)."""

from __future__ import annotations

import os
import sys

import click

from cachec.cli.completion import COMMAND_WORDS
from cachec.cli.session import Session, pass_session
from cachec.errors import UsageError


class _PythonLine(click.Command):
    """A command with Python's arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep everything; a ``--help`` in the first place asks for help."""
        if args[:1] in (["-h"], ["--help"]):
            return super().parse_args(ctx, args)
        ctx.params["args"] = tuple(args)
        return []


@click.command("python", cls=_PythonLine, options_metavar="")
@click.argument("args", nargs=-1, type=COMMAND_WORDS, metavar="[ARGUMENTS]...")
@pass_session
def command(session: Session, args: tuple[str, ...]) -> None:
    """Run Python with these arguments; what JAX and torch compile in it is stored, without a change of code.

    It is the Python that runs cachec, with CACHEC_INSTALL=jax,torch, so processes that the program starts are cached,
    too. The plugin of a framework is installed when the program imports it. A line at the end counts hits and misses.

    \b
    Examples:
      cachec python train.py --epochs 3
      cachec python -m pytest
      CACHEC_INSTALL=jax cachec python train.py       JAX alone
      CACHEC_INSTALL=torch torchrun train.py          the same without this command

    Exit code: that of Python; 2 where cachec-startup.pth, which pip installs, is missing.
    """
    from cachec_startup.command import become_python, has_startup_file, startup_folders

    if not has_startup_file():
        raise UsageError(
            f"{sys.executable} has no cachec-startup.pth, by which cachec starts in a program; expected it in one of "
            f"{', '.join(startup_folders())}. Install cachec there, by pip without --target; or call "
            "cachec_jax.install() or cachec_torch.install() in the program, and run it without `cachec python`"
        )
    if "dir" in session.overrides:
        os.environ["CACHEC_DIR"] = str(session.overrides["dir"])
    become_python(list(args))
