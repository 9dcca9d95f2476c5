"""One run of a command on a miss, under the tracer: its look-ups become the trace, and what it wrote the result."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from cachec import recording
from cachec.base.display_text import is_text
from cachec.base.lookups import stdin_kind
from cachec.commands.process import run_process
from cachec.commands.traced_run import CLOSED, InputChanged, Reads, TracedRun, run_traced, unstorable
from cachec.key.tools.environment import LOCALE_NAME, variable_digest
from cachec.key.trace_validation import stdin_digest, terminal_digest
from cachec.launcher import source_scan
from cachec.launcher.build_tools import BY_TIME, advice
from cachec.launcher.command import CommandSpec
from cachec.launcher.command_key import environment, files_in_key, variable_rule
from cachec.launcher.direct import default_folder
from cachec.launcher.outputs import AllowedOutputs, PreservedTimestamps, check_stored
from cachec.launcher.path_map import find_leaks
from cachec.launcher.result import mistake_words, path_to_start
from cachec.launcher.stage import CommandContext, CommandFailed
from cachec.launcher.variable_reads import find_neutral_reads, find_variable_reads
from cachec.model import Read, Reason
from cachec.programs.artifact import File
from cachec.recording import ReadRecorder
from cachec.tracing.accesses import Accesses, Change, Effect


def run_command(
    opened: CommandContext,
    command: CommandSpec,
    argv: Sequence[str],
    stdin: str | None,
    descriptors: Sequence[int] = (),
) -> dict[str, Any]:
    """Run it on its real paths and say what it wrote. To be called in the context of a stage's run.

    argv: the command line as it is to run: that of ``command``, or one with stripped inputs. stdin: the file that
    standard input was kept in. descriptors: those above 2 that it inherits. Raises CommandFailed for any status but
    0, OSError where the program can't be started.
    """
    recorder = recording.current()
    assert recorder is not None
    environ = environment(opened.variables)
    source: str | int = stdin if stdin is not None else 0
    if stdin is None and stdin_kind() == "closed":
        source = CLOSED
        recorder.refuse_storage(Reason.UNDESCRIBED, "its standard input is closed")
    before, begin = stdin_digest(opened.store.digests) if stdin is None else "", _offset()
    timestamps = PreservedTimestamps(command.outputs if command.options.restat else (), opened.store.digests)
    flags = source_scan.time_flags(command)
    traced = partial(
        run_traced,
        environ=environ,
        cwd=command.cwd,
        stdin=source,
        descriptors=descriptors,
        owns_group=opened.keeper is not None,  # a child of the server leads a session of its own
        keeper=opened.keeper,
    )
    run = traced([argv[0], *flags, *argv[1:]])
    sees_time = bool(flags) and source_scan.warns_of_time(run.ended.stderr)
    if sees_time:
        if source_scan.EPOCH not in environ:
            recorder.refuse_storage(Reason.VOLATILE_INPUT, "the time or the date is in its result")
        # For what it says without the flags.
        run = traced(argv)
    elif _was_interrupted(run):
        recorder.refuse_storage(
            Reason.UNTRACED, "a signal interrupted one of its look-ups, which a tracer makes possible"
        )
        bare = run_process(
            argv,
            path_to_start(command.program, argv[0]),
            environ=environ,
            cwd=command.cwd,
            stdin=stdin,
            in_session=True,
        )
        run = run._replace(ended=bare)
    if run.ended.returncode:
        raise CommandFailed(run.ended)
    try:
        if descriptors and run.accesses.uses_descriptor:
            recorder.refuse_storage(Reason.UNDESCRIBED, "it used an open file that it was given beside its streams")
        if stdin is None:
            _note_stdin(run.accesses, before, recorder)
        timestamps.restore()
        taken = _offset() - begin if stdin is None and run.accesses.uses_stdin else 0
        return {**_record_run(opened, command, run, recorder, sees_time=sees_time), "taken": taken}
    except OSError as error:  # of a file that it made, and that can't be read, say
        recorder.refuse_storage(Reason.NOT_UNDERSTOOD, str(error))
    except Exception as error:  # noqa: BLE001  # the command has run: what it said is the user's, whatever is wrong here
        recorder.refuse_storage(Reason.NOT_UNDERSTOOD, mistake_words(error))
    return _unstored_result(run)


def _was_interrupted(run: TracedRun) -> bool:
    """Whether a command failed since a signal interrupted one of its look-ups, and may run once more."""
    ended, accesses = run.ended, run.accesses
    if not (ended.returncode and accesses.may_be_interrupted) or accesses.changes or accesses.problems:
        return False
    return not accesses.uses_stdin and os.strerror(errno.EINTR).encode() in ended.stderr + ended.stdout


def _record_run(
    opened: CommandContext, command: CommandSpec, run: TracedRun, recorder: ReadRecorder, *, sees_time: bool
) -> dict[str, Any]:
    """Put what a run looked up into the trace, and return what it wrote."""
    allowed = AllowedOutputs(command, opened.variables)
    changes = [change for change in run.accesses.changes if not allowed.is_cache(change.path)]
    for reason, detail in run.problems(network=command.options.network == "trust"):
        recorder.refuse_storage(reason, detail)
    why = unstorable(changes, allowed.allows)
    if why:
        written = {change.path for change in changes if change.effect & Effect.WRITTEN}
        for path in sorted(written & run.opened_files()):
            recorder.refuse_storage(Reason.INPUT_CHANGED, f"the command read {path} and then changed it")
        recorder.refuse_storage(Reason.UNDESCRIBED, why)
    if run.accesses.changes and not changes and not run.ended.stdout:
        recorder.refuse_storage(Reason.UNDESCRIBED, "all that it wrote is in caches of programs, which are no outputs")
    if recorder.storage_refusal() is None:
        _ReadRecorder(opened, command, run, recorder, sees_time=sees_time).record(allowed)
    _check_written(command, changes, recorder)
    if recorder.storage_refusal() is not None:  # what it wrote may be what no store holds
        return _unstored_result(run)
    return _result(opened, command, run, changes, recorder)


def _unstored_result(run: TracedRun) -> dict[str, Any]:
    return {"stdout": run.ended.stdout, "stderr": run.ended.stderr, "outputs": [], "modes": [], "paths": []}


def _note_stdin(accesses: Accesses, before: str, recorder: ReadRecorder) -> None:
    """What the command saw of its standard input. before: the digest of what that had for it."""
    if accesses.asks_for_terminal:
        recorder.add_traced_read(Read("stdin", "", "terminal", terminal_digest()))
    if not accesses.uses_stdin:
        return
    kind = stdin_kind()
    if kind in {"file", "nothing", "closed"}:
        recorder.add_traced_read(Read("stdin", "", "", before))
    else:
        what = "a pipe, of which it took what was there" if kind == "pipe" else "a terminal or another device"
        recorder.refuse_storage(
            Reason.UNDESCRIBED, f"it read its standard input, {what}; with --stdin all of that counts"
        )


def _offset() -> int:
    """Where standard input is read next; 0 for what is no file."""
    return os.lseek(0, 0, os.SEEK_CUR) if stdin_kind() == "file" else 0


class _ReadRecorder:
    """Puts what a run looked up into the trace."""

    def __init__(
        self, opened: CommandContext, command: CommandSpec, run: TracedRun, recorder: ReadRecorder, *, sees_time: bool
    ) -> None:
        """sees_time: whether the run used the time that a variable says."""
        self._sees_time = sees_time
        self._opened = opened
        self._command = command
        self._run = run
        self._recorder = recorder

    def record(self, allowed: AllowedOutputs) -> None:
        places, command = self._opened.places, self._command
        store = os.path.realpath(default_folder(dict(self._opened.variables), command.cwd) or "/nonexistent")
        withheld = {os.path.realpath(path) for path, key in command.weights.items() if key == "name"}
        by_content = {os.path.realpath(path) for path, key in command.weights.items() if key == "opened"}
        files: dict[str, str] = {}
        keyed = files_in_key(command)
        reads = Reads(
            self._run,
            self._opened.store.digests,
            command.cwd,
            keyed=places.folder,
            is_named=allowed.is_named,
            is_cache=allowed.is_cache,
            passes=lambda path, _: path in keyed or (bool(withheld) and os.path.realpath(path) in withheld),
        )
        opened = self._run.opened_files()
        for name in sorted(BY_TIME & set(map(os.path.basename, reads.started_programs()))):
            self._recorder.refuse_storage(Reason.UNDESCRIBED, f"it starts {name}: {advice(name)}")
        for path in sorted(withheld & opened):
            self._recorder.refuse_storage(Reason.UNDESCRIBED, f"weight {path}, which counts by its name, was read")
        if any(path.startswith(f"{store}/") for path in opened):
            self._recorder.refuse_storage(Reason.UNDESCRIBED, "a cachec inside of it took something from its store")
        if self._recorder.storage_refusal() is not None:
            return
        try:
            for read in reads.all():
                full = read.where if read.where.startswith("/") else os.path.join(command.cwd, read.where)
                if read.kind == "lookup" and by_content and os.path.realpath(full) in by_content:
                    continue
                if read.kind == "content":
                    files[full] = reads.contents[read.where]
                is_here = read.kind == "lookup" and read.where == places.cwd  # asked by PWD: another one elsewhere
                anchored = "." if is_here else places.to_anchored(read.where) if read.where else ""
                self._recorder.add_traced_read(
                    read if anchored == read.where else msgspec.structs.replace(read, where=anchored)
                )
        except (InputChanged, OSError) as error:
            self._recorder.refuse_storage(Reason.INPUT_CHANGED, str(error))
            return
        self._record_texts(files, reads.started_programs())

    def _record_texts(self, files: Mapping[str, str], started: Iterable[str]) -> None:
        """What the texts of a program say of what else its result may hold."""
        command, places = self._command, self._opened.places
        is_source = command.adapter is not None and bool(command.adapter.time)
        is_compiled = is_source or any(source_scan.is_compiler(path) for path in started)
        if is_compiled:
            self._record_time(files)
            if any(path.endswith(".cfg") for path in files):  # it may hold flags like -g
                self._recorder.add_read(Read("folder", "cwd", "", places.digest("cwd")))
        for group in source_scan.alike(files):  # #pragma once: one file by two paths, or two files
            if is_compiled and source_scan.compares_times(group):
                why = f"the compiler compares the times of {' and '.join(group)}, which are alike (#pragma once)"
                self._recorder.refuse_storage(Reason.VOLATILE_INPUT, why)
            anchored = "\0".join(map(places.to_anchored, group))
            self._recorder.add_read(Read("same", f"{len(group)} paths", anchored, places.sameness(anchored)))
        if places.base is None:
            return
        may_hold = source_scan.may_hold_folder(command, files, places.base) if is_source else not command.is_known
        if may_hold and not command.options.relocatable:
            self._recorder.add_read(Read("folder", "base_dir", "", places.digest("base_dir")))

    def _record_time(self, files: Mapping[str, str]) -> None:
        environ = self._opened.variables
        why = "it used the time" if self._sees_time else source_scan.why_nondeterministic(self._command, files)
        if (
            why and source_scan.EPOCH in environ and source_scan.heeds_epoch(self._command, environ)
        ):  # but not for a file's time
            self._recorder.environment(source_scan.EPOCH, variable_digest(source_scan.EPOCH, environ))
            why = source_scan.why_nondeterministic(self._command, files, source_scan.TIMES[2:])
        if why:
            self._recorder.refuse_storage(Reason.VOLATILE_INPUT, why)
        if self._run.ended.stdout or self._run.ended.stderr:  # messages are in a language
            self._recorder.environment(LOCALE_NAME, variable_digest(LOCALE_NAME, environ))


def _result(
    opened: CommandContext, command: CommandSpec, run: TracedRun, changes: Sequence[Change], recorder: ReadRecorder
) -> dict[str, Any]:
    """What a run wrote, with the paths from an anchor, and depfiles and streams without the base folder."""
    places = opened.places
    streams = [run.ended.stdout, run.ended.stderr]
    outputs: list[Any] = []
    modes: list[str] = []
    paths: list[str] = []
    files: list[str] = []
    whole: list[str] = []
    linked: list[bytes] = []
    depfiles = {os.path.realpath(output.path) for output in command.outputs if output.kind == "depfile"}
    is_source = command.adapter is not None and bool(command.adapter.time)
    here = os.path.realpath(places.cwd)
    for change in sorted(changes, key=lambda each: each.path):
        path, after, before = change.path, change.after, change.before
        assert after is not None
        # A number of a file that was removed may be given out again.
        is_same_file = before is not None and before.ino == after.ino and not change.effect & Effect.REMOVED
        if stat.S_ISDIR(after.mode) and is_same_file:
            continue  # what is in it tells
        is_depfile = path in depfiles or (is_source and path.endswith(".d"))  # of -MD, without -MF
        if stat.S_ISLNK(after.mode):
            outputs.append(os.readlink(path))
            linked.append(os.fsencode(outputs[-1]))
        elif stat.S_ISDIR(after.mode):
            outputs.append(None)
        else:
            if source_scan.holds_times(path, command.argv):
                why = f"clang puts the times of headers into {path}, unless it gets -Xclang -fno-pch-timestamp"
                recorder.refuse_storage(Reason.VOLATILE_INPUT, why)
            text = _content(path) if is_depfile else b""
            template = places.template(text)
            outputs.append(File(path, name=f"output-{len(outputs)}") if template == text else template)
            whole += [path] if template == text else []
            files.append(path)
        for name in (path, outputs[-1]):
            if isinstance(name, str) and not is_text(name):
                recorder.refuse_storage(Reason.NOT_UNDERSTOOD, f"{name!a} is not UTF-8")
        paths.append(os.path.relpath(path, here) if path.startswith(f"{here}/") else places.to_anchored(path))
        modes.append(f"{stat.S_IMODE(after.mode):o}")
    check_stored(recorder, files)
    templates = [*map(places.template, streams), *(each for each in outputs if isinstance(each, bytes)), *linked]
    bases = {} if places.base is None else {"base_dir": places.base}
    for name, file in find_leaks(bases, whole, templates).items():  # the result counts for this folder alone
        shown = os.path.relpath(file, here) if file.startswith(f"{here}/") else file
        recorder.add_read(Read("folder", name, shown, places.digest(name)))
    written = [*streams, *linked, *map(_content, files)]
    for read in find_variable_reads(run.accesses.inputs, places, opened.variables, written):
        recorder.add_read(read)
    rule = variable_rule(command)
    for read in find_neutral_reads(command.argv, rule, run.accesses.inputs, places, opened.variables, written):
        recorder.add_read(read)
    return {"stdout": templates[0], "stderr": templates[1], "outputs": outputs, "modes": modes, "paths": paths}


def _check_written(command: CommandSpec, changes: Sequence[Change], recorder: ReadRecorder) -> None:
    """Keep the result out where an output was not written: the command may have found it up to date."""
    made = {change.path for change in changes}
    for output in command.outputs:
        real = os.path.realpath(output.path)
        if real in made and os.path.islink(output.path):
            recorder.refuse_storage(Reason.UNDESCRIBED, f"{output.path} is a link, by which it wrote {real}")
        if output.kind == "default":
            continue
        if real not in made and not any(path.startswith(f"{real}/") for path in made):
            recorder.refuse_storage(Reason.UNDESCRIBED, f"{output.path} was not written")


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
