"""Run a command under strace, run it again, run it on other weights; and say what that tells."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from cachec.audit.accesses import Accesses, accesses
from cachec.audit.strace import CALLS, STRING_LENGTH, Calls
from cachec.audit.substitute import substituted
from cachec.base.hashing import FileDigests
from cachec.commands.process import Ended, run_process
from cachec.errors import CachecError, CachecWarning, UsageError
from cachec.key.folders import dir_digest
from cachec.launcher.command import Command
from cachec.launcher.request import environment
from cachec.launcher.running import run_command
from cachec.launcher.stage import CommandFailed, Opened
from cachec.launcher.stripping import StrippedInput, stripped_command_line
from cachec.model import Read, Reason
from cachec.programs.artifact import Dir
from cachec.recording import Recorder, recording
from cachec.reproduce.synthetic import synthetic_weights
from cachec.weights import open_weights


class CommandEnded(CachecError):
    """The command that was to be looked at failed by itself. ended: with its own messages."""

    def __init__(self, ended: Ended, which: str) -> None:
        code = ended.returncode
        how = f"by signal {-code}" if code < 0 else f"with exit status {code}"
        super().__init__(f"the command ended {how} ({which}), so there is nothing to look at")
        self.ended = ended


@dataclass(frozen=True)
class Traced:
    """One run under strace. digests: of the files and folders that it left, by path."""

    accesses: Accesses
    ended: Ended
    strange: int
    first_strange: str
    digests: Mapping[str, str]
    seconds: float

    @property
    def streams(self) -> tuple[bytes, bytes]:
        """stdout and stderr."""
        return self.ended.stdout, self.ended.stderr


@dataclass(frozen=True)
class Again:
    """The second run. reads, kept_out: what the launcher would keep beside the key, or why it would store nothing."""

    streams: tuple[bytes, bytes]
    reads: tuple[Read, ...]
    kept_out: tuple[Reason, str] | None
    digests: Mapping[str, str]
    seconds: float


class Runner:
    """Runs one command line."""

    def __init__(
        self, opened: Opened, command: Command, stripped: Sequence[StrippedInput] = (), *, described: bool
    ) -> None:
        """described: whether an adapter or options say what it reads and writes. stripped: models that it gets without
        weights, on its standard input."""
        self._opened = opened
        self._command = command
        self._argv = tuple(stripped_command_line(command, stripped))
        self._stdin = f"/proc/self/fd/{stripped[0].fd}" if stripped else None
        self._described = described
        self.digests = FileDigests()  # remembers nothing between runs that is not safe
        if described:
            self.environ = environment(command, opened.variables)
        else:
            self.environ = {**opened.variables, "PWD": command.cwd}

    def traced(self) -> Traced:
        """Run it under strace. Raises UsageError where that is missing or not allowed, CommandEnded."""
        strace = shutil.which("strace")
        if strace is None:
            raise UsageError("strace is not in PATH; install it (Debian: apt install strace)")
        with tempfile.TemporaryDirectory(prefix="cachec-audit-") as folder:
            log = os.path.join(folder, "strace")
            line = (strace, "-f", "-y", "-qq", "-s", str(STRING_LENGTH), "-e", f"trace={CALLS}", "-e", "signal=none")
            started = time.perf_counter()
            ended = self._run([*line, "-o", log, "--", *self._argv], strace)
            seconds = time.perf_counter() - started
            if ended.returncode:
                if not os.path.exists(log) or not os.path.getsize(log):
                    words = ended.stderr.decode(errors="replace").strip() or f"exit status {ended.returncode}"
                    raise UsageError(f"strace can't trace the command: {words}; ptrace has to be allowed here")
                raise CommandEnded(ended, "under strace")
            with open(log, encoding="utf-8", errors="surrogateescape") as file:
                calls = Calls(file)
                seen = accesses(calls, self._command.cwd)
        paths = (*(os.path.normpath(output.path) for output in self._command.outputs), *seen.written)
        return Traced(seen, ended, calls.strange, calls.first_strange, self.digests_of(paths), seconds)

    def again(self, traced: Traced) -> Again:
        """Run it again, as the launcher does where it is described. Raises CommandEnded."""
        started = time.perf_counter()
        reads: tuple[Read, ...] = ()
        kept_out = None
        if self._described:
            with warnings.catch_warnings(), recording(Recorder("audit", digests=self.digests)) as recorder:
                warnings.simplefilter("ignore", CachecWarning)  # of weights that were opened: the audit says it
                try:
                    result = run_command(self._opened.environment, self._command, self._argv, self._stdin)
                except CommandFailed as failed:
                    raise CommandEnded(failed.ended, "the second time") from None
                finally:
                    recorder.drop_scratch()
            places = self._opened.places
            streams = places.filled(result["stdout"]), places.filled(result["stderr"])
            reads, kept_out = recorder.reads(), recorder.kept_out()
        else:
            ended = self._run(self._argv, self._command.program)
            if ended.returncode:
                raise CommandEnded(ended, "the second time")
            streams = ended.stdout, ended.stderr
        seconds = time.perf_counter() - started
        return Again(streams, reads, kept_out, self.digests_of(traced.digests), seconds)

    def changes_with(self, weights: str) -> tuple[bool | None, str]:
        """(whether the result is another with other bytes in a file of weights; why that is not known).

        Both runs write to a folder of their own, so that no output ever holds what synthetic weights gave.
        """
        command = self._command
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cachec-audit-"))
            place = os.path.join(folder, os.path.basename(weights))
            targets = {
                output.path: os.path.join(folder, f"{at}-{os.path.basename(output.path)}")
                for at, output in enumerate(command.outputs)
            }
            argv, replaced = substituted(self._argv, {weights: place, **targets}, command.cwd)
            left = next((path for path in (weights, *targets) if path not in replaced), None)
            if left is not None:
                return None, f"{left} is not named on the command line, so it can't be put elsewhere"
            results = []
            for make in (_linked, _synthetic):
                try:
                    make(weights, place)
                except (CachecError, OSError, ValueError) as error:
                    return None, f"no weights like these can be made: {error}"
                ended = self._run(argv, command.program)
                if ended.returncode:
                    return None, f"on {_WORDS[make]} it ended with status {ended.returncode}"
                results.append((ended.stdout, ended.stderr, self.digests_of(targets.values())))
                os.unlink(place)
                for target in targets.values():
                    _remove(target)
            return results[0] != results[1], ""

    def digests_of(self, paths: Iterable[str]) -> dict[str, str]:
        """The digests of those files and folders that are there, each read now."""
        digests: dict[str, str] = {}
        for path in paths:
            if os.path.isdir(path):
                digests[path] = dir_digest(Dir(path).path, FileDigests())
            elif os.path.isfile(path):
                digests[path] = FileDigests().of_path(path)
        return digests

    def _run(self, argv: Sequence[str], program: str) -> Ended:
        try:
            return run_process(
                list(argv),
                program,
                environ=self.environ,
                cwd=self._command.cwd,
                stdin=self._stdin,
                ends_with_us=True,
            )
        except OSError as error:
            raise UsageError(f"{argv[0]!r} can't be started: {error.strerror}") from error


def _linked(weights: str, place: str) -> None:
    """The weights themselves, under the other path."""
    os.symlink(os.path.realpath(weights), place)


def _synthetic(weights: str, place: str) -> None:
    """Weights of the same names, shapes and types, with other bytes. Raises CheckpointError, UsageError."""
    with open_weights(weights) as held:
        specs = {name: weight.spec for name, weight in held.items()}
    synthetic_weights(specs).save(place)


_WORDS = {_linked: "the weights under another path", _synthetic: "synthetic weights"}


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
