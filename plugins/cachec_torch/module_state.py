"""A live module: what of it counts in the key of a compiled program, and whether that has changed since. Imports torch.

Parameters and buffers count by name, shape and dtype, wherever they lie; all else that the module holds, by value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as modules

from cachec.errors import PluginError
from cachec_torch.described import describe

#: What every module holds, apart from the switch ``training``: tables of weights, parts and hooks.
_TABLES = frozenset(vars(torch.nn.Module())) - {"training"}

#: The hooks of a module that run when it is called.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")

_SCALARS = frozenset({type(None), bool, int, float, complex, str, bytes})

#: More values than this are not watched: then the module is refused.
_MAX_VALUES = 200_000


class ModuleState:
    """A module, or a function without one, at the time when this is made.

    structure: what counts, apart from weights. weights: by name. ties: names of the weights that have several.
    """

    def __init__(self, module: torch.nn.Module | None, function: Callable[..., Any] | None) -> None:
        """Raises PluginError for what can't be watched, or would be forgotten in a compiled program."""
        parts = () if module is None else module.named_modules()
        self._parts = {part: name for name, part in parts}
        self._entries: list[_WatchedContainer] = []
        self._tensors: list[tuple[torch.Tensor, int]] = []  # that count by value, with their versions
        self._seen: set[int] = set()
        self.weights: dict[str, torch.Tensor] = {}
        names: dict[int, list[str]] = {}
        for name, tensor in self._live_weights():
            self.weights[name] = tensor
            names.setdefault(id(tensor), []).append(name)
        self.ties = [group for group in names.values() if len(group) > 1]
        self._first = {key: group[0] for key, group in names.items()}
        self._check_apart()
        self.structure = tuple(self._part_structure(part, name) for part, name in self._parts.items())
        if function is not None:
            self._follow(function, getattr(function, "__qualname__", "the function"))
        self._layouts = [_layout(tensor) for tensor in self.weights.values()]

    def change(self) -> str:
        """What is not as it was, in words; empty where all is. Weights may be others."""
        for part, name in self._parts.items():
            if part._forward_hooks or part._forward_pre_hooks:
                return f"a hook was registered with module {name!r}"
        for entry in self._entries:
            words = entry.change()
            if words:
                return words
        if any(tensor._version != version for tensor, version in self._tensors):
            return "a tensor that is no parameter and no buffer was written to"
        return ""

    def refresh(self) -> tuple[bool, str]:
        """Look at the weights again. Returns whether any has moved, and what does not fit, in words."""
        weights = dict(self._live_weights())
        if list(weights) != list(self.weights):
            return False, "weights were added or removed"
        layouts = list(map(_layout, weights.values()))
        if layouts == self._layouts:
            return False, ""
        for name, before, now in zip(weights, self._layouts, layouts, strict=True):
            if before.form != now.form:
                return False, f"weight {name!r} is {_words(now)}, and was {_words(before)}"
        self.weights, self._layouts = weights, layouts
        return True, ""

    def _live_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """By every name."""
        for part, prefix in self._parts.items():
            for table in (part._parameters, part._buffers):
                for key, tensor in table.items():
                    if tensor is not None:
                        yield (f"{prefix}.{key}" if prefix else key), tensor

    def _check_apart(self) -> None:
        """No two weights share memory, but for those that are one: what is written to one would show in the other."""
        spans = sorted(
            (tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, name)
            for name, tensor in self.weights.items()
            if self._first[id(tensor)] == name and tensor.nbytes
        )
        for (_, end, before), (start, _, name) in pairwise(spans):
            if start < end:
                raise PluginError(f"the weights {before!r} and {name!r} lie in the same memory, and are not one tensor")

    # --- what counts

    def _part_structure(self, part: torch.nn.Module, name: str) -> tuple[Any, ...]:
        for hooks in _HOOKS:
            if getattr(part, hooks):
                raise PluginError(f"module {name!r} has hooks, which a compiled program would not run; remove them")
        where = f"module {name!r}" if name else "the module"
        own = {key: value for key, value in vars(part).items() if key not in _TABLES and not is_stand_in(value)}
        self._entries.append(_WatchedContainer(where, vars(part)))
        self._entries.append(_WatchedContainer(f"the parts of {where}", part._modules))
        attributes = [(key, self._value(value, f"{where}.{key}")) for key, value in own.items()]
        parts = [(key, None if child is None else self._parts[child]) for key, child in part._modules.items()]
        tables = [
            (key, None if tensor is None else self._first[id(tensor)])
            for table in (part._parameters, part._buffers)
            for key, tensor in table.items()
        ]
        return name, type(part), attributes, parts, tables

    def _value(self, value: Any, where: str) -> Any:
        """What stands for a value in a key; it is watched from now on."""
        if isinstance(value, torch.nn.Module):
            return "module", self._part_name(value, where)
        if isinstance(value, torch.Tensor):
            if id(value) in self._first:
                return "weight", self._first[id(value)]
            self._tensors.append((value, value._version))
            return value
        if type(value) is MethodType and isinstance(value.__self__, torch.nn.Module):
            return "method", self._part_name(value.__self__, where), value.__func__
        if type(value) in {list, tuple}:
            self._watch(value, where)
            return type(value)(self._value(each, f"{where}[{number}]") for number, each in enumerate(value))
        if type(value) is dict:
            self._watch(value, where)
            return {key: self._value(each, f"{where}[{key!r}]") for key, each in value.items()}
        self._follow(value, where)
        # What only this process means in it (the hash of a generation config) is left out.
        described = NotImplemented if isinstance(value, type | FunctionType) else describe(value)
        return value if described is NotImplemented else described

    def _part_name(self, module: torch.nn.Module, where: str) -> str:
        name: str | None = self._parts.get(module)
        if name is None:
            raise PluginError(
                f"{where} is a module that is no part of the one that is compiled; register it there, or pass the "
                "module itself, or a method of it"
            )
        return name

    # --- what is watched

    def _follow(self, value: Any, where: str) -> None:
        """Watch what a value holds. Raises PluginError for a module that is no part of the one that is compiled."""
        kind = type(value)
        if kind in _SCALARS or isinstance(value, type | ModuleType) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, torch.nn.Module):
            self._part_name(value, where)
        elif isinstance(value, torch.Tensor):
            if id(value) not in self._first:
                self._tensors.append((value, value._version))
        elif kind is FunctionType:
            self._follow_function(value, where)
        elif isinstance(value, list | tuple | set | frozenset):
            self._watch(value, where)
            for number, each in enumerate(value):
                self._follow(each, f"{where}[{number}]")
        elif isinstance(value, dict):
            self._watch(value, where)
            for key, each in value.items():
                self._follow(each, f"{where}[{key!r}]")
        elif isinstance(getattr(value, "__dict__", None), dict):
            self._watch(vars(value), where)
            for key, each in vars(value).items():
                self._follow(each, f"{where}.{key}")

    def _follow_function(self, function: FunctionType, where: str) -> None:
        """Its closure, its defaults, and the modules and tensors among the globals that it names."""
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            content = _contents(cell)
            self._entries.append(_WatchedContainer(f"{where}: {name}", cell))
            self._follow(content, f"{where}: {name}")
        self._follow(function.__defaults__, f"the defaults of {where}")
        self._follow(function.__kwdefaults__, f"the defaults of {where}")
        for name in function.__code__.co_names:
            value = function.__globals__.get(name)
            if isinstance(value, torch.nn.Module | torch.Tensor):
                self._entries.append(_WatchedContainer(f"{where}: {name}", function.__globals__, (name,)))
                self._follow(value, f"{where}: {name}")

    def _watch(self, container: Any, where: str) -> None:
        if len(self._entries) > _MAX_VALUES:
            raise PluginError(f"the module holds over {_MAX_VALUES:,} containers; they can't be watched")
        self._entries.append(_WatchedContainer(where, container))


