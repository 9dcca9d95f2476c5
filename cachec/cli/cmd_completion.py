"""``cachec completion``: what a shell needs to complete command lines of cachec."""

from __future__ import annotations

import click

#: Where each shell reads it, and the line to write there.
_HOW = {
    "bash": 'in ~/.bashrc:  eval "$(cachec completion bash)"',
    "zsh": 'in ~/.zshrc:  eval "$(cachec completion zsh)"',
    "fish": "once:  cachec completion fish > ~/.config/fish/completions/cachec.fish",
}


@click.command("completion", epilog="\b\n" + "\n".join(_HOW.values()))
@click.argument("shell", type=click.Choice(list(_HOW)))
def command(shell: str) -> None:
    """Print the script that completes commands, options and files of cachec in SHELL.

    \b
    Examples:
      eval "$(cachec completion bash)"
      cachec completion fish > ~/.config/fish/completions/cachec.fish
    """
    from click.shell_completion import get_completion_class

    from cachec.cli import main

    kind = get_completion_class(shell)
    assert kind is not None  # click has all three
    click.echo(kind(main, {}, "cachec", "_CACHEC_COMPLETE").source())
