"""Modules of Relax with weights by name: the format ``tvm:relax``. Imports tvm.

The IR is TVMScript, in which variables of Relax have numbers for names, and the weights are the last parameters of
``main``, sorted by name. That text is all that the compiler gets, so it is what counts, byte for byte. TVM's
``structural_hash`` is not: it has 64 bits that are hardly mixed (an attribute of 2 in place of 1 leaves the upper 16 as
they were), and no two releases promise the same. Each text is checked by ``structural_equal``, which compares all of
two modules. There is no other form: ``save_json`` of TVM 0.27 ends the process.

Names within functions of TIR, and those of dynamic sizes, stay as they are and count.
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
from cachec_tvm.names import RELAX

#: The class of constants with dimensions, and its attribute with the array: a class of all of TVM from 0.27 on, one of
#: Relax before.
_CONSTANT, _PAYLOAD = (
    (tvm.ir.expr.GenericConst, "value") if hasattr(tvm.ir.expr, "GenericConst") else (relax.Constant, "data")
)


def stripped(module: Any, weights: WeightSet, names: Mapping[str, str]) -> Program:
    """See ``cachec_tvm.strip``."""
    if not isinstance(module, tvm.IRModule) or "main" not in {each.name_hint for each in module.get_global_vars()}:
        raise PluginError("expected a module of Relax with a function 'main'")
    main = module["main"]
    places = {names.get(each.name, each.name): each for each in main.params}
    if len(places) != len(main.params):
        raise PluginError("two parameters of main stand for one weight; names= leads each to another")
    missing = sorted(weights.keys() - places.keys())
    if missing:
        raise PluginError(f"no parameter of main stands for weight {missing[0]!r} ({len(missing)} such); say names=")
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


def imported(program: Program) -> Any:
    """The module of a program of this format."""
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
    """Raise PluginError for constants with dimensions: TVM ends the process where it is to write one."""
    shapes = []

    def look(expression: Any) -> None:
        shape = getattr(getattr(expression, _PAYLOAD, None), "shape", None)
        if isinstance(expression, _CONSTANT) and shape:
            shapes.append(list(shape))

    relax.analysis.post_order_visit(function, look)
    if shapes:
        raise PluginError(
            f"function {name!r} has a constant of shape {shapes[0]}, which TVM can't write as text; make it a "
            "parameter, or compile the module in the stage that makes it"
        )


def _with_parameters(function: Any, params: Sequence[Any]) -> Any:
    """The function with its parameters in this order."""
    return relax.Function(params, function.body, function.ret_ty, function.is_pure, function.attrs, function.span)


@mutator
class _Numbering(PyExprMutator):  # type: ignore[misc]  # tvm has no types
    """Gives each variable a name of its own, in the order in which they are bound."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def visit_var_def_(self, variable: Any) -> Any:
        return self._renamed(variable, relax.Var)

    def visit_dataflow_var_def_(self, variable: Any) -> Any:
        return self._renamed(variable, relax.DataflowVar)

    def _renamed(self, variable: Any, kind: Any) -> Any:
        made = kind(f"v{self._count}", variable.ty)
        self._count += 1
        self.set_var_remap(variable, made)
        return made
