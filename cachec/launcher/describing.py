"""What a command line means in the current folder, for who runs it and for who only asks."""

from __future__ import annotations

import os
from collections.abc import Sequence

from cachec.launcher import adapters
from cachec.launcher.arguments import describe, plain
from cachec.launcher.command import Command, Options, PassThrough
from cachec.launcher.exec_settings import with_settings
from cachec.launcher.helpers import DETAIL, is_helper
from cachec.launcher.places import Places
from cachec.launcher.stage import Opened
from cachec.launcher.stripping import wants_strip
from cachec.model import Reason


def describe_here(opened: Opened, given: Options, argv: Sequence[str], program: str) -> Command:
    """What the command line means in the current folder. Raises PassThrough, UsageError, ConfigError."""
    adapter = adapters.find(program, argv[0])
    program = os.path.join(opened.places.cwd, program)
    if adapter is None and is_helper(argv[0]) and given == Options(restat=given.restat):
        raise PassThrough(Reason.BUILD_HELPER, DETAIL)
    try:
        options = with_settings(given, opened.places.cwd)
        command = describe(argv, program, opened.places.cwd, adapter, options, opened.variables)
    except PassThrough as way:
        way.stage = "" if adapter is None else f"exec:{adapter.name}"
        raise
    if adapter is not None and adapter.distribution and not command.is_plain:
        owner = opened.requests.distributions(command).owner(program)
        if owner is None or owner.name != adapter.distribution:
            command = plain(command)  # another program of that name
    if adapter is not None and adapter.relative and not wants_strip(command):  # that one comes without a name
        _call_inputs(command, opened.places)
    opened.anchor(command)
    return command


def _call_inputs(command: Command, places: Places) -> None:
    """Name the inputs from the current folder, on the command line as it is keyed and as it runs."""
    argv = list(command.argv)
    for number, piece in enumerate(command.pieces):
        if piece.label == "input" and piece.begin >= 0 and piece.text and os.path.isabs(piece.text):
            argv[piece.begin + 1] = places.called(piece.text)
            command.pieces[number] = piece._replace(text=argv[piece.begin + 1])
    command.argv = tuple(argv)
    command.inputs = [each._replace(text=places.called(each.text)) if each.main else each for each in command.inputs]
