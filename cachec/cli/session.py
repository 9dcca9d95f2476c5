"""What the commands share: the settings, the opened store, keys by prefix, and printing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cachec.base import display_text
from cachec.base.msgspec_import import import_msgspec
from cachec.cli import screen
from cachec.cli.help_layout import HelpContext, with_help
from cachec.errors import CachecError, ConfigError, StoreFault

if TYPE_CHECKING:  # the help, and each command, import what they need and no more
    from cachec import config
    from cachec.maintain.maintainer import Maintainer
    from cachec.model import Entry, Fault, Part
    from cachec.store.store import Store

#: Texts from a store or a checkpoint are printed through this.
clean = display_text.clean

print_table, print_wrapped, print_command = screen.print_table, screen.print_wrapped, screen.print_command

#: Matches that an ambiguous prefix lists.
_SHOWN_MATCHES = 8

#: The key in click's context for whether ``--json`` was given.
_JSON = "cachec.json"


def keep_json(ctx: click.Context, _param: click.Parameter | None, is_given: bool) -> None:
    """Have ``print_as_json`` know it."""
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
        """The current settings. Raises ConfigError."""
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
        store = Store(settings.dir, settings.namespace, fsync=settings.fsync, on_fault=self.note_fault)
        store.refuse_foreign(settings.shared)
        if settings.shared == "trusted" and settings.dir.is_dir():
            store.record_agreement()
        return store

    @property
    def if_none(self) -> str:
        """Return the note for an empty result if there is no store; empty with a store."""
        return "" if self.settings.dir.is_dir() else ": there is no store yet"

    @cached_property
    def maintainer(self) -> Maintainer:
        """What searches and cleans the store."""
        from cachec.maintain.maintainer import Maintainer  # most commands do without

        settings = self.settings
        return Maintainer(self.store, max_size=settings.max_size, base_dir=settings.base_dir, on_fault=self.note_fault)

    def note_fault(self, fault: Fault, detail: str) -> None:
        """Count an omitted entry. It is reported once for each kind, as a damaged store may have thousands."""
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
        """Return the entry with a key that begins with ``prefix``. Exits with 1 for an unknown one.

        Raises CachecError for what is no key, or is the beginning of several.
        """
        matches = self.matches(prefix)
        if not matches:
            self.fail(f"no entry has a key that begins with {prefix}; `{display_text.to_type('ls')}` lists them")
        return matches[0]

    def matches(self, prefix: str) -> list[Entry]:
        """Return the one entry with a key that begins with ``prefix``, or none. Raises CachecError as ``entry``
        does."""
        prefix = display_text.key_prefix(prefix)
        if len(prefix) == 64:
            entry = self.store.lookup(prefix)
            return [] if entry is None else [entry]
        entries = list(self.store.entries(prefix))
        if len(entries) > 1:
            shown = max(display_text.SHOWN_KEY, len(prefix) + 4)
            listed = ", ".join(f"{entry.key[:shown]} ({clean(entry.stage)})" for entry in entries[:_SHOWN_MATCHES])
            more = f" and {len(entries) - _SHOWN_MATCHES} more" if len(entries) > _SHOWN_MATCHES else ""
            raise CachecError(f"{prefix} is the beginning of {len(entries)} keys: {listed}{more}; give more characters")
        return entries

    def parts(self, entry: Entry) -> tuple[Part, ...] | None:
        """Return the named parts of an entry's key; None, with a note on stderr, if their artifact can't be read."""
        try:
            return self.store.parts(entry)
        except StoreFault as fault:
            self.note_fault(fault.fault, fault.detail)
            return None

    def fail(self, words: str) -> NoReturn:
        """Say what was not found, and exit with 1."""
        click.echo(f"cachec: {clean(words)}", err=True)
        click.get_current_context().exit(1)


class LazyGroup(click.Group):
    """A group that imports a command when it is used."""

    context_class = HelpContext

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
        import_msgspec()
        return with_help(getattr(import_module(module), attribute))


pass_session = click.make_pass_decorator(Session)


def wants_json() -> bool:
    """Whether ``--json`` was given."""
    return bool(click.get_current_context().meta.get(_JSON))


def print_as_json(document: Any) -> bool:
    """Print one JSON document where that was asked for; whether it was."""
    if wants_json():
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
    return wants_json()


def check_output(output: str, name: str, inputs: Mapping[str, str | None]) -> None:
    """Raise UsageError where a command would replace a file that it reads. inputs: by their names in the command."""
    import os

    from cachec.errors import UsageError

    for other, path in inputs.items():
        if path is not None and os.path.realpath(path) == os.path.realpath(output):
            raise UsageError(f"{output} is given twice, as {other} and as {name}; give two files")


def write_file(path: str, data: bytes) -> None:
    """Write a file that was asked for: all of it, or what was there before stays. Raises OSError."""
    import os
    import stat

    from cachec.base import fsio

    target = os.path.realpath(path)
    if os.path.exists(target) and not stat.S_ISREG(os.stat(target).st_mode):  # /dev/stdout, a pipe
        with open(target, "wb") as file:
            file.write(data)
        return
    with fsio.Staging(os.path.dirname(target), f".{os.path.basename(target)}.partial-") as staged:
        staged.write(data)
        staged.replace(target, fsync=False)
