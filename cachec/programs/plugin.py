"""What a compiler's plugin provides, and how plugins are found without importing any of them too early."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from cachec.base.display_text import module_of
from cachec.errors import PluginError
from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec.programs.random_generator import Generator
from cachec.weights import WeightSet


class Fingerprint(NamedTuple):
    """What a plugin says of an argument: a digest for the key, words for a person."""

    digest: str
    detail: str
    #: Of an array, all hashed.
    nbytes: int = 0


class StrippedFile(NamedTuple):
    """A model without the bytes of its weights, and these."""

    ir: bytes
    weights: WeightSet


class Reproducer(NamedTuple):
    """An input of a command with the options of the command inside."""

    data: bytes
    #: Behind the name of the input.
    suffix: str
    #: Of the command's tool, in front of such a file.
    option: str


class ArtifactWriter(Protocol):
    """Where ``encode`` puts bytes: each call makes one artifact, in order."""

    def write(self, data: bytes | memoryview) -> None:
        """Store these bytes as the next artifact."""

    def copy(self, path: Path) -> None:
        """Store the content of this file as the next artifact."""


class Plugin:
    """Base of every plugin. Each verb that a plugin does not do refuses clearly.

    A plugin module is imported when a stage first needs it: an argument or result of one of ``types`` turns up, one of
    ``distributions`` is among the tools of a stage, or an artifact of kind ``name:...`` is linked. It must not import
    its compiler at import time.
    """

    #: The entry-point name; the prefix of the formats and kinds that this plugin makes.
    name: str = ""
    #: Installed distributions with settings that ``ambient`` reports.
    distributions: tuple[str, ...] = ()
    #: Distribution -> the releases that the conformance suite was run with (``>=0.10,<0.11``). A newer one is used once
    #: ``self_test`` passed. With an older one, and where what a verb uses of the library is gone (an AttributeError,
    #: ImportError or TypeError), stages run without the cache.
    tried_releases: Mapping[str, str] = MappingProxyType({})
    #: ``module:function`` of a test without arguments, which raises where the plugin does not work with the installed
    #: releases: it compiles something tiny, asks for it again, and compares the numbers. It runs in a process of its
    #: own, where ``cachec.Cache()`` is a temporary one. Empty: newer releases are not used.
    self_test: str = ""
    #: Modules, with those in them, of these libraries that start programs by themselves (a compiler, an assembler). The
    #: plugin answers for what these programs read: by ``ambient``, and by the distributions that they are in.
    programs: tuple[str, ...] = ()
    #: ``module.qualname`` of the argument and result types that this plugin handles, subclasses included.
    types: tuple[str, ...] = ()
    #: Those of them that have no pickle: they go to another process by ``encode`` and ``decode``.
    sent: tuple[str, ...] = ()
    #: ``module.qualname`` of what goes to another process by ``reduce``, so that its data is not copied.
    reduced: tuple[str, ...] = ()

    @property
    def package(self) -> str:
        """The package that this plugin is in."""
        return type(self).__module__.partition(".")[0]

    def reduce(self, value: Any) -> Any:
        """As ``object.__reduce__``: an importable function and its arguments, the data as an array of numpy, which is
        sent as it lies in memory. NotImplemented for a value that is sent as it pickles itself.
        """
        raise self._refusal("reduce", value)

    def ambient(self) -> Mapping[str, str]:
        """Live library state that changes results, by name; the same whether or not the library is imported yet.

        Must not import the library: where it is not imported, answer from the variables that will set it.
        """
        return {}

    def ambient_values(self) -> Mapping[str, Any]:
        """What ``set_ambient`` needs to bring another process to the live settings of this thread. It can be pickled.

        Empty where the library is not imported, and where every setting is at its default. Where this leaves out what
        ``ambient`` shows, a stage that would run in a worker runs in the caller's process.
        """
        return {}

    def set_ambient(self, values: Mapping[str, Any]) -> None:
        """Give this process and thread the settings that ``ambient_values`` returned in another; the rest, defaults.

        Called in a worker, before a stage runs there in the same thread. Imports the library only if there is anything
        to set. What the library raises means that the stage runs in the caller's process.
        """

    def describe(self, value: Any) -> Any:
        """What stands for a value that a global holds: plain values, functions and the like; or NotImplemented.

        Asked for every function and every instance of a class, of whatever library, so it must be quick and import
        nothing. For values whose state no attribute shows, or shows with what only this process means (addresses,
        caches, places in files). Values of ``types`` are described by ``fingerprint``. Asked for classes, too: what it
        says of one counts beside the class itself (that a registry of the library has it).
        """
        return NotImplemented

    def generators(self) -> Sequence[Generator]:
        """The random generators of the library that a whole process shares. Must not import the library."""
        return ()

    def watch_generators(self) -> Callable[[], Sequence[str]]:
        """Called in a worker before a run. Returns what tells after it which of the library's other random generators,
        whose state no process can give to another, the run has drawn from. Their names are not those of others.
        """
        return lambda: ()

    def running(self, key: str) -> AbstractContextManager[Any]:
        """What a run of a stage is put in, which the plugin speaks for: by its distributions, or by types in its
        arguments. The library must answer nothing there from what it made of earlier code.

        key: of the call. Asked for once a run, and entered and left as often as the run goes on: one whole call, each
        step of an ``async def``, and storing the result. Must not import the library.
        """
        return nullcontext()

    def fingerprint(self, value: Any) -> Fingerprint:
        """Hash the current content of an argument of one of ``types``, at each call."""
        raise self._refusal("fingerprint", value)

    def strip(self, value: Any, weights: WeightSet) -> Program:
        """A program of the IR in ``value`` with the bytes of ``weights`` replaced by their names."""
        raise self._refusal("strip", value)

    def strip_file(self, path: Path, stand_in: str) -> StrippedFile:
        """The model in a file, for a command (``cachec exec --strip``).

        stand_in: what the command takes in place of a weight's bytes, in the plugin's own words. Raises UsageError
        where the file can't have that, CheckpointError where it is malformed.
        """
        raise self._refusal("strip", path)

    def encode(self, value: Any, out: ArtifactWriter) -> dict[str, Any]:
        """Write a result of one of ``types`` to artifacts; returns JSON-like data for ``decode``."""
        raise self._refusal("encode", value)

    def decode(self, meta: Mapping[str, Any], artifacts: Sequence[Path]) -> Any:
        """The value back. Neither ``meta`` nor the artifacts' content is to be trusted before it is validated."""
        raise PluginError(f"plugin {self.name!r} stores no values of its own")

    def link(self, artifact: File | Program, weights: WeightSet) -> Any:
        """Something runnable. The manifest was checked against ``weights`` already."""
        raise self._refusal("link", artifact)

    def compare(self, fresh: Any, stored: Any) -> str | None:
        """None where two results of one key are equal in effect, else the difference in words (mode ``verify``)."""
        raise self._refusal("compare", fresh)

    def difference(self, before: bytes, after: bytes) -> str:
        """What differs between the IR of two programs of this plugin's formats, for ``why``: a line of words.

        Asked on a miss, so linear in the IR, and without the compiler. Raises PluginError where it can't be told.
        """
        raise PluginError(f"plugin {self.name!r} does not tell programs apart")

    def title(self, ir: bytes) -> str:
        """The name that the IR of a program gives it, which stays while its operations change; empty for none.

        Asked on a miss, which is then compared with what was made of programs of that name. Without the compiler.
        """
        return ""

    def suffix(self, format: str) -> str:
        """What the name of a file with IR of this format ends with."""
        return ".ir"

    def reproducer(self, command: Sequence[str], data: bytes) -> Reproducer | None:
        """An input of a command in the form that the compiler has for reproducers; None where it has none.

        command: the tool and those of its arguments that name no file. data: the content of the input.
        """
        return None

    def _refusal(self, verb: str, value: object) -> PluginError:
        return PluginError(
            f"plugin {self.name!r} does not {verb} a {module_of(type(value))}.{type(value).__qualname__}"
        )
