"""The recipe of a run: how a stage was called and which commands it ran, as an artifact beside the trace.

It names no place of this machine: every folder that a command's files were in has a number. Contents are named by
digest; those that are small are artifacts too, and the trace refers to them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from cachec.base.display_text import is_secret
from cachec.base.distributions import Distributions
from cachec.errors import CachecError
from cachec.key.stage_options import StageLike
from cachec.model import Digest, Read
from cachec.recording import CommandRun, FileState, ReadRecorder
from cachec.reproduce.arguments import Contents, Value, describe_value, store_manifest

#: Another one is refused, with both numbers.
VERSION = 2

_SEPARATOR = re.compile(r"[=:,;]")

#: Text in which folders stand as their numbers: ``"-o"``, or ``["--out=", 0, "/model.vmfb"]``.
Text = str | tuple[str | int, ...]


class FileRef(msgspec.Struct, frozen=True):
    """A file of a command. folder: its number; path: relative to it."""

    folder: int
    path: str
    digest: Digest
    nbytes: int


class WeightFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file of weights that a command was given. manifest: of its specs, empty where it is no checkpoint."""

    folder: int
    path: str
    rule: str
    manifest: str = ""


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    """An executable. path: within the site folder of its distribution. digest: its identity, as in the trace."""

    name: str
    distribution: str = ""
    version: str = ""
    path: str = ""
    digest: str = ""


class RecordedCommand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A command that the stage ran. args: without the tool. hidden: variables whose values are secrets.

    returncode: None where it did not come to its end. stderr: its end, where the command failed.
    """

    tool: Tool
    args: tuple[Text, ...]
    cwd: Text
    environ: dict[str, str | None] = {}
    hidden: tuple[str, ...] = ()
    inputs: tuple[FileRef, ...] = ()
    outputs: tuple[FileRef, ...] = ()
    weights: tuple[WeightFile, ...] = ()
    stdin: Digest | None = None
    returncode: int | None = None
    stderr: str = ""


class RecordedLine(msgspec.Struct, frozen=True):
    """A command line of ``cachec exec``: it is run again where its files are. args: what followed ``exec``; cwd: the
    folder that it was in. A NUL stands for the base folder."""

    args: tuple[str, ...]
    cwd: str


class Recipe(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one run was called. entry: ``module:qualname`` of the stage's function. folders: how many are numbered. line:
    of a command, whose ``environ`` is what its key names, with a NUL for the base folder."""

    version: int
    stage: str
    entry: str
    arguments: dict[str, Value]
    environ: dict[str, str | None] = {}
    hidden: tuple[str, ...] = ()
    folders: int = 0
    commands: tuple[RecordedCommand, ...] = ()
    line: RecordedLine | None = None


class CommandCall(NamedTuple):
    """What the stage of a command says of its line. environ: the variables in its key, None for one that is not set.
    hidden: names of those whose values are not stored."""

    line: RecordedLine
    environ: Mapping[str, str | None]
    hidden: tuple[str, ...] = ()


class EncodedRecipe(NamedTuple):
    """An encoded recipe, and the contents that it names, by digest."""

    encoded: bytes
    contents: Contents


def recipe_of(stage: StageLike, arguments: Mapping[str, Any], recorder: ReadRecorder) -> EncodedRecipe:
    """The recipe of a run of ``stage`` with these arguments (unguarded, defaults filled in).

    Never fails for what it can't keep: such an argument is described in words, and a replay says that it is. Arguments
    that the stage ignores may be anything, a secret too, and are left out.
    """
    contents: Contents = {}
    function = stage.__wrapped__
    options = stage.options
    folders = _NumberedFolders(recorder.commands())
    distributions = Distributions()
    identities = {read.where: read.digest for read in recorder.reads() if read.kind == "tool"}
    commands = tuple(_command(run, folders, distributions, identities, contents) for run in recorder.commands())
    called: CommandCall | None = getattr(stage, "called", None)  # of a command alone
    environ, hidden = _hide_secrets(
        {name: os.environ.get(name) for name in options.env} if called is None else dict(called.environ)
    )
    if called is not None:
        hidden = tuple(sorted({*hidden, *called.hidden}))
    values = {
        name: describe_value(value, contents, name) for name, value in arguments.items() if name not in options.ignore
    }
    recipe = Recipe(
        version=VERSION,
        stage=options.name,
        entry=f"{function.__module__}:{function.__qualname__}",
        arguments=values,
        environ=environ,
        hidden=hidden,
        folders=len(folders),
        commands=commands,
        line=None if called is None else called.line,
    )
    return EncodedRecipe(_encode(recipe), contents)


def _encode(recipe: Recipe) -> bytes:
    """JSON, with names in order, so that one call has one digest."""
    try:
        return msgspec.json.encode(recipe, order="sorted")
    except UnicodeEncodeError:  # a file name or a variable that is no UTF-8: readable, but no longer the same
        return msgspec.json.encode(msgspec.convert(_printable(msgspec.to_builtins(recipe)), Recipe), order="sorted")


def _printable(data: Any) -> Any:
    if isinstance(data, str):
        return data.encode("utf-8", "backslashreplace").decode()
    if isinstance(data, dict):
        return {_printable(key): _printable(item) for key, item in data.items()}
    return [_printable(item) for item in data] if isinstance(data, list | tuple) else data


def folder_name(number: int) -> str:
    """The folder of a number, in the zip and in a replay."""
    return "work" if number == 0 else f"work-{number}"


