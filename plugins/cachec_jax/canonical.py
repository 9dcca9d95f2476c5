"""One ``ClosedJaxpr`` for all that say the same, by which JAX finds what it has lowered and compiled. Imports JAX.

JAX keeps that by the identity of what was traced, so a function that is made again for other weights is lowered, looked
up and loaded again, though only its constants differ. What is the same here is decided part by part: values of types
that are known by what they are, all else by identity. Where lines of the source differ, those of the first are told.

What JAX makes of a program depends on more: on its settings, also those that it does not trace by; and on the rules of
the primitives, which for one that is not JAX's are code of anybody's. A program with such a one is like no other.
"""

from __future__ import annotations

import struct
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable
from contextlib import suppress
from enum import Enum
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, PartitionSpec, Sharding

from cachec_jax.internals import (
    ClosedJaxpr,
    Layout,
    changing_values,
    core,
    equation_context,
    host_array,
    is_high,
    sharding_impls,
    typed_literals,
)

#: How many are kept, with what JAX has compiled of them. The arrays that were taken out are not.
_PROGRAMS = 16

#: Arrays in a program up to this size are compared by content.
_SMALL = 1024

#: Equal values mean the same.
_EQUAL = (
    np.dtype,
    type,
    Enum,
    core.AbstractValue,
    Sharding,
    sharding_impls.UnspecifiedValue,
    Layout,
    AbstractMesh,
    Mesh,
    PartitionSpec,
)


class Programs:
    """The last that were asked for. One with parts that are compared by identity is kept from when all of them were met
    before: what is made anew for each trace is never the same again, and may hold weights."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, Any] = OrderedDict()
        self._met: dict[int, weakref.ref[Any]] = {}

    def one(self, closed: Any) -> Any:
        """``closed``, or what says the same and was asked for before."""
        words = _Words()
        key = words.closed(closed), tuple(jax.config.values.items())
        if not words.is_jax_s:
            return closed
        with self._lock:
            met = [self._was_met(each) for each in words.themselves]
            if not all(met):
                return closed
            found = self._known.setdefault(key, closed)
            self._known.move_to_end(key)
            if len(self._known) > _PROGRAMS:
                self._known.popitem(last=False)
        return found

    def _was_met(self, value: object) -> bool:
        known = self._met.get(id(value))
        if known is not None and known() is value:
            return True
        with suppress(TypeError):  # for what can't be referred to weakly
            self._met[id(value)] = weakref.ref(value, partial(self._gone, id(value)))
        return False

    def _gone(self, number: int, reference: weakref.ref[Any]) -> None:
        if self._met.get(number) is reference:
            del self._met[number]


@lru_cache(maxsize=1)
def programs() -> Programs:
    """Those of this process, as JAX's caches are."""
    return Programs()


@lru_cache(maxsize=1024)
def _is_jax_s(primitive: Any) -> bool:
    """Whether a module of JAX has it: its rules are then what they are in this release."""
    return primitive in _jax_s(sum(name.startswith("jax.") for name in list(sys.modules)))


@lru_cache(maxsize=1)
def _jax_s(count: int) -> frozenset[Any]:
    """The primitives in the modules of JAX, of which there are ``count``."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("jax.")]
    held = (value for module in modules for value in list(vars(module).values()))
    return frozenset(value for value in held if isinstance(value, core.Primitive))


class _Itself:
    """Equal to nothing but the same object, which lives as long."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


class _Words:
    """What a program says, as values that can be compared. Of a part that occurs again only which one it is, as one in
    which each function calls another twice would say as much as all its calls."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self.themselves: list[object] = []
        self.is_jax_s = True

    def closed(self, closed: Any) -> Hashable:
        if id(closed) in self._numbers:
            return "again", self._numbers[id(closed)]
        self._numbers[id(closed)] = len(self._numbers)
        return self._jaxpr(closed.jaxpr), tuple(map(self._value, closed.consts))

    def _jaxpr(self, jaxpr: Any) -> Hashable:
        numbers: dict[Any, int] = {}

        def variable(each: Any) -> Hashable:
            if isinstance(each, core.Literal):
                return self._value(each.val), each.aval
            number = numbers.setdefault(each, len(numbers))
            # What its value is, beside its type, changes as the program runs: it is like no other.
            return number, each.aval, type(each), self._itself(each) if changing_values(each) else None

        bound = [tuple(map(variable, each)) for each in (jaxpr.constvars, jaxpr.invars)]
        equations = [
            (
                equation.primitive,
                tuple(map(variable, equation.invars)),
                tuple(map(variable, equation.outvars)),
                tuple((name, self._value(value)) for name, value in equation.params.items()),
                frozenset(equation.effects),
                self._context(equation_context(equation.ctx)),
            )
            for equation in jaxpr.eqns
        ]
        self.is_jax_s = self.is_jax_s and all(_is_jax_s(equation.primitive) for equation in jaxpr.eqns)
        results = tuple(map(variable, jaxpr.outvars))
        return *bound, tuple(equations), results, frozenset(jaxpr.effects), is_high(jaxpr)

    def _context(self, context: Any) -> Hashable:
        return self._value(context) if type(context) is dict else context

    def _value(self, value: Any) -> Hashable:
        kind = type(value)
        if value is None or kind in {bool, int, str, bytes}:
            return kind, value
        if kind in {float, complex}:  # 0.0 is equal to -0.0, and NaN to nothing
            number = complex(value)
            return kind, struct.pack("<2d", number.real, number.imag)
        if isinstance(value, list | tuple):
            return kind, tuple(map(self._value, value))
        if kind is dict:
            return kind, tuple((self._value(key), self._value(each)) for key, each in value.items())
        if isinstance(value, ClosedJaxpr):
            return self.closed(value)
        if isinstance(value, core.Jaxpr):
            return self._jaxpr(value)
        if isinstance(value, typed_literals()):
            literal: Any = value
            value = np.asarray(literal, literal.dtype)
        value = host_array(value)
        if isinstance(value, np.ndarray | np.generic) and value.size <= _SMALL and not value.dtype.hasobject:
            return kind, value.dtype, value.shape, value.tobytes()
        if isinstance(value, _EQUAL):
            return kind, value
        return self._itself(value)

    def _itself(self, value: object) -> Hashable:
        self.themselves.append(value)
        return _Itself(value)
