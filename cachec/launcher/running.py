"""One run of a command on a miss: what it gets, what it is seen to read, and what it wrote: the result of a stage."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cachec import recording
from cachec.base.texts import is_text
from cachec.commands.process import Ended, run_process
from cachec.commands.watched import Reads, Watched
from cachec.launcher import headers
from cachec.launcher.command import Command
from cachec.launcher.direct import file_number
from cachec.launcher.outputs import UnnamedFiles, Untouched, check_stored
from cachec.launcher.places import Places, leaked
from cachec.launcher.request import environment
from cachec.launcher.restore import EXECUTABLE, PLAIN
from cachec.launcher.stage import CommandFailed, RunEnvironment
from cachec.launcher.volatile import VolatileWords, spliced
from cachec.model import BELOW_BASE, Read, Reason
from cachec.programs.artifact import Dir, File
from cachec.recording import Recorder

#: What stands for the name of a file, and flags that keep folders out of it.
_FILE_WORDS = (b"__FILE__", b"__BASE_FILE__", b"__builtin_FILE", b"source_location")
_MAPS = ("-ffile-prefix-map", "-fmacro-prefix-map")

#: Kernels stamp ctime with a coarse clock, which is at most this much behind (CONFIG_HZ=100).
_CLOCK_SECONDS = 0.02


def run_command(where: RunEnvironment, command: Command, argv: Sequence[str], stdin: str | None) -> dict[str, Any]:
    """Run it on its real paths and say what it wrote. To be called in the context of a stage's run.

    argv: the command line as it is to run: that of ``command``, or one with stripped inputs. stdin: the file that
    standard input was kept in. Raises CommandFailed for any status but 0, OSError where the program can't be started.
    """
    recorder = recording.current()
    assert recorder is not None
    with _scratch(needed=command.includes) as folder:
        depfile = os.path.join(folder, "depfile")
        apart = command.depfile == "short" or (command.sees_line and not command.depfile)
        started = time.time()  # what changes between the two runs counts as changed
        if command.includes and apart:
            _name_dependencies(where, command, argv, depfile)
        own = ["-MD", "-MF", depfile] if command.includes and not command.depfile and not apart else []
        seen = _CommandReads(where, command, recorder)
        watched = Watched(
            seen,
            given=[*(each.path for each in command.inputs if not os.path.isdir(each.path)), *command.responses],
            outputs=[output.path for output in command.outputs],
            weights={path: "withheld" if key == "name" else key for path, key in command.weights.items()},
            undescribed=command.undescribed,
        )
        untouched = Untouched(command.outputs, where.digests, restat=command.options.restat)
        unnamed = UnnamedFiles(command)
        ended = watched.run(
            [*argv, *own],
            command.program,
            environ=environment(command, where.variables),
            cwd=command.cwd,
            stdin=stdin,
            ends_with_us=not where.is_served,
            in_session=where.is_served,
        )
        if ended.returncode:
            raise CommandFailed(ended)
        untouched.put_back()
        for path in unnamed.changed():
            words = f"{path} was written, which no argument names; to have it stored too, say --output {path}"
            recorder.keep_out(Reason.UNDESCRIBED, words)
        for path in command.absent:
            if os.path.lexists(path):
                recorder.keep_out(Reason.INPUT_CHANGED, f"{path} appeared meanwhile")
            seen.absent(path)
        if command.includes:
            named = next((each.path for each in command.outputs if each.kind == "depfile"), depfile)
            seen.headers(named if command.depfile == "full" else depfile, started)
        check_stored(recorder, command.outputs)
        return _result(where.places, command, ended, recorder, untouched)


@contextlib.contextmanager
def _scratch(*, needed: bool) -> Iterator[str]:
    """A folder for what only the run itself reads: a child of the server ends without running what was left for the
    end of a process, so it goes with the run. Its path where it is needed, else empty."""
    folder = os.path.realpath(tempfile.mkdtemp(prefix="cachec-")) if needed else ""
    try:
        yield folder
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _name_dependencies(where: RunEnvironment, command: Command, argv: Sequence[str], depfile: str) -> None:
    """Have the compiler name all that it includes, where the depfile that was asked for leaves system headers out, or
    asking for one would come into the result.

    A run of its own, before the compiler's.
    """
    dropped = {
        number
        for piece in command.pieces
        if piece.means in {"output", "extra-output", "depfile", "depfile-on", "depfile-short"} and piece.begin >= 0
        for number in range(piece.begin, piece.end)
    }
    kept = [arg for number, arg in enumerate(argv[1:]) if number not in dropped and arg not in {"-c", "-S", "-MP"}]
    line = [argv[0], *kept, "-M", "-MF", depfile]  # what fails here fails again, and is told
    environ = environment(command, where.variables)
    run_process(
        line,
        command.program,
        environ=environ,
        cwd=command.cwd,
        ends_with_us=not where.is_served,
        in_session=where.is_served,
    )


class _CommandReads(Reads):
    """Puts what the command was seen to read into the trace."""

    def __init__(self, where: RunEnvironment, command: Command, recorder: Recorder) -> None:
        super().__init__(recorder, where.places.kept)
        self._where = where
        self._command = command
        self._outputs = {output.path: output.where for output in command.outputs}
        self._folders = {folder: file_number(folder) for folder in command.search}

    def output(self, path: str) -> str:
        return f"{path}, its output by {self._outputs[path]}"

    def absent(self, path: str) -> None:
        """Looked for, and not there; an output is made by the command itself."""
        if os.path.normpath(os.path.join(self._command.cwd, path)) not in self._outputs:
            super().absent(path)

    def headers(self, depfile: str, started: float) -> None:
        """What the depfile names: by content, and the places where each would be found first, as absent. By the names
        that the compiler has for them: a relative one is another file in another folder. (The current folder is that
        of this process.)"""
        command, recorder = self._command, self.recorder
        adapter = command.adapter
        assert adapter is not None
        try:
            with open(depfile, "rb") as file:
                included = [headers.plain(path) for path in headers.read_depfile(file.read())]
        except (OSError, headers.DepfileError) as error:
            recorder.keep_out(Reason.UNDESCRIBED, f"the compiler did not name what it included: {error}")
            return
        strange = next((path for path in included if not is_text(path)), None)
        if strange is not None:
            recorder.keep_out(Reason.NOT_UNDERSTOOD, f"{strange!a} is not UTF-8")
            return
        given = {each.path for each in command.inputs}
        words = VolatileWords(command, environment(command, self._where.variables))
        folders = [headers.plain(folder) for folder in command.search]
        found = headers.Included(included, folders, headers.system_folders(command.program))
        ways = headers.Ways(started - _CLOCK_SECONDS)
        for path in included:
            if ways.changed(path):
                recorder.keep_out(Reason.INPUT_CHANGED, f"{path} was changed, or came to be, while it was compiled")
            if os.path.join(command.cwd, path) not in given:
                why = words.in_file(path, is_system=found.is_systems(path))
                if why:
                    recorder.keep_out(Reason.VOLATILE_INPUT, f"{path} {why}")
                self.file(path)
        texts = {path: spliced(_content(path)) for path in included}
        argv = [os.fsencode(arg) for arg in command.argv]
        own = [text for path, text in texts.items() if not found.is_systems(path)]
        why = words.pasted([*texts.values(), *argv], [*own, *argv])
        if why:
            recorder.keep_out(Reason.VOLATILE_INPUT, f"{included[0]} {why}")
        if self._may_hold_base(texts, own):
            recorder.seen(Read("folder", "base_dir", "", self._where.places.digest("base_dir")))
        looked_for, untold = found.looked_for(texts)
        if untold:
            recorder.keep_out(Reason.VOLATILE_INPUT, f"{untold} has __has_include of what can't be told")
        rivals: list[str] = []
        for path in (*found.candidates(adapter.builtin_search, rivals), *looked_for):
            self.candidate(path)  # a folder counts as what is no file: one may come to be there
        rivals += filter(os.path.isfile, looked_for)
        new = next((path for path in rivals if ways.changed(path)), None)
        if new is not None:
            recorder.keep_out(
                Reason.INPUT_CHANGED, f"{new} came to be, or was changed, while the compiler looked there"
            )
        for folder, number in self._folders.items():
            if number not in {b"-", file_number(folder)}:
                recorder.keep_out(Reason.INPUT_CHANGED, f"{folder} was another folder when the compiler began")
        for paths in found.of_which_some_may_be_one(texts):
            kept = "\0".join(map(self._where.places.kept, paths))
            recorder.seen(Read("same", f"{len(paths)} paths", kept, self._where.places.sameness(kept)))
        for path in adapter.builtin_search:
            if os.path.isdir(path):
                self.listing(path)
            else:
                self.absent(path)

    def _may_hold_base(self, texts: Mapping[str, bytes], own: Sequence[bytes]) -> bool:
        """Whether a value may follow from the path of the base folder that does not show it: of ``sizeof(__FILE__)``,
        of ``u"" __FILE__``, or of a definition with the path in it. own: texts that are not the system's."""
        places = self._where.places
        flags = [(piece.label, piece.text) for piece in self._command.pieces if piece.means == "value" and piece.text]
        defined = [text.partition("=")[0] for label, text in flags if label == "-D" and places.keyed(text) != text]
        if any(os.fsencode(name) in text for name in defined for text in texts.values()):
            return True
        mapped = [text.partition("=")[0] for label, text in flags if label in _MAPS]
        if places.base is None or any(f"{places.base}/".startswith(folder) for folder in mapped):
            return False
        is_named = any(places.kept(path).startswith(BELOW_BASE) for path in texts)
        return is_named and any(word in text for word in _FILE_WORDS for text in own)


