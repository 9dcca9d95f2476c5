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

import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from cachec import config
from cachec.errors import ConfigError, UsageError
from cachec.warm.model import DEFAULT_TIMEOUT, Row, Target
from cachec.warm.rows import expand

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_CALL = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_TABLE_KEYS = ("jobs", "timeout", "targets")


class Declared(NamedTuple):
    """What the configuration declares. path: its file, empty where there is none. jobs: workers, None by default."""

    path: str
    targets: tuple[Target, ...]
    rows: tuple[Row, ...]
    jobs: int | None


def load(cwd: str | os.PathLike[str] | None = None) -> Declared:
    """The targets of the configuration file in force; none where it declares none.

    Raises ConfigError that names file and line for an unknown key, a value of the wrong kind, a matrix without rows,
    and targets that wait for each other.
    """
    table = config.sub_table("warm", cwd=cwd)
    if table is None:
        return Declared("", (), (), None)
    _known(table, (), table.data, _TABLE_KEYS)
    declared = table.data.get("targets", {})
    if not isinstance(declared, dict):
        raise _bad(table, ("targets",), declared, "a table of targets: [...targets.NAME]")
    jobs = None if "jobs" not in table.data else _checked(table, ("jobs",), table.data["jobs"], _jobs)
    timeout = _checked(table, ("timeout",), table.data.get("timeout", DEFAULT_TIMEOUT), _timeout)
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
    return Declared(table.path, targets, rows, jobs)


class _at:  # noqa: N801 - reads as a statement
    """Turn a UsageError of the body into a ConfigError that says where."""

    def __init__(self, table: config.SubTable, target: str, key: str | None) -> None:
        self._place = (table, target, key)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        if isinstance(error, UsageError):
            table, target, key = self._place
            keys = ("targets", target, key) if key else ("targets", target)
            raise ConfigError(f"{table.where(*keys)}: {error}") from None


def _target(table: config.SubTable, name: str, fields: Any, timeout: float) -> Target:
    if not isinstance(fields, dict):
        raise _bad(table, ("targets", name), fields, "a table")
    if _NAME.fullmatch(name) is None:
        where = table.where("targets", name)
        raise ConfigError(f"{where}: {name!r} can't name a target: letters, digits, '_', '.' and '-'")
    _known(table, ("targets", name), fields, tuple(_FIELDS))
    if ("call" in fields) == ("command" in fields):
        what = "both call and command" if "call" in fields else "neither call nor command"
        raise ConfigError(f"{table.where('targets', name)}: target {name!r} has {what}; give one of them")
    if "options" in fields and "command" not in fields:
        where = table.where("targets", name, "options")
        raise ConfigError(f"{where}: options are those of `cachec exec`: only a target with a command has them")
    values = {key: _checked(table, ("targets", name, key), value, _FIELDS[key]) for key, value in fields.items()}
    values.setdefault("timeout", timeout)
    return Target(name=name, folder=table.folder, **values)


def _known(table: config.SubTable, at: tuple[str, ...], fields: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in fields:
        if key not in known:
            import difflib

            close = difflib.get_close_matches(key, known, 1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            whose = f"target {at[-1]!r}" if at else "warm"
            raise ConfigError(
                f"{table.where(*at, key)}: {key!r} is no key of {whose}{hint}; they are {', '.join(known)}"
            )


def _checked(table: config.SubTable, at: tuple[str, ...], value: Any, parse: Callable[[Any], Any]) -> Any:
    try:
        return parse(value)
    except _RefusedError as error:
        raise _bad(table, at, value, str(error)) from None


def _bad(table: config.SubTable, at: tuple[str, ...], value: Any, accepted: str) -> ConfigError:
    return ConfigError(f"{table.where(*at)}: {'.'.join(at)} = {value!r} is not accepted; it is {accepted}")


class _RefusedError(Exception):
    """The message says what is accepted."""


def _jobs(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _RefusedError("a number of workers, 1 or more")
    return value


def _timeout(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise _RefusedError("a number of seconds above 0")
    return float(value)


def _call(value: Any) -> str:
    if not isinstance(value, str) or _CALL.fullmatch(value) is None:
        raise _RefusedError("module:function, such as pipeline:compile_all")
    return value


def _words(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) and "\0" not in word for word in value):
        raise _RefusedError("a list of texts")
    return tuple(value)


def _command(value: Any) -> tuple[str, ...]:
    words = _words(value) if isinstance(value, list) else ()
    if not words or not words[0]:
        raise _RefusedError('a list of words, such as ["mlir-opt", "model.mlir"]')
    return words


def _plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_plain, value))
    if isinstance(value, dict):
        return all(map(_plain, value.values()))
    return isinstance(value, str | int | float)


def _arguments(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not _plain(value):
        raise _RefusedError("a table of texts, numbers, booleans, lists and tables")
    return value


def _matrix(value: Any) -> dict[str, tuple[Any, ...]]:
    if not isinstance(value, dict) or not all(isinstance(each, list) and _plain(each) for each in value.values()):
        raise _RefusedError("a table of lists: { axis = [value, ...] }")
    return {axis: tuple(values) for axis, values in value.items()}


def _exclude(value: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(each, dict) and _plain(each) for each in value):
        raise _RefusedError("a list of tables: [{ axis = value }]")
    return tuple(value)


def _env(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise _RefusedError('a table of texts: { NAME = "value" }')
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _RefusedError("true or false")
    return value


#: The keys of a target, each with what validates it.
_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "call": _call,
    "command": _command,
    "options": _words,
    "arguments": _arguments,
    "matrix": _matrix,
    "exclude": _exclude,
    "after": _words,
    "files": _words,
    "path": _words,
    "env": _env,
    "timeout": _timeout,
    "isolated": _flag,
}