def digests_of_reads(reads: Iterable[Read]) -> dict[str, str]:
    """Digest -> path of the files that a trace has read: where a content that was not kept may still be. Of one that is
    kept from several places the path itself comes first.
    """
    return {read.digest: read.where for read in reversed(tuple(reads)) if read.kind == "file"}


class _NumberedFolders:
    """Numbers for the folders of files; one inside another is a path below it."""

    def __init__(self, runs: Sequence[CommandRun]) -> None:
        folders: list[str] = []
        for run in runs:
            folders.append(run.cwd)
            folders += (os.path.dirname(state.path) for state in (*run.inputs, *run.outputs))
            folders += map(os.path.dirname, run.weights)
        self._roots: list[str] = []
        for folder in dict.fromkeys(folders):
            if not any(_is_below(folder, other) for other in folders if other not in {folder, os.sep}):
                self._roots.append(folder)
        self._roots.sort(key=lambda root: root == os.sep)  # what lies right below / is found last

    def __len__(self) -> int:
        return len(self._roots)

    def place(self, path: str) -> tuple[int, str]:
        """Number of the folder, and the path below it."""
        for number, root in enumerate(self._roots):
            if path == root or _is_below(path, root):
                return number, os.path.relpath(path, root)  # the folder itself: "."
        raise AssertionError(path)

    def text(self, text: str, cwd: str, files: Sequence[str]) -> Text:
        """``text`` with the folders in it as numbers; a relative path that leads out of ``cwd`` too."""
        for path in files:
            relative = os.path.relpath(path, cwd)
            if relative.startswith("..") and text.endswith(relative):
                number, below = self.place(path)
                return tuple(piece for piece in (text.removesuffix(relative), number, f"/{below}") if piece != "")
            if os.path.dirname(path) == os.sep and text.endswith(path):
                return tuple(piece for piece in (text.removesuffix(path), self.place(path)[0], path) if piece != "")
        pieces: list[str | int] = [text]
        for number, root in sorted(enumerate(self._roots), key=lambda item: -len(item[1])):
            if root != os.sep:
                pieces = [new for piece in pieces for new in _split(piece, root, number)]
        return text if pieces == [text] else tuple(piece for piece in pieces if piece != "")

    def without(self, text: str) -> str:
        """A message with folders under the names that they have in a reproducer."""
        for number, root in sorted(enumerate(self._roots), key=lambda item: -len(item[1])):
            if root != os.sep:
                text = text.replace(root + os.sep, folder_name(number) + os.sep)
        return text


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(os.path.join(folder, ""))


def _split(piece: str | int, root: str, number: int) -> list[str | int]:
    if isinstance(piece, int):
        return [piece]
    out: list[str | int] = []
    rest = piece
    start = 0
    while (at := rest.find(root, start)) >= 0:
        end = at + len(root)
        # What is in front up to a separator may be a flag (-I/w), and no other part of a path (/x/w).
        if rest[end : end + 1] in {"", "/", ":", ",", ";"} and "/" not in _SEPARATOR.split(rest[:at])[-1]:
            out += [rest[:at], number]
            rest, start = rest[end:], 0
        else:
            start = end
    return [*out, rest]


def _command(
    run: CommandRun,
    folders: _NumberedFolders,
    distributions: Distributions,
    identities: Mapping[str, str],
    contents: Contents,
) -> RecordedCommand:
    files = [state.path for state in (*run.inputs, *run.outputs)] + list(run.weights)
    environ, hidden = _hide_secrets(run.environ)
    for state in (*run.inputs, run.stdin):
        if state is not None and state.data is not None:
            contents.setdefault(state.digest, state.data)

    def refs(states: Sequence[FileState]) -> tuple[FileRef, ...]:
        return tuple(FileRef(*folders.place(state.path), state.digest, state.nbytes) for state in states)

    return RecordedCommand(
        tool=_tool(run, distributions, identities),
        args=tuple(folders.text(arg, run.cwd, files) for arg in run.args[1:]),
        cwd=folders.text(run.cwd, run.cwd, ()),
        environ=environ,
        hidden=hidden,
        inputs=refs(run.inputs),
        outputs=refs(run.outputs),
        weights=tuple(_weight_file(path, rule, folders, contents) for path, rule in run.weights.items()),
        stdin=None if run.stdin is None else run.stdin.digest,
        returncode=run.returncode,
        stderr=folders.without(run.stderr.decode(errors="replace")) if run.returncode else "",
    )


def _tool(run: CommandRun, distributions: Distributions, identities: Mapping[str, str]) -> Tool:
    given = run.args[0]
    place = os.path.abspath(os.path.join(run.cwd, given)) if "/" in given else given
    owner = distributions.owner(run.program)
    return Tool(
        name=os.path.basename(given),
        distribution="" if owner is None else owner.name,
        version="" if owner is None else owner.version,
        path="" if owner is None else os.path.relpath(run.program, owner.root),
        digest=identities.get(place, ""),
    )


def _weight_file(path: str, rule: str, folders: _NumberedFolders, contents: Contents) -> WeightFile:
    from cachec.weights import open_weights

    number, below = folders.place(path)
    try:
        with open_weights(path) as weights:
            return WeightFile(number, below, rule, store_manifest(weights.manifest, contents))
    except (CachecError, OSError):
        return WeightFile(number, below, rule)  # no checkpoint: the replay asks for the file


def _hide_secrets(environ: Mapping[str, str | None]) -> tuple[dict[str, str | None], tuple[str, ...]]:
    """The variables without secrets, and the names of these."""
    hidden = tuple(sorted(name for name, value in environ.items() if value is not None and is_secret(name)))
    return {name: value for name, value in environ.items() if name not in hidden}, hidden
