"""Commands that installed packages add to ``cachec``: entry points ``NAME = "module:attribute"`` of a group.

They are found by reading ``entry_points.txt``, and a package is imported only when its command is used.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import click

from cachec.base.entry_points import load_object

#: The entry-point group under which a package offers a ``click.Command`` (a group, mostly).
GROUP = "cachec.commands"


class PluginCommand(NamedTuple):
    """A command that a package offers."""

    name: str
    #: ``module:attribute``.
    target: str
    package: str
    version: str

    def load(self) -> click.Command:
        """Import it. Raises PluginError, naming the package, where it can't be imported or is no command."""
        offered = f"command {self.name!r} of package {self.package} {self.version}"
        command: click.Command = load_object(offered, self.target, "command", click.Command)
        return command


def plugin_commands(taken: Collection[str]) -> dict[str, PluginCommand]:
    """The commands by name, sorted; those named as one of ``taken`` are left out, of two packages the first wins."""
    from cachec.base.distributions import Distributions  # a command of cachec's own needs none

    commands: dict[str, PluginCommand] = {}
    for package in Distributions():
        for name, target in package.entry_points(GROUP).items():
            if name not in taken:
                commands.setdefault(name, PluginCommand(name, target, package.name, package.version))
    return {name: commands[name] for name in sorted(commands)}
