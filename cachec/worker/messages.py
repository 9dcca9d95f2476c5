"""What caller and worker tell one another, in the order of a call: Setup, Prepared, Call, then requests, and Done.

In place of Prepared or Done there may be Failed: the call is then made in the caller's process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cachec.model import Read
from cachec.worker.replay import MainModule

#: The globals of modules: digests of their forms, empty for what has none.
Table = Mapping[str, Mapping[str, str]]


class Start(NamedTuple):
    """What a starter begins with. path: ``sys.path``. packages: installed ones, to be imported in that order."""

    path: list[str]
    packages: list[str]


class Started(NamedTuple):
    """A starter can make workers."""


class Setup(NamedTuple):
    """What a worker begins with.

    folder: the current one. path: ``sys.path``. argv: ``sys.argv``. modules: the project's modules that the caller has imported, in that order.
    main: how the caller's ``__main__`` was made, None where it is not the project's. values: those of its globals that
    its definitions need, as messages (``protocol.encode``) cannot be shared: name -> value.
    """

    folder: str
    path: list[str]
    argv: list[str]
    modules: list[str]
    main: MainModule | None
    values: Mapping[str, Any]


class Prepared(NamedTuple):
    """A worker has imported what the caller has. table: the globals that these modules have now."""

    table: Table


class StoreOptions(NamedTuple):
    """Where a worker puts the artifacts of a result."""

    folder: str
    namespace: str
    fsync: bool


class Carried(NamedTuple):
    """A global that differs. digest: of its form. sent: what stands for it, as ``carried.to_send`` makes it."""

    digest: str
    sent: Any


class Call(NamedTuple):
    """A call of a stage.

    function: the stage's function, or the module and the qualified name by which the worker finds it. arguments: by
    parameter. paths: of each weight set in them, the path of its argument by the number that it is sent with. carried:
    globals that differ from what the worker has, by module. missing: those that can't be sent, which the worker takes
    away. process, ambient: live settings, to be set. streams: which of ``sys.stdout`` and ``sys.stderr`` the caller has
    replaced: what is written to them is sent.
    """

    stage: str
    function: Any
    arguments: Mapping[str, Any]
    carried: Mapping[str, Mapping[str, Carried]]
    missing: tuple[tuple[str, str], ...]
    process: Mapping[str, Any]
    ambient: Mapping[str, Any]
    streams: tuple[bool, bool]
    store: StoreOptions
    per_rank: bool


class Output(NamedTuple):
    """Text that the stage wrote to ``sys.stdout`` (0) or ``sys.stderr`` (1)."""

    stream: int
    text: str


class Done(NamedTuple):
    """A stage has returned.

    node: the result, as ``codecs`` encode it, in JSON. seconds: it took. reads: what Python code looked up: modules,
    code, variables, weights; and what nested stages read. names: of globals that the code which ran reads. packages: a file of each installed package that is imported.
    files: opened while the starter imported them. imported: the
    globals of modules that were imported since ``Prepared``. changed:
    what the run changed that belongs to the caller, in words; empty for nothing. kept_out: why it must not be stored
    (the value of a ``model.Reason``, and words), None where it may be.
    """

    node: bytes
    seconds: float
    reads: tuple[Read, ...]
    names: frozenset[str]
    packages: tuple[str, ...]
    files: tuple[str, ...]
    imported: Table
    changed: str
    kept_out: tuple[str, str] | None


class Failed(NamedTuple):
    """A worker can't go on. words: why. raised: whether it was the stage that raised."""

    words: str
    raised: bool = False
