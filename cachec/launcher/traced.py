"""A command without an adapter: it runs under the tracer, and what it wrote where it may is its result."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import Any

import msgspec

from cachec import recording
from cachec.commands.process import run_process
from cachec.commands.traced import Changed, Reads, Traced, run_traced, unstorable
from cachec.launcher.command import Command, Output
from cachec.launcher.direct import default_folder
from cachec.launcher.output_places import OutputPlaces
from cachec.launcher.outputs import check_stored
from cachec.launcher.places import Places, leaked
from cachec.launcher.request import environment
from cachec.launcher.restore import EXECUTABLE, PLAIN
from cachec.launcher.running import mode_word
from cachec.launcher.stage import CommandFailed, RunEnvironment
from cachec.model import Read, Reason
from cachec.programs.artifact import File
from cachec.recording import Recorder
from cachec.tracing.accesses import Change


def run_command_traced(where: RunEnvironment, command: Command, stdin: str | None) -> dict[str, Any]:
    """Run it, and say what it wrote; see ``running.run_command``. Paths in the result are from an anchor."""
    recorder = recording.current()
    assert recorder is not None
    environ = environment(command, where.variables)
    run = run_traced(command.argv, environ=environ, cwd=command.cwd, stdin=stdin)
    accesses = run.accesses
    if run.ended.returncode and accesses.may_be_interrupted and not accesses.changes:
        bare = run_process(command.argv, command.program, environ=environ, cwd=command.cwd, stdin=stdin)
        run = run._replace(ended=bare)
        recorder.keep_out(Reason.UNTRACED, "a signal interrupted one of its look-ups, so it ran again without a tracer")
    if run.ended.returncode:
        raise CommandFailed(run.ended)
    places = OutputPlaces(command, where.variables)
    changes = [change for change in accesses.changes if not places.is_cache(change.path)]
    for reason, detail in run.problems(network=command.options.network == "trust"):
        recorder.keep_out(reason, detail)
    why = unstorable(changes, places.allows, places.is_named)
    if why:
        recorder.keep_out(Reason.UNDESCRIBED, f"{why}; name outputs with --outputs")
    if recorder.kept_out() is not None:  # nothing of it is looked at again, so it can be what no file of a store is
        return {"stdout": run.ended.stdout, "stderr": run.ended.stderr, "outputs": [], "modes": [], "paths": []}
    _record(where, command, run, recorder, {change.path for change in changes if places.is_named(change.path)})
    return _result(where.places, command, run, changes, recorder)


def _record(where: RunEnvironment, command: Command, run: Traced, recorder: Recorder, named: set[str]) -> None:
    stores = os.path.join(os.path.realpath(default_folder(dict(where.variables), command.cwd) or "/nonexistent"), "")
    places = where.places
    try:
        for read in Reads(run, where.digests, command.cwd, keyed=places.kept, named=named).all():
            if read.kind == "content" and os.path.realpath(os.path.join(command.cwd, read.where)).startswith(stores):
                recorder.keep_out(Reason.UNDESCRIBED, "a cachec inside of it took something from its store")
                return
            recorder.traced(msgspec.structs.replace(read, where=places.kept(read.where)))
    except (Changed, OSError) as error:
        recorder.keep_out(Reason.INPUT_CHANGED, str(error))


def _result(
    places: Places, command: Command, run: Traced, changes: Sequence[Change], recorder: Recorder
) -> dict[str, Any]:
    templates = [places.template(run.ended.stdout), places.template(run.ended.stderr)]
    outputs: list[Any] = []
    modes: list[str] = []
    kept: list[str] = []
    files: list[str] = []
    here = os.path.realpath(command.cwd)
    for change in sorted(changes, key=lambda each: each.path):
        path, after = change.path, change.after
        assert after is not None
        if stat.S_ISDIR(after.mode) and change.before is not None and change.before.ino == after.ino:
            continue  # its names are told by what is in it
        kept.append(os.path.relpath(path, here) if path.startswith(f"{here}/") else places.kept(path))
        modes.append(mode_word(after.mode))
        if stat.S_ISLNK(after.mode):
            outputs.append(os.readlink(path))
            modes[-1] = PLAIN
        elif stat.S_ISDIR(after.mode):
            outputs.append(None)
        else:
            if modes[-1] not in {PLAIN, EXECUTABLE} and change.before is not None and change.before.ino == after.ino:
                why = f"output {path} had the mode {modes[-1]} before, which the command may not have chosen"
                recorder.keep_out(Reason.UNDESCRIBED, why)
            outputs.append(File(path, name=f"output-{len(outputs)}"))
            files.append(path)
    check_stored(recorder, [Output(path, "file", "") for path in files])
    folders = places.folders()
    del folders["cwd"]
    texts = [*templates, *(os.fsencode(each) for each in outputs if isinstance(each, str))]
    for name in leaked(folders, files, texts):
        recorder.seen(Read("folder", name, "", places.digest(name)))
    return {"stdout": templates[0], "stderr": templates[1], "outputs": outputs, "modes": modes, "paths": kept}