class _WatchedContainer:
    """A container and what it held. names: of those that count, of a mapping; None for all."""

    __slots__ = ("_container", "_ids", "_keys", "_names", "_values", "_where")

    def __init__(self, where: str, container: Any, names: tuple[str, ...] | None = None) -> None:
        self._where, self._container, self._names = where, container, names
        self._keys, self._values = self._now()
        self._ids = tuple(map(id, self._values))

    def change(self) -> str:
        """What is not as it was, in words."""
        keys, values = self._now()
        ids = tuple(map(id, values))
        if ids == self._ids and keys == self._keys:
            return ""
        before = {key: each for key, each in zip(self._keys, self._values, strict=True) if not is_stand_in(each)}
        now = {key: each for key, each in zip(keys, values, strict=True) if not is_stand_in(each)}
        for key in (*before, *now):
            if key not in now or key not in before or not _is_same(before[key], now[key]):
                return f"{key!r} of {self._where} changed"
        self._keys, self._values, self._ids = keys, values, ids
        return ""

    def _now(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        container = self._container
        if self._names is not None:
            return self._names, tuple(container.get(name) for name in self._names)
        if isinstance(container, Mapping):
            return tuple(container), tuple(container.values())
        if isinstance(container, list | tuple | set | frozenset):
            return tuple(range(len(container))), tuple(container)
        return ("value",), (_contents(container),)


def is_stand_in(value: Any) -> bool:
    """Whether ``aot`` put a value in the place of a method."""
    kind = type(value)
    return kind.__name__ == "AotFunction" and kind.__module__ == "cachec_torch.ahead_of_time"


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # it is not set yet


def _is_same(before: Any, now: Any) -> bool:
    return before is now or (type(before) is type(now) and type(now) in _SCALARS and repr(before) == repr(now))


class _Layout(NamedTuple):
    """Where a weight lies. form: what a program depends on: device, dtype, shape and strides."""

    address: int
    form: tuple[torch.device, torch.dtype, Sequence[int], Sequence[int]]


def _layout(tensor: torch.Tensor) -> _Layout:
    return _Layout(tensor.data_ptr(), (tensor.device, tensor.dtype, tensor.shape, tensor.stride()))


def _words(layout: _Layout) -> str:
    device, dtype, shape, strides = layout.form
    return f"{dtype}{list(shape)} with strides {list(strides)} on {device}"


def has_global_hooks() -> bool:
    """Whether anything runs with every module of this process."""
    return bool(modules._global_forward_hooks or modules._global_forward_pre_hooks)
