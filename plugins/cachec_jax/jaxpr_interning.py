"""Interning of traced programs: equal ``ClosedJaxpr`` objects become one, so that JAX lowers and compiles it once.

JAX caches lowered and compiled programs by the identity of the traced ``ClosedJaxpr``. A function that is made again
for other weights is therefore lowered and loaded again, though only its constants differ. This module compares two
programs part by part: values of known types by value, all others by identity. The interned program has the source lines
of the first.

JAX's settings are part of the comparison, as they change what JAX compiles. A program with a primitive that JAX itself
does not define is never interned, because the rules of that primitive are foreign code. This module imports JAX.
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

#: The number of interned programs. Each keeps what JAX compiled for it alive, but not the arrays that were taken out.
_MAX_PROGRAMS = 16

#: Arrays in a program up to this size are compared by content.
_SMALL = 1024

#: Types whose values are compared with ``==``.
_COMPARED_BY_VALUE = (
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


class JaxprInterner:
    """The most recently used programs, by their structural keys.

    A program with parts that are compared by identity is interned only once all these parts were encountered before.
    An object that each trace makes anew would never compare equal, and may refer to weights.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, Any] = OrderedDict()
        self._encountered: dict[int, weakref.ref[Any]] = {}

    def intern(self, closed: Any) -> Any:
        """Return an earlier program that equals ``closed``, or ``closed`` itself."""
        structure = _StructuralKey()
        key = structure.closed_jaxpr_key(closed), tuple(jax.config.values.items())
        if not structure.has_only_jax_primitives:
            return closed
        with self._lock:
            encountered = [self._was_encountered(each) for each in structure.by_identity]
            if not all(encountered):
                return closed
            found = self._known.setdefault(key, closed)
            self._known.move_to_end(key)
            if len(self._known) > _MAX_PROGRAMS:
                self._known.popitem(last=False)
        return found

    def _was_encountered(self, value: object) -> bool:
        known = self._encountered.get(id(value))
        if known is not None and known() is value:
            return True
        with suppress(TypeError):  # the type has no weak references
            self._encountered[id(value)] = weakref.ref(value, partial(self._forget, id(value)))
        return False

    def _forget(self, number: int, reference: weakref.ref[Any]) -> None:
        if self._encountered.get(number) is reference:
            del self._encountered[number]


@lru_cache(maxsize=1)
def jaxpr_interner() -> JaxprInterner:
    """Return the interner of this process; JAX's caches are per process, too."""
    return JaxprInterner()


@lru_cache(maxsize=1024)
def _is_jax_primitive(primitive: Any) -> bool:
    """Whether a module of JAX defines the primitive, so that its rules are those of the release."""
    return primitive in _jax_primitives(sum(name.startswith("jax.") for name in list(sys.modules)))


@lru_cache(maxsize=1)
def _jax_primitives(count: int) -> frozenset[Any]:
    """Return the primitives in the ``count`` loaded modules of JAX."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("jax.")]
    values = (value for module in modules for value in list(vars(module).values()))
    return frozenset(value for value in values if isinstance(value, core.Primitive))


class _Identity:
    """A part of a key that equals only a key part of the same object. It keeps the object alive."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


class _StructuralKey:
    """Builds a hashable value that is equal for equal programs.

    A jaxpr that occurs again is in the value by its number only. Otherwise the value could grow exponentially, as when
    each function calls the next one twice.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self.by_identity: list[object] = []
        self.has_only_jax_primitives = True

    def closed_jaxpr_key(self, closed: Any) -> Hashable:
        if id(closed) in self._numbers:
            return "again", self._numbers[id(closed)]
        self._numbers[id(closed)] = len(self._numbers)
        return self._jaxpr_key(closed.jaxpr), tuple(map(self._value_key, closed.consts))

    def _jaxpr_key(self, jaxpr: Any) -> Hashable:
        numbers: dict[Any, int] = {}

        def variable(each: Any) -> Hashable:
            if isinstance(each, core.Literal):
                return self._value_key(each.val), each.aval
            number = numbers.setdefault(each, len(numbers))
            # Its value changes as the program runs, so it is compared by identity.
            return number, each.aval, type(each), self._identity_key(each) if changing_values(each) else None

        bound = [tuple(map(variable, each)) for each in (jaxpr.constvars, jaxpr.invars)]
        equations = [
            (
                equation.primitive,
                tuple(map(variable, equation.invars)),
                tuple(map(variable, equation.outvars)),
                tuple((name, self._value_key(value)) for name, value in equation.params.items()),
                frozenset(equation.effects),
                self._context_key(equation_context(equation.ctx)),
            )
            for equation in jaxpr.eqns
        ]
        self.has_only_jax_primitives &= all(_is_jax_primitive(equation.primitive) for equation in jaxpr.eqns)
        results = tuple(map(variable, jaxpr.outvars))
        return *bound, tuple(equations), results, frozenset(jaxpr.effects), is_high(jaxpr)

    def _context_key(self, context: Any) -> Hashable:
        return self._value_key(context) if type(context) is dict else context

    def _value_key(self, value: Any) -> Hashable:
        kind = type(value)
        if value is None or kind in {bool, int, str, bytes}:
            return kind, value
        if kind in {float, complex}:  # 0.0 is equal to -0.0, and NaN to nothing
            number = complex(value)
            return kind, struct.pack("<2d", number.real, number.imag)
        if isinstance(value, list | tuple):
            return kind, tuple(map(self._value_key, value))
        if kind is dict:
            return kind, tuple((self._value_key(key), self._value_key(each)) for key, each in value.items())
        if isinstance(value, ClosedJaxpr):
            return self.closed_jaxpr_key(value)
        if isinstance(value, core.Jaxpr):
            return self._jaxpr_key(value)
        if isinstance(value, typed_literals()):
            value = np.asarray(value, value.dtype)
        value = host_array(value)
        if isinstance(value, np.ndarray | np.generic) and value.size <= _SMALL and not value.dtype.hasobject:
            return kind, value.dtype, value.shape, value.tobytes()
        if isinstance(value, _COMPARED_BY_VALUE):
            return kind, value
        return self._identity_key(value)

    def _identity_key(self, value: object) -> Hashable:
        self.by_identity.append(value)
        return _Identity(value)
