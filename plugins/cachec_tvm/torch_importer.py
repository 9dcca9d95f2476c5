"""Import of programs of ``cachec_torch.to_exported`` as Relax modules. Imports torch and tvm.

TVM's importer reads the values of parameters and of persistent buffers. This module turns weights of both kinds into
inputs first, so that the importer reads no value.
"""

from __future__ import annotations

import warnings
from typing import Any

import msgspec
import torch
import tvm
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from tvm.relax.frontend.torch import from_exported_program

from cachec.errors import PluginError
from cachec.programs.program import Program
from cachec.programs.supported_versions import version_of
from cachec_torch.describing import described_call, written_names
from cachec_torch.programs import LoadedProgram
from cachec_tvm.library_file import MachineForm


def import_program(program: Program) -> tuple[tvm.IRModule, MachineForm]:
    """Return the module, and the description of its call. Raises PluginError as ``cachec_tvm.compile`` does."""
    loaded = LoadedProgram(program)
    written = written_names(loaded.exported)
    if written:
        raise PluginError(
            f"the program writes to {written[0]!r} ({len(written)} such), and TVM keeps nothing from call to call; "
            "export it for evaluation, or return what changes"
        )
    form, odd = described_call(loaded.exported)
    if odd:
        raise PluginError(f"{odd}, which TVM has no form for; take and return tuples, lists and dicts")
    with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about future releases
        exported = loaded.exported.run_decompositions()
        parameters, weights = _as_inputs(exported, loaded.names)
        module = from_exported_program(exported, run_ep_decomposition=False)
    found = [parameter.name for parameter in module["main"].params]
    if found != parameters:
        raise PluginError(f"TVM takes other parameters than the program has: expected {parameters}, found {found}")
    touched = loaded.touched()
    if touched:
        raise PluginError(
            f"TVM looked at the value of weight {touched[0]!r} ({len(touched)} such), so its result may hold it"
        )
    return module, MachineForm(tvm=version_of("apache-tvm"), weights=tuple(weights), **msgspec.structs.asdict(form))


def _as_inputs(exported: Any, names: dict[str, str]) -> tuple[list[str], list[str]]:
    """Turn the weights of a private ``ExportedProgram`` into inputs, and remove inputs that are not tensors.

    Returns the names of all its inputs, weights first, and the names of these weights.
    """
    signature, graph = exported.graph_signature, exported.graph
    weights, inputs, inputs_only = [], [], []
    values = set()
    for spec in signature.input_specs:
        if spec.kind in {InputKind.PARAMETER, InputKind.BUFFER} and spec.target in names:
            weights.append((spec.arg.name, names[spec.target]))
            spec.kind = InputKind.USER_INPUT
        elif spec.kind is InputKind.USER_INPUT and not isinstance(spec.arg, TensorArgument):
            values.add(spec.arg.name)  # a constant of the program, which no operation uses
            continue
        elif spec.kind is InputKind.USER_INPUT:
            inputs.append(spec.arg.name)
        if spec.kind is InputKind.USER_INPUT:
            spec.target = spec.arg.name  # TVM reads the shape by this name
        inputs_only.append(spec)
    signature.input_specs[:] = inputs_only
    for node in list(graph.nodes):
        if node.op == "placeholder" and node.name in values:
            graph.erase_node(node)
    output = next(node for node in graph.nodes if node.op == "output")
    results = [
        (spec, node)
        for spec, node in zip(signature.output_specs, output.args[0], strict=True)
        if spec.kind is OutputKind.USER_OUTPUT and isinstance(spec.arg, TensorArgument)
    ]
    if not results:
        raise PluginError("the program returns no tensor, so TVM has nothing to compute")
    signature.output_specs[:] = [spec for spec, _ in results]
    output.args = (tuple(node for _, node in results),)
    return [name for name, _ in weights] + inputs, [name for _, name in weights]
