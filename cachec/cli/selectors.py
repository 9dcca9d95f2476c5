"""The options that choose entries, shared by the commands that take a selector."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from cachec.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def seconds_of(text: str) -> float | None:
    """The seconds of ``30m``, ``24h``, ``7d``, ``4w``; None for what is no span."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    return float(match[1]) * _UNITS[match[2]] if match else None


def span(_ctx: click.Context, _param: click.Parameter, text: str | None) -> float | None:
    """The seconds of ``30m``, ``24h``, ``7d``, ``4w``. Raises BadParameter."""
    if text is None:
        return None
    seconds = seconds_of(text)
    if seconds is None:
        raise click.BadParameter(f"{text!r} is not accepted; give a span such as 90s, 30m, 24h, 7d or 4w")
    return seconds


_OPTIONS = (
    click.option("--stage", "stages", multiple=True, metavar="NAME", help="Of this stage: its name, or the end of it."),
    click.option("--tag", "tags", multiple=True, metavar="TAG", help="With this tag."),
    click.option(
        "--tool",
        "tools",
        multiple=True,
        metavar="NAME[==VERSION]",
        help="Made with this distribution or executable; * and ? match.",
    ),
    click.option(
        "--option", "options", multiple=True, metavar="NAME[=VALUE]", help="With this argument, or this value of it."
    ),
    click.option(
        "--weight", "weights", multiple=True, metavar="NAME", help="Given, or having read, this weight; * and ? match."
    ),
    click.option(
        "--revision", "revisions", multiple=True, metavar="REV", help="Having read bytes of these weights of the store."
    ),
    click.option(
        "--source", "sources", multiple=True, metavar="PATH", help="With code, an argument or a read from this file."
    ),
    click.option("--older-than", callback=span, metavar="SPAN", help="Made longer ago: 30m, 24h, 7d, 4w."),
    click.option("--newer-than", callback=span, metavar="SPAN", help="Made since then."),
    click.option("--stale", is_flag=True, help="That can't hit any more: a tool or file they recorded is another now."),
    click.option("--stdin", "from_stdin", is_flag=True, help="Keys from stdin: lines, or what `ls --json` prints."),
)

_FIELDS = ("stages", "tags", "tools", "options", "weights", "revisions", "sources", "older_than", "newer_than", "stale")


def selector_options(function: F) -> F:
    """Give a command the options of a selector; it gets ``selector``. KEY arguments, as ``keys``, become part of it."""

    @functools.wraps(function)
    def command(*args: Any, **given: Any) -> Any:
        from cachec.maintain.selector import Selector  # imported here: a span needs no store

        fields = {name: given.pop(name) for name in _FIELDS}
        keys = tuple(given.pop("keys", ()))
        if given.pop("from_stdin"):
            text = sys.stdin.read()
            read = keys_from(text)
            keys += read
            if not text.strip():
                raise UsageError("--stdin: expected keys, found nothing")
            if not read:  # an `ls --json` that found none
                click.echo("cachec: --stdin: there are no keys, so no entry is meant", err=True)
                click.get_current_context().exit(1)
        return function(*args, selector=Selector(keys=keys, **fields), **given)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command  # type: ignore[return-value]


def keys_from(text: str) -> tuple[str, ...]:
    """The keys in a text: of each line the first word, or the JSON of ``ls``, or a JSON list. Raises UsageError."""
    if not text.lstrip().startswith(("{", "[")):
        return tuple(line.split()[0] for line in text.splitlines() if line.strip())
    import msgspec

    from cachec.model import MALFORMED_JSON

    try:
        document = msgspec.json.decode(text.encode(errors="surrogateescape"))
    except MALFORMED_JSON as error:
        raise UsageError(f"--stdin: expected lines of keys, or the JSON of `cachec ls --json`; {error}") from error
    entries = document.get("entries") if isinstance(document, dict) else document
    listed = entries if isinstance(entries, list) else [None]
    keys = [each.get("key") if isinstance(each, dict) else each for each in listed]
    texts = tuple(key for key in keys if isinstance(key, str))
    if len(texts) != len(keys):
        raise UsageError('--stdin: expected {"entries": [{"key": ...}]} or a list of keys')
    return texts
