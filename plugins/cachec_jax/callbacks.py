"""Programs with Python callbacks, which only the process that traced them can run: they are refused, with a reason.

JAX lists the objects of this process while it lowers a program. The program calls those in ``host_callbacks`` by their
numbers in the list, and names those in ``keepalive`` by their addresses. No other process has these objects, so such a
program must not be stored. Its text must not be in a key either: two programs that call different functions have the
same text. Only this module decides this, for all programs of ``cachec_jax``. It imports JAX.
"""

from __future__ import annotations

import os
import re
import types
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from cachec.errors import ProcessBoundProgram, clip
from cachec_jax.internals import debugging, ir, lowering_record

if TYPE_CHECKING:
    from jax._src.interpreters.pxla import UnloadedMeshExecutable
    from jaxlib.mlir.ir import Operation

#: Targets of custom calls that name such an object: by JAX's ``callback.py``, ``buffer_callback.py``,
#: ``custom_partitioning.py``, ``debugging.py`` and ``jax2tf/call_tf.py``.
_TARGET = re.compile(r"xla_\w*python_\w*callback\w*|CustomSPMDPartitioning|InspectSharding|tf\.call_tf_function")
_CALL = re.compile(r'stablehlo\.custom_call\s*@(?:"([^"]*)"|([\w.$-]+))|call_target_name = "([^"]*)"')
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_LOCATION = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):\d+')

#: The most objects that are searched for the name of a callback, and the most names in a message.
_MOST_OBJECTS, _MOST_NAMES = 200, 4
_MOST_CHARACTERS = 60


def refuse_lowered(lowered: Any) -> None:
    """Raise ProcessBoundProgram for a ``jax.stages.Lowered`` that refers to objects of this process."""
    known = lowering_record(lowered._lowering)
    objects = [*known["host_callbacks"], *(known["keepalive"] or ())]
    effects = [*known["unordered_effects"], *known["ordered_effects"]]
    _raise_if_process_bound(objects, effects, callback_calls(lowered.compiler_ir("stablehlo")))


def refuse_compiled(executable: UnloadedMeshExecutable) -> None:
    """The same for the ``UnloadedMeshExecutable`` of a ``jax.stages.Compiled``."""
    objects = [*executable.host_callbacks, *(executable.keepalive or ())]
    _raise_if_process_bound(objects, [*executable.unordered_effects, *executable.ordered_effects], [])


def refuse_exported(exported: Any) -> None:
    """The same for a ``jax.export.Exported``, by its text. JAX itself does not export programs with callbacks."""
    text = exported.mlir_module()
    targets = {next(filter(None, match.groups())) for match in _CALL.finditer(text)}
    _raise_if_process_bound([], [], sorted(filter(_TARGET.fullmatch, targets)))


def callback_calls(module: Any) -> list[str]:
    """Return the calls of a StableHLO module that name an object of this process, as ``pure_callback at
    model.py:12``."""
    calls = _custom_calls(module)
    return [_describe_location(str(each.location)) or target for target, each in calls if _TARGET.fullmatch(target)]


def custom_call_targets(module: Any) -> set[str]:
    """Return the targets of the custom calls in a module of StableHLO."""
    return {target for target, _ in _custom_calls(module)}


def _custom_calls(module: Any) -> list[tuple[str, Any]]:
    """Return the target and the operation of each custom call."""
    found: list[tuple[str, Any]] = []

    def visit(operation: Operation) -> Any:
        if operation.name == "stablehlo.custom_call":
            found.append((ir.StringAttr(operation.attributes["call_target_name"]).value, operation))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def _raise_if_process_bound(objects: Sequence[Any], effects: Sequence[Any], calls: Sequence[str]) -> None:
    if not objects and not effects and not calls:
        return
    names = [*dict.fromkeys([*callback_names(objects), *calls])] or [f"effect {effect}" for effect in effects]
    raise ProcessBoundProgram(refusal_message(names))


def refusal_message(names: Iterable[str]) -> str:
    """Return the reason why a program with the named callbacks is not stored."""
    names = list(names)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    which = f" ({', '.join(names[:_MOST_NAMES])}{more})" if names else ""
    return (
        f"a program that calls Python back{which} can't be stored: it refers to functions of the process that traced "
        "it. Take the callback out to cache it; jax.jit and cachec_jax.jit run it as it is, compiled in each process"
    )


def callback_names(objects: Iterable[Any]) -> list[str]:
    """Return the user's functions that JAX wrapped in ``objects``, as ``layers.host``."""
    return [name for each in objects if (name := _callback_name(each))]


def _callback_name(root: Any) -> str:
    """Return the name of the first callable in ``root`` that is not of JAX, or an empty text. Runs no code of it."""
    waiting = [root]
    visited: set[int] = set()
    while waiting and len(visited) < _MOST_OBJECTS:
        value = waiting.pop(0)
        if id(value) in visited:
            continue
        visited.add(id(value))
        inside = list(_wrapped_objects(value))
        if isinstance(value, partial) and value.func is debugging._format_print_callback:
            return f"jax.debug.print({clip(value.args[0], _MOST_CHARACTERS)!r})"
        if not inside and callable(value):
            return _qualified_name(value)
        waiting += inside
    return ""


def _wrapped_objects(value: Any) -> Iterator[Any]:
    """Return the objects in a wrapper of JAX or in a ``partial``; no object for any other value."""
    if isinstance(value, partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.FunctionType) and _is_jax(value.__module__):
        for cell in value.__closure__ or ():
            if cell is not None:
                yield from _cell_content(cell)
    elif _is_jax(type(value).__module__) and not isinstance(value, type):
        names: Any = getattr(type(value), "__dataclass_fields__", None) or getattr(value, "__dict__", ())
        yield from (getattr(value, name, None) for name in names)


def _cell_content(cell: types.CellType) -> Iterator[Any]:
    try:
        yield cell.cell_contents
    except ValueError:  # not filled yet
        return


def _qualified_name(value: Any) -> str:
    """Return the name of a callable of the user; an empty text for one of JAX."""
    named = types.FunctionType | types.MethodType | types.BuiltinFunctionType | np.ufunc
    of = value if isinstance(value, named) else type(value)
    module = getattr(of, "__module__", None) or ""
    if _is_jax(module) or of in {type, types.FunctionType}:
        return ""
    return f"{module}.{getattr(of, '__qualname__', of.__name__)}".removeprefix(".")


def _is_jax(module: str | None) -> bool:
    return (module or "").partition(".")[0] in {"jax", "jaxlib"}


def _describe_location(location: str) -> str:
    """Return ``pure_callback at model.py:12`` for a location of MLIR; an empty text if it names no operation."""
    operation = _QUOTED.search(location)
    if operation is None:
        return ""
    name = operation[1].rstrip(":").rpartition("/")[2]
    places = (match for match in _LOCATION.finditer(location) if os.path.dirname(match[1]) != os.path.dirname(__file__))
    place = next(places, None)
    return name if place is None else f"{name} at {place[1]}:{place[2]}"
