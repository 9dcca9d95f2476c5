"""A command as a stage of the one engine: what it needs of a stage, and the engine opened for commands."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from cachec import config
from cachec.base.distributions import Distributions
from cachec.base.hashing import Known
from cachec.context import CacheContext
from cachec.errors import UsageError
from cachec.key.stage_options import StageOptions
from cachec.key.tools.executables import interpreter_name, which
from cachec.key.trace_validation import Dependencies, lookup_digest, searched_digest
from cachec.launcher import options
from cachec.launcher.command import CommandSpec, Options
from cachec.launcher.command_key import CommandKeyBuilder
from cachec.launcher.path_map import PathMap, current_folder
from cachec.model import Read
from cachec.programs.registry import Plugins
from cachec.stage.engine import Engine
from cachec.tracing.listener import Keeper

if TYPE_CHECKING:
    from cachec.commands.process import ProcessResult
    from cachec.key.key_builder import KeyBuilder
    from cachec.reproduce.recipe import CommandCall

#: What one run of a command's stage takes; none of it is an argument in a key, which ``CommandKeyBuilder`` makes.
_PARAMETERS = ("command", "stripped", "stdin")


class CommandFailed(Exception):
    """The command ended with another status than 0. It is not cached; its output and status are passed on."""

    def __init__(self, ended: ProcessResult) -> None:
        code = ended.returncode
        super().__init__(f"signal {-code}" if code < 0 else f"exit status {code}")
        self.ended = ended


#: Words that a shell knows (POSIX.1-2024, Shell Command Language, 2.4 and 2.15; bash), and no program is called.
_SHELL_WORDS = frozenset(
    {
        *(".", ":", "!", "{", "(", "case", "do", "for", "function", "if", "select", "until", "while"),
        *("alias", "bg", "break", "builtin", "cd", "command", "continue", "declare", "eval", "exec", "exit", "export"),
        *("fg", "hash", "jobs", "let", "local", "popd", "pushd", "read", "readonly", "return", "set", "shift", "shopt"),
        *("source", "times", "trap", "type", "ulimit", "umask", "unalias", "unset", "wait"),
    }
)

#: Words of a command line that is spelled out.
_MOST_WORDS = 8

#: Bytes of a first line that names an interpreter (the kernel reads 256).
_MAX_LINE = 4096


class _Binding:
    """``key.argument_binding.Binding`` for the one call that there is."""

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        return {**dict(zip(_PARAMETERS, args, strict=True)), **kwargs}

    def call(self, function: Callable[..., Any], bound: Mapping[str, Any]) -> Any:
        return function(**bound)


class CommandStage:
    """A command in the role of a ``Stage``. ``__wrapped__`` runs the command."""

    mode = None
    lock_timeout = None

    def __init__(
        self, command: CommandSpec, body: Callable[..., Any], describe_call: Callable[[], CommandCall] | None = None
    ) -> None:
        """describe_call: says how it is run again; None for one that is not to be stored."""
        self._describe_call = describe_call
        self.options = StageOptions(name=command.stage, ignore=frozenset(_PARAMETERS))
        self.binding = _Binding()
        self.__wrapped__ = body

    @property
    def called(self) -> CommandCall | None:
        """How it was called, for its recipe."""
        return None if self._describe_call is None else self._describe_call()


class PlacedDependencies(Dependencies):
    """Reads of commands: paths may be relative to the base folder, and folders themselves are reads."""

    def __init__(self, places: PathMap, *args: Any) -> None:
        super().__init__(*args)
        self._places = places

    def present(self, read: Read) -> str:
        if read.kind == "folder":
            return self._places.digest(read.where)
        if read.kind == "same":
            return self._places.sameness(read.name)
        if read.kind == "search":
            return searched_digest(read.where, self._environ, self._places.to_anchored)
        if read.kind in {"env", "stdin", "umask"}:
            return super().present(read)
        if read.kind == "lookup":
            place = self._places.to_absolute(read.where)
            return lookup_digest(place, read.name, partial(self._places.folder, read.where))
        return super().present(msgspec.structs.replace(read, where=self._places.to_absolute(read.where)))

    def change(self, read: Read, others: Sequence[Read]) -> str:
        return super().change(msgspec.structs.replace(read, where=self._places.to_absolute(read.where)), others)


class ServerChildState:
    """What a child of the server has for each of the commands that it runs."""

    def __init__(self) -> None:
        #: Digests of files that it knows.
        self.known: Known = {}
        #: Of the tracer.
        self.keeper = Keeper()


class CommandContext(CacheContext):
    """The cache, opened for one command line in the current folder."""

    def __init__(
        self, overrides: Mapping[str, object], environ: Mapping[str, str], server_state: ServerChildState | None = None
    ) -> None:
        """overrides: settings that win over the environment and the configuration file. server_state: where
        this process is a child of a server. Raises ConfigError."""
        super().__init__(config.load(overrides, environ=environ), None if server_state is None else server_state.known)
        self.keeper = None if server_state is None else server_state.keeper
        self.overridden = bool(overrides)
        self.variables = dict(environ)
        cwd = current_folder(self.variables)
        base = self.settings.base_dir
        self.places = PathMap(None if base is None else os.fspath(base).rstrip("/") or None, cwd)
        key_parts = self.settings.key_parts
        self.requests = CommandKeyBuilder(self.store.digests, self.places, self.variables, key_parts)

    def anchor(self, command: CommandSpec) -> None:
        """Have paths in the environment of an installed tool count from there."""
        if command.adapter is None or not command.adapter.distribution:
            return
        with open(command.program, "rb") as file:
            interpreter = interpreter_name(file.readline(_MAX_LINE)) or command.program
        found = which(interpreter, self.variables) or command.program
        tools = (os.path.dirname(os.path.dirname(each)) for each in (command.program, os.path.realpath(found)))
        self.places = msgspec.structs.replace(self.places, tools=tuple(tools))
        self.requests.anchor(self.places)

    def engine_for(self, command: CommandSpec) -> Engine:
        plugins = Plugins(Distributions())  # those of this Python, wherever the compiler is from
        tools = self.requests.tool_keys(command)
        dependencies = PlacedDependencies(self.places, tools, self.store.digests, self.variables)
        key_builder = cast("KeyBuilder", self.requests)  # which has the methods that a command's run needs
        return self.engine(key_builder, plugins, dependencies, lambda _weights, _name: None)


class ResolvedCommand(NamedTuple):
    """A command line that is not run as it is."""

    opened: CommandContext
    given: Options
    argv: list[str]
    #: What its name leads to, as it was found in PATH.
    program: str


def not_found(argv: Sequence[str]) -> str:
    """Return the message for a command line without an executable as its first word."""
    if argv[0] in _SHELL_WORDS:
        line = shlex.join(argv) if len(argv) < _MOST_WORDS else f"{argv[0]} ..."
        return f"{argv[0]!r} is a word of the shell, and no program; write sh -c {shlex.quote(line)}"
    return f"{argv[0]!r} is not an executable in PATH; install it, or give its path"


@contextmanager
def opened_command(
    args: Sequence[str], overrides: Mapping[str, object] | None, *, needs_store: bool = True
) -> Iterator[ResolvedCommand]:
    """The command line behind ``--``, and the cache opened for it. Raises UsageError where it names no executable, and
    NoStoreFolder for a question that needs a store."""
    given, argv = options.parse(args)
    opened = CommandContext(overrides or {}, dict(os.environ))
    if needs_store:
        _ = opened.settings.dir  # raises NoStoreFolder
    try:
        program = which(argv[0], opened.variables)
        if program is None:
            raise UsageError(not_found(argv))
        yield ResolvedCommand(opened, given, argv, program)
    finally:
        opened.store.close()
