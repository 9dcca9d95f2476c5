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
    """The options of ``cachec exec``."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    #: Path -> key; paths as they were given.
    weights: dict[str, WeightKey] = {}
    env: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    strip: bool = False
    hardlink: bool = False
    restat: bool = False
    portable: bool = False
    #: Of paths that are outputs.
    patterns: tuple[str, ...] = ()
    #: Variables that don't count.
    ignore_env: tuple[str, ...] = ()
    #: Whether it may be used.
    network: Literal["", "trust"] = ""
    #: Whether all of standard input is read first.
    stdin: bool = False
    #: No folder is in the result.
    relocatable: bool = False
    #: Names, and paths, of folders with files that are neither inputs nor outputs; only from the settings.
    cache_folders: tuple[str, ...] = ()


class Piece(NamedTuple):
    """One argument."""

    #: The flag that it is, or belongs to; else ``input``, or its number.
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
    """One command line. Paths are absolute; ``cwd`` is where relative ones start."""

    #: With the command's name as it was given.
    argv: tuple[str, ...]
    #: The executable that this leads to.
    program: str
    cwd: str
    adapter: Adapter | None
    options: Options
    #: One for each argument.
    pieces: list[Piece] = []
    #: Those that name an input by no flag, by number.
    models: dict[int, str] = {}
    #: What ``--input`` says, path -> as it was given.
    inputs: dict[str, str] = {}
    outputs: list[DeclaredOutput] = []
    weights: dict[str, WeightKey] = {}
    #: Whether all of standard input is read first.
    stdin: bool = False
    #: Whether it is the program of its adapter, and runs no other code: what that says of variables holds then, and no
    #: folder is in its result where nobody sees it.
    is_known: bool = False

    @property
    def stage(self) -> str:
        """The name of the stage in keys and reports."""
        return f"exec:{self.adapter.name if self.adapter is not None else os.path.basename(self.argv[0])}"
