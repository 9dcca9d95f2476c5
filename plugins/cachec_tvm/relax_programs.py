"""Relax modules with weights by name: the format ``tvm:relax``. Imports tvm.

The IR is TVMScript, with numbers for the names of Relax variables, and with the weights as the last parameters of
``main``, sorted by name. The compiler gets only this text, so the text counts, byte for byte. TVM's ``structural_hash``
is no alternative: it mixes its 64 bits badly (an attribute of 2 instead of 1 changes none of the upper 16), and its
value may change with each release. ``structural_equal`` checks each text, by a comparison of two whole modules. There
is no other form: ``save_json`` of TVM 0.27 ends the process.

Names in TIR functions, and names of dynamic sizes, stay as they are and count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.script import from_source

from cachec.errors import PluginError
from cachec.model import WeightSpec
from cachec.programs.program import Program
from cachec.weights import WeightSet
from cachec_tvm.kinds import RELAX

#: The class of constants with dimensions, and its attribute with the array: a class of all of TVM from 0.27 on, one of
#: Relax before.
_CONSTANT, _PAYLOAD = (
    (tvm.ir.expr.GenericConst, "value") if hasattr(tvm.ir.expr, "GenericConst") else (relax.Constant, "data")
)


def strip_module(module: Any, weights: WeightSet, names: Mapping[str, str]) -> Program:
    """See ``cachec_tvm.strip``."""
    if not isinstance(module, tvm.IRModule) or "main" not in {each.name_hint for each in module.get_global_vars()}:
        raise PluginError("expected a module of Relax with a function 'main'")
    main = module["main"]
    places = {names.get(each.name, each.name): each for each in main.params}
    if len(places) != len(main.params):
        raise PluginError("two parameters of main have the same weight; map each to its own weight with names=")
    missing = sorted(weights.keys() - places.keys())
    if missing:
        raise PluginError(f"no parameter of main is weight {missing[0]!r} ({len(missing)} such); map it with names=")
    for name, spec in sorted(weights.specs.items()):
        _check_fits(name, places[name], spec)
    inputs = [each for name, each in places.items() if name not in weights]
    ordered = [*inputs, *(places[name] for name in sorted(weights))]
    reordered, numbered = module.clone(), module.clone()
    for place, function in module.functions_items():
        if isinstance(function, relax.Function):
            _check_constants(place.name_hint, function)
            whole = _with_parameters(function, ordered) if place.name_hint == "main" else function
            reordered.update_func(place, whole)
            numbered.update_func(place, _Numbering().visit_expr(whole))
    text = numbered.script(show_meta=True)
    if not tvm_ffi.structural_equal(from_source(text), reordered):
        raise PluginError("TVM does not read back the module that it writes; compile it in the stage that makes it")
    return Program(text, format=RELAX, manifest=weights.manifest)


def import_program(program: Program) -> Any:
    """Return the module of a program of this format."""
    return from_source(program.text)


def _check_fits(name: str, parameter: Any, spec: WeightSpec) -> None:
    try:
        found = (str(parameter.ty.dtype), tuple(int(size) for size in parameter.ty.shape))
    except (AttributeError, TypeError) as error:
        raise PluginError(f"weight {name!r}: main has {parameter.ty}; expected a tensor of known sizes") from error
    if found != (spec.dtype, spec.shape):
        raise PluginError(
            f"weight {name!r}: main has {found[0]}{list(found[1])}, the weights have {spec.dtype}{list(spec.shape)}"
        )


def _check_constants(name: str, function: Any) -> None:
    """Raise PluginError for constants with dimensions: TVM ends the process if it writes one."""
    shapes = []

    def visit(expression: Any) -> None:
        shape = getattr(getattr(expression, _PAYLOAD, None), "shape", None)
        if isinstance(expression, _CONSTANT) and shape:
            shapes.append(list(shape))

    relax.analysis.post_order_visit(function, visit)
    if shapes:
        raise PluginError(
            f"function {name!r} has a constant of shape {shapes[0]}, which TVM can't write as text; make it a "
            "parameter, or compile the module in the stage that makes it"
        )


def _with_parameters(function: Any, params: Sequence[Any]) -> Any:
    """Return the function with its parameters in this order."""
    return relax.Function(params, function.body, function.ret_ty, function.is_pure, function.attrs, function.span)


@mutator
class _Numbering(PyExprMutator):  # type: ignore[misc]  # tvm has no types
    """Numbers the variables, in the order of their definitions."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def visit_var_def_(self, variable: relax.Var) -> relax.Var:
        return self._rename(variable, relax.Var)

    def visit_dataflow_var_def_(self, variable: relax.DataflowVar) -> relax.Var:
        return self._rename(variable, relax.DataflowVar)

    def _rename(self, variable: relax.Var, kind: type[relax.Var]) -> relax.Var:
        made = kind(f"v{self._count}", variable.ty)
        self._count += 1
        self.set_var_remap(variable, made)
        return made
