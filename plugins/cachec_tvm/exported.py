"""Programs of ``cachec_torch.to_exported`` as modules of Relax. Imports torch and tvm.

TVM's importer takes parameters as they are told to it, and persistent buffers for constants, by value. Here weights of
both kinds are told to it as inputs, so it asks for no value of any.
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
from cachec_tvm.files import MachineForm


def imported(program: Program) -> tuple[tvm.IRModule, MachineForm]:
    """The module, and how its ``main`` is called. Raises PluginError where ``cachec_tvm.compile`` does."""
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
        warnings.simplefilter("ignore")  # of what is to be changed in a next release
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
    """Make inputs of the weights of an ``ExportedProgram`` that nobody else has, and leave no others but tensors.

    Names of all its inputs, weights first, and of the weights that the first are.
    """
    signature, graph = exported.graph_signature, exported.graph
    weights, inputs, kept = [], [], []
    values = set()
    for spec in signature.input_specs:
        if spec.kind in {InputKind.PARAMETER, InputKind.BUFFER} and spec.target in names:
            weights.append((spec.arg.name, names[spec.target]))
            spec.kind = InputKind.USER_INPUT
        elif spec.kind is InputKind.USER_INPUT and not isinstance(spec.arg, TensorArgument):
            values.add(spec.arg.name)  # part of the program; nothing computes with it
            continue
        elif spec.kind is InputKind.USER_INPUT:
            inputs.append(spec.arg.name)
        if spec.kind is InputKind.USER_INPUT:
            spec.target = spec.arg.name  # where TVM looks for its shape
        kept.append(spec)
    signature.input_specs[:] = kept
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
        raise PluginError("the program returns no tensor, so there is nothing that TVM could compute")
    signature.output_specs[:] = [spec for spec, _ in results]
    output.args = (tuple(node for _, node in results),)
    return [name for name, _ in weights] + inputs, [name for _, name in weights]
