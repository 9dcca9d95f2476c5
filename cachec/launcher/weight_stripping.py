"""``--strip``: the compiler gets the model without weights, on its standard input; they are written next to the output.

The plugin of the adapter's ``format`` strips. Weights are written at each call, hit or miss, as ``OUTPUT.irpa``: they
are this model's own, and in no key.
"""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from cachec.base import fsio
from cachec.errors import CachecError, UsageError
from cachec.launcher.command import CommandSpec
from cachec.launcher.restore import same_content

if TYPE_CHECKING:
    from cachec.programs.program import Program
    from cachec.weights import WeightSet

#: renameat2(2): the paths are relative to the current folder; the two files change places.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2

#: What the weights of an output are called.
SUFFIX = ".irpa"


class StrippedInput(NamedTuple):
    """One input as the compiler gets it."""

    #: Of the argument that names the model.
    number: int
    #: The path of that file.
    path: str
    program: Program
    weights: WeightSet
    #: An unnamed file with the stripped IR.
    fd: int


def wants_strip(command: CommandSpec) -> bool:
    """Whether the options, or the adapter, ask for stripped inputs."""
    return command.options.strip or (command.adapter is not None and command.adapter.strip)


@contextmanager
def strip_inputs(command: CommandSpec) -> Iterator[tuple[StrippedInput, ...]]:
    """Yield the stripped inputs of a command; none without ``--strip``. Their files are closed at the end.

    Raises UsageError where this command's inputs can't be stripped, CheckpointError for a malformed one.
    """
    if not wants_strip(command):
        yield ()
        return
    from cachec.base.distributions import Distributions  # few commands are stripped
    from cachec.programs.program import Program
    from cachec.programs.registry import Plugins
    from cachec.weights.manifest import Manifest

    number = _model(command)
    adapter = command.adapter
    assert adapter is not None
    plugin = Plugins(Distributions()).find(adapter.format)
    stripped_file = plugin.strip_file(Path(command.models[number]), adapter.strip_as)
    manifest = Manifest.of({name: weight.spec for name, weight in stripped_file.weights.items()})
    program = Program(stripped_file.ir, format=f"{adapter.format}:{adapter.strip_as}", manifest=manifest)
    with fsio.closing(os.memfd_create("cachec-stripped")) as fd:
        with open(fd, "wb", closefd=False) as file:
            file.write(stripped_file.ir)
        yield (StrippedInput(number, command.models[number], program, stripped_file.weights, fd),)


def _model(command: CommandSpec) -> int:
    """The number of the argument that names the model."""
    adapter = command.adapter
    if adapter is None or not adapter.format or not adapter.strip_as:
        raise UsageError(f"--strip: no adapter says how {command.argv[0]!r} takes a model without weights")
    if len(command.models) != 1 or command.stdin:
        raise UsageError("--strip: the model has to be one file on the command line")
    if not any(output.kind == "result" for output in command.outputs):
        raise UsageError("--strip: the weights go beside the output, so name one with -o")
    return next(iter(command.models))


def stripped_command_line(command: CommandSpec, stripped: Sequence[StrippedInput]) -> list[str]:
    """The command line with ``-`` for the model, which comes on standard input: under its own name a module would keep
    the path of a temporary file."""
    argv = list(command.argv)
    for each in stripped:
        argv[each.number + 1] = "-"
    return argv


@contextmanager
def write_sidecar_weights(command: CommandSpec, stripped: Sequence[StrippedInput]) -> Iterator[Callable[[], None]]:
    """Write the weights under temporary names, which are removed at the end; what is yielded gives them their own.

    A file that has these weights already is not written again. That raises CachecError where there can be no such file,
    CheckpointError (a digit that is none), WeightsChanged.
    """
    output = next((output.path for output in command.outputs if output.kind == "result"), "")
    target = os.path.realpath(output + SUFFIX)
    writing = [_Writing(each.weights, target) for each in stripped if each.weights]

    def publish() -> None:
        for each in writing:
            file = each.wait()
            with _explaining_faults():
                if not same_content(target, file, os.stat(file).st_size):
                    take_place(file, target)
                elif not command.options.restat:
                    os.utime(target)

    try:
        yield publish
    finally:
        for each in writing:
            each.end()


class _Writing:
    """A child process that writes weights to a file in the target's folder, while the launcher looks the command up.

    To be made while this process has one thread.
    """

    def __init__(self, weights: WeightSet, target: str) -> None:
        self._weights = weights
        self._folder, name = os.path.split(target)
        self._name = f".{name}.cachec-{os.getpid()}"
        self._file = os.path.join(self._folder, self._name)
        parent = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            _write_and_exit(weights, self._file, parent)

    def wait(self) -> str:
        """The file, once all of it is there. Raises as ``WeightSet.save``, with CachecError for OSError."""
        _, status = os.waitpid(self._child, 0)
        self._child = 0
        if status:
            with _explaining_faults():
                self._weights.save(self._file, format="irpa")  # again: it says what is wrong
        return self._file

    def end(self) -> None:
        """Leave nothing behind."""
        if self._child:
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
            for name in os.listdir(self._folder):
                if name.startswith(f".{self._name}."):  # what ``save`` was writing
                    os.unlink(os.path.join(self._folder, name))
        with suppress(FileNotFoundError):
            os.unlink(self._file)


def _write_and_exit(weights: WeightSet, file: str, parent: int) -> NoReturn:
    status = 1
    try:
        weights.save(file, format="irpa")
        status = 0
        if os.getppid() != parent:  # the parent was killed
            os.unlink(file)
    finally:
        os._exit(status)  # whatever was raised: the parent meets it again, and tells


@contextmanager
def _explaining_faults() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CachecError(f"the weights can't be written beside the output: {error}") from error


def take_place(staged: str, target: str) -> None:
    """Give a file the name ``target`` in one step. Raises OSError.

    Where both are there they change places, and the old one is removed: to rename onto a file, ext4 begins to write all
    of the new one to the disk first (``ext4_alloc_da_blocks``), 0.04 s of a hit that writes 90 MB.
    """
    try:
        is_file = stat.S_ISREG(os.lstat(target).st_mode)
    except FileNotFoundError:
        is_file = False
    if is_file and _have_changed_places(staged, target):
        os.unlink(staged)
    else:
        os.rename(staged, target)


def _have_changed_places(one: str, other: str) -> bool:
    """Whether this C library and file system can do that (glibc 2.28), and did."""
    import ctypes

    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    return rename is not None and not rename(
        _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE
    )
