"""Targets as they are declared: ``[warm]`` in ``cachec.toml``, ``[tool.cachec.warm]`` in ``pyproject.toml``.

    [tool.cachec.warm]
    jobs = 2                                     # workers, by default one a processor
    timeout = 600                                # seconds a row may take

    [tool.cachec.warm.targets.minilm]
    call = "pipeline:warm"                       # or: command = ["mlir-opt", "{model}.mlir", "-o", "out/{model}.mlir"]
    path = ["examples/minilm"]
    matrix = { batch = [1, 8], target = ["llvm-cpu", "vmvx"] }
    arguments = { checkpoint = "model.safetensors" }

The fields of a target are those of ``model.Target``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from cachec import config
from cachec.errors import ConfigError, UsageError
from cachec.warm.model import DEFAULT_TIMEOUT, Row, Target
from cachec.warm.rows import expand

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_CALL = r"\A[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z"
_TABLE_KEYS = ("jobs", "timeout", "targets")
_Word = Annotated[str, Meta(pattern=r"\A[^\0]*\Z")]


class _Kind(NamedTuple):
    """What a value may be: as a type, and in words."""

    type: Any
    accepted: str


_JOBS = _Kind(Annotated[int, Meta(ge=1)], "a number of workers, 1 or more")
_TIMEOUT = _Kind(Annotated[float, Meta(gt=0, le=sys.float_info.max)], "a number of seconds above 0")
_WORDS = _Kind(tuple[_Word, ...], "a list of texts")

#: The keys of a target.
_FIELDS: Mapping[str, _Kind] = {
    "call": _Kind(Annotated[str, Meta(pattern=_CALL)], "module:function, such as pipeline:compile_all"),
    "command": _Kind(
        Annotated[tuple[_Word, ...], Meta(min_length=1)], 'a list of words, such as ["mlir-opt", "model.mlir"]'
    ),
    "options": _WORDS,
    "arguments": _Kind(dict[str, Any], "a table of texts, numbers, booleans, lists and tables"),
    "matrix": _Kind(dict[str, tuple[Any, ...]], "a table of lists: { axis = [value, ...] }"),
    "exclude": _Kind(tuple[dict[str, Any], ...], "a list of tables: [{ axis = value }]"),
    "after": _WORDS,
    "files": _WORDS,
    "path": _WORDS,
    "env": _Kind(dict[str, str], 'a table of texts: { NAME = "value" }'),
    "timeout": _TIMEOUT,
    "isolated": _Kind(bool, "true or false"),
}


class DeclaredTargets(NamedTuple):
    """The targets of the configuration. path: its file, or empty. jobs: the number of workers, or None."""

    path: str
    targets: tuple[Target, ...]
    rows: tuple[Row, ...]
    jobs: int | None


def load(cwd: str | os.PathLike[str] | None = None) -> DeclaredTargets:
    """Return the targets of the current configuration file; it may have none.

    Raises ConfigError that names file and line for an unknown key, a value of the wrong kind, a matrix without rows,
    and targets that wait for each other.
    """
    table = config.sub_table("warm", cwd=cwd)
    if table is None:
        return DeclaredTargets("", (), (), None)
    _check_fields(table, (), table.data, _TABLE_KEYS)
    declared = table.data.get("targets", {})
    if not isinstance(declared, dict):
        raise _bad(table, ("targets",), declared, "a table of targets: [...targets.NAME]")
    jobs = None if "jobs" not in table.data else _check_type(table, ("jobs",), table.data["jobs"], _JOBS)
    timeout = _check_type(table, ("timeout",), table.data.get("timeout", DEFAULT_TIMEOUT), _TIMEOUT)
    targets = tuple(_target(table, name, fields, timeout) for name, fields in declared.items())
    for target in targets:
        with _at(table, target.name, "matrix" if target.matrix else None):
            expand([msgspec.structs.replace(target, after=())])
    names = {target.name for target in targets}
    for target in targets:
        if not names.issuperset(target.after):
            with _at(table, target.name, "after"):
                expand(targets)
    with _at(table, next((each.name for each in targets if each.after), ""), "after"):
        rows = tuple(expand(targets))
    return DeclaredTargets(table.path, targets, rows, jobs)


@contextmanager
def _at(table: config.ConfigTable, target: str, key: str | None) -> Iterator[None]:
    """Turn a UsageError of the body into a ConfigError that says where."""
    try:
        yield
    except UsageError as error:
        keys = ("targets", target, key) if key else ("targets", target)
        raise ConfigError(f"{table.where(*keys)}: {error}") from None


def _target(table: config.ConfigTable, name: str, fields: Any, timeout: float) -> Target:
    if not isinstance(fields, dict):
        raise _bad(table, ("targets", name), fields, "a table")
    if _NAME.fullmatch(name) is None:
        where = table.where("targets", name)
        raise ConfigError(f"{where}: {name!r} can't name a target: letters, digits, '_', '.' and '-'")
    _check_fields(table, ("targets", name), fields, tuple(_FIELDS))
    if ("call" in fields) == ("command" in fields):
        what = "both call and command" if "call" in fields else "neither call nor command"
        raise ConfigError(f"{table.where('targets', name)}: target {name!r} has {what}; give one of them")
    if "options" in fields and "command" not in fields:
        where = table.where("targets", name, "options")
        raise ConfigError(f"{where}: options are those of `cachec exec`: only a target with a command has them")
    values = {key: _check_type(table, ("targets", name, key), value, _FIELDS[key]) for key, value in fields.items()}
    if "command" in values and not values["command"][0]:
        raise _bad(table, ("targets", name, "command"), fields["command"], _FIELDS["command"].accepted)
    values.setdefault("timeout", timeout)
    return Target(name=name, folder=table.folder, **values)


def _check_fields(
    table: config.ConfigTable, at: tuple[str, ...], fields: Mapping[str, Any], known: tuple[str, ...]
) -> None:
    for key in fields:
        if key not in known:
            hint = config.suggestion(key, known)
            owner = f"target {at[-1]!r}" if at else "warm"
            raise ConfigError(
                f"{table.where(*at, key)}: {key!r} is no key of {owner}{hint}; they are {', '.join(known)}"
            )


def _check_type(table: config.ConfigTable, at: tuple[str, ...], value: Any, kind: _Kind) -> Any:
    try:
        converted = msgspec.convert(value, kind.type)
    except msgspec.ValidationError:
        raise _bad(table, at, value, kind.accepted) from None
    if not _plain(value):
        raise _bad(table, at, value, kind.accepted)
    return converted


def _bad(table: config.ConfigTable, at: tuple[str, ...], value: Any, accepted: str) -> ConfigError:
    return ConfigError(f"{table.where(*at)}: {'.'.join(at)} = {value!r} is not accepted; it is {accepted}")


def _plain(value: Any) -> bool:
    """Whether it is without dates and times, which TOML has."""
    if isinstance(value, list):
        return all(map(_plain, value))
    if isinstance(value, dict):
        return all(map(_plain, value.values()))
    return isinstance(value, str | int | float)
