"""The stored data of a command line that ``cachec verify --recompute`` needs to run it again."""

from __future__ import annotations

from collections.abc import Sequence

from cachec.key.tools.environment import LOCALE
from cachec.launcher.command import CommandSpec
from cachec.launcher.command_key import keyed_variables, sealed_variables
from cachec.launcher.stage import CommandContext
from cachec.reproduce.recipe import CommandCall, RecordedLine


def describe_call(opened: CommandContext, command: CommandSpec, args: Sequence[str]) -> CommandCall:
    """How it was called. args: what followed ``cachec exec``."""
    keyed = opened.places.remove_base
    variables = {name: keyed(value) for name, value in opened.variables.items()}
    names = (*keyed_variables(command, opened.variables), *LOCALE)
    line = RecordedLine(tuple(map(keyed, args)), keyed(command.cwd))
    sealed = tuple(sorted(sealed_variables(command, names) & variables.keys()))
    return CommandCall(line, {name: variables.get(name) for name in names if name not in sealed}, sealed)
