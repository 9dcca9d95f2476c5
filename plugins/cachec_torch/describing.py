"""What goes into an exported program and comes out of it, told of its signature. Imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import torch
from torch.export.graph_signature import ConstantArgument

from cachec.errors import PluginError
from cachec_torch.calls import CallForm, InputForm, OutputForm, SizeForm, ValueForm
from cachec_torch.programs import hint_of
from cachec_torch.shim import DTYPES
from cachec_torch.trees import node_of


def described_call(exported: Any) -> tuple[CallForm, str]:
    """How an ``ExportedProgram`` is called, and what is in its trees that only torch can build, or nothing.

    Raises PluginError for what is no tensor and no constant, and for tensors that no caller here could make.
    """
    form = CallForm(
        inputs=tuple(_inputs(exported)),
        outputs=tuple(_outputs(exported)),
        ranges={str(symbol): _range(values) for symbol, values in exported.range_constraints.items()},
    )
    call = exported.call_spec
    try:
        arguments, results = node_of(call.in_spec), node_of(call.out_spec)
    except LookupError as error:
        return form, f"its inputs or outputs have {error}"
    return msgspec.structs.replace(form, arguments=arguments, results=results), ""


def written_names(exported: Any) -> tuple[str, ...]:
    """Which parameters and buffers the program writes to. Raises PluginError where it writes to an input.

    What torch exports writes in place; only without that a signature says so.
    """
    signature = exported.run_decompositions({}).graph_signature
    inputs = sorted(signature.user_inputs_to_mutate.values())
    if inputs:
        raise PluginError(f"the program writes to its input {inputs[0]!r}; return what changes instead")
    return tuple(sorted({*signature.buffers_to_mutate.values(), *signature.parameters_to_mutate.values()}))


def _user_values(exported: Any, specs: Any, kind: str) -> Iterator[tuple[Any, Any]]:
    """(argument of the signature, what the graph has of it) of each user input or output, in order."""
    nodes = {node.name: node for node in exported.graph.nodes}
    for spec in specs:
        if spec.kind.name == kind:
            node = nodes.get(getattr(spec.arg, "name", ""))
            yield spec.arg, None if node is None else node.meta.get("val")


def _inputs(exported: Any) -> Iterator[InputForm | ValueForm]:
    for number, (argument, value) in enumerate(
        _user_values(exported, exported.graph_signature.input_specs, "USER_INPUT")
    ):
        where = f"input {number}"
        if isinstance(value, torch.Tensor):
            sizes = tuple(_size(size, where) for size in value.shape)
            yield InputForm(dtype_name(value.dtype, where), sizes, _order(value, where))
        else:
            yield _value(argument, value, where)


def _outputs(exported: Any) -> Iterator[OutputForm | ValueForm]:
    specs = exported.graph_signature.output_specs
    for number, (argument, value) in enumerate(_user_values(exported, specs, "USER_OUTPUT")):
        yield OutputForm() if isinstance(value, torch.Tensor) else _value(argument, value, f"output {number}")


def _value(argument: Any, value: Any, where: str) -> ValueForm:
    if not isinstance(argument, ConstantArgument):
        raise PluginError(f"{where} is a {type(value).__name__}; only tensors go in and out of a library")
    return ValueForm(argument.value)


def dtype_name(dtype: torch.dtype, where: str) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise PluginError(f"{where} is {name}; expected one of {', '.join(DTYPES)}")
    return name


def _size(size: Any, where: str) -> int | SizeForm:
    """Raises PluginError for a size that is not a multiple of one symbol, and an offset."""
    if isinstance(size, int):
        return size
    expression = size.node.expr
    if expression.is_Integer:
        return int(expression)
    symbols = sorted(expression.free_symbols, key=str)
    factor = expression.coeff(symbols[0], 1)
    offset = expression - factor * symbols[0]
    if len(symbols) != 1 or not (factor.is_Integer and offset.is_Integer):
        raise PluginError(f"{where} has the size {expression}; expected a multiple of one dimension, and an offset")
    return SizeForm(str(symbols[0]), int(factor), int(offset))


def _order(value: torch.Tensor, where: str) -> tuple[int, ...]:
    """The axes from the largest stride to the smallest. Raises PluginError for a tensor with holes."""
    sizes, strides = [hint_of(size) for size in value.shape], [hint_of(step) for step in value.stride()]
    order = sorted(range(len(sizes)), key=lambda axis: -strides[axis])
    expected = 1
    for axis in reversed(order):
        if sizes[axis] > 1 and strides[axis] != expected and 0 not in sizes:
            raise PluginError(f"{where} has sizes {sizes} and strides {strides}; give an example without holes")
        expected *= sizes[axis]
    return tuple(order)


def _range(values: Any) -> tuple[int, int | None]:
    upper = values.upper
    return max(0, int(values.lower)), int(upper) if upper.is_Integer else None
