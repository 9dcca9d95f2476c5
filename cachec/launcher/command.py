"""One command line, understood: what it reads, writes and is keyed by; or why it is not cached."""

from __future__ import annotations

import os
from collections.abc import Container
from typing import Literal, NamedTuple

import msgspec

from cachec.launcher.adapters import Adapter, WeightKey
from cachec.model import Reason


class PassThrough(Exception):
    """The command is not cached. reason, detail: of the outcome. told: whether the user is to hear of it. stage: its
    name, where an adapter was found."""

    def __init__(self, reason: Reason, detail: str, *, told: bool = False) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.told = told
        self.stage = ""


class Options(msgspec.Struct, frozen=True):
    """What ``cachec exec`` was told beside the command. weights: path -> key; paths as they were given.

    patterns: of paths that are outputs. ignore_env: variables that don't count. network: whether it may be used. stdin:
    whether all of standard input is read first. relocatable: no folder is in the result. cache_folders: names, and
    paths, of folders whose files are neither inputs nor outputs; from the settings alone.
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    weights: dict[str, WeightKey] = {}
    env: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    strip: bool = False
    hardlink: bool = False
    restat: bool = False
    portable: bool = False
    patterns: tuple[str, ...] = ()
    ignore_env: tuple[str, ...] = ()
    network: Literal["", "trust"] = ""
    stdin: bool = False
    relocatable: bool = False
    cache_folders: tuple[str, ...] = ()


class Piece(NamedTuple):
    """One piece of the command line that is keyed by its text.

    label: the flag, or what a bare argument is. text: None where it leaves the key. begin, end: its arguments, counted
    from the one behind the command's name; both -1 where a response file holds them.
    """

    label: str
    text: str | None
    means: str
    begin: int
    end: int


class Input(NamedTuple):
    """A file that the command reads, as an absolute path. text: as it was given. where: the argument, for messages.

    main: one that is compiled, and not one that a flag names.
    """

    path: str
    text: str
    where: str
    main: bool = True


#: What an output is. file, folder: the result. new: a file that replaces another. extra: a file beside it. any: a file
#: or a folder, whichever is there.
OutputKind = Literal["file", "folder", "new", "extra", "depfile", "any"]


class Output(NamedTuple):
    """A file or a folder that it writes, as an absolute path."""

    path: str
    kind: OutputKind
    where: str


class Command(msgspec.Struct):
    """One command line, understood. Paths are absolute, but for ``responses``: as they were given; ``cwd`` is where
    relative ones start.

    argv: with the command's name as it was given. program: the executable that this leads to. responses: files that
    arguments were read from. is_plain: its arguments say no more than their text, and the trace tells all.
    """

    argv: tuple[str, ...]
    program: str
    cwd: str
    adapter: Adapter | None
    options: Options
    pieces: list[Piece] = []
    inputs: list[Input] = []
    outputs: list[Output] = []
    weights: dict[str, WeightKey] = {}
    responses: list[str] = []
    stdin: bool = False
    is_plain: bool = False
    sees_cwd: bool = False

    @property
    def stage(self) -> str:
        """The name of the stage in keys and reports."""
        return f"exec:{self.adapter.name if self.adapter is not None else os.path.basename(self.argv[0])}"

    def keeps_file(self, output: Output) -> bool:
        """Whether the command writes to a file that is in the place of an output, or may do so. Else it makes a new
        one. Compilers write depfiles to what is there."""
        if self.is_plain and output.kind != "any":
            return output.kind != "new"
        return self.adapter is None or not self.adapter.replaces or output.kind == "depfile"

    def is_input(self, piece: Piece, paths: Container[str]) -> bool:
        """Whether a piece names one of these inputs, where a dash can stand for the name."""
        return piece.label == "input" and piece.begin >= 0 and os.path.join(self.cwd, piece.text or "") in paths
