"""From targets to rows: the matrix, names, dependencies, selection, shards."""

from __future__ import annotations

import fnmatch
import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from cachec.base.display_text import nearest
from cachec.errors import UsageError
from cachec.warm.model import Row, Target

_FIELD = re.compile(r"(\{\{\w+\}\})|\{([A-Za-z_]\w*)\}")


def expand(targets: Iterable[Target]) -> list[Row]:
    """All rows of all targets, each after those that it waits for; else in the order of declaration.

    Raises UsageError for a matrix without rows, two rows or targets of one name, an unknown name in ``after``, and
    targets that wait for each other.
    """
    declared: dict[str, Target] = {}
    for target in targets:
        if target.name in declared:
            raise UsageError(f"two targets are named {target.name!r}; give each a name of its own")
        declared[target.name] = target
    rows = {name: _rows(target) for name, target in declared.items()}
    done: list[Row] = []
    for name in _order_names(declared):
        target = declared[name]
        for row in rows[name]:
            waits = [other.id for before in target.after for other in rows[before] if _agree(row.axes, other.axes)]
            done.append(msgspec.structs.replace(row, after=tuple(dict.fromkeys(waits))))
    return done


def _order_names(declared: Mapping[str, Target]) -> list[str]:
    """The names, each after those in its ``after``."""
    state: dict[str, bool] = {}
    order: list[str] = []

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if state.get(name):
            return
        if name in trail:
            loop = " -> ".join((*trail[trail.index(name) :], name))
            raise UsageError(f"targets wait for each other: {loop}; take one name out of its `after`")
        for before in declared[name].after:
            if before not in declared:
                raise UsageError(
                    f"target {name!r} comes after {before!r}, which is no target; the targets are {', '.join(declared)}"
                )
            visit(before, (*trail, name))
        state[name] = True
        order.append(name)

    for name in declared:
        visit(name, ())
    return order


def _agree(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(one[axis] == other[axis] for axis in one.keys() & other.keys())


def _rows(target: Target) -> list[Row]:
    for axis, values in target.matrix.items():
        if not values:
            raise UsageError(f"target {target.name!r}: axis {axis!r} has no values, so the matrix has no rows")
    for rule in target.exclude:
        unknown = sorted(set(rule) - set(target.matrix))
        if unknown or not rule:
            named = f"names {', '.join(unknown)}, which" if unknown else "is empty, which"
            raise UsageError(f"target {target.name!r}: exclude {dict(rule)!r} {named} is no axis of the matrix")
    rows: list[Row] = []
    for values in itertools.product(*target.matrix.values()):
        axes = dict(zip(target.matrix, values, strict=True))
        if not any(all(axes[axis] == value for axis, value in rule.items()) for rule in target.exclude):
            rows.append(_row(target, axes))
    if not rows:
        raise UsageError(f"target {target.name!r}: every row of the matrix is excluded")
    names: set[str] = set()
    for row in rows:
        if row.id in names:
            raise UsageError(f"target {target.name!r}: the matrix gives {row.id} twice; an axis repeats a value")
        names.add(row.id)
    return rows


def _row(target: Target, axes: dict[str, Any]) -> Row:
    labels = ",".join(f"{axis}={label(value)}" for axis, value in axes.items())
    folder = os.path.abspath(target.folder)

    def filled(value: Any) -> Any:
        return fill(value, axes, target.name)

    return Row(
        id=f"{target.name}[{labels}]" if axes else target.name,
        target=target.name,
        axes=axes,
        call=target.call,
        command=tuple(filled(word) for word in target.command),
        options=tuple(filled(word) for word in target.options),
        arguments={**axes, **{name: filled(value) for name, value in target.arguments.items()}},
        files=target.files,
        path=tuple(os.path.normpath(os.path.join(folder, place)) for place in target.path),
        env={name: filled(value) for name, value in target.env.items()},
        timeout=target.timeout,
        isolated=target.isolated,
        folder=folder,
    )


def label(value: Any) -> str:
    """A value of an axis in the name of a row."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def fill(value: Any, axes: Mapping[str, Any], target: str) -> Any:
    """Text with ``{axis}`` replaced by the value of that axis; ``{{word}}`` stands for ``{word}`` itself.

    In lists and tables too. Raises UsageError for a name that is no axis.
    """
    if isinstance(value, Mapping):
        return {name: fill(each, axes, target) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(fill(each, axes, target) for each in value)
    if not isinstance(value, str):
        return value

    def one(match: re.Match[str]) -> str:
        if match[1]:
            return match[1][1:-1]
        if match[2] not in axes:
            known = ", ".join(axes) or "none"
            raise UsageError(
                f"target {target!r}: {match[0]} in {value!r} is no axis of the matrix (they are: {known}); "
                f"write {{{match[0]}}} for the text itself"
            )
        return label(axes[match[2]])

    return _FIELD.sub(one, value)


def select(rows: Sequence[Row], wanted: Sequence[str]) -> list[Row]:
    """The rows that ``wanted`` names (targets, rows, or patterns with ``*`` and ``?``), and what these wait for.

    Nothing wanted means all. Raises UsageError for a name that fits nothing.
    """
    if not wanted:
        return list(rows)
    chosen: set[str] = set()
    for name in wanted:
        pattern = re.sub(r"\[", "[[]", name)  # a row's name has brackets of its own
        ids = [row.id for row in rows if name in {row.target, row.id} or fnmatch.fnmatchcase(row.id, pattern)]
        if not ids:
            names = [*dict.fromkeys(row.target for row in rows)]
            close = nearest(name, [*names, *(row.id for row in rows)])
            hint = f" Did you mean {close}?" if close else ""
            raise UsageError(f"no target is named {name!r}.{hint} The targets are {', '.join(names) or 'none'}.")
        chosen.update(ids)
    return with_needed(rows, chosen)


def with_needed(rows: Sequence[Row], chosen: Iterable[str]) -> list[Row]:
    """The chosen rows and all that they wait for, in the order of ``rows``."""
    by_id = {row.id: row for row in rows}
    needed: set[str] = set()
    pending = list(chosen)
    while pending:
        name = pending.pop()
        if name not in needed:
            needed.add(name)
            pending.extend(by_id[name].after)
    return [row for row in rows if row.id in needed]


def with_dependents(rows: Sequence[Row], chosen: Iterable[str]) -> list[Row]:
    """The chosen rows and all that wait for them: what a change of the chosen may make stale."""
    stale = set(chosen)
    for row in rows:  # each comes after what it waits for
        if stale.intersection(row.after):
            stale.add(row.id)
    return [row for row in rows if row.id in stale]


def shard(rows: Sequence[Row], index: int, count: int) -> list[Row]:
    """The ``index``-th (from 1) of ``count`` shares, with what its rows wait for. Together they hold every row.

    The same on every machine: rows are dealt out in the order of their names. A row that several shares wait for is
    in each of them; where they share a cache it is compiled once.
    """
    names = sorted(row.id for row in rows)
    return with_needed(rows, names[index - 1 :: count])


def parse_shard(text: str) -> tuple[int, int]:
    """``3/8`` -> (3, 8). Raises UsageError."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"shard {text!r}: write K/N with 1 <= K <= N, such as 3/8")
    return int(match[1]), int(match[2])
