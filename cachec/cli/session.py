"""What the commands share: the settings, the opened store, keys by prefix, and printing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cachec.base import texts
from cachec.errors import CachecError, ConfigError, StoreFault

if TYPE_CHECKING:  # the help, and each command, import what they need and no more
    from cachec import config
    from cachec.maintain.maintainer import Maintainer
    from cachec.model import Entry, Fault, Part
    from cachec.store.store import Store

#: Texts from a store or a checkpoint are printed through this.
clean = texts.clean

#: Matches that an ambiguous prefix lists.
_SHOWN_MATCHES = 8

#: Rows that a table is styled for; more take too long.
_STYLED_MAX = 1000

#: Where it is kept in click's context whether ``--json`` was given.
_JSON = "cachec.json"


def keep_json(ctx: click.Context, _param: click.Parameter | None, is_given: bool) -> None:
    """Have ``told_as_json`` know it."""
    ctx.meta[_JSON] = is_given


json_option = click.option(
    "--json", is_flag=True, expose_value=False, callback=keep_json, help="Print one JSON document instead of text."
)


class Session:
    """One run of the command line."""

    def __init__(self, overrides: Mapping[str, object]) -> None:
        self._overrides = overrides
        self._faults: Counter[Fault] = Counter()

    @property
    def overrides(self) -> Mapping[str, object]:
        """Settings that were given as options."""
        return self._overrides

    @cached_property
    def settings(self) -> config.Settings:
        """The settings in force. Raises ConfigError."""
        from cachec import config

        return config.load(self._overrides)

    @cached_property
    def store(self) -> Store:
        """The store; a folder that is not there is an empty one, and is not made."""
        from cachec.store.store import Store

        settings = self.settings
        if settings.dir.exists() and not settings.dir.is_dir():
            raise ConfigError(
                f"{settings.dir} is no folder, so it can be no store; name another one (--dir, CACHEC_DIR)"
            )
        store = Store(settings.dir, settings.namespace, fsync=settings.fsync, on_fault=self._note_fault)
        store.refuse_foreign(shared=settings.shared == "trusted")
        return store

    @property
    def if_none(self) -> str:
        """What is said of a store in which nothing was found: empty where there is one."""
        return "" if self.settings.dir.is_dir() else ": there is no store yet"

    @cached_property
    def maintainer(self) -> Maintainer:
        """What searches and cleans the store."""
        from cachec.maintain.maintainer import Maintainer  # most commands do without

        settings = self.settings
        return Maintainer(self.store, max_size=settings.max_size, base_dir=settings.base_dir, on_fault=self._note_fault)

    def _note_fault(self, fault: Fault, detail: str) -> None:
        """An entry was left out. Told once a kind, as a damaged store may have thousands."""
        self._faults[fault] += 1
        if self._faults[fault] == 1:
            click.echo(f"cachec: left out ({fault.value}): {detail}", err=True)

    def close(self) -> None:
        """Let go of the store, if it was opened."""
        if "store" in self.__dict__:
            self.store.close()

    def entries(self) -> list[Entry]:
        """All entries that can be read, newest first."""
        listed = [entry for entry in self.store.entries() if entry.traces]
        return sorted(listed, key=lambda entry: -max(trace.created for trace in entry.traces))

    def entry(self, prefix: str) -> Entry:
        """The entry whose key begins with ``prefix``. Exits with 1 where there is none.

        Raises CachecError for what is no key, or is the beginning of several.
        """
        matches = self.matches(prefix)
        if not matches:
            self.fail(f"no entry has a key that begins with {prefix}; `cachec ls` lists them")
        return matches[0]

    def matches(self, prefix: str) -> list[Entry]:
        """The one entry whose key begins with ``prefix``, or none. Raises CachecError as ``entry`` does."""
        prefix = texts.key_prefix(prefix)
        if len(prefix) == 64:
            entry = self.store.lookup(prefix)
            return [] if entry is None else [entry]
        entries = list(self.store.entries(prefix))
        if len(entries) > 1:
            shown = max(texts.SHOWN_KEY, len(prefix) + 4)
            listed = ", ".join(f"{entry.key[:shown]} ({clean(entry.stage)})" for entry in entries[:_SHOWN_MATCHES])
            more = f" and {len(entries) - _SHOWN_MATCHES} more" if len(entries) > _SHOWN_MATCHES else ""
            raise CachecError(f"{prefix} is the beginning of {len(entries)} keys: {listed}{more}; give more characters")
        return entries

    def parts(self, entry: Entry) -> tuple[Part, ...] | None:
        """The named parts of an entry's key; None, said on stderr, where their artifact can't be read."""
        try:
            return self.store.parts(entry)
        except StoreFault as fault:
            self._note_fault(fault.fault, fault.detail)
            return None

    def fail(self, words: str) -> NoReturn:
        """Say what was not found, and exit with 1."""
        click.echo(f"cachec: {clean(words)}", err=True)
        click.get_current_context().exit(1)


class LazyGroup(click.Group):
    """A group that imports a command when it is used."""

    def __init__(self, *args: Any, homes: Mapping[str, str], **options: Any) -> None:
        """homes: command -> ``module:attribute`` in the order of the help, empty for one that was added."""
        super().__init__(*args, **options)
        self._homes = homes

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._homes)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        home = self._homes.get(cmd_name)
        if not home:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = home.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


pass_session = click.make_pass_decorator(Session)


def wants_json() -> bool:
    """Whether ``--json`` was given."""
    return bool(click.get_current_context().meta.get(_JSON))


def told_as_json(document: Any) -> bool:
    """Print one JSON document where that was asked for; whether it was."""
    if wants_json():
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
    return wants_json()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Print rows under a header; columns in ``right`` hold numbers. Not cut to a width where stdout is no terminal."""
    import sys

    if not sys.stdout.isatty() or len(rows) > _STYLED_MAX:
        _print_plain(columns, rows, right)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold", no_wrap=False)
    for row in rows:
        table.add_row(*(Text(clean(cell)) for cell in row))
    Console(file=sys.stdout, highlight=False).print(table)


def print_wrapped(text: str, indent: int) -> None:
    """Print a text, indented; a long one goes on below its beginning. Not where stdout is no terminal, and nobody says
    how wide it is (COLUMNS).
    """
    import os
    import shutil
    import sys
    import textwrap

    text = " " * indent + clean(text)
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        click.echo(text)
        return
    width = max(shutil.get_terminal_size().columns, 40)
    click.echo(textwrap.fill(text, width, subsequent_indent=" " * (indent + 2), break_on_hyphens=False))


def _print_plain(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    """The same without a terminal's width, styles, or the time that 100,000 rows would take with them."""
    lines = [tuple(columns), *(tuple(clean(cell) for cell in row) for row in rows)]
    sizes = [tuple(_width(cell) for cell in line) for line in lines]
    widths = [max(column) for column in zip(*sizes, strict=True)]
    printed = []
    for line, lengths in zip(lines, sizes, strict=True):
        cells = []
        for name, cell, length, width in zip(columns, line, lengths, widths, strict=True):
            space = " " * (width - length)
            cells.append(space + cell if name in right else cell + space)
        printed.append("  ".join(cells).rstrip())
    click.echo("\n".join(printed))


def _width(cell: str) -> int:
    """Columns of a terminal that a printable text takes: below U+0300, where combining marks begin, one a character."""
    if cell.isascii() or max(cell) < "\u0300":
        return len(cell)
    from rich.cells import cell_len  # takes longer to import than most tables to print

    return cell_len(cell)
