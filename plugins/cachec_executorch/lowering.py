"""Lowering of programs to ``.pte`` files, by ExecuTorch. Imports executorch and torch."""

from __future__ import annotations

import dataclasses
import threading
import warnings
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.dialects._ops import ops
from executorch.exir.emit import _emitter
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from executorch.exir.schema import EValue, TensorDataLocation
from executorch.exir.tensor import make_tensor_value
from torch.fx.node import Node, map_arg

from cachec.errors import PluginError, UsageError
from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec.programs.supported_versions import version_of
from cachec_executorch.pte_file import KIND, MethodForm, join_file
from cachec_mlir.compilers import file_in_new_folder
from cachec_torch.calls import InputForm, ValueForm
from cachec_torch.describing import described_call, written_names
from cachec_torch.programs import LoadedProgram

_CLONE = ops.edge.dim_order_ops._clone_dim_order.default

#: ExecuTorch's name for a file of weights, which is not in a ``.pte``.
_TAG = "weights"

#: One lowering at a time: ``_emit_external_by_name`` replaces a function for the whole process.
_LOWERING = threading.Lock()

#: Number of axes -> their order for ExecuTorch's channels-last.
_CHANNELS_LAST = {4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}


def lower_program(program: Program, config: Mapping[str, Any]) -> File:
    """See ``cachec_executorch.compile``."""
    loaded = LoadedProgram(program)
    _check_config(config)
    written = written_names(loaded.exported)
    weights = sorted(loaded.names.keys() & written)
    if weights:
        raise PluginError(
            f"the program writes to weight {weights[0]!r} ({len(weights)} such), which ExecuTorch keeps in memory of "
            "its own without the weight's value; register such a buffer with persistent=False"
        )
    form, odd = described_call(loaded.exported)
    if odd:
        raise PluginError(f"{odd}, which ExecuTorch has no form for; take and return tuples, lists and dicts")
    _check_inputs(form.inputs)
    with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about experimental functions and future releases
        pte, entries = _emit(loaded, config, written)
    touched = loaded.touched()
    if touched:
        raise PluginError(
            f"ExecuTorch looked at the value of weight {touched[0]!r} ({len(touched)} such), so its result may hold it"
        )
    names = {entry: loaded.names[entry] for entry in sorted(entries)}
    whole = MethodForm(executorch=version_of("executorch"), names=names, **msgspec.structs.asdict(form))
    output = file_in_new_folder("model.pte", kind=KIND, manifest=program.manifest)
    output.path.write_bytes(join_file(pte, whole))
    return output


def _check_config(config: Mapping[str, Any]) -> None:
    fields = {field.name for field in dataclasses.fields(ExecutorchBackendConfig)}
    for name, value in config.items():
        if name.startswith("external_"):
            raise UsageError(f"config: {name!r} can't be given: weights stay outside of the program, by name")
        if name not in fields:
            raise UsageError(f"config: ExecutorchBackendConfig has no field {name!r}")
        if value is not None and type(value) not in {bool, int}:
            raise UsageError(f"config: {name!r} expected a number or a boolean, found {type(value).__name__}")


def _check_inputs(inputs: tuple[Any, ...]) -> None:
    for number, each in enumerate(inputs):
        if isinstance(each, ValueForm) and isinstance(each.value, str):
            raise PluginError(f"input {number} is {each.value!r}; ExecuTorch's Python runtime takes no strings")
        order = each.order if isinstance(each, InputForm) else ()
        if order not in {tuple(range(len(order))), _CHANNELS_LAST.get(len(order))}:
            raise PluginError(f"input {number} has its axes in the order {list(order)}; give a contiguous example")


def _emit(loaded: LoadedProgram, config: Mapping[str, Any], written: tuple[str, ...]) -> tuple[bytes, set[str]]:
    """Return the ``.pte``, and the names of the tensors that it reads from a ``.ptd``."""
    edge = to_edge_transform_and_lower(loaded.exported)
    signature = edge.exported_program().graph_signature
    there = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    starting = [node for node, name in there.items() if name in written]
    whole = ExecutorchBackendConfig(
        passes=[InitializedMutableBufferPass(starting)],
        external_constants=lambda node: _TAG if there.get(node.target) in loaded.names else None,
        **config,
    )
    _copy_returned_weights(edge.exported_program(), {node for node, name in there.items() if name in loaded.names})
    used = {there[node.target] for node in edge.exported_program().graph.nodes if node.target in there and node.users}
    with _LOWERING, _emit_external_by_name() as entries:
        lowered = edge.to_executorch(config=whole)
    inside = sorted((used & loaded.names.keys()) - entries)
    if inside:
        raise PluginError(f"ExecuTorch does not read {inside[0]!r} ({len(inside)} such) from outside of the program")
    strange = sorted(entries - loaded.names.keys())
    if strange or lowered._tensor_data:
        raise PluginError(f"ExecuTorch reads {strange or sorted(lowered._tensor_data)} from outside of the program")
    return bytes(lowered.buffer), entries


def _copy_returned_weights(program: torch.export.ExportedProgram, weight_nodes: Set[str]) -> None:
    """Insert a copy operation for each output of ``program`` that is one of the placeholders ``weight_nodes``.

    ExecuTorch plans memory for each output. If an output is a weight, it forgets the weight's bytes, and all operations
    of the program would read zeros.
    """
    output = program.graph.output_node()
    copies: dict[Node, Node] = {}
    with program.graph.inserting_before(output):
        for node in output.all_input_nodes:
            if node.name in weight_nodes:
                order = list(node.meta["val"].dim_order())
                copies[node] = program.graph.call_function(_CLONE, (node,), {"dim_order": order})
                copies[node].meta = dict(node.meta)
    for spec in program.graph_signature.output_specs:
        for node, copy in copies.items():
            if getattr(spec.arg, "name", None) == node.name:
                spec.arg.name = copy.name
    output.args = map_arg(output.args, lambda node: copies.get(node, node))


@contextmanager
def _emit_external_by_name() -> Iterator[set[str]]:
    """Emit tensors outside of the program by their names only.

    ExecuTorch itself reads the bytes, also for its own ``.ptd``, and numbers them by content. So a program with two
    equal weights would differ from one with two unequal ones.
    """
    emitter, entries = _emitter._Emitter, set[str]()
    emit = emitter._tensor_spec_to_evalue

    def emit_name(self: Any, spec: Any, constant_tag: str | None = None) -> Any:
        info = spec.extra_tensor_info
        if info is None or info.location != TensorDataLocation.EXTERNAL:
            return emit(self, spec, constant_tag)
        entries.add(info.fully_qualified_name)
        return EValue(make_tensor_value(0, None, spec))

    emitter._tensor_spec_to_evalue = emit_name
    try:
        yield entries
    finally:
        emitter._tensor_spec_to_evalue = emit
