"""Which objects of a call are the same object: one list given twice differs from two equal lists.

Only of what can be changed: no program should mind whether two equal tuples are one. Arrays and tensors that lie in the
same memory count with the distance between them.
"""

from __future__ import annotations

import enum
import types
import weakref
from pathlib import PurePath
from typing import Any, Final

from cachec.base.display_text import module_of
from cachec.key.canonical_forms import Forms

_UNCHANGING: Final = frozenset(
    {tuple, frozenset, complex, range, slice, types.FunctionType, types.BuiltinFunctionType, types.ModuleType}
)


class Sharing:
    """Takes the objects of a call in the order in which a walk meets them.

    pattern: for each that was met before, its number and that of the first; for one in the memory of another, their
    distance, too.
    """

    def __init__(self, forms: Forms) -> None:
        self.forms = forms
        #: The class of an object that a weak table of this process holds something for; empty where there is none.
        self.in_weak_table = ""
        self.pattern: list[tuple[int, ...]] = []
        #: By identity, or by memory: the number, and the address; and what must stay alive for that.
        self._first: dict[object, tuple[int, int, object]] = {}
        self._count = 0

    def meet(self, value: Any) -> None:
        """The next object."""
        cls = type(value)
        if cls in _UNCHANGING or isinstance(value, type | enum.Enum | PurePath):
            return
        if _is_in_weak_table(value) and self.forms.is_own_module(module_of(cls)):
            self.in_weak_table = cls.__qualname__
        self._count += 1
        number, _, _ = self._first.setdefault(id(value), (self._count, 0, value))
        if number != self._count:
            self.pattern.append((self._count, number))
            return
        memory = memory_of(value, cls)
        if memory is not None:
            owner, address = memory
            number, first, _ = self._first.setdefault(("memory", owner), (self._count, address, value))
            if number != self._count:
                self.pattern.append((self._count, number, address - first))


def _is_in_weak_table(value: object) -> bool:
    """Whether a ``WeakKeyDictionary``, ``WeakSet`` or ``WeakValueDictionary`` holds an object: its copy is in none."""
    callbacks = [each.__callback__ for each in weakref.getweakrefs(value)]
    return any(type(each) is types.FunctionType and each.__module__ in {"weakref", "_weakrefset"} for each in callbacks)


def memory_of(value: Any, cls: type) -> tuple[int, int] | None:
    """What says which memory an array of numpy or a tensor of torch lies in, and its address; None for all else."""
    module = module_of(cls)
    if module == "numpy" and cls.__name__ in {"ndarray", "memmap"}:
        base = value
        while getattr(base, "base", None) is not None:
            base = base.base
        return id(base), value.__array_interface__["data"][0]
    if module in {"torch", "torch.nn.parameter"} and cls.__name__ in {"Tensor", "Parameter"}:
        begin = value.untyped_storage().data_ptr()
        return (begin, value.data_ptr()) if begin else None
    return None
