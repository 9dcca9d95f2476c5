"""How the help of a command is laid out: within the terminal, also what click leaves as it is (blocks of ``\\b``)."""

from __future__ import annotations

import re
from typing import Any

import click

from cachec.cli.screen import wrap_text

#: The help is no wider, whatever the terminal is: longer lines are hard to read.
WIDEST = 110


class HelpFormatter(click.HelpFormatter):
    """Breaks the lines of examples that are too long, and fills those that say what the JSON is."""

    def write_text(self, text: str) -> None:
        """Write paragraphs, indented."""
        for number, paragraph in enumerate(re.split(r"\n{2,}", text)):
            if number:
                self.write_paragraph()
            head, _, rest = paragraph.partition("\n")
            if head.strip() == "\b":
                self._write_block(rest)
            else:
                super().write_text(paragraph)

    def _write_block(self, block: str) -> None:
        lines = fill_paragraph(block) if block.startswith("JSON") else block.splitlines()
        for line in lines:
            text = line.lstrip()
            indent = self.current_indent + len(line) - len(text)
            self.write("".join(f"{each}\n" for each in wrap_text(text, self.width, indent, hanging=2)))


def fill_paragraph(block: str) -> list[str]:
    """The sentences of a paragraph: one that describes JSON begins a line, and so does what follows one."""
    lines: list[str] = []
    for line in block.splitlines():
        if not lines or line.startswith("JSON") or re.search(r"[]}]$", lines[-1]):
            lines.append(line)
        else:
            lines[-1] += " " + line.strip()
    return lines


class HelpContext(click.Context):
    """The context of every command of cachec, and of those that packages add."""

    formatter_class = HelpFormatter

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"max_content_width": WIDEST, **options})


def with_help(command: click.Command) -> click.Command:
    """Return the command with this layout for its help, and for that of its subcommands."""
    command.context_class = HelpContext
    if isinstance(command, click.Group):
        for each in command.commands.values():
            with_help(each)
    return command
