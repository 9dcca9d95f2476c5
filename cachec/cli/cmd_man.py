"""``cachec man``: the pages of the manual, from the same source as the help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from cachec.base import __version__
from cachec.cli.help_layout import HelpContext, fill_paragraph
from cachec.cli.plugin_commands import plugin_commands
from cachec.cli.session import json_option, print_as_json

#: Characters that roff would take for something else, or print as another.
_ROFF = str.maketrans({"\\": "\\e", "-": "\\-", '"': "\\(dq", "`": "\\(ga", "'": "\\(aq", "~": "\\(ti", "^": "\\(ha"})


@click.command("man")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
@json_option
def command(folder: str) -> None:
    """Write a page of the manual for cachec, and one for each of its commands, to DIR, which is made if need be.

    man finds them in DIR where that is the folder man1 of one that is in MANPATH.

    \b
    Examples:
      cachec man ~/.local/share/man/man1
      man cachec-bundle-create

    \b
    JSON: {"pages": [path]}
    """
    from cachec.cli import main

    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in pages(main):
        path = place / f"{name}.1"
        path.write_text(text, encoding="utf-8")
        written.append(str(path))
    if not print_as_json({"pages": written}):
        click.echo(f"wrote {len(written)} pages to {place}")


def pages(main: click.Command) -> Iterator[tuple[str, str]]:
    """Name and roff (man(7)) of the page of each command, those of groups too, in the order of the help."""
    yield from _pages(HelpContext(main, info_name="cachec", **main.context_settings), None)


def _pages(context: click.Context, summary: str | None) -> Iterator[tuple[str, str]]:
    commands = _commands(context)
    yield context.command_path.replace(" ", "-"), "\n".join(_page(context, commands, summary)) + "\n"
    for each in commands:
        yield from _pages(each, each.command.get_short_help_str(300))


def _commands(context: click.Context) -> list[click.Context]:
    group = context.command
    if not isinstance(group, click.Group):
        return []
    names = group.list_commands(context)
    if context.parent is None:
        names = [*names, *plugin_commands(names)]
    found = ((name, group.get_command(context, name)) for name in names)
    return [HelpContext(each, info_name=name, parent=context) for name, each in found if each and not each.hidden]


def _page(context: click.Context, commands: list[click.Context], summary: str | None) -> Iterator[str]:
    path = context.command_path
    yield f'.TH "{_escape_roff(path.replace(" ", "-").upper())}" 1 "" "cachec {_escape_roff(__version__)}"'
    yield ".SH NAME"
    first, *rest = _paragraphs(context.command.help or "")
    short_help = summary or " ".join(first.split())
    yield f"{_escape_roff(path.replace(' ', '-'))} \\- {_escape_roff(short_help.rstrip('.'))}"
    yield ".SH SYNOPSIS"
    yield f".B {_escape_roff(path)}"
    yield _escape_roff(" ".join(context.command.collect_usage_pieces(context)))
    yield ".SH DESCRIPTION"
    for number, paragraph in enumerate([first, *rest]):
        yield from _describe_paragraph(paragraph, is_first=number == 0)
    given = [each for each in context.command.get_params(context) if isinstance(each, click.Option)]
    options = [record for each in given if (record := each.get_help_record(context)) is not None]
    if options:
        yield ".SH OPTIONS"
        for names, words in options:
            yield from (".TP", f".B {_escape_roff(names)}", _escape_roff(words))
    if commands:
        yield ".SH COMMANDS"
        for each in commands:
            name = _escape_roff(each.command_path.replace(" ", "-"))
            yield from (".TP", f".BR {name} (1)", _escape_roff(each.command.get_short_help_str(300)))
    if context.parent is not None:
        yield ".SH SEE ALSO"
        yield f".BR {_escape_roff(context.parent.command_path.replace(' ', '-'))} (1)"


def _paragraphs(text: str) -> list[str]:
    return re.split(r"\n{2,}", inspect.cleandoc(text).strip())


def _describe_paragraph(paragraph: str, *, is_first: bool) -> Iterator[str]:
    """A paragraph of the help: filled, or as it stands (``\\b``), as in ``helping``."""
    head, _, rest = paragraph.partition("\n")
    if head.strip() != "\b":
        yield from ([] if is_first else [".PP"])
        yield _escape_roff(" ".join(paragraph.split()))
    elif rest.startswith("JSON"):
        for line in fill_paragraph(rest):
            yield from (".PP", _escape_roff(line))
    else:
        yield from (".PP", ".nf", *map(_escape_roff, rest.splitlines()), ".fi")


def _escape_roff(text: str) -> str:
    """A text as roff has it: nothing in it is a request, and each hyphen is one that can be copied."""
    text = text.translate(_ROFF)
    return f"\\&{text}" if text.startswith(".") else text
