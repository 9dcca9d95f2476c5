"""The names of torch that another release has elsewhere, or lacks. Each is found by what is there. Imports torch.

What is not in this module is in every release that this package works with. Where a name is gone that has to count in a
key, the lookup raises AttributeError or ImportError, and nothing is stored.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import library
from torch._library import custom_ops


def operator_name(held: library.Library, operator: Any) -> str:
    """The name by which a library notes an operator that a kernel is registered for."""
    resolve = getattr(held, "_resolve_op_name", None)
    if resolve is not None:
        return str(resolve(operator, "impl"))
    if isinstance(operator, str):
        return operator
    schema = operator._schema
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


def key_methods(pickler: type) -> tuple[str, ...]:
    """The methods of Inductor's pickler that make a key."""
    return ("get_hash", "get_key") if hasattr(pickler, "get_key") else ("get_hash",)


def probe_owner(cpu_vec_isa: ModuleType) -> Any:
    """The class whose ``_probe_load`` asks the processor in a child process; None where a release has none."""
    return cpu_vec_isa.VecISA if hasattr(cpu_vec_isa.VecISA, "_probe_load") else None


def user_lowerings(lowering: ModuleType) -> Mapping[Any, Any]:
    """Lowerings that users registered; releases without that table put them among all others."""
    table: Mapping[Any, Any] = getattr(lowering, "user_lowerings", {})
    return table


#: What the dispatcher of the oldest releases says in place of every file that registered something.
NO_PLACE = "/dev/null"


def registered_by(place: str, name: str) -> str:
    """The file that registered an operation or a kernel, by the dispatcher's word.

    name: as ``Library`` notes it. Where the dispatcher names no file, the module of torch that holds the library, or
    ``NO_PLACE``.
    """
    if place != NO_PLACE:
        return place
    return _places(len(library._defs), len(library._impls)).get(name, NO_PLACE)


@functools.lru_cache(maxsize=1)
def _places(_definitions: int, _kernels: int) -> dict[str, str]:
    """Modules of torch by what their libraries have registered. The numbers say whether that is current."""
    found: dict[str, str] = {}
    for made in custom_ops.OPDEFS.values():
        found |= dict.fromkeys(_noted(made._lib), str(custom_ops.__file__))
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and module.__name__.startswith("torch."):
            for held in list(vars(module).values()):
                if issubclass(type(held), library.Library):  # some values of torch warn when asked
                    found |= dict.fromkeys(_noted(held), str(module.__file__))
    return found


def _noted(held: library.Library) -> set[str]:
    """What a library defined and implements; a schema may begin with a line of its own."""
    return {"".join(each.split()) for each in (*held._op_defs, *held._op_impls)}


def fake_kernels(entry: Any) -> list[Any]:
    """The fake functions of an entry of ``simple_registry``."""
    holder = entry.fake_impl
    return list(holder.kernels) if hasattr(holder, "kernels") else [holder.kernel] if holder.kernel is not None else []


def effects(operation: str, entry: Any) -> str:
    """The side effects and the symmetric memory of an operation (``namespace::name.overload``)."""
    symmetric = getattr(entry, "symm_mem_args", None)
    if hasattr(entry, "effect"):
        return f"{entry.effect._effect} {symmetric and symmetric._symm_mem_args}"
    from torch._higher_order_ops.effects import SIDE_EFFECTS

    name = operation.replace("::", ".")
    found = {str(operator): effect for operator, effect in list(SIDE_EFFECTS.items())}
    return f"{found.get(name, found.get(f'{name}.default'))} None"


def opaque_types() -> Iterator[tuple[type, Any]]:
    """The classes that are registered as opaque, each with everything that torch notes of it."""
    try:
        module = importlib.import_module("torch._library.opaque_object")
    except ModuleNotFoundError:
        return
    for kind, info in list(module._OPAQUE_TYPES.items()):
        yield kind, kind
        for value in vars(info).values() if hasattr(info, "__dict__") else [info]:
            yield kind, value


def program_json(program: Any) -> bytes:
    """An ``ExportedProgram`` in torch's JSON, without weights, constants and example inputs."""
    from torch._export.serde import serialize

    known = inspect.signature(serialize.serialize).parameters
    left_out = ("serialize_state_dict", "serialize_constants", "serialize_example_inputs")
    written = serialize.serialize(program, **{name: False for name in left_out if name in known})
    return bytes(written.exported_program)


def program_of_json(data: bytes) -> Any:
    """torch's data class of an exported program."""
    from torch._export.serde import schema, serialize

    return serialize._dict_to_dataclass(schema.ExportedProgram, json.loads(data))


def known_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of Inductor's options that this release has."""
    from torch._inductor import config

    return {name: value for name, value in options.items() if name in config._config}


def give_weights(runner: Any, tensors: Mapping[str, Any]) -> None:
    """Give weights to torch's loader of libraries: in place, but to that of the oldest releases, which copies them."""
    words = runner.update_constant_buffer.__doc__
    is_in_place = "user_managed" in words or "arg3" in words
    runner.update_constant_buffer(tensors, False, True, *([True] if is_in_place else []))


class GlobalState:
    """The switches of torch that a compiled program depends on, as Dynamo guards them, apart from that of gradients."""

    def __init__(self) -> None:
        with torch.no_grad():
            self._guard = torch._C._dynamo.guards.GlobalStateGuard()

    def change(self) -> str:
        """What is not as it was when this was made, in words."""
        with torch.no_grad():
            return "" if self._guard.check() else f"a switch of torch changed: {self._guard.reason()}"


def is_transformed() -> bool:
    """Whether a mode or a transform (``torch.func``) changes what operations do, or autocast their types."""
    core = torch._C
    is_in_mode = core._len_torch_function_stack() or core._len_torch_dispatch_stack()
    return bool(is_in_mode or core._is_any_autocast_enabled() or core._functorch.peek_interpreter_stack() is not None)
