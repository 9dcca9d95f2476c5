"""Libraries of TVM bound to weights. Imports tvm: only ever imported when something is linked."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from cachec.errors import LinkError
from cachec.programs.artifact import File
from cachec.programs.supported_versions import version_of
from cachec.weights import WeightSet
from cachec_torch.calls import ValueForm, taken_inputs
from cachec_torch.runtime import from_numpy
from cachec_torch.shim import Block
from cachec_torch.trees import built, leaves_of
from cachec_tvm.library_file import MachineForm, read_file


class LinkedMachine:
    """A virtual machine with its weights, copied into TVM's aligned memory. Call it with one array for each input.

    machine: its ``main`` takes the inputs, and then the weights, sorted by name.
    """

    def __init__(self, machine: Any, weights: list[Any]) -> None:
        self.machine = machine
        self._weights = weights

    def __call__(self, *inputs: Any) -> Any:
        """Run ``main`` with arguments for ``numpy.asarray``. Returns a NumPy array, or a list of them."""
        given = [tvm.runtime.tensor(np.ascontiguousarray(each)) for each in inputs]
        return _to_numpy(self.machine["main"](*given, *self._weights))


class LinkedExport:
    """A program of torch linked to weights. Call it like the module, with the module's trees of inputs and results.

    It takes and returns NumPy arrays (of ml_dtypes for bfloat16). ``torch()`` returns the same function for tensors of
    torch. Calls from several threads wait for one another.

    machine: its ``main`` takes the weights, copied into TVM's aligned memory, and then the tensors.
    """

    def __init__(self, machine: Any, form: MachineForm, weights: list[Any]) -> None:
        self.machine = machine
        self._form = form
        self._weights = weights
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises UsageError for arguments of another tree, shape or dtype than the program's, or beyond its ranges."""
        return self._run(args, kwargs, from_numpy, lambda block: block.keeps, lambda array: array)

    def torch(self) -> Callable[..., Any]:
        """Return the function for tensors of torch on the CPU. Imports torch."""
        from cachec_torch.tensors import as_array, from_torch, tensor_at

        def give(array: Any) -> Any:
            return tensor_at(from_numpy(array, (), 0))

        return lambda *args, **kwargs: self._run(
            args, kwargs, from_torch, lambda block: as_array(tensor_at(block)), give
        )

    def _run(
        self,
        args: Any,
        kwargs: Any,
        take: Callable[..., Block],
        array: Callable[[Block], Any],
        give: Callable[[Any], Any],
    ) -> Any:
        form = self._form
        if form.arguments is None or form.results is None:
            raise LinkError("the library has no description of its trees")
        leaves = list(leaves_of(form.arguments, (args, kwargs), "arguments"))
        given = [
            tvm.runtime.tensor(np.ascontiguousarray(array(block)).reshape(block.shape))
            for block in taken_inputs(form, leaves, take)
        ]
        with self._lock:
            results = iter([give(each.numpy()) for each in self.machine["main"](*self._weights, *given)])
        values = (each.value if isinstance(each, ValueForm) else next(results) for each in form.outputs)
        return built(form.results, values)


def link(artifact: File, weights: WeightSet) -> LinkedMachine:
    """Return a machine for a file of kind ``tvm:library``. Raises LinkError for another file."""
    return LinkedMachine(_machine(artifact.path), [_tensor(weights, name) for name in sorted(weights)])


def link_export(artifact: File, weights: WeightSet) -> LinkedExport:
    """Return a machine for a file of kind ``tvm:exported``.

    Raises LinkError for another file, another release of TVM, and weights that do not fit.
    """
    _, form = read_file(artifact.path)
    found = version_of("apache-tvm")
    if form.tvm != found:
        raise LinkError(f"{artifact!r} was compiled with TVM {form.tvm}; this one is {found}")
    strange = sorted(set(form.weights) - weights.keys())
    if strange:
        raise LinkError(f"the library needs {strange[0]!r}, and there is no such weight")
    tensors = {name: _tensor(weights, name) for name in sorted(set(form.weights))}
    return LinkedExport(_machine(artifact.path), form, [tensors[name] for name in form.weights])


def _machine(library: Path) -> Any:
    try:
        # TVM recognises a library by its suffix, and objects of a store have none.
        with tempfile.TemporaryDirectory(prefix="cachec-") as folder:
            path = os.path.join(folder, "program.so")
            shutil.copyfile(library, path)  # it follows links
            return relax.VirtualMachine(tvm.runtime.load_module(path), tvm.cpu())
    except (RuntimeError, AttributeError, ValueError, OSError) as error:
        raise LinkError(f"{library} can't be linked: {error}") from error


def _tensor(weights: WeightSet, name: str) -> Any:
    return tvm.runtime.tensor(weights[name].read())


def _to_numpy(output: Any) -> Any:
    return output.numpy() if hasattr(output, "numpy") else [_to_numpy(each) for each in output]