def _result(places: Places, command: Command, ended: Ended, recorder: Recorder, untouched: Untouched) -> dict[str, Any]:
    """What the stage returns: streams and depfiles as templates, the other outputs as files and folders."""
    outputs: list[Any] = []
    modes: list[str] = []
    files: list[str] = []
    templates = [places.template(ended.stdout), places.template(ended.stderr)]
    for output in command.outputs:
        if not os.path.lexists(output.path):
            continue  # that was told
        status = os.stat(output.path)
        modes.append(mode_word(status.st_mode))
        has_old_mode = untouched.has_old_mode(output.path, status)
        if has_old_mode and command.adapter is not None and command.adapter.is_shipped:
            modes[-1] = PLAIN  # as each of these compilers makes a new file
        elif modes[-1] not in {PLAIN, EXECUTABLE} and has_old_mode:
            why = f"output {output.path} had the mode {modes[-1]} before, which the command may not have chosen"
            recorder.keep_out(Reason.UNDESCRIBED, why)
        name = f"output-{len(outputs)}"  # a command that is asked for it elsewhere, under another name, gives the same
        if os.path.isdir(output.path):
            outputs.append(Dir(output.path, name=name))
            files += _files_below(output.path)
        elif output.kind == "depfile":
            with open(output.path, "rb") as file:
                templates.append(places.template(file.read()))
            outputs.append(templates[-1])
        else:
            outputs.append(File(output.path, name=name))
            files.append(output.path)
    folders = places.folders()
    if command.sees_cwd:
        del folders["cwd"]
    bound = leaked({name: path for name, path in folders.items() if name == "cwd"}, [], [ended.stdout, ended.stderr])
    bound |= leaked(folders, files, templates)
    for name in bound:
        recorder.seen(Read("folder", name, "", places.digest(name)))
    return {"stdout": templates[0], "stderr": templates[1], "outputs": outputs, "modes": modes}


def _files_below(folder: str) -> Iterator[str]:
    for where, _, names in os.walk(folder):
        yield from (path for name in names if os.path.isfile(path := os.path.join(where, name)))


def mode_word(mode: int) -> str:
    """The mode of an output: plain or executable by the umask of now, else in octal digits."""
    umask = os.umask(0o077)
    os.umask(umask)
    bits = mode & 0o7777
    return PLAIN if bits == 0o666 & ~umask else EXECUTABLE if bits == 0o777 & ~umask else f"{bits:o}"


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
