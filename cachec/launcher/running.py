"""One run of a command on a miss: what it gets, what it is seen to read, and what it wrote: the result of a stage."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from cachec import recording
from cachec.commands.process import Ended, run_process
from cachec.commands.run import WeightWatch, scratch
from cachec.errors import CachecWarning
from cachec.key.dependencies import ABSENT, listing_digest
from cachec.launcher import headers
from cachec.launcher.arguments import Command, is_text
from cachec.launcher.outputs import Before, check_stored, state
from cachec.launcher.places import Places, leaked
from cachec.launcher.request import environment, volatile_word
from cachec.launcher.restore import EXECUTABLE, PLAIN
from cachec.launcher.stage import CommandFailed, Environment
from cachec.launcher.untouched import Untouched
from cachec.model import Read, Reason
from cachec.programs.artifact import Dir, File
from cachec.recording import Recorder

#: Kernels stamp ctime with a coarse clock, which is at most this much behind (CONFIG_HZ=100).
_CLOCK_SECONDS = 0.02


def run_command(where: Environment, command: Command, argv: Sequence[str], stdin: str | None) -> dict[str, Any]:
    """Run it on its real paths and say what it wrote. To be called in the context of a stage's run.

    argv: the command line as it is to run: that of ``command``, or one with stripped inputs. stdin: the file that
    standard input was kept in. Raises CommandFailed for any status but 0, OSError where the program can't be started.
    """
    recorder = recording.current()
    assert recorder is not None
    with scratch() as folder, ExitStack() as stack:
        depfile = os.path.join(folder, "depfile")
        if command.includes and command.depfile == "short":
            _name_dependencies(where, command, argv, depfile)
        own = ["-MD", "-MF", depfile] if command.includes and not command.depfile else []
        rules = {path: "content" if key == "content" else "opened" for path, key in command.weights.items()}
        watch = WeightWatch(rules, stack)  # type: ignore[arg-type]  # mypy widens the literals
        before = {path: state(path) for path in command.undescribed}
        given = {path: state(path) for path in _given(command) if not os.path.isdir(path)}
        outputs = Before(command.outputs)
        untouched = Untouched(command, where.digests)
        source = os.open(stdin or os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, source)
        watch.arm()
        started = time.time()
        ended = _run(where, command, [*argv, *own], source, supervised=watch.is_armed)
        read = watch.read(is_certain=ended.survivors is False and stdin is None)
        if ended.returncode:
            raise CommandFailed(ended)
        untouched.put_back()
        if ended.survivors:
            recorder.keep_out(Reason.UNDESCRIBED, "a process that it started went on, and may write after it")
        seen = _Seen(where, command, recorder)
        seen.weights(read)
        seen.absent(command.absent)
        for path in (path for path, found in given.items() if state(path) != found):
            recorder.keep_out(Reason.INPUT_CHANGED, f"{path} was written to or replaced while the command ran")
        for path in (path for path, found in before.items() if state(path) != found):
            recorder.keep_out(Reason.UNDESCRIBED, f"{path} was written, and no argument is known to be for that")
        if command.includes:
            named = next((each.path for each in command.outputs if each.kind == "depfile"), depfile)
            seen.headers(named if command.depfile == "full" else depfile, started)
        for output in command.outputs:
            old = outputs.untouched(output)
            if old is not None:
                words = f"{old} was there before, and the command did not write it (output by {output.where})"
                recorder.keep_out(Reason.UNDESCRIBED, words)
        check_stored(recorder, command.outputs)
        return _result(where.places, command, ended, recorder)


def _given(command: Command) -> set[str]:
    """The files whose content is in the key."""
    weights = {path for path, key in command.weights.items() if key == "content"}
    return {each.path for each in command.inputs} | set(command.responses) | weights


def _run(where: Environment, command: Command, argv: Sequence[str], source: int, *, supervised: bool = False) -> Ended:
    return run_process(
        argv,
        command.program,
        environ=environment(command, where.variables),
        cwd=command.cwd,
        stdin=source,
        pass_fds=(),
        timeout=None,
        supervised=supervised,
        ends_with_us=True,
    )


def _name_dependencies(where: Environment, command: Command, argv: Sequence[str], depfile: str) -> None:
    """Have the compiler name all that it includes, where the depfile that was asked for leaves system headers out.

    A run of its own, before the compiler's: what changes between the two has a newer ctime than the second.
    """
    dropped = {
        number
        for piece in command.pieces
        if piece.means in {"output", "depfile", "depfile-on", "depfile-short"} and piece.begin >= 0
        for number in range(piece.begin, piece.end)
    }
    kept = [arg for number, arg in enumerate(argv[1:]) if number not in dropped and arg not in {"-c", "-S", "-MP"}]
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _run(where, command, [argv[0], *kept, "-M", "-MF", depfile], null)  # what fails here fails again, and is told
    finally:
        os.close(null)


class _Seen:
    """Puts what the command was seen to read into the trace."""

    def __init__(self, where: Environment, command: Command, recorder: Recorder) -> None:
        self._where = where
        self._command = command
        self._recorder = recorder

    def weights(self, read: Mapping[str, bool]) -> None:
        """Weights that were read, or may have been. The value: whether the file is still the same."""
        for path, is_same in read.items():
            if self._command.weights[path] == "name":
                warnings.warn(
                    f"weight file {path!r} is keyed by its name, and may have been read; its content counts now "
                    "(say =opened where the command may open it)",
                    CachecWarning,
                    stacklevel=2,
                )
            self._file(path)
            if not is_same:
                self._recorder.keep_out(Reason.INPUT_CHANGED, f"weight file {path} was replaced while it was read")

    def absent(self, paths: Sequence[str]) -> None:
        """Files that were looked for, and are not there."""
        for path in paths:
            if os.path.lexists(path):
                self._recorder.keep_out(Reason.INPUT_CHANGED, f"{path} appeared meanwhile")
            self._absent(path)

    def headers(self, depfile: str, started: float) -> None:
        """What the depfile names: by content, and the places where each would be found first, as absent."""
        command, recorder = self._command, self._recorder
        adapter = command.adapter
        assert adapter is not None
        try:
            with open(depfile, "rb") as file:
                found = [os.path.join(command.cwd, path) for path in headers.read_depfile(file.read())]
        except (OSError, headers.DepfileError) as error:
            recorder.keep_out(Reason.UNDESCRIBED, f"the compiler did not name what it included: {error}")
            return
        strange = next((path for path in found if not is_text(path)), None)
        if strange is not None:
            recorder.keep_out(Reason.NOT_UNDERSTOOD, f"{strange!a} is not UTF-8")
            return
        given = {each.path for each in command.inputs}
        for path in found:
            if os.stat(path).st_ctime > started - _CLOCK_SECONDS:
                recorder.keep_out(Reason.INPUT_CHANGED, f"{path} was changed while it was compiled")
            if headers.asks_by_macro(path, command.search):
                recorder.keep_out(
                    Reason.VOLATILE_INPUT, f"{path} has __has_include of a macro: what it asks for is not known"
                )
            if path not in given:
                why = volatile_word(path, adapter.volatile, adapter.unless_set, self._where.variables)
                if why:
                    recorder.keep_out(Reason.VOLATILE_INPUT, f"{path} {why}")
                self._file(path)
        for path in headers.absent_candidates(found, command.search, adapter.builtin_search):
            self._absent(path)
        for path in headers.looked_for(found, command.search):
            if os.path.isfile(path):
                self._file(path)
            else:
                self._absent(path)
        for path in adapter.builtin_search:
            if os.path.isdir(path):
                recorder.listing(self._where.places.kept(path), listing_digest(os.listdir(path)))
            else:
                self._absent(path)

    def _file(self, path: str) -> None:
        try:
            digest = self._where.digests.of_path(path)
        except OSError:
            digest = ABSENT
        self._recorder.file(self._where.places.kept(path), digest)

    def _absent(self, path: str) -> None:
        outputs = {output.path for output in self._command.outputs}
        if os.path.normpath(path) not in outputs:
            self._recorder.absent(self._where.places.kept(path))


def _result(places: Places, command: Command, ended: Ended, recorder: Recorder) -> dict[str, Any]:
    """What the stage returns: streams and depfiles as templates, the other outputs as files and folders."""
    outputs: list[Any] = []
    modes: list[str] = []
    files: list[str] = []
    templates = [places.template(ended.stdout), places.template(ended.stderr)]
    for output in command.outputs:
        if not os.path.lexists(output.path):
            recorder.keep_out(
                Reason.UNDESCRIBED, f"it ended well and did not write {output.path}, its output by {output.where}"
            )
            continue
        found = os.stat(output.path)
        modes.append(_mode(found.st_mode))
        if os.path.isdir(output.path):
            outputs.append(Dir(output.path))
            files += _files_below(output.path)
        elif output.kind == "depfile":
            with open(output.path, "rb") as file:
                templates.append(places.template(file.read()))
            outputs.append(templates[-1])
        else:
            outputs.append(File(output.path))
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


def _mode(mode: int) -> str:
    """The mode of an output: plain or executable by the umask of now, else in octal digits."""
    umask = os.umask(0o077)
    os.umask(umask)
    bits = mode & 0o7777
    return PLAIN if bits == 0o666 & ~umask else EXECUTABLE if bits == 0o777 & ~umask else f"{bits:o}"
