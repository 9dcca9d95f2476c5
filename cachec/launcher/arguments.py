"""What one command line means, as its adapter or options say: inputs, outputs, weights, flags."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, get_args

from cachec.base.texts import is_text
from cachec.errors import UsageError
from cachec.key.tools.variables import matches
from cachec.launcher.adapters import Adapter, Flag, WeightKey
from cachec.launcher.command import Command, Input, Options, Output, OutputKind, PassThrough, Piece
from cachec.launcher.restore import check_place
from cachec.launcher.stripping import wants_strip
from cachec.model import Reason

#: Response files may name others; the tools themselves stop somewhere too.
_MAX_RESPONSE_DEPTH = 8

#: What flags mean that name what is written -> what that is.
_OUTPUTS: dict[str, OutputKind] = {
    **{"output": "file", "output-folder": "folder", "extra-output": "extra", "depfile": "depfile"}
}

_OWN = re.compile(r"/(dev/(std(in|out|err)$|fd/)|proc/)")

#: Names of standard input.
_STDIN = {"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"}

#: The name of a pass in the description of a pipeline.
_WORD = re.compile(r"[\w-]{3,}")


def describe(
    argv: Sequence[str], program: str, cwd: str, adapter: Adapter | None, options: Options, environ: dict[str, str]
) -> Command:
    """What the command line means. What its adapter does not describe is taken as it is: the tracer sees what it does.

    Raises PassThrough where it is not to be cached, UsageError for bad options.
    """
    for text in (*argv, cwd, *environ):
        if not is_text(text):
            raise PassThrough(Reason.NOT_UNDERSTOOD, f"{text!a} is not UTF-8")
    command = Command(tuple(argv), program, cwd, adapter, options)
    if adapter is not None and not adapter.plain and (adapter.distribution or _is_itself(program, adapter)):
        try:
            return _described(command, adapter, environ)
        except PassThrough as way:
            if wants_strip(command):
                way.told = True
                raise
    return plain(command)


def plain(command: Command) -> Command:
    """The same command line, of whose arguments only the text is known, and which of them name outputs."""
    command = Command(command.argv, command.program, command.cwd, command.adapter, command.options)
    command.is_plain = command.sees_cwd = True
    for number, arg in enumerate(command.argv[1:]):
        command.pieces.append(Piece(f"argument {number + 1}", arg, "value", number, number + 1))
    if command.adapter is not None:
        command.outputs += _ArgumentReader(command, command.adapter).outputs()
    _add_options(command)
    return command


def _described(command: Command, adapter: Adapter, environ: dict[str, str]) -> Command:
    """What its adapter says of a command. Raises PassThrough where it does not say all."""
    for name, value in environ.items():
        if value and matches(name, adapter.environment.plain):
            raise PassThrough(Reason.NOT_UNDERSTOOD, f"{name} is set, of which its adapter says nothing")
    _ArgumentReader(command, adapter).read()
    _add_options(command)
    _check_outputs(command)
    return command


def _is_itself(program: str, adapter: Adapter) -> bool:
    """Whether an executable is the program that an adapter is for, and no script that may obey any variable."""
    real = os.path.realpath(program)
    try:
        with open(real, "rb") as file:
            is_script = file.read(2) == b"#!"
    except OSError:
        return False
    return (not is_script and adapter.matches(os.path.basename(real))) or not adapter.is_shipped


def names_stdin(command: Command) -> bool:
    """Whether a command without a full description is to get all of standard input, which counts then."""
    return command.is_plain and (command.options.stdin or not _STDIN.isdisjoint(command.argv[1:]))


def _add_options(command: Command) -> None:
    options = command.options
    for text in options.inputs:
        path = os.path.join(command.cwd, text)
        if not os.path.exists(path):
            raise UsageError(f"--input {text}: there is no such file; name a file or folder that the command reads")
        command.inputs.append(Input(path, text, f"--input {text}"))
    for text in options.outputs:
        command.outputs.append(Output(os.path.join(command.cwd, text), "any", f"--output {text}"))
    for text, key in options.weights.items():
        path = os.path.join(command.cwd, text)
        if not os.path.isfile(path):
            keys = " or ".join(get_args(WeightKey)) if "=" in text else ""
            hint = f"; behind = stands {keys}, and nothing else" if keys else ""
            raise UsageError(f"--weights {text}: there is no such file{hint}; name an existing file of weights")
        command.weights[path] = key
        command.inputs = [each for each in command.inputs if each.path != path]


def _check_outputs(command: Command) -> None:
    for path in (*(each.path for each in command.inputs), *(each.path for each in command.outputs), *command.weights):
        # The command's own descriptors are others than ours.
        if _OWN.match(os.path.normpath(path)):
            raise PassThrough(Reason.NOT_UNDERSTOOD, f"{path!r} stands for something else in each process")
    seen: dict[str, Output] = {}
    for output in command.outputs:
        real = os.path.realpath(output.path)
        other = seen.setdefault(real, output)
        if other is not output:
            words = f"{output.where} and {other.where} are one output, {real!r}; two outputs need two names"
            if "any" in {output.kind, other.kind}:  # an option of cachec, not of the command
                raise UsageError(words)
            raise PassThrough(Reason.NOT_UNDERSTOOD, words)
        if output.kind in {"folder", "any"} and os.path.isdir(output.path):
            continue
        if output.kind != "any" and not os.path.isdir(os.path.dirname(output.path)):
            raise PassThrough(Reason.NOT_UNDERSTOOD, f"{output.where} leads to a folder that is not there")
        try:
            check_place(output.path, replaces=command.options.hardlink, keeps=command.keeps_file(output))
        except OSError as error:
            words = f"{output.where} leads to {output.path!r}: {error.strerror}"
            raise PassThrough(Reason.NOT_UNDERSTOOD, words) from error
    for each in command.inputs:
        written = seen.get(os.path.realpath(each.path))
        if written is not None:
            raise PassThrough(Reason.NOT_UNDERSTOOD, f"{each.where} is read, and written as {written.where}")


class _Argument(NamedTuple):
    """One argument, with the value that follows it. number: its place; -1 where it is from a response file."""

    text: str
    flag: Flag | None
    name: str
    value: str | None
    number: int
    end: int


class _ArgumentReader:
    """Reads the arguments of one known command."""

    def __init__(self, command: Command, adapter: Adapter) -> None:
        self._command = command
        self._adapter = adapter
        self._missing: list[str] = []
        self._to_stdout = False
        self._present: set[str] = set()
        self._args = [(arg, number) for number, arg in enumerate(command.argv[1:])]

    def read(self) -> None:
        """Fill in the command. Raises PassThrough where the adapter does not say all of it."""
        given, self._args = self._args, []
        self._expand([arg for arg, _ in given], 0)
        for each in self._arguments():
            if each.flag is not None:
                self._flag(each, each.flag)
            elif each.text == "--":
                raise self._unknown("the end of flags")
            elif each.text.startswith("-") and each.text != "-":
                name, _, value = each.text.partition("=")
                self._piece(name if value else each.text, value, "value", each)
            else:
                self._positional(each)
        self._finish()

    def outputs(self) -> list[Output]:
        """The outputs that arguments name, whatever the others mean."""
        named, others = [], []
        for each in self._arguments():
            if each.flag is not None and each.flag.means in _OUTPUTS and each.value:
                named.append((each.value, each.flag.means))
            elif each.flag is None and not each.text.startswith("-"):
                others.append(each.text)
        names = [name for name, _ in named]
        if all(means != "output" for _, means in named):
            for ending in self._default_endings()[:1]:
                names += [os.path.splitext(os.path.basename(each))[0] + ending for each in others if "." in each]
        return [Output(os.path.join(self._command.cwd, each), "any", each) for each in dict.fromkeys(names)]

    def _expand(self, args: Sequence[str], depth: int) -> None:
        for number, arg in enumerate(args):
            path = os.path.join(self._command.cwd, arg[1:])
            if not arg.startswith("@") or not os.path.isfile(path):
                self._args.append((arg, -1 if depth else number))
                continue
            if not self._adapter.response_files or depth >= _MAX_RESPONSE_DEPTH:
                raise self._unknown("a response file")
            import shlex

            try:
                with open(path, encoding="utf-8", errors="surrogateescape") as file:
                    inner = shlex.split(file.read())
            except (OSError, ValueError) as error:
                raise self._unknown(f"a response file that can't be read: {error}") from error
            if any("\0" in each for each in inner):
                raise self._unknown("a response file with a NUL in it")
            self._command.responses.append(arg[1:])
            self._expand(inner, depth + 1)

    def _arguments(self) -> Iterator[_Argument]:
        self._present = {self._dashed(arg.partition("=")[0]) for arg, _ in self._args}
        at = 0
        while at < len(self._args):
            arg, number = self._args[at]
            begin, at = at, at + 1
            flag, name, value = self._match(arg) if arg.startswith("-") and arg != "-" else (None, "", None)
            if flag is not None and value is None and "next" in flag.takes and at < len(self._args):
                value = self._args[at][0]
                at += 1
            yield _Argument(arg, flag, name, value, number, number + at - begin if number >= 0 else -1)

    def _match(self, arg: str) -> tuple[Flag | None, str, str | None]:
        """(flag, its name, its value where the argument holds it).

        Of a name with ``*`` at the end: what stands before ``=``, and what stands behind it.
        """
        text = self._dashed(arg)
        head, equals, tail = text.partition("=")
        best: tuple[int, Flag | None, str, str | None] = (0, None, "", None)
        for flag in self._adapter.flags:
            if any(self._dashed(name) in self._present for name in flag.unless):
                continue
            for written in flag.names:
                name = self._dashed(written)
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

    def _dashed(self, text: str) -> str:
        return text[1:] if self._adapter.dashes == "either" and text.startswith("--") else text

    def _default_endings(self) -> list[str]:
        flags = self._adapter.default_output.items()
        return [ending for flag, ending in flags if self._dashed(flag) in self._present]

    def _piece(self, label: str, text: str | None, means: str, each: _Argument) -> None:
        self._command.pieces.append(Piece(label, text, means, each.number, each.end))

    def _flag(self, each: _Argument, flag: Flag) -> None:
        command, name, value, means = self._command, each.name, each.value, flag.means
        if means == "plain":
            raise self._unknown(each.text)
        if value is None and "next" in flag.takes:
            raise self._unknown(f"{each.text} without its value")
        for word in _WORD.findall(value or "") if means == "value" else ():
            named, _, _ = self._match(f"-{word}")  # a pass of a pipeline does what the flag of its name does
            if named is not None and named.means == "plain":
                raise self._unknown(word)
        if value == "":
            name += "="  # it differs from the flag without a value
        shown = name if value is None else f"{name} {value}"
        text: str | None = value or ""
        path = os.path.join(command.cwd, value or "")
        if means == "path-only":
            text = None
        elif means == "sees-cwd":
            command.sees_cwd, text, name = True, "", each.text
        elif value is None:
            pass
        elif means == "output" and value == "-":
            self._to_stdout = True
        elif means in _OUTPUTS:
            if value in {"", "-"}:
                raise self._unknown(f"{shown}, which is not the name of a file")
            command.outputs.append(Output(path, _OUTPUTS[means], shown))
            text = None
        elif means == "input":
            if not os.path.isfile(path):
                raise self._unknown(f"{shown}, which does not exist")
            command.inputs.append(Input(path, value, shown, False))
        elif means == "weights":
            command.weights[path] = flag.key
        self._piece(name, text, means, each)

    def _positional(self, each: _Argument) -> None:
        command, arg = self._command, each.text
        where = f"argument {each.number + 1}" if each.number >= 0 else f"{arg!r} in a response file"
        path = os.path.join(command.cwd, arg)
        if arg == "-":
            command.stdin = True
            self._piece("standard input", arg, "input", each)
        elif self._adapter.positional == "input" and os.path.isfile(path):
            command.inputs.append(Input(path, arg, where))
            self._piece("input", arg, "input", each)
        else:  # it may be the value of the flag before it
            self._missing.append(arg)
            self._piece(where, arg, "value", each)

    def _finish(self) -> None:
        command, adapter = self._command, self._adapter
        main = [each for each in command.inputs if each.main]
        if not main and not command.stdin:
            if self._missing or not (adapter.stdin or command.inputs):  # one that a flag names is enough for some
                raise self._unknown("no input")
            command.stdin = adapter.stdin
        if main and adapter.suffixes and os.path.splitext(main[0].path)[1] not in adapter.suffixes:
            raise self._unknown(main[0].text)
        endings = self._default_endings()
        if adapter.default_output and not endings:
            raise self._unknown(f"a line without any of {', '.join(adapter.default_output)}")
        if not self._to_stdout and not any(output.kind == "file" for output in command.outputs):
            if endings and len(main) == 1:
                path = os.path.splitext(os.path.basename(main[0].path))[0] + endings[0]
                command.outputs.insert(0, Output(os.path.join(command.cwd, path), "file", "the output by default"))
            elif not adapter.stdout:
                raise self._unknown("a line without an output")
        if any(output.kind == "depfile" for output in command.outputs):  # its rule names the output
            for at, piece in enumerate(command.pieces):
                if piece.means == "output" and piece.text is None and piece.begin >= 0:
                    text = "\0".join(command.argv[piece.begin + 1 : piece.end + 1])
                    command.pieces[at] = piece._replace(text=text)

    def _unknown(self, what: str) -> PassThrough:
        return PassThrough(Reason.NOT_UNDERSTOOD, f"adapter {self._adapter.name} does not describe {what}")
