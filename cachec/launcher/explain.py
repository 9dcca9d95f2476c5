"""``cachec check`` and ``cachec why`` for a command line: what ``exec`` would do, without running it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from cachec.errors import StoreFault, UsageError
from cachec.launcher.arguments import describe_here
from cachec.launcher.command import CommandSpec, Options, PassThrough
from cachec.launcher.stage import CommandContext, CommandStage, opened_command
from cachec.launcher.weight_stripping import StrippedInput, strip_inputs
from cachec.model import Mode, Outcome, PartKind, Reason
from cachec.stage.engine import StageCall
from cachec.store.index import only_looking

if TYPE_CHECKING:
    from cachec.key.key_diff import PartDifference


class Explanation(msgspec.Struct, frozen=True):
    """What ``exec`` would do."""

    outcome: Outcome
    #: The key of the entry that the differences are from; empty for none.
    nearest: str = ""
    differences: tuple[PartDifference, ...] = ()
    #: What would make it a hit, where that is known; empty else.
    fix: str = ""


def explain(args: Sequence[str], overrides: Mapping[str, object] | None = None) -> Explanation:
    """What ``cachec exec`` with these arguments would do, and why. Raises CachecError for wrong use.

    A command that reads its standard input would wait for it, so for such a one this raises UsageError.
    """
    with opened_command(args, overrides) as line, only_looking():
        return _explain(*line)


def output_folders(args: Sequence[str]) -> list[str]:
    """The folders that the outputs of a command line go to, as far as it is described; none where nothing can run."""
    try:
        with opened_command(args, None) as line:
            command = describe_here(*line)
    except (PassThrough, UsageError):
        return []
    return list(dict.fromkeys(os.path.dirname(output.path) for output in command.outputs))


def _explain(opened: CommandContext, given: Options, argv: Sequence[str], program: str) -> Explanation:
    name = f"exec:{os.path.basename(argv[0])}"
    try:
        if opened.settings.mode is Mode.OFF:
            raise PassThrough(Reason.MODE_OFF, "")
        command = describe_here(opened, given, argv, program)
        name = command.stage
        if command.stdin:
            raise UsageError("the command reads its standard input, which would be gone; name its input as a file")
        with strip_inputs(command) as stripped:
            return _from_engine(opened, command, stripped)
    except PassThrough as way:
        outcome = Outcome(reason=way.reason, stage=name, key="", detail=way.detail)
        return Explanation(outcome, fix=_way_in(way.reason))


def _from_engine(opened: CommandContext, command: CommandSpec, stripped: Sequence[StrippedInput]) -> Explanation:
    def body(command: CommandSpec, stripped: Sequence[StrippedInput], stdin: str | None) -> dict[str, Any]:
        raise AssertionError("a question runs nothing")

    call = StageCall(opened.engine_for(command), CommandStage(command, body), (command, stripped, None), {})
    outcome = call.check()
    if outcome.reason is Reason.USAGE:
        raise UsageError(outcome.detail)
    if outcome.hit or outcome.reason in {Reason.DEPENDENCY_CHANGED, Reason.WEIGHT_CONTENT_CHANGED}:
        return Explanation(outcome)
    from cachec.key.key_diff import differences  # a hit differs in nothing

    parts = call.cache_key.parts()
    try:
        other = call.engine.tools.entry_finder.nearest(command.stage, parts)
    except StoreFault as fault:
        opened.events.note_fault(fault.fault, fault.detail)
        other = None
    if other is None:
        return Explanation(outcome)
    finder = call.engine.tools.entry_finder
    differing = differences(other[1], parts, lambda digest: finder.fetch(digest, call.cache_key))
    if any(each.part.kind is PartKind.ARGUMENT for each in differing):
        differing = tuple(each for each in differing if each.part.kind is not PartKind.ORDER)  # it follows
    fix = next(filter(None, map(call.cache_key.remedy, differing)), "")
    return Explanation(outcome, other[0], differing, fix)


def _way_in(reason: Reason) -> str:
    return {
        Reason.NOT_UNDERSTOOD: "add what is missing to an adapter of your own ([adapters] in cachec.toml)",
        Reason.MODE_OFF: "unset CACHEC_MODE",
    }.get(reason, "")
