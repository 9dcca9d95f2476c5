"""One command line, as far as an adapter and options say something of it; or why it is not cached."""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

import msgspec

from cachec.launcher.adapters import Adapter, WeightKey
from cachec.model import Reason


class PassThrough(Exception):
    """The command is not cached. reason, detail: of the outcome. is_reported: whether the user is to hear of it."""

    def __init__(self, reason: Reason, detail: str, *, is_reported: bool = False) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.is_reported = is_reported


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
    """One argument. label: the flag that it is, or belongs to; else ``input``, or its number."""

    label: str
    text: str


#: What an output is. result: what the command is called for. default: the same where no argument names it, so that
#: the name is a guess. depfile: in the syntax of Make. other: any other.
OutputKind = Literal["result", "default", "depfile", "other"]


class DeclaredOutput(NamedTuple):
    """A file or a folder that an argument or an option names as written, as an absolute path."""

    path: str
    kind: OutputKind


class CommandSpec(msgspec.Struct):
    """One command line. Paths are absolute; ``cwd`` is where relative ones start.

    argv: with the command's name as it was given. program: the executable that this leads to. pieces: one for each
    argument. models: those that name an input by no flag, by number. inputs: what ``--input`` says, path -> as it was
    given. stdin: whether all of standard input is read first. is_known: whether it is the program of its adapter,
    and runs no other code: what that says of variables holds then, and no folder is in its result where nobody sees it.
    """

    argv: tuple[str, ...]
    program: str
    cwd: str
    adapter: Adapter | None
    options: Options
    pieces: list[Piece] = []
    models: dict[int, str] = {}
    inputs: dict[str, str] = {}
    outputs: list[DeclaredOutput] = []
    weights: dict[str, WeightKey] = {}
    stdin: bool = False
    is_known: bool = False

    @property
    def stage(self) -> str:
        """The name of the stage in keys and reports."""
        return f"exec:{self.adapter.name if self.adapter is not None else os.path.basename(self.argv[0])}"
