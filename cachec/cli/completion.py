"""Completion of command lines behind ``--``."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

#: What ``exec`` and its kin take before ``--``, as their help has it; their command lines are not click's to parse.
LINE_OPTIONS = {
    "--outputs": ("PATTERN", "files and folders that COMMAND writes, wherever and however it does so"),
    "--output": ("PATH", "one file or folder that it writes"),
    "--input": ("PATH", "a file or folder that counts, whether it is read or not"),
    "--weights": (
        "PATH[=content|opened|name]",
        "a file of weights: keyed by content; by content only if it is opened; by its name",
    ),
    "--env": ("NAME", "a variable that is in the key, whatever its name"),
    "--ignore-env": ("NAME", "a variable that is not, with * at the end for any rest"),
    "--network": ("trust", "store a result although the network was used"),
    "--stdin": ("", "read all of standard input first, and have it count"),
    "--relocatable": ("", "its result holds no folder, so with base_dir other checkouts may have it"),
    "--tool": ("COMMAND", "an executable that counts, whether it is started or not"),
    "--strip": ("", "give it the model without weights; these are written beside the output (.irpa)"),
    "--hardlink": ("", "outputs may be hard links into the store, read-only"),
    "--restat": ("", "an output that has its content already keeps its time stamp, for build systems that look again"),
    "--portable": ("", "leave the processor out of the key"),
}

#: And what ends them.
_OFFERED = {**{name: words for name, (_, words) in LINE_OPTIONS.items()}, "--": "COMMAND follows"}


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
            return [CompletionItem(name, help=each) for name, each in _OFFERED.items() if name.startswith(incomplete)]
        return [CompletionItem(incomplete, type="file")]


COMMAND_WORDS = CommandWords()
