"""Completion of command lines behind ``--``."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

#: What ``exec`` and its kin take before ``--``; their command lines are not click's to parse.
_OPTIONS = {
    "--input": "a file or folder that the command reads",
    "--output": "a file or folder that it writes",
    "--weights": "a file of weights, =content, =opened or =name",
    "--env": "a variable that it gets, and that is in the key",
    "--tool": "an executable that it starts",
    "--strip": "give it the model without weights",
    "--hardlink": "outputs may be hard links",
    "--portable": "leave the processor out of the key",
    "--": "the command follows",
}


class CommandWords(click.ParamType):  # type: ignore[type-arg]  # no generic in click 8.1
    """The words of a command line, as they are. Completed: options before ``--``, files elsewhere."""

    name = "command"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Unchanged."""
        del param, ctx
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """What may stand here."""
        words = ctx.params.get(param.name or "") or ()
        if incomplete.startswith("-") and "--" not in words:
            return [CompletionItem(name, help=each) for name, each in _OPTIONS.items() if name.startswith(incomplete)]
        return [CompletionItem(incomplete, type="file")]


COMMAND_WORDS = CommandWords()
