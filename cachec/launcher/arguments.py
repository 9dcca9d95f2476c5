"""What a command line says by itself, for who runs it and for who only asks: as its adapter and options have it.

All of its arguments count, and the tracer sees what is read and written. An adapter adds which arguments name outputs,
weights and inputs.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from cachec.base.display_text import is_text
from cachec.errors import UsageError
from cachec.key.tools.command_variables import matches
from cachec.launcher import adapters
from cachec.launcher.adapters import Adapter, Flag, WeightKey
from cachec.launcher.build_tools import BY_TIME, DETAIL, advice, is_helper
from cachec.launcher.command import CommandSpec, DeclaredOutput, Options, OutputKind, PassThrough, Piece
from cachec.launcher.exec_settings import with_settings
from cachec.launcher.path_map import PathMap
from cachec.launcher.stage import CommandContext
from cachec.launcher.weight_stripping import wants_strip
from cachec.model import Reason

#: What flags mean that name what is written -> what that is.
_OUTPUTS: dict[str, OutputKind] = {"output": "result", "extra-output": "other", "depfile": "depfile"}

#: Names of standard input.
_STDIN = {"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"}

#: The name of a pass in the description of a pipeline.
_WORD = re.compile(r"[\w-]{3,}")


def describe_here(opened: CommandContext, given: Options, argv: Sequence[str], program: str) -> CommandSpec:
    """What the command line means in the current folder. Raises PassThrough, UsageError, ConfigError."""
    adapter = adapters.find(program, argv[0])
    program = os.path.join(opened.places.cwd, program)
    if adapter is None and is_helper(argv[0]) and given == Options(restat=given.restat):
        name = os.path.basename(argv[0])
        if name in BY_TIME:
            raise PassThrough(Reason.BUILD_HELPER, advice(name), is_reported=True)
        raise PassThrough(Reason.BUILD_HELPER, DETAIL)
    if adapter is not None and adapter.distribution:
        owner = opened.requests.distributions(program).owner(program)
        if owner is None or owner.name != adapter.distribution:
            adapter = None  # another program of that name
    options = with_settings(given, opened.places.cwd)
    command = describe(argv, program, opened.places.cwd, adapter, options, opened.variables)
    if adapter is not None and adapter.relative and not wants_strip(command):  # that one comes without a name
        _call_inputs(command, opened.places)
    opened.anchor(command)
    return command


def describe(
    argv: Sequence[str], program: str, cwd: str, adapter: Adapter | None, options: Options, environ: Mapping[str, str]
) -> CommandSpec:
    """The same for a program that is the adapter's by its distribution, where that names one."""
    for text in (*argv, cwd, *environ):
        if not is_text(text):
            raise PassThrough(Reason.NOT_UNDERSTOOD, f"{text!a} is not UTF-8")
    command = CommandSpec(tuple(argv), program, cwd, adapter, options)
    if adapter is None:
        words = itertools.count(1)
        command.pieces = [Piece(_label(arg, words), arg) for arg in argv[1:]]
        command.stdin = not _STDIN.isdisjoint(argv[1:])
    else:
        reader = _Reader(command, adapter)
        reader.read()
        is_set = any(value and matches(name, adapter.environment.plain) for name, value in environ.items())
        is_itself = bool(adapter.distribution) or _is_itself(program, adapter)
        command.is_known = is_itself and not is_set and not reader.may_run_others
    _add_options(command)
    return command


def _label(arg: str, words: Iterator[int]) -> str:
    """What an argument is called: by its flag, or by its number among the words that are none."""
    return arg.partition("=")[0] if arg.startswith("-") and arg != "-" else f"argument {next(words)}"


def _is_itself(program: str, adapter: Adapter) -> bool:
    """Whether an executable is the program that an adapter is for, and no script that may obey any variable."""
    real = os.path.realpath(program)
    try:
        with open(real, "rb") as file:
            is_script = file.read(2) == b"#!"
    except OSError:
        return False
    return (not is_script and adapter.matches(os.path.basename(real))) or not adapter.is_shipped


def _call_inputs(command: CommandSpec, places: PathMap) -> None:
    """Name the inputs from the current folder, on the command line as it is keyed and as it runs."""
    argv = list(command.argv)
    for number in command.models:
        if os.path.isabs(argv[number + 1]):
            argv[number + 1] = places.relative_name(argv[number + 1])
            command.pieces[number] = Piece("input", argv[number + 1])
    command.argv = tuple(argv)


