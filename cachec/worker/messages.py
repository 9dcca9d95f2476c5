"""The messages between caller, fork server and worker.

The caller sends Start to a fork server, and then for each call the packages to import and descriptors: of a
conversation with the worker, of one with its supervisor, of a file for what was traced, and of standard error. The
supervisor sends StartNotice, and how the worker ended. The worker gets Setup and answers PrepareReply, gets
StageRequest, sends OutputText and requests for weights, and ends with StageDone. In place of PrepareReply or StageDone
there may be WorkerFailure: the call is then made in the caller's process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cachec.model import GeneratorState, Read
from cachec.worker.main_replay import MainModule

#: Globals by module and name: digests of their forms, empty for what has none.
Table = Mapping[str, Mapping[str, str]]


class Start(NamedTuple):
    """What a starter begins with."""

    #: The process that calls.
    caller: int
    #: ``sys.path``.
    path: list[str]
    #: Installed packages, to be imported in that order.
    packages: list[str]
    #: Seconds without a call after which it ends.
    idle_seconds: float


class StartNotice(NamedTuple):
    """A worker is about to begin."""

    #: Its supervisor.
    pid: int


class Setup(NamedTuple):
    """What a worker begins with."""

    #: The current folder.
    folder: str
    #: ``sys.path``.
    path: list[str]
    #: ``sys.argv``.
    argv: list[str]
    #: The project's modules that the caller has imported, in that order.
    modules: list[str]
    #: How the caller's ``__main__`` was made; None where it is not the project's.
    main: MainModule | None
    #: Those of its globals that its definitions need when they are made.
    values: Mapping[str, Any]


class PrepareReply(NamedTuple):
    """A worker has imported what the caller has."""

    #: The globals that these modules have now.
    table: Table


class StoreOptions(NamedTuple):
    """Where a worker puts the artifacts of a result."""

    folder: str
    namespace: str
    fsync: bool


class GlobalValue(NamedTuple):
    """A global that differs in the caller's process."""

    #: Of its form.
    digest: str
    #: What stands for it: see ``carried.to_send``.
    sent: Any


class Custom(NamedTuple):
    """An object that is pickled by code of the project: what arrives may be another."""

    value: Any
    #: Of its form.
    digest: str
    #: Whether only globals hold it, no arguments.
    is_of_globals: bool


class StageRequest(NamedTuple):
    """A call of a stage."""

    #: Its name.
    stage: str
    #: The stage's function; or its ``functions.Place``, where the worker has it too.
    function: Any
    #: By parameter.
    arguments: Mapping[str, Any]
    #: Globals that differ, by module and name.
    carried: Mapping[str, Mapping[str, GlobalValue]]
    #: Module and name of those that can't be sent, and why: see ``base.unsendable``.
    missing: Mapping[tuple[str, str], str]
    #: What the program sets in libraries: see ``key.library_state``.
    targets: Sequence[str]
    #: Settings of the process, to be set: see ``key.process_state``.
    process: Mapping[str, Any]
    #: Live settings of libraries, by plugin, to be set: see ``key.library_settings``.
    ambient: Mapping[str, Any]
    #: The states of the random generators of the process, to be put: see ``key.random_generators``.
    generators: Mapping[str, bytes]
    #: Whether the caller has replaced ``sys.stdout`` and ``sys.stderr``: what is written to them is sent.
    streams: tuple[bool, bool]
    store: StoreOptions
    #: Whether the rank of sharded weights may be seen.
    per_rank: bool
    #: Objects among the above that are pickled by code of the project. The last field: they are found while the others
    #: are sent.
    custom: Sequence[Custom]


class OutputText(NamedTuple):
    """Text that the stage wrote to a stream that the caller has replaced."""

    #: 0 for ``sys.stdout``, 1 for ``sys.stderr``.
    stream: int
    text: str


class StageDone(NamedTuple):
    """A stage has returned."""

    #: The result, as ``codecs`` encode it, in JSON.
    node: bytes
    seconds: float
    #: What Python code looked up: modules, code, variables, weights; and what nested stages read.
    reads: tuple[Read, ...]
    #: The names that the code which ran may have read, of globals among others.
    names: frozenset[str]
    #: Those of them that may be of globals of ``__main__``.
    main_names: frozenset[str]
    #: Whether it may have called ``eval``, and not a method of that name.
    evaluates: bool
    #: Names that were made up for temporary files and folders.
    temporary: tuple[str, ...]
    #: Whether the run may have taken paths of the project from globals.
    has_project_paths: bool
    #: The installed packages that were imported during the run.
    new_packages: tuple[str, ...]
    #: The random generators that it drew from and did not seed.
    drawn: tuple[str, ...]
    #: The states that it left those in that it drew from or seeded.
    generators: Mapping[str, GeneratorState]
    #: Whether the worker forked: a child may have drawn, too.
    has_forked: bool
    #: A file of each installed package that is imported.
    packages: tuple[str, ...]
    #: What was opened while the starter imported packages, outside of these; and modules whose docstrings were read.
    files: tuple[str, ...]
    #: The files of modules of the project, where no code of these asks for sizes of files.
    unsized: tuple[str, ...]
    #: The globals of modules that were imported since ``PrepareReply``.
    imported: Table
    #: What stands for the attributes of libraries that the code which ran may have read.
    libraries: Table
    #: What each of ``Call.targets`` held before the run, and the packages whose code the run has used.
    library_states: Mapping[str, str]
    used_libraries: frozenset[str]
    #: What stands for the docstrings and annotations of each module of the project, where code reads any.
    documentation: Mapping[str, str]
    #: What functions of the project remember, as ``memos`` tells it.
    memos: Table
    #: What the run changed that belongs to the caller, in words; empty for nothing.
    changed: str
    #: Why it must not be stored: the value of a ``model.Reason``, and words. None where it may be.
    storage_refusal: tuple[str, str] | None


class WorkerFailure(NamedTuple):
    """A worker can't go on: the stage has to run in the caller's process."""

    #: Why.
    words: str
    #: Whether it was the stage that raised.
    raised: bool = False
