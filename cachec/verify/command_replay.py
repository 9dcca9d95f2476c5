"""A command line of ``cachec exec`` run again: where its files are, but what it writes goes into a folder of its own.

It is only run where the same line would now hit the very entry, so that its inputs, its tools and its environment are
those of then. A result that could hold the name of its output, or that is not written where the line says, can't be
compared so, and is told: ``CACHEC_MODE=verify`` compares it in place.
"""

from __future__ import annotations

import filecmp
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cachec.commands.process import ProcessResult, run_process
from cachec.errors import CachecError
from cachec.launcher.arguments import describe_here
from cachec.launcher.command import CommandSpec, PassThrough
from cachec.launcher.command_key import environment, keyed_variables
from cachec.launcher.explain import explain
from cachec.launcher.outputs import outputs_of
from cachec.launcher.path_map import PathMap, find_leaks
from cachec.launcher.stage import CommandContext, CommandStage, opened_command
from cachec.launcher.weight_stripping import wants_strip
from cachec.programs.artifact import File
from cachec.reproduce.recipe import Recipe, RecordedLine

#: Characters of what a command that failed wrote.
_TAIL = 400


class ReplayOutcome(NamedTuple):
    """How it ended: as of ``Again``."""

    result: str
    words: str = ""


class _NotAgain(Exception):
    """It can't be run again, or not be compared; the message says why."""


def run_line(recipe: Recipe, line: RecordedLine, key: str, folder: Path) -> ReplayOutcome:
    """Run it, in this process's environment with the recorded variables; ``folder`` is empty, and takes what it writes.

    Changes the current folder and the environment of this process, which is to be one of its own.
    """
    try:
        base = _base_folder((line.cwd, *line.args, *filter(None, recipe.environ.values())))
        for name, value in recipe.environ.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value.replace("\0", base)
        args = _enter_folder(line, base)
        _unset_others(args, {*recipe.environ, *recipe.hidden})
        would = explain(args).outcome
        if would.key != key or not would.hit:
            raise _NotAgain(f"a call would not hit now: {would.detail or would.reason.value}")
        with opened_command(args, None) as (opened, given, argv, program):
            return _run(opened, describe_here(opened, given, argv, program), folder)
    except PassThrough as way:
        return ReplayOutcome("skipped", f"a call would not hit now: {way.detail or way.reason.value}")
    except (_NotAgain, CachecError) as error:
        return ReplayOutcome("skipped", str(error))
    except OSError as error:
        return ReplayOutcome("skipped", f"a file of it can't be read: {error}")


def _base_folder(texts: Iterable[str]) -> str:
    """Return the base folder for a NUL in one of these texts; empty without a NUL."""
    if not any("\0" in text for text in texts):
        return ""
    from cachec import config

    found = config.load().base_dir
    if found is None:
        raise _NotAgain("it was stored below a base_dir; set one here (CACHEC_BASE_DIR), the checkout to look at")
    return os.fspath(found).rstrip("/")


def _enter_folder(line: RecordedLine, base: str) -> list[str]:
    """The arguments, from the folder that they are of, which is the current one then."""
    cwd = line.cwd.replace("\0", base)
    try:
        os.chdir(cwd)
    except OSError as error:
        raise _NotAgain(f"the folder that it ran in can't be entered: {cwd}: {error.strerror}") from error
    os.environ["PWD"] = cwd
    return [each.replace("\0", base) for each in line.args]


def _unset_others(args: Sequence[str], recorded: Collection[str]) -> None:
    """Remove the variables that count for the command and were not set when it ran. Raises PassThrough.

    One whose value is not stored stays as it is in this environment: the key tells whether it is equal.
    """
    with opened_command(args, None) as (opened, given, argv, program):
        command = describe_here(opened, given, argv, program)
        for name in keyed_variables(command, opened.variables):
            if name not in recorded:
                os.environ.pop(name, None)


