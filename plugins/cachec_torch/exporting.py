"""Modules to programs: parameters that have no values, torch's own export, weights by name. Imports torch.

A parameter goes to the device ``meta`` as it is registered, so that initialising it costs nothing and no code of the
module can look at it; for the export it becomes a FakeTensor of the CPU, whose values nobody can read either. What is
no weight (plain tensors, buffers that are not persistent) keeps its value, and counts by it.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.module import _global_buffer_registration_hooks, register_module_parameter_registration_hook
from torch.utils import _pytree as pytree
from torch.utils._sympy.value_ranges import bound_sympy

from cachec.errors import PluginError, UsageError
from cachec.model import ROW_MAJOR, WeightSpec
from cachec.programs.program import Program
from cachec.weights import WeightSet
from cachec_torch.programs import stored_program

#: How many names one error spells out.
_SHOWN = 3

#: How torch's error begins, in newer and in earlier releases.
_DEVICES_DIFFER = ("Expected all tensors to be on the same device", "Unhandled FakeTensor Device Propagation")

_MAKE = "make it on the CPU, or of weights in forward"


def exported(
    module: torch.nn.Module | Callable[[], torch.nn.Module],
    weights: WeightSet,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    *,
    training: bool | None,
    strict: bool,
    method: str = "forward",
) -> Program:
    """See ``cachec_torch.to_exported``. training: None leaves each part of the module in its mode, takes all buffers
    for weights, and refuses a module that changes while it runs. method: what is exported of a module that was given.
    """
    with torch.inference_mode(False), torch.no_grad():
        if isinstance(module, torch.nn.Module):
            hollow = _hollow_copy(module, every_buffer=training is None)
            if method != "forward":
                hollow.__dict__["forward"] = getattr(hollow, method)
        else:
            hollow = _made(module)
        if training is not None:
            hollow.train(training)
        state = _ModuleState(hollow, weights.specs)
        state.replace()
        before = _attributes(hollow)
        try:
            given, named = _each_its_own((tuple(args), dict(kwargs or {})))
            with _hooks_as_before():
                program = torch.export.export(hollow, given, named, dynamic_shapes=dynamic_shapes, strict=strict)
        except RuntimeError as error:
            if any(words in str(error) for words in _DEVICES_DIFFER):
                error.add_note("cachec: what is on meta is a plain tensor of the module, or made of a weight; " + _MAKE)
            raise
    _check_returned(program)
    if dynamic_shapes is not None and _has_hints(dynamic_shapes):
        _check_sizes(program)
    if training is None:
        changed = [name for name, value in _attributes(hollow).items() if name not in before or before[name] != value]
        if changed:
            raise PluginError(f"the module sets {changed[0]!r} while it runs; return it, or register it as a buffer")
        _narrow_sizes(program)
    if isinstance(module, torch.nn.Module):
        _check_unshared(program, module, every_buffer=training is None)
    return stored_program(program, state.names, weights.manifest)


@contextmanager
def _hooks_as_before() -> Iterator[None]:
    """Remove what an export that failed leaves behind with earlier releases: it would run with every module."""
    hooks = _global_buffer_registration_hooks
    before = set(hooks)
    try:
        yield
    finally:
        for key in hooks.keys() - before:
            del hooks[key]


def _check_returned(program: torch.export.ExportedProgram) -> None:
    for number, spec in enumerate(program.graph_signature.output_specs):
        value = getattr(spec.arg, "value", None)
        if isinstance(value, str):  # torch writes it and does not read it again (SerializeError)
            raise PluginError(f"output {number} of the module is the text {value!r}; return tensors and numbers")


def _attributes(module: torch.nn.Module) -> dict[str, Any]:
    """What the parts of a module hold, by name, in a form that can be compared later."""
    return {
        f"{prefix}.{name}": _snapshot(value)
        for prefix, part in module.named_modules()
        for name, value in vars(part).items()
    }


def _snapshot(value: Any, depth: int = 8) -> Any:
    """Plain values and containers by content, as torch's export puts equal ones in their place; others by identity."""
    kind = type(value)
    if kind in {bool, int, float, str}:
        return kind, value
    if not depth:
        return kind
    if kind is dict:
        return kind, [(key, _snapshot(each, depth - 1)) for key, each in value.items()]
    if kind in {list, tuple}:
        return kind, [_snapshot(each, depth - 1) for each in value]
    return len(value) if kind is set else id(value)