def _add_options(command: CommandSpec) -> None:
    options = command.options
    command.stdin |= options.stdin
    for text in options.inputs:
        path = os.path.join(command.cwd, text)
        if not os.path.exists(path):
            raise UsageError(f"--input {text}: there is no such file; name a file or folder that the command reads")
        command.inputs[path] = text
    command.outputs += [DeclaredOutput(os.path.join(command.cwd, text), "other") for text in options.outputs]
    for text, key in options.weights.items():
        path = os.path.join(command.cwd, text)
        if not os.path.isfile(path):
            keys = " or ".join(get_args(WeightKey)) if "=" in text else ""
            hint = f"; behind = stands {keys}, and nothing else" if keys else ""
            raise UsageError(f"--weights {text}: there is no such file{hint}; name an existing file of weights")
        command.weights[path] = key
        command.inputs.pop(path, None)
    command.models = {number: path for number, path in command.models.items() if path not in command.weights}


class _Reader:
    """Reads the arguments of a command that has an adapter.

    may_run_others: whether the command may run programs or code that the adapter does not know.
    """

    def __init__(self, command: CommandSpec, adapter: Adapter) -> None:
        self._command = command
        self._adapter = adapter
        self.may_run_others = False

    def read(self) -> None:
        """Fill in the pieces, outputs, weights and models of the command."""
        command, args = self._command, self._command.argv[1:]
        others: list[str] = []
        outputs: dict[str, OutputKind] = {}
        at, words = 0, itertools.count(1)
        while at < len(args):
            arg, begin = args[at], at
            at += 1
            flag, label, value = self._match(arg) if arg.startswith("-") else (None, "", None)
            label = label or _label(arg, words)
            if flag is not None:
                if value is None and "next" in flag.takes and at < len(args):
                    value = args[at]
                    at += 1
                if flag.means in _OUTPUTS and value and value != "-" and not value.startswith("/dev/"):
                    outputs.setdefault(value, _OUTPUTS[flag.means])
                elif flag.means == "weights" and value:
                    command.weights[os.path.join(command.cwd, value)] = flag.key
                self.may_run_others |= flag.means == "plain" or any(map(self._is_plain, _WORD.findall(value or "")))
            elif arg == "--" or arg.startswith("@"):  # a file of arguments is not read here
                self.may_run_others = True
            elif not arg.startswith("-"):
                others.append(arg)
                path = os.path.join(command.cwd, arg)
                if os.path.isfile(path):
                    label = "input"
                    command.models[begin] = path
            command.pieces += [Piece(label, each) for each in args[begin:at]]
            if flag is None or flag.means not in _OUTPUTS:
                command.stdin |= not _STDIN.isdisjoint(args[begin:at])
        present = {self._strip_dash(arg) for arg in args}
        endings = [end for flag, end in self._adapter.default_output.items() if self._strip_dash(flag) in present]
        suffixes = {os.path.splitext(each)[1] for each in command.models.values()}
        self.may_run_others |= bool(self._adapter.default_output and not endings and ".o" not in self._adapter.suffixes)
        self.may_run_others |= bool(self._adapter.suffixes and not suffixes.issubset(self._adapter.suffixes))
        if "result" not in outputs.values() and endings:
            names = [os.path.splitext(os.path.basename(each))[0] for each in others if "." in each]
            guesses = (name + end for name in names for each in endings for end in each.split())
            outputs |= dict.fromkeys(guesses, "default")
        command.outputs = [DeclaredOutput(os.path.join(command.cwd, name), kind) for name, kind in outputs.items()]

    def _is_plain(self, word: str) -> bool:
        """Whether a word of a value is the name of a pass that does what the flag of its name does, a plain one."""
        flag, _, _ = self._match(f"-{word}")
        return flag is not None and flag.means == "plain"

    def _match(self, arg: str) -> tuple[Flag | None, str, str | None]:
        """(flag, its name, its value where the argument holds it).

        For a name with ``*`` at the end: the parts before and after ``=``.
        """
        text = self._strip_dash(arg)
        head, equals, tail = text.partition("=")
        best: tuple[int, Flag | None, str, str | None] = (0, None, arg.partition("=")[0], None)
        for flag in self._adapter.flags:
            for written in flag.names:
                name = self._strip_dash(written)
                if name.endswith("*"):
                    rank, hit, value = len(name) - 1, text.startswith(name[:-1]), tail if equals else None
                    written = head
                elif text == name:
                    rank, hit, value = 10_000, True, None
                elif head == name and equals and "equals" in flag.takes:
                    rank, hit, value = 9_999, True, tail
                else:
                    rank, hit = len(name), "joined" in flag.takes and text.startswith(name)
                    value = text[len(name) :]
                if hit and rank > best[0]:
                    best = rank, flag, written, value
        return best[1], best[2], best[3]

    def _strip_dash(self, text: str) -> str:
        return text[1:] if self._adapter.dashes == "either" and text.startswith("--") else text