def _run(opened: CommandContext, command: CommandSpec, folder: Path) -> ReplayOutcome:
    if wants_strip(command) or command.weights:
        raise _NotAgain("a command with weights")
    stored = _stored_result(opened, command)
    outputs = outputs_of(command, opened.variables, opened.places, stored)
    if not all(isinstance(each, File | bytes) for each in stored["outputs"]):
        raise _NotAgain("it makes folders or links of its own")
    written = {path: os.fspath(folder / str(number)) for number, path in enumerate(outputs)}
    for place in written.values():
        os.mkdir(place, 0o700)
    written = {path: os.path.join(place, os.path.basename(path)) for path, place in written.items()}
    line = _redirect_outputs(command, outputs, written)
    ended = run_process(line, command.program, environ=environment(opened.variables), cwd=command.cwd)
    if ended.returncode:
        if not command.is_known:  # of which nobody knows whether it takes another place for its output
            raise _NotAgain(f"it ended with exit status {ended.returncode} where it was to write to another place")
        tail = ended.stderr[-_TAIL:].decode(errors="replace").strip()
        return ReplayOutcome("failed", f"it ended with exit status {ended.returncode}: {tail}")
    return _compare_outputs(command, opened.places, outputs, stored, written, ended, folder)


def _stored_result(opened: CommandContext, command: CommandSpec) -> Mapping[str, Any]:
    """What the store has of it."""
    engine = opened.engine_for(command)
    stage = CommandStage(command, lambda **_: {})
    arguments = {"command": command, "stripped": (), "stdin": None}
    lookup = engine.tools.entry_finder.find(engine.tools.key_builder.build(stage, arguments))
    if lookup.trace is None:
        raise _NotAgain(f"a call would not hit now: {lookup.detail or lookup.reason.value}")
    value: Mapping[str, Any] = lookup.value
    return value


def _redirect_outputs(command: CommandSpec, outputs: Sequence[str], written: Mapping[str, str]) -> list[str]:
    """The command line with each output in its other place."""
    line = list(command.argv)
    places = {os.path.normpath(path): place for path, place in written.items()}
    named: dict[str, int] = {}
    for number in range(1, len(line)):
        for before, text in _values(line[number]):
            path = os.path.normpath(os.path.join(command.cwd, text))
            if path in places:
                line[number] = before + places[path]
                named[path] = named.get(path, 0) + 1
                break
    for path in outputs:
        if named.get(os.path.normpath(path), 0) != 1:
            name = os.path.basename(path)
            raise _NotAgain(f"its command line does not name {name} once, in an argument of its own")
    return line


def _values(arg: str) -> Iterator[tuple[str, str]]:
    """Return the ways to split an argument into a flag and its value."""
    yield "", arg
    if arg.startswith("-"):
        name, equals, value = arg.partition("=")
        if equals and value:
            yield name + equals, value
        if arg[2:]:
            yield arg[:2], arg[2:]


def _compare_outputs(
    command: CommandSpec,
    places: PathMap,
    outputs: Sequence[str],
    stored: Mapping[str, Any],
    written: Mapping[str, str],
    ended: ProcessResult,
    folder: Path,
) -> ReplayOutcome:
    depfiles = {output.path for output in command.outputs if output.kind == "depfile"}  # they name the output
    compared = [
        (path, stored_file)
        for path, stored_file in zip(outputs, stored["outputs"], strict=True)
        if path not in depfiles
    ]
    files = [place for path, _ in compared if os.path.isfile(place := written[path])]
    if find_leaks({"folder": os.fspath(folder)}, files, [ended.stdout, ended.stderr]):
        raise _NotAgain("its result holds the path that it is written to")
    for name, stream in (("stdout", ended.stdout), ("stderr", ended.stderr)):
        if places.template(stream) != stored[name]:
            return ReplayOutcome("differs", f"it says something else on {name}")
    for path, stored_file in compared:
        name = os.path.basename(path)
        if not os.path.isfile(written[path]):
            return ReplayOutcome("failed", f"it does not write {name}")
        if not filecmp.cmp(written[path], os.fspath(stored_file.path), shallow=False):
            return ReplayOutcome("differs", f"{name} has other bytes than the stored one")
    return ReplayOutcome("same")
