"""Hoisting of closed-over arrays: they become arguments of the traced program, so that other weights are a cache hit.

JAX writes arrays that a function closes over into the program by value. This module makes them arguments of the traced
program, as JAX does with closed-over tracers (``pe.separate_consts``). JAX itself still does the tracing, and handles
static and donated arguments, shardings, effects and transformations. Each process traces, so the program that is looked
up is that of the function as it is now.

These stay in the program by value:

- scalars, as XLA simplifies with them (a division becomes a multiplication, with other last bits);
- random keys;
- arrays on several devices;
- arrays that a ``jax.jit`` in a loop's body closes over.
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
from cachec_jax.aligned_copies import aligned_copy
from cachec_jax.internals import ClosedJaxpr, config, core, jaxlib_extension, pjit, pxla, sharding_impls, tree_util
from cachec_jax.internals import array as jax_array
from cachec_jax.jaxpr_interning import jaxpr_interner
from cachec_jax.persistent_cache import ensure_installed

#: The number of one function's programs that are called without Python: JAX's limit for all functions.
_ENTRIES = 4096


class _Program(NamedTuple):
    """A traced program whose first arguments are the hoisted arrays."""

    arrays: list[Any]
    #: The types of the arrays.
    avals: tuple[Any, ...]
    #: The parameters of ``jit_p``, for all arguments.
    params: Mapping[str, Any]


def hoist_constants(function: Callable[..., Any], info: Any) -> Any:
    """Return ``function`` jitted as by ``cachec_jax.jit``. info: the options as ``jax.jit`` processed them."""
    programs: WeakKeyDictionary[Any, _Program] = WeakKeyDictionary()

    def cache_miss(*args: Any, **kwargs: Any) -> Any:
        """As in ``jax._src.pjit._cpp_pjit``, with arrays before the arguments."""
        if config.no_tracing.value:
            raise RuntimeError(f"re-tracing function {info.fun_sourceinfo} for `jit`, but 'no_tracing' is set")
        traced, given = internals.trace_jit(function, info, args, kwargs)
        if internals.has_side_states(traced):
            return internals.run_jit(traced, given, function, info, args, kwargs)[0], None, False
        closed = traced.params["jaxpr"]
        program = programs.get(closed)
        if program is None:
            program = programs[closed] = _hoist(traced.params)
        count = len(program.arrays)
        names = None if traced.arg_names is None else ("",) * count + tuple(traced.arg_names)
        changed = traced._replace(params=program.params, in_avals=program.avals + traced.in_avals, arg_names=names)
        ensure_installed()
        # The arrays may move to other devices. The caller's guard is not for this: plain JAX has no transfer here.
        moved = jax.transfer_guard_device_to_device("allow") if count else nullcontext()
        with config.persistent_cache_min_compile_time_secs(0.0), moved:  # the user asked for this function
            results = internals.run_jit(changed, [*program.arrays, *given], function, info, args, kwargs)
            outs, _, _, given, _, executable, profiler = results
            rebuilt = pjit._need_to_rebuild_with_fdo(profiler)
            if executable is None or not executable._kept_var_idx.issuperset(range(count)):
                return outs, None, rebuilt
            placed = internals.place_constants(executable, program.arrays)  # once, on the devices of this call
        return outs, internals.fast_path(executable, results, given[count:], placed), rebuilt

    options_of = {field.name: getattr(info, field.name) for field in fields(pxla.JitGlobalCppCacheKeys)}
    dispatch = jaxlib_extension.pjit(
        pjit.fun_name(function), function, cache_miss, info.static_argnums, info.static_argnames,
        pxla.JitGlobalCppCacheKeys(**options_of), tree_util.dispatch_registry, pxla.cc_shard_arg,
        jaxlib_extension.PjitFunctionCache(capacity=_ENTRIES),
    )  # fmt: skip
    made: Any = wraps(function)(dispatch)
    made._fun, made._jit_info = function, info  # by which ``lower``, ``trace`` and ``eval_shape`` know it
    return made


def _hoist(params: Mapping[str, Any]) -> _Program:
    """Take the arrays out of a traced function."""
    lifting = _Lifting({}, {})
    closed, names = lifting.lift(params["jaxpr"])
    hoisted = [lifting.arrays[name] for name in names]
    # This works while another function is traced, and if the caller's own transfers are guarded.
    with jax.ensure_compile_time_eval(), jax.transfer_guard("allow"):
        arrays = _device_copies([array for array, _ in hoisted], [aval for _, aval in hoisted])
    return _Program(
        arrays,
        tuple(aval for _, aval in hoisted),
        _with_leading_arguments(params, jaxpr_interner().intern(closed), len(arrays)),
    )


#: The identity and the type of an array in a traced function.
_Name = tuple[int, Any]


class _Lifting(NamedTuple):
    """One pass over a traced function that lifts its arrays out."""

    #: The lifted arrays, with their types.
    arrays: dict[_Name, tuple[Any, Any]]
    #: The results by the id of a jaxpr, which may occur twice.
    done: dict[int, tuple[Any, list[_Name]]]

    def lift(self, closed: Any) -> tuple[Any, list[_Name]]:
        """Return ``closed`` with its arrays as its first arguments, and the names of these."""
        if id(closed) not in self.done:
            self.done[id(closed)] = self._lift_jaxpr(closed)
        return self.done[id(closed)]

    def _lift_jaxpr(self, closed: Any) -> tuple[Any, list[_Name]]:
        jaxpr = closed.jaxpr
        variables: dict[_Name, Any] = {}
        remaining = []
        for variable, array in zip(jaxpr.constvars, closed.consts, strict=True):
            name = id(array), variable.aval
            if name not in variables and _is_hoistable(array, variable.aval):
                variables[name] = variable
                self.arrays[name] = array, variable.aval
            else:
                remaining.append((variable, array))
        equations = []
        for equation in jaxpr.eqns:
            if equation.primitive is internals.jit_p:
                inner, names = self.lift(equation.params["jaxpr"])
                for name in names:
                    variables.setdefault(name, core.Var(self.arrays[name][1]))
                given = [*(variables[name] for name in names), *equation.invars]
                if names:
                    equation = equation.replace(
                        invars=given, params=_with_leading_arguments(equation.params, inner, len(names))
                    )
            equations.append(equation)
        if not variables:
            return closed, []
        names_of = jaxpr.debug_info.arg_names
        known = jaxpr.debug_info._replace(arg_names=None if names_of is None else ("",) * len(variables) + names_of)
        constants, consts = zip(*remaining, strict=True) if remaining else ((), ())
        changed = jaxpr.replace(
            constvars=constants, invars=[*variables.values(), *jaxpr.invars], eqns=equations, debug_info=known
        )
        return ClosedJaxpr(changed, consts), [*variables]


def _with_leading_arguments(params: Mapping[str, Any], closed: Any, count: int) -> dict[str, Any]:
    """Return the parameters of ``jit_p`` for a function with ``count`` more arrays before its arguments."""
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


def _device_copies(arrays: list[Any], avals: list[Any]) -> list[Any]:
    """Copy arrays to the default device, uncommitted. A later change of an array does not change its copy."""
    copies = [
        aligned_copy(np.asarray(internals.host_array(array), aval.dtype))
        for array, aval in zip(arrays, avals, strict=True)
    ]
    with internals.enable_x64(True):  # the program was traced with 64 bits, whatever the setting is now
        on_device: list[Any] = jax.device_put(copies)
    return on_device
