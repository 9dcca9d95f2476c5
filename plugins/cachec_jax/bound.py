"""Programs that refer to objects of the process that traced them: callbacks of Python's, in all their kinds. Imports
JAX.

JAX lists such objects while it lowers: ``host_callbacks`` is what the program calls, by a number in that list;
``keepalive`` is what the program names by an address. No other process has either, so no such program may be stored,
nor may its text stand for it in a key: two programs that call different functions have the same text. This module alone
decides that, for everything that ``cachec_jax`` makes or stores.
"""

from __future__ import annotations

import os
import re
import types
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from cachec.errors import ProcessBoundProgram, clip
from cachec_jax.internals import debugging, ir, lowering_record

#: Targets of custom calls that name such an object: by JAX's ``callback.py``, ``buffer_callback.py``,
#: ``custom_partitioning.py``, ``debugging.py`` and ``jax2tf/call_tf.py``.
_TARGET = re.compile(r"xla_\w*python_\w*callback\w*|CustomSPMDPartitioning|InspectSharding|tf\.call_tf_function")
_CALL = re.compile(r'stablehlo\.custom_call\s*@(?:"([^"]*)"|([\w.$-]+))|call_target_name = "([^"]*)"')
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_PLACE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):\d+')

#: Objects that are looked at for the name of a callback, and names that a message has.
_MOST_OBJECTS, _MOST_NAMES = 200, 4
_MOST_CHARACTERS = 60


def refuse_lowered(lowered: Any) -> None:
    """Raise ProcessBoundProgram for a ``jax.stages.Lowered`` that refers to objects of this process."""
    known = lowering_record(lowered._lowering)
    held = [*known["host_callbacks"], *(known["keepalive"] or ())]
    effects = [*known["unordered_effects"], *known["ordered_effects"]]
    _refuse(held, effects, bound_calls(lowered.compiler_ir("stablehlo")))


def refuse_compiled(executable: Any) -> None:
    """The same for the ``UnloadedMeshExecutable`` of a ``jax.stages.Compiled``."""
    held = [*executable.host_callbacks, *(executable.keepalive or ())]
    _refuse(held, [*executable.unordered_effects, *executable.ordered_effects], [])


def refuse_exported(exported: Any) -> None:
    """The same for a ``jax.export.Exported``, whose text alone is left. JAX itself exports none with callbacks."""
    text = exported.mlir_module()
    targets = {next(filter(None, match.groups())) for match in _CALL.finditer(text)}
    _refuse([], [], sorted(filter(_TARGET.fullmatch, targets)))


def bound_calls(module: Any) -> list[str]:
    """The calls in a module of StableHLO that name an object of this process, as ``pure_callback at model.py:12``."""
    calls = _custom_calls(module)
    return [_place(str(each.location)) or target for target, each in calls if _TARGET.fullmatch(target)]


def called_targets(module: Any) -> set[str]:
    """The targets of the custom calls in a module of StableHLO."""
    return {target for target, _ in _custom_calls(module)}


def _custom_calls(module: Any) -> list[tuple[str, Any]]:
    """Target and operation of each."""
    found: list[tuple[str, Any]] = []

    def look(operation: Any) -> Any:
        if operation.name == "stablehlo.custom_call":
            found.append((ir.StringAttr(operation.attributes["call_target_name"]).value, operation))
        return ir.WalkResult.ADVANCE

    module.operation.walk(look)
    return found


def _refuse(held: Sequence[Any], effects: Sequence[Any], calls: Sequence[str]) -> None:
    if not held and not effects and not calls:
        return
    names = [*dict.fromkeys([*callback_names(held), *calls])] or [f"effect {effect}" for effect in effects]
    raise ProcessBoundProgram(refusal(names))


def refusal(names: Iterable[str]) -> str:
    """Why a program is not stored. names: of its callbacks."""
    names = list(names)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    which = f" ({', '.join(names[:_MOST_NAMES])}{more})" if names else ""
    return (
        f"a program that calls Python back{which} can't be stored: it refers to functions of the process that traced "
        "it. Take the callback out to cache it; jax.jit and cachec_jax.jit run it as it is, compiled in each process"
    )


def callback_names(held: Iterable[Any]) -> list[str]:
    """The functions that JAX has wrapped in what a program refers to, as ``layers.host``; JAX's own are left out."""
    return [name for each in held if (name := _name(each))]


def _name(held: Any) -> str:
    """The first callable within ``held`` that is not of JAX; empty where there is none. Runs no code of it."""
    waiting = [held]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_OBJECTS:
        value = waiting.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        inside = list(_inside(value))
        if isinstance(value, partial) and value.func is debugging._format_print_callback:
            return f"jax.debug.print({clip(value.args[0], _MOST_CHARACTERS)!r})"
        if not inside and callable(value):
            return _qualified(value)
        waiting += inside
    return ""


def _inside(value: Any) -> Iterator[Any]:
    """What a wrapper of JAX or a ``partial`` holds; nothing of anything else."""
    if isinstance(value, partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.FunctionType) and _is_jax(value.__module__):
        for cell in value.__closure__ or ():
            if cell is not None:
                yield from _content(cell)
    elif _is_jax(type(value).__module__) and not isinstance(value, type):
        names: Any = getattr(type(value), "__dataclass_fields__", None) or getattr(value, "__dict__", ())
        yield from (getattr(value, name, None) for name in names)


def _content(cell: Any) -> Iterator[Any]:
    try:
        yield cell.cell_contents
    except ValueError:  # not filled yet
        return


def _qualified(value: Any) -> str:
    """The name of a callable of the user's; empty for one of JAX's."""
    named = types.FunctionType | types.MethodType | types.BuiltinFunctionType | np.ufunc
    of = value if isinstance(value, named) else type(value)
    module = getattr(of, "__module__", None) or ""
    if _is_jax(module) or of in {type, types.FunctionType}:
        return ""
    return f"{module}.{getattr(of, '__qualname__', of.__name__)}".removeprefix(".")


def _is_jax(module: str | None) -> bool:
    return (module or "").partition(".")[0] in {"jax", "jaxlib"}


def _place(location: str) -> str:
    """``pure_callback at model.py:12`` of a location of MLIR's; empty where it names no operation."""
    operation = _QUOTED.search(location)
    if operation is None:
        return ""
    name = operation[1].rstrip(":").rpartition("/")[2]
    places = (match for match in _PLACE.finditer(location) if os.path.dirname(match[1]) != os.path.dirname(__file__))
    place = next(places, None)
    return name if place is None else f"{name} at {place[1]}:{place[2]}"