def _check_sizes(program: torch.export.ExportedProgram) -> None:
    """Raise PluginError where a program is right for only some of the sizes in its ranges.

    torch itself raises for that where the dimensions are named, and goes on with ``Dim.AUTO`` and ``Dim.DYNAMIC``.
    """
    environment = _sizes_of(program)
    for guard in () if environment is None else environment.guards:
        condition = environment.replace(guard.expr)
        if condition not in {True, False}:
            condition = bound_sympy(condition, program.range_constraints).lower
        if not condition:
            raise PluginError(
                f"the program is right only for sizes with {guard.expr}; give a torch.export.Dim with a range in which "
                "that holds, or fixed sizes"
            )


def _narrow_sizes(program: torch.export.ExportedProgram) -> None:
    """Leave out of the ranges what was not traced: torch takes a named dimension for 2 or more, whatever its range."""
    environment = _sizes_of(program)
    for symbol, stated in [] if environment is None else list(program.range_constraints.items()):
        program.range_constraints[symbol] = stated & environment.var_to_range.get(symbol, stated)


def _sizes_of(program: torch.export.ExportedProgram) -> Any:
    """What torch knows of the dynamic sizes; None where there are none."""
    values = (node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder")
    sizes = (size for value in values if isinstance(value, torch.Tensor) for size in value.shape)
    return next((size.node.shape_env for size in sizes if isinstance(size, torch.SymInt)), None)


def _has_hints(shapes: Any) -> bool:
    if isinstance(shapes, Mapping):
        shapes = shapes.values()
    elif not isinstance(shapes, Sequence) or isinstance(shapes, str):
        return isinstance(shapes, type(torch.export.Dim.AUTO))
    return any(map(_has_hints, shapes))


def _each_its_own(inputs: Any) -> Any:
    """No tensor twice: torch takes inputs that are one object in the example for one input, in every call."""
    seen: set[int] = set()

    def own(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or id(value) not in seen:
            seen.add(id(value))
            return value
        return value.clone()

    return pytree.tree_map(own, inputs)


def _made(make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    with _hollow_parameters():
        module = make()
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"the module expected a torch.nn.Module, or a function of none, found {type(module).__name__}")
    return module


@contextmanager
def _hollow_parameters() -> Iterator[None]:
    """Parameters that this thread registers go to meta."""
    here = threading.get_ident()
    made: dict[int, tuple[Any, Any]] = {}  # what is registered under two names stays one; the first is held for its id

    def hollow(module: torch.nn.Module, name: str, parameter: Any) -> Any:
        if threading.get_ident() != here or not isinstance(parameter, torch.nn.Parameter) or parameter.is_meta:
            return None
        return made.setdefault(id(parameter), (parameter, _on_meta(parameter)))[1]

    handle = register_module_parameter_registration_hook(hollow)
    try:
        yield
    finally:
        handle.remove()


def _on_meta(parameter: Any) -> Any:
    if torch.nn.parameter.is_lazy(parameter):
        raise PluginError("the module has lazy parameters, whose shapes nothing says; give them when it is made")
    with torch.no_grad():
        return torch.nn.Parameter(parameter.detach().to("meta"), requires_grad=False)


def _hollow_copy(module: torch.nn.Module, *, every_buffer: bool) -> torch.nn.Module:
    """A copy without the bytes of its weights: no parameter and no persistent buffer is copied. every_buffer: nor is
    another one, and all are persistent in the copy."""
    held = _named(module)
    names = held if every_buffer else module.state_dict(keep_vars=True)
    memo: dict[Any, Any] = {}
    for name in names:
        tensor = held.get(name)
        if isinstance(tensor, torch.nn.Parameter):
            memo.setdefault(id(tensor), _on_meta(tensor))
        elif tensor is not None:
            memo.setdefault(id(tensor), tensor.detach().to("meta"))
    copied = copy.deepcopy(module, memo)
    for part in copied.modules() if every_buffer else ():
        part._non_persistent_buffers_set.clear()
    for name in names:
        tensor = held.get(name)
        # torch notes there which storages it has copied: those of plain tensors.
        if tensor is not None and tensor.untyped_storage()._cdata in memo.get("torch", {}):
            raise _reached(name, "a plain tensor of the module is a view of it")
    return copied


def _named(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by every name that they have."""
    return dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))


class _ModuleState:
    """What of a module the weights stand for, checked against their specs.

    names: name in the module -> name of the weight, which is another one for a tied name that the weights lack.
    """

    def __init__(self, module: torch.nn.Module, specs: Mapping[str, WeightSpec]) -> None:
        """Raises PluginError where names, shapes, dtypes or ties differ."""
        self._module = module
        self._specs = specs
        held = _named(module)
        persistent = dict(module.state_dict(keep_vars=True))
        strange = sorted(name for name in persistent if name not in held)
        if strange:
            raise PluginError(f"the module's state has {_some(strange)}, which no tensor of that name stands for")
        self._wanted = {name: held[name] for name in persistent}
        self.names = self._matched()
        for name, tensor in self._wanted.items():
            _check_fits(name, tensor, specs[self.names[name]])

    def _matched(self) -> dict[str, str]:
        groups: dict[int, list[str]] = {}
        for name, tensor in sorted(self._wanted.items()):
            groups.setdefault(id(tensor), []).append(name)
        extra = sorted(self._specs.keys() - self._wanted.keys())
        missing = sorted(group[0] for group in groups.values() if self._specs.keys().isdisjoint(group))
        if missing or extra:
            raise PluginError(
                f"the weights do not fit the module: missing {_some(missing)}, extra {_some(extra)}; select or rename "
                "them, or give the module that they are of"
            )
        there = [[name for name in group if name in self._specs] for group in groups.values()]
        stated: dict[str, list[str]] = {}
        for name, spec in sorted(self._specs.items()):
            stated.setdefault(spec.alias or name, []).append(name)
        if sorted(there) != sorted(stated.values()):
            ours, theirs = ([group for group in each if len(group) > 1] for each in (there, stated.values()))
            raise PluginError(
                f"the module ties {ours or 'nothing'}, the weights tie {theirs or 'nothing'}; say tied=[...] where the "
                "weights are opened"
            )
        firsts = [next(name for name in group if name in self._specs) for group in groups.values()]
        return {
            name: name if name in self._specs else first
            for first, group in zip(firsts, groups.values(), strict=True)
            for name in group
        }

    def replace(self) -> None:
        """FakeTensors in the place of weights. Raises PluginError for a buffer that has no value."""
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        made: dict[int, Any] = {}
        for prefix, module in self._module.named_modules():
            for table in (module._parameters, module._buffers):
                for key, tensor in table.items():
                    name = f"{prefix}.{key}" if prefix else key
                    if tensor is None:
                        continue
                    if name in self._wanted:
                        table[key] = made.setdefault(id(tensor), self._fake(name, tensor, mode))
                    elif tensor.is_meta:
                        raise PluginError(
                            f"buffer {name!r} is not persistent and was made on meta, so it has no value; make it on "
                            "the CPU, or let the weights have it (persistent=True)"
                        )

    def _fake(self, name: str, tensor: torch.Tensor, mode: FakeTensorMode) -> Any:
        spec = self._specs[self.names[name]]
        with mode:
            fake = torch.empty(spec.shape, dtype=tensor.dtype, device="cpu")
        return torch.nn.Parameter(fake, requires_grad=False) if isinstance(tensor, torch.nn.Parameter) else fake


def _check_fits(name: str, tensor: torch.Tensor, spec: WeightSpec) -> None:
    wanted = (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
    if wanted != (spec.dtype, spec.shape):
        raise PluginError(
            f"weight {name!r}: the module has {wanted[0]}{list(wanted[1])}, the weights have "
            f"{spec.dtype}{list(spec.shape)}; make the module so (module.to(torch.{spec.dtype})), or convert "
            "the weights"
        )
    if spec.layout != ROW_MAJOR:
        raise PluginError(f"weight {name!r} is laid out as {spec.layout!r}, which torch can't take")


def _check_unshared(program: Any, module: torch.nn.Module, *, every_buffer: bool) -> None:
    """Raise PluginError where the program holds memory of the module's own weights."""
    weights = _named(module)
    owners = {
        tensor.untyped_storage().data_ptr(): name
        for name in (weights if every_buffer else module.state_dict(keep_vars=True))
        if (tensor := weights.get(name)) is not None and tensor.numel() and not tensor.is_meta
    }
    for name, constant in program.constants.items():
        if isinstance(constant, torch.Tensor) and constant.numel() and not constant.is_meta:
            owner = owners.get(constant.untyped_storage().data_ptr())
            if owner is not None:
                raise _reached(owner, f"constant {name!r} is it: a function closes over the module, say")


def _reached(name: str, how: str) -> PluginError:
    return PluginError(f"the module gets at weight {name!r} by another way than its name: {how}; reach it through self")


def _some(names: Sequence[str]) -> str:
    if not names:
        return "nothing"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more
