"""``jit``: ``jax.jit`` whose program does not hold the arrays that the function closes over, so that other ones hit.

JAX writes such arrays into the program by value. Here they are made arguments of what was traced, in the way that JAX
has for tracers that are closed over (``pe.separate_consts``). What is traced, and what is done with static and donated
arguments, shardings, effects and transformations stays JAX's. As each process traces, the program that is looked up is
what the function is now.

Some stay in the program by value: scalars, as XLA simplifies with them (dividing by one becomes multiplying, with other
last bits); random keys; arrays on several devices; and what a ``jax.jit`` closes over that is called in a loop's body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import fields
from functools import wraps
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import numpy as np

from cachec_jax import internals
from cachec_jax.canonical import programs
from cachec_jax.copies import own_copy
from cachec_jax.internals import ClosedJaxpr, config, core, jaxlib_extension, pjit, pxla, sharding_impls, tree_util
from cachec_jax.internals import array as jax_array
from cachec_jax.persistent import ensure_installed

#: Programs of one function that are called without Python; as many as of all functions in JAX.
_ENTRIES = 4096


class _Program(NamedTuple):
    """What was traced. arrays: its first arguments. avals: their types. params: of all arguments, for ``jit_p``."""

    arrays: list[Any]
    avals: tuple[Any, ...]
    params: Mapping[str, Any]


def hoisting(function: Callable[..., Any], info: Any) -> Any:
    """See ``cachec_jax.jit``. info: what ``jax.jit`` has made of its options."""
    separated: WeakKeyDictionary[Any, _Program] = WeakKeyDictionary()

    def cache_miss(*args: Any, **kwargs: Any) -> Any:
        """As in ``jax._src.pjit._cpp_pjit``, with arrays before the arguments."""
        if config.no_tracing.value:
            raise RuntimeError(f"re-tracing function {info.fun_sourceinfo} for `jit`, but 'no_tracing' is set")
        traced, given = internals.trace_jit(function, info, args, kwargs)
        if internals.has_side_states(traced):
            return internals.run_jit(traced, given, function, info, args, kwargs)[0], None, False
        closed = traced.params["jaxpr"]
        program = separated.get(closed)
        if program is None:
            program = separated[closed] = _separated(traced.params)
        count = len(program.arrays)
        names = None if traced.arg_names is None else ("",) * count + tuple(traced.arg_names)
        changed = traced._replace(params=program.params, in_avals=program.avals + traced.in_avals, arg_names=names)
        ensure_installed()
        # The arrays may have to go to other devices: no transfer that the caller's guard is for, as JAX has none there.
        moved = jax.transfer_guard_device_to_device("allow") if count else nullcontext()
        with config.persistent_cache_min_compile_time_secs(0.0), moved:  # who names a function finds it worth storing
            ran = internals.run_jit(changed, [*program.arrays, *given], function, info, args, kwargs)
            outs, _, _, given, _, executable, profiler = ran
            rebuilt = pjit._need_to_rebuild_with_fdo(profiler)
            if executable is None or not executable._kept_var_idx.issuperset(range(count)):
                return outs, None, rebuilt
            placed = internals.place_constants(executable, program.arrays)  # where this call needs them, once
        return outs, internals.fast_path(executable, ran, given[count:], placed), rebuilt

    options_of = {field.name: getattr(info, field.name) for field in fields(pxla.JitGlobalCppCacheKeys)}
    dispatch = jaxlib_extension.pjit(
        pjit.fun_name(function), function, cache_miss, info.static_argnums, info.static_argnames,
        pxla.JitGlobalCppCacheKeys(**options_of), tree_util.dispatch_registry, pxla.cc_shard_arg,
        jaxlib_extension.PjitFunctionCache(capacity=_ENTRIES),
    )  # fmt: skip
    made: Any = wraps(function)(dispatch)
    made._fun, made._jit_info = function, info  # by which ``lower``, ``trace`` and ``eval_shape`` know it
    return made


def _separated(params: Mapping[str, Any]) -> _Program:
    """The arrays that a traced function holds, out of it. The same where it holds none."""
    lifting = _Lifting({}, {})
    closed, names = lifting.lifted(params["jaxpr"])
    held = [lifting.arrays[name] for name in names]
    # Also while something else is traced, and where the caller's own transfers are guarded.
    with jax.ensure_compile_time_eval(), jax.transfer_guard("allow"):
        arrays = _own([array for array, _ in held], [aval for _, aval in held])
    return _Program(arrays, tuple(aval for _, aval in held), _taking(params, programs().one(closed), len(arrays)))


#: An array that a traced function holds: which, and as what type.
_Name = tuple[int, Any]


class _Lifting(NamedTuple):
    """One pass over a traced function. arrays: what is lifted out. done: by the id of a part, which may occur twice."""

    arrays: dict[_Name, tuple[Any, Any]]
    done: dict[int, tuple[Any, list[_Name]]]

    def lifted(self, closed: Any) -> tuple[Any, list[_Name]]:
        """``closed`` with its arrays as its first arguments, and which these are."""
        if id(closed) not in self.done:
            self.done[id(closed)] = self._lifted(closed)
        return self.done[id(closed)]

    def _lifted(self, closed: Any) -> tuple[Any, list[_Name]]:
        jaxpr = closed.jaxpr
        variables: dict[_Name, Any] = {}
        left = []
        for variable, array in zip(jaxpr.constvars, closed.consts, strict=True):
            name = id(array), variable.aval
            if name not in variables and _is_hoistable(array, variable.aval):
                variables[name] = variable
                self.arrays[name] = array, variable.aval
            else:
                left.append((variable, array))
        equations = []
        for equation in jaxpr.eqns:
            if equation.primitive is internals.jit_p:
                inner, names = self.lifted(equation.params["jaxpr"])
                for name in names:
                    variables.setdefault(name, core.Var(self.arrays[name][1]))
                given = [*(variables[name] for name in names), *equation.invars]
                if names:
                    equation = equation.replace(invars=given, params=_taking(equation.params, inner, len(names)))
            equations.append(equation)
        if not variables:
            return closed, []
        names_of = jaxpr.debug_info.arg_names
        known = jaxpr.debug_info._replace(arg_names=None if names_of is None else ("",) * len(variables) + names_of)
        constants, consts = zip(*left, strict=True) if left else ((), ())
        changed = jaxpr.replace(
            constvars=constants, invars=[*variables.values(), *jaxpr.invars], eqns=equations, debug_info=known
        )
        return ClosedJaxpr(changed, consts), [*variables]


def _taking(params: Mapping[str, Any], closed: Any, count: int) -> dict[str, Any]:
    """The parameters of ``jit_p`` for a function that takes ``count`` more arrays, before the others."""
    return {
        **params,
        "jaxpr": closed,
        "in_shardings": (sharding_impls.UNSPECIFIED,) * count + tuple(params["in_shardings"]),
        "in_layouts": (None,) * count + tuple(params["in_layouts"]),
        "donated_invars": (False,) * count + tuple(params["donated_invars"]),
    }


def _is_hoistable(array: Any, aval: Any) -> bool:
    array = internals.host_array(array)
    if not isinstance(array, np.ndarray | jax_array.ArrayImpl) or not isinstance(aval, core.ShapedArray):
        return False
    if getattr(aval, "has_qdd", False) or not aval.ndim or not aval.size or not aval.sharding.mesh.empty:
        return False
    return isinstance(array, np.ndarray) or len(array.sharding.device_set) == 1


def _own(arrays: list[Any], avals: list[Any]) -> list[Any]:
    """Copies that are at no device in particular: as in a program, whatever becomes of the arrays."""
    here = [
        own_copy(np.asarray(internals.host_array(array), aval.dtype)) for array, aval in zip(arrays, avals, strict=True)
    ]
    with internals.enable_x64(True):  # an array of 64 bits is one in the program whatever is set now
        copies: list[Any] = jax.device_put(here)
    return copies
