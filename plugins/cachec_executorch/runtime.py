"""Programs linked to weights, run by ExecuTorch's Python runtime. Imports torch and that runtime, but no compiler."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from cachec.errors import LinkError
from cachec.programs.artifact import File
from cachec.programs.supported_versions import version_of
from cachec.weights import WeightSet
from cachec_executorch.ptd_writer import tensor_data
from cachec_executorch.pte_file import MethodForm, read_file
from cachec_torch.calls import ValueForm, taken_inputs
from cachec_torch.runtime import from_numpy
from cachec_torch.shim import Block
from cachec_torch.tensors import as_array, from_torch, tensor_at
from cachec_torch.trees import built, leaves_of


def link(file: File, weights: WeightSet) -> LinkedMethod:
    """Link a program to weights. Raises LinkError if it does not fit the runtime or the weights."""
    _, form = read_file(file.path)
    found = version_of("executorch")
    if not found:
        raise LinkError("executorch is not installed; install it with: pip install 'cachec[executorch]'")
    if form.executorch != found:
        raise LinkError(f"{file!r} was lowered by executorch {form.executorch}; this one is {found}")
    return LinkedMethod(file, form, weights)


class LinkedMethod:
    """A program linked to weights. Call it like the module, with the module's trees of inputs and results.

    It takes and returns NumPy arrays (of ml_dtypes for bfloat16 and float8). ``torch()`` returns the same function for
    tensors of torch. The weights are copied once, to a file in memory that ExecuTorch maps. A buffer that is not a
    weight keeps its value from call to call. Calls from several threads wait for one another.
    """

    def __init__(self, file: File, form: MethodForm, weights: WeightSet) -> None:
        # The public module around it (portable_lib) imports the whole compiler.
        from executorch.extension.pybindings import _C

        self._form = form
        self._lock = threading.Lock()
        data = _in_memory(form, weights)
        try:
            # ExecuTorch refuses a file without weights.
            weights_path = f"/proc/self/fd/{data}" if form.names else None
            self._module = _C._load_for_executorch(str(file.path), weights_path)
            (self._name,) = self._module.method_names()
            meta = self._module.method_meta(self._name)
            taken, given = meta.num_inputs(), meta.num_outputs()
        except (RuntimeError, ValueError) as error:
            raise LinkError(f"{file.path} can't be linked: {error}") from error
        finally:
            os.close(data)
        if (taken, given) != (len(form.inputs), len(form.outputs)):
            raise LinkError(
                f"{file.path} takes {taken} inputs and gives {given}; expected {len(form.inputs)}, {len(form.outputs)}"
            )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises UsageError for arguments of another tree, shape or dtype than the program's, or beyond its ranges."""
        return self._run(args, kwargs, from_numpy, as_array)

    def torch(self) -> Callable[..., Any]:
        """Return the function for tensors of torch on the CPU."""
        return lambda *args, **kwargs: self._run(args, kwargs, from_torch, lambda tensor: tensor)

    def _run(self, args: Any, kwargs: Any, take: Callable[..., Block], give: Callable[[Any], Any]) -> Any:
        form = self._form
        if form.arguments is None or form.results is None:
            raise LinkError("the program has no description of its trees")
        leaves = list(leaves_of(form.arguments, (args, kwargs), "arguments"))
        tensors = iter([tensor_at(block) for block in taken_inputs(form, leaves, take)])
        inputs = [each.value if isinstance(each, ValueForm) else next(tensors) for each in form.inputs]
        with self._lock:
            results = self._module.run_method(self._name, inputs)
        values = (
            each.value if isinstance(each, ValueForm) else give(result)
            for each, result in zip(form.outputs, results, strict=True)
        )
        return built(form.results, values)


def _in_memory(form: MethodForm, weights: WeightSet) -> int:
    """Return the descriptor of a file in memory with the ``.ptd``."""
    file = os.memfd_create("weights.ptd", os.MFD_CLOEXEC)
    try:
        for piece in tensor_data(form, weights):
            remaining = piece
            while remaining.nbytes:
                remaining = remaining[os.write(file, remaining) :]
    except BaseException:
        os.close(file)
        raise
    return file
