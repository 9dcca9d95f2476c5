"""What one command line means, as its adapter or options tell: inputs, outputs, weights, flags."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, get_args

from cachec.base.texts import is_text
from cachec.errors import UsageError
from cachec.launcher.adapters import Adapter, Flag, WeightKey
from cachec.launcher.command import Command, Input, Options, Output, OutputKind, PassThrough, Piece
from cachec.launcher.restore import check_place
from cachec.launcher.stripping import wants_strip
from cachec.launcher.variables import UNKNOWN, matches
from cachec.model import Reason

#: Response files may name others; the tools themselves stop somewhere too.
_MAX_RESPONSE_DEPTH = 8

#: Longer arguments are no paths (PATH_MAX).
_MAX_NAME = 4096

#: What flags mean that name what is written.
_OUTPUTS = frozenset({"output", "output-folder", "extra-output", "depfile"})

_OWN = re.compile(r"/(dev/(std(in|out|err)$|fd/)|proc/)")
_PIECES = re.compile(r"[=,]")

#: What separates words in the description of a pipeline, where an option's value may be a path, or several.
_WORDS = re.compile(r"[\s=,;:@(){}<>\"']+")


#: A whole value of an option there; a path may hold any character. It is seldom asked for, and so not compiled here.
_VALUES = r"=\s*(\"[^\"]*\"|'[^']*'|[^\s{}<>]+)"

#: Options of a pass in such a description, or of one that takes them in angle brackets.
_OPTIONS = re.compile(r"\{[^{}]*\}|<[^<>]*>")


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
        except PassThrough:
            if wants_strip(command):
                raise
            command = Command(tuple(argv), program, cwd, adapter, options)
    return _plain(command)


def _described(command: Command, adapter: Adapter, environ: dict[str, str]) -> Command:
    """What its adapter says of a command. Raises PassThrough where it does not say all."""
    _check_variables(adapter, environ)
    _ArgumentReader(command, adapter).read()
    _check_configuration(command, adapter)
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
    return command.is_plain and (command.options.stdin or not {"-", "/dev/stdin"}.isdisjoint(command.argv[1:]))


def _plain(command: Command) -> Command:
    """A command of whose arguments only the text is known, and which of them name outputs."""
    command.is_plain = command.sees_cwd = True
    for number, arg in enumerate(command.argv[1:]):
        command.pieces.append(Piece(f"argument {number + 1}", arg, "value", number, number + 1))
    if command.adapter is not None:
        command.outputs += _ArgumentReader(command, command.adapter).outputs()
    _add_options(command)
    return command


def _check_variables(adapter: Adapter, environ: Mapping[str, str]) -> None:
    """Raise PassThrough where a variable is set that an adapter leaves to the compiler."""
    unknown = (*UNKNOWN, *adapter.environment.unknown)
    name = next((name for name, value in sorted(environ.items()) if value and matches(name, unknown)), "")
    if name:
        words = f"{name} is set, and chooses what its adapter does not describe"
        raise PassThrough(Reason.NOT_UNDERSTOOD, f"{words}; unset it for the command (env -u {name})", told=True)


def configuration_places(program: str, adapter: Adapter | None) -> Iterator[tuple[str, str]]:
    """Of ``configured_by`` the folders, beside the executable by either of its names, and the patterns of names in
    them. A folder that is a pattern itself stands for those that are there, and is yielded with no pattern too."""
    folders = {os.path.dirname(program): None, os.path.dirname(os.path.realpath(program)): None}
    for pattern in adapter.configured_by if adapter is not None else ():
        below, name = os.path.split(pattern)
        if not glob.has_magic(below):
            yield from dict.fromkeys((os.path.join(folder, below), name) for folder in folders)
            continue
        yield below, ""
        for folder in folders:
            yield from ((found, name) for found in glob.glob(os.path.join(glob.escape(folder), below)))


def _check_configuration(command: Command, adapter: Adapter) -> None:
    if set(adapter.unconfigured) & {piece.label for piece in command.pieces}:
        return
    for folder, name in configuration_places(command.program, adapter):
        for path in sorted(glob.glob(name, root_dir=folder)) if name else ():
            words = f"{os.path.join(folder, path)!r} holds options (adapter {adapter.name})"
            raise PassThrough(Reason.NOT_UNDERSTOOD, words, told=True)


def _named_in(arg: str) -> list[str]:
    """The parts of an argument that may be paths: behind ``=`` or ``,``, and from its first slash on."""
    return [*_PIECES.split(arg)[1:], arg[arg.find("/") :] if "/" in arg else ""]


def _words_in(flag: str) -> list[str]:
    """The later words of a flag, as in ``--lib="a.mlir b.mlir"`` and ``--lib=a.mlir@main``. No folders: those that are
    meant stand behind ``=`` or ``,``."""
    return [word for word in _WORDS.split(flag)[1:] if not os.path.isdir(word)]


def _options_in(pipeline: str) -> str:
    """What stands in braces in the description of a pipeline: the options of its passes, without their names."""
    depth = 0
    kept = []
    for piece in re.split(r"([{}<>])", pipeline):
        depth += {"{": 1, "<": 1, "}": -1, ">": -1}.get(piece, 0)
        kept.append(piece if depth > 0 else " ")
    return "".join(kept)


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
        folder = os.path.dirname(output.path)
        if command.adapter is not None and not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
            words = f"{output.where} leads to {output.path!r}: {folder!r} is no folder that can be written to"
            raise PassThrough(Reason.NOT_UNDERSTOOD, words)
        try:
            check_place(output.path, replaces=command.options.hardlink, keeps=command.keeps_file(output))
        except OSError as error:
            words = f"{output.where} leads to {output.path!r}: {error.strerror}"
            raise PassThrough(Reason.NOT_UNDERSTOOD, words) from error
    for each in command.inputs:
        written = seen.get(os.path.realpath(each.path))
        if written is not None:
            raise PassThrough(Reason.NOT_UNDERSTOOD, f"{each.where} is read, and written as {written.where}")


class _ArgumentReader:
    """Reads the arguments of one known command."""

    def __init__(self, command: Command, adapter: Adapter) -> None:
        self._command = command
        self._adapter = adapter
        self._present: set[str] = set()
        self._missing: list[str] = []
        self._suffix = ""
        self._on: Literal["full", "short", ""] = ""
        self._depfile: Output | None = None
        self._args: list[tuple[str, int]] = []
        self._to_stdout = False

    def read(self) -> None:
        """Fill in the command."""
        self._expand(self._command.argv[1:], 0, response="")
        names = [arg.partition("=")[0] for arg, _ in self._args]
        self._present = {self._dashed(name) for name in names}
        at = 0
        while at < len(self._args):
            at = self._one(at)
        self._finish()

    def outputs(self) -> list[Output]:
        """The outputs that arguments name, whatever the others mean."""
        self._args = [(arg, number) for number, arg in enumerate(self._command.argv[1:])]
        self._present = {self._dashed(arg.partition("=")[0]) for arg, _ in self._args}
        named: list[str] = []
        others: list[str] = []
        is_named = False
        at = 0
        while at < len(self._args):
            arg, _ = self._args[at]
            at += 1
            flag, _, value = self._match(arg) if arg.startswith("-") else (None, "", None)
            if flag is None:
                others.append(arg)
                continue
            if value is None and "next" in flag.takes and at < len(self._args):
                value = self._args[at][0]
                at += 1
            if value and flag.means in _OUTPUTS:
                named.append(value)
                is_named |= flag.means == "output"
        endings = [
            ending for flag, ending in self._adapter.default_output.items() if self._dashed(flag) in self._present
        ]
        if endings and not is_named:
            named += [os.path.splitext(os.path.basename(each))[0] + endings[0] for each in others if "." in each]
        return [Output(os.path.join(self._command.cwd, each), "any", each) for each in dict.fromkeys(named)]

    def _expand(self, args: Sequence[str], depth: int, response: str) -> None:
        for number, arg in enumerate(args):
            if not arg.startswith("@") or len(arg) == 1:
                self._args.append((arg, -1 if response else number))
                continue
            path = os.path.join(self._command.cwd, arg[1:])
            if not os.path.isfile(path):
                self._command.absent.append(arg[1:])
                self._args.append((arg, -1 if response else number))
                continue
            if not self._adapter.response_files or depth >= _MAX_RESPONSE_DEPTH:
                raise self._unknown(arg, "a response file, which its adapter does not describe")
            import shlex

            try:
                with open(path, encoding="utf-8", errors="surrogateescape") as file:
                    inner = shlex.split(file.read())
            except (OSError, ValueError) as error:
                raise self._unknown(arg, f"a response file that can't be read: {error}") from error
            if any("\0" in each for each in inner):
                raise self._unknown(arg, "a response file with a NUL in it")
            self._command.responses.append(arg[1:])
            self._expand(inner, depth + 1, arg)

    def _one(self, at: int) -> int:
        arg, number = self._args[at]
        if arg == "-" or not arg.startswith("-"):
            self._positional(arg, number)
            return at + 1
        if arg == "--":
            raise self._unknown(arg, "the end of flags, which its adapter does not describe")
        flag, name, value = self._match(arg)
        if flag is None:
            self._other(arg, number)
            return at + 1
        end = at + 1
        if value is None and "next" in flag.takes:
            if end == len(self._args):
                raise self._unknown(arg, "a flag that lacks its value")
            value = self._args[end][0]
            end += 1
        self._flag(flag, name, value, number, number + (end - at) if number >= 0 else -1)
        return end

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

    def _flag(self, flag: Flag, name: str, value: str | None, begin: int, end: int) -> None:
        command, means = self._command, flag.means
        shown = name if value is None else f"{name} {value}"
        if means == "side-effect":
            raise PassThrough(Reason.SIDE_EFFECT_FLAG, f"{self._written(begin, name)} is there for what it prints")
        if means == "unknown":
            raise self._unknown(self._written(begin, name), "a flag that its adapter leaves to the compiler")
        if value == "":
            name += "="  # it differs from the flag without a value
        text: str | None = value or ""
        if means in {"output", "output-folder", "extra-output", "depfile"} and value is not None:
            text = self._output(means, value, shown)
        elif means == "path-only":
            text = None
        elif means == "input" and value is not None:
            self._input(value, shown)
        elif means == "weights" and value is not None:
            command.weights[os.path.join(command.cwd, value)] = flag.key
        elif means == "search" and value is not None:
            if os.path.isfile(os.path.join(command.cwd, value)):
                raise self._unknown(shown, "a file that maps headers")
            command.search.append(value)
        elif means == "language":
            if value not in self._adapter.languages:
                raise self._unknown(shown, "a language that its adapter does not describe")
            self._suffix = self._adapter.languages[value]
        elif means == "depfile-on":
            self._on = "full"
        elif means == "depfile-short":
            self._on = "short"
        elif means == "pipeline" and value is not None:
            self._passes(value)
            options = _options_in(value)
            whole = [each.strip("\"'") for each in re.findall(_VALUES, options)]
            self._named([*_WORDS.split(options), *whole], shown)
        elif means == "sees-line":
            command.sees_line = True
            command.pieces.append(Piece("command line", "\0".join((command.program, *command.argv)), "line", -1, -1))
        elif means == "sees-cwd":
            command.sees_cwd, text, name = True, "", self._written(begin, name)
        command.pieces.append(Piece(name, text, means, begin, end))

    def _passes(self, pipeline: str) -> None:
        """A pass that is called like a flag does what that does."""
        for name in _WORDS.split(_OPTIONS.sub(" ", pipeline)):
            flag = self._match(f"-{name}")[0] if name else None
            if flag is not None and flag.means == "side-effect":
                raise PassThrough(Reason.SIDE_EFFECT_FLAG, f"pass {name} is there for what it prints")
            if flag is not None and flag.means == "unknown":
                raise self._unknown(f"pass {name}", "a pass that its adapter leaves to the compiler")

    def _written(self, number: int, name: str) -> str:
        return self._command.argv[number + 1] if number >= 0 else name

    def _output(self, means: str, value: str, shown: str) -> str | None:
        if value == "-" and means == "output":
            self._to_stdout = True
            return value
        if value in {"", "-"}:
            raise self._unknown(shown, "not the name of a file")
        path = os.path.join(self._command.cwd, value)
        kinds: dict[str, OutputKind] = {"output-folder": "folder", "extra-output": "extra"}
        output = Output(path, kinds.get(means, "file"), shown)
        if means == "depfile":
            self._depfile = output._replace(kind="depfile")
        else:
            self._command.outputs.append(output)
        return None

    def _input(self, text: str, where: str) -> None:
        path = os.path.join(self._command.cwd, text)
        if not os.path.isfile(path):
            raise PassThrough(Reason.NOT_UNDERSTOOD, f"input {text!r} ({where}) does not exist", told=True)
        for ending in self._adapter.shadows:
            if os.path.lexists(path + ending):
                raise self._unknown(where, f"and {text + ending!r} is there, which is taken instead")
            self._command.absent.append(text + ending)
        self._command.inputs.append(Input(path, text, where, False))

    def _positional(self, arg: str, number: int) -> None:
        command = self._command
        where = f"argument {number + 1}" if number >= 0 else f"{arg!r} in a response file"
        if arg == "-":
            command.stdin = True
            command.pieces.append(Piece("standard input", arg, "input", number, number + 1))
            return
        path = os.path.join(command.cwd, arg)
        if self._adapter.positional == "input" and os.path.isfile(path):
            command.inputs.append(Input(path, arg, where))
            command.pieces.append(Piece("input", arg, "input", number, number + 1))
            return
        if os.path.isdir(path):
            raise self._unknown(arg, "a folder, which its adapter does not describe")
        self._missing.append(arg)
        command.undescribed.append(path)
        self._named([*_named_in(arg), *_words_in(arg)], where)  # it may be the value of the flag before it
        command.pieces.append(Piece(where, arg, "value", number, number + 1))

    def _other(self, arg: str, number: int) -> None:
        """A flag that the adapter does not name: keyed by its text, and by the content of a file that it names."""
        self._named([*_named_in(arg), *_words_in(arg)], arg)
        name, _, value = arg.partition("=")
        self._command.pieces.append(Piece(name if value else arg, value, "value", number, number + 1))

    def _named(self, words: Sequence[str], where: str) -> None:
        """Key the content of the files that words name."""
        command = self._command
        for word in filter(None, dict.fromkeys(words)):
            path = os.path.join(command.cwd, word)
            if os.path.isfile(path):
                command.inputs.append(Input(path, word, where, False))
            elif os.path.isdir(path):
                raise self._unknown(where, f"and {word!r} is a folder, so what is read there is not known")
            else:
                command.undescribed.append(path)

    def _finish(self) -> None:
        command, adapter = self._command, self._adapter
        required = {self._dashed(name) for name in adapter.requires}
        if required and not required & self._present:
            raise self._unknown(os.path.basename(command.argv[0]), f"without any of {', '.join(adapter.requires)}")
        main = [each for each in command.inputs if each.main]
        if not main and not command.stdin:
            if self._missing:
                raise PassThrough(
                    Reason.NOT_UNDERSTOOD, f"input {self._missing[0]!r} (an argument) does not exist", told=True
                )
            if not adapter.stdin and not command.inputs:  # one that a flag names is enough for some
                raise self._unknown(os.path.basename(command.argv[0]), "no input")
            command.stdin = adapter.stdin
        if adapter.single and len(main) + command.stdin > 1:
            raise self._unknown(os.path.basename(command.argv[0]), "with more than one input")
        suffix = self._suffix or (os.path.splitext(main[0].path)[1] if main else "")
        if adapter.suffixes and suffix not in adapter.suffixes:
            raise self._unknown(main[0].text if main else "-", f"an input of kind {suffix!r}")
        command.includes = suffix in adapter.includes
        if not any(output.kind == "file" for output in command.outputs) and not self._to_stdout:
            self._default_output(main)
        self._depfiles(main)

    def _default_output(self, main: list[Input]) -> None:
        for flag, ending in self._adapter.default_output.items():
            if self._dashed(flag) in self._present and main:
                stem = os.path.splitext(os.path.basename(main[0].path))[0]
                path = os.path.join(self._command.cwd, stem + ending)
                self._command.outputs.append(Output(path, "file", f"the output of {flag}"))
                return
        if not self._adapter.stdout:
            raise self._unknown(os.path.basename(self._command.argv[0]), "without an output")

    def _depfiles(self, main: list[Input]) -> None:
        command = self._command
        command.depfile = self._on
        if not self._on:
            return
        if self._depfile is None:
            first = next((output for output in command.outputs if output.kind == "file"), None)
            if first is None:
                raise self._unknown("-MD", "with the output on stdout")
            path = os.path.splitext(first.path)[0] + ".d"
            self._depfile = Output(path, "depfile", "the file that -MD or -MMD writes")
        if not command.includes:
            raise self._unknown("-MD", f"for an input of kind {os.path.splitext(main[0].path)[1]!r}")
        depfile = self._depfile
        command.outputs.append(depfile)
        # The rule in a depfile names the output.
        for at, piece in enumerate(command.pieces):
            if piece.means == "output" and piece.text is None and piece.begin >= 0:
                command.pieces[at] = piece._replace(text=self._value(piece))

    def _value(self, piece: Piece) -> str:
        return "\0".join(self._command.argv[piece.begin + 1 : piece.end + 1])

    def _unknown(self, arg: str, why: str) -> PassThrough:
        return PassThrough(Reason.NOT_UNDERSTOOD, f"{arg!r}: {why} (adapter {self._adapter.name})")
