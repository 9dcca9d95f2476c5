"""``cachec exec`` by the whole road: describe the command, ask the engine, hand out or run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cachec import config, recording
from cachec.context import CacheContext
from cachec.errors import CachecError, CacheMissError
from cachec.key.tools.executables import which
from cachec.launcher import options
from cachec.launcher.arguments import describe_here
from cachec.launcher.command import CommandSpec, PassThrough
from cachec.launcher.depth import is_too_deep, too_deep_message
from cachec.launcher.outputs import lock_outputs, outputs_of
from cachec.launcher.path_map import NoFolder
from cachec.launcher.restore import mode_of, restore_bytes, restore_file, restore_folder, restore_link
from cachec.launcher.result import CommandResult, mistake_words, perform, say
from cachec.launcher.stage import CommandContext, CommandFailed, CommandStage, ServerChildState, not_found
from cachec.launcher.weight_stripping import StrippedInput, strip_inputs, stripped_command_line, write_sidecar_weights
from cachec.model import Fault, Mode, Outcome, Reason
from cachec.programs.artifact import File
from cachec.stage.engine import CallResult

if TYPE_CHECKING:
    from cachec.reproduce.recipe import CommandCall

#: What a shell returns where a command is not there, or can't be started.
_NOT_FOUND, _NOT_STARTED = 127, 126
_WRONG_USE = 2


def main(args: Sequence[str], overrides: Mapping[str, object] | None = None, descriptors: Sequence[int] = ()) -> int:
    """Run the command line behind ``--``; returns its exit status. ``args``: what follows ``cachec exec``. descriptors:
    those above 2 that the command inherits."""
    ending = conclude(args, overrides or {}, descriptors=descriptors)
    assert ending is not None
    return perform(ending)


def conclude(
    args: Sequence[str],
    overrides: Mapping[str, object],
    *,
    server_state: ServerChildState | None = None,
    descriptors: Sequence[int] = (),
) -> CommandResult | None:
    """The same, but for what only the process that was called can do. server_state: where this one is another's, what
    it has for it; None is returned then where that has to do all of it by itself."""
    try:
        return _execute(args, overrides, server_state, descriptors)
    except CommandFailed as failed:
        return CommandResult(failed.ended.returncode, failed.ended.stdout, failed.ended.stderr)
    except CachecError as error:
        say(f"error: {error}")
        return CommandResult(_WRONG_USE)
    except KeyboardInterrupt:
        return CommandResult(-signal.SIGINT)
    except BrokenPipeError:
        return CommandResult(-signal.SIGPIPE)


def _execute(
    args: Sequence[str],
    overrides: Mapping[str, object],
    server_state: ServerChildState | None,
    descriptors: Sequence[int],
) -> CommandResult | None:
    given, argv = options.parse(args)
    program = which(argv[0], os.environ)
    if program is None:
        folders = [""] if "/" in argv[0] else os.environ.get("PATH", os.defpath).split(":")
        if any(os.path.exists(os.path.join(folder, argv[0])) for folder in folders):
            say(f"error: {argv[0]!r} is there, but can't be executed; make it executable")
            return CommandResult(_NOT_STARTED)
        say(f"error: {not_found(argv)}")
        return CommandResult(_NOT_FOUND)
    if is_too_deep(os.environ):
        say(f"error: {too_deep_message(argv[0], program)}")
        return CommandResult(_WRONG_USE)
    name = f"exec:{os.path.basename(argv[0])}"
    try:
        opened = CommandContext(overrides, dict(os.environ), server_state)
    except NoFolder as error:
        _bypass(
            CacheContext(config.load(overrides)), PassThrough(Reason.KEY_UNREADABLE, str(error), is_reported=True), name
        )
        return CommandResult(None, become=(program, argv))
    no_store: PassThrough | None = None
    if opened.settings.store_folder is None and opened.settings.mode is not Mode.OFF:
        no_store = PassThrough(Reason.NO_STORE_FOLDER, opened.settings.no_store, is_reported=True)
        if opened.settings.mode is not Mode.REQUIRE:
            _count(opened, no_store, name)
            return CommandResult(None, become=(program, argv))
    if server_state is not None and opened.settings.server == "off":
        return None
    stdin: int | None = None
    way: PassThrough
    is_refused = False
    try:
        if opened.settings.mode is Mode.OFF:
            raise PassThrough(Reason.MODE_OFF, "")
        command = describe_here(opened, given, argv, program)
        name = command.stage
        if no_store is not None:  # in mode ``require``, and no command that is always let pass
            _bypass(opened, no_store, name)
        if command.stdin:
            if server_state is not None:
                return None  # what was read of it here would be gone for the other
            stdin = _spool()
        return _through_engine(list(args), opened, command, stdin, descriptors)
    except PassThrough as passed:
        way = passed
    except BrokenPipeError:
        raise
    except OSError as error:  # something can't be read: the command says it better
        way = PassThrough(Reason.NOT_UNDERSTOOD, str(error), is_reported=True)
        is_refused = True
    except Exception as error:
        if isinstance(error, (CachecError, CommandFailed)):
            raise
        way = PassThrough(Reason.NOT_UNDERSTOOD, mistake_words(error), is_reported=True)
    if is_refused:
        _bypass(opened, way, name)
    else:
        _count(opened, way, name)
    return CommandResult(None, become=(program, argv), stdin=stdin)


def _bypass(opened: CacheContext, way: PassThrough, name: str) -> None:
    """Count, and tell, that the system refuses a key or a store to a command that may have one.

    Raises CacheMissError in mode ``require``.
    """
    if opened.settings.mode is not Mode.REQUIRE:
        _count(opened, way, name)
        return
    why = f"{way.reason.value}: {way.detail}"
    opened.events.emit(Outcome(reason=Reason.REQUIRED, stage=name, key="", detail=why, time=time.time()))
    raise CacheMissError(f"{name} would run in mode 'require' ({why}); make that readable, or run it in mode 'on'")


def _count(opened: CacheContext, way: PassThrough, name: str) -> None:
    """Count, and tell, why the command is run as if cachec were not there."""
    opened.events.emit(Outcome(reason=way.reason, stage=name, key="", detail=way.detail, time=time.time()))
    if way.is_reported and not opened.events.tells(way.reason) and opened.settings.log != "off":
        say(f"{way.reason.value} {name}: {way.detail}")


def _through_engine(
    args: list[str], opened: CommandContext, command: CommandSpec, stdin: int | None, descriptors: Sequence[int]
) -> CommandResult:
    spooled = None if stdin is None else f"/proc/self/fd/{stdin}"
    itself = (command.program, [*command.argv])
    made: list[dict[str, Any]] = []

    def body(command: CommandSpec, stripped: Sequence[StrippedInput], stdin: str | None) -> dict[str, Any]:
        recorder = recording.current()
        if unlocked is not None and recorder is not None:
            recorder.refuse_storage(*unlocked)
        from cachec.launcher.traced_command import run_command  # on a miss only

        line = stripped_command_line(command, stripped)
        source = f"/proc/self/fd/{stripped[0].fd}" if stripped else stdin
        made.append(run_command(opened, command, line, source, descriptors))
        return made[-1]

    def describe() -> CommandCall:
        from cachec.launcher.recipe import describe_call  # on a miss only

        return describe_call(opened, command, args)

    from cachec.launcher.memo import begin  # not where the command is passed through

    stage = CommandStage(command, body, describe)
    engine = opened.engine_for(command)
    draft = begin(opened, command)
    answer: CallResult | None = None
    is_stripping = command.options.strip  # then the weights must be in the result's folder
    try:
        with (
            strip_inputs(command) as stripped,
            write_sidecar_weights(command, stripped) as publish_weights,
            lock_outputs(
                opened.store,
                command.outputs,
                opened.settings.lock_timeout,
                opened.events.note_waiting,
            ) as unlocked,
        ):

            def hand_out(value: Any) -> None:
                publish_weights()  # first: an output that is there tells a build system that all is done
                _hand_out(opened, command, value)

            answer = engine.call(stage, (command, stripped, spooled), {}, on_hit=hand_out)
            value = answer.value
            if made:
                publish_weights()
        if draft is not None and answer is not None:
            draft.write(args, engine.tools.entry_finder, answer)
        stdout, stderr = opened.places.fill_base(value["stdout"]), opened.places.fill_base(value["stderr"])
    except Exception as error:
        if made and not is_stripping:  # the command has run, whatever went wrong after it
            say(f"not stored: {mistake_words(error)}")
            stdout, stderr = (opened.places.fill_base(made[-1][name]) for name in ("stdout", "stderr"))
            return CommandResult(0, stdout, stderr, itself, stdin)
        if not isinstance(error, OSError) or error.filename != command.program:
            raise
        say(f"error: {command.argv[0]!r} can't be started: {error.strerror}")
        return CommandResult(_NOT_STARTED)
    finally:
        opened.close()
    is_stored = not made or (answer is not None and answer.outcome.stored)
    return CommandResult(0, stdout, stderr, itself, stdin, stored=is_stored)


def _hand_out(opened: CommandContext, command: CommandSpec, value: Any) -> None:
    """Put what is stored in its places. Raises PassThrough where an output can't be written, or went from the store:
    the command may manage, or says why not.
    """
    try:
        outputs = outputs_of(command, opened.variables, opened.places, value)
    except OSError as error:
        words = f"output {error.filename!r} can't be written: {error.strerror}"
        raise PassThrough(Reason.UNDESCRIBED, words, is_reported=True) from error
    if value.get("taken"):
        os.lseek(0, value["taken"], os.SEEK_CUR)  # as the command would have left it
    hardlink, restat = command.options.hardlink, command.options.restat
    for path, stored, word in zip(outputs, value["outputs"], value["modes"], strict=True):
        mode = mode_of(word)
        try:
            if stored is None:
                restore_folder(path, mode, restat=restat)
            elif isinstance(stored, str):
                restore_link(stored, path)
            elif isinstance(stored, bytes):
                restore_bytes(opened.places.fill_base(stored), path, mode, restat=restat)
            else:
                restore_file(os.fspath(stored.path), path, mode, hardlink=hardlink, restat=restat)
        except OSError as error:
            if isinstance(stored, File) and not os.path.exists(stored.path):
                opened.events.note_fault(Fault.ARTIFACT_MISSING, f"{stored.path} went while it was handed out")
            words = f"output {path!r} can't be written: {error.strerror}"
            raise PassThrough(Reason.UNDESCRIBED, words, is_reported=True) from error


def _spool() -> int:
    """All of standard input, in a file without a name."""
    import tempfile

    with tempfile.TemporaryFile() as file:
        while piece := os.read(0, 1 << 20):
            file.write(piece)
        file.flush()
        return os.dup(file.fileno())
