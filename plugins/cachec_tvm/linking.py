"""Libraries of TVM bound to weights. Imports tvm: only ever imported when something is linked."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

import numpy as np
import tvm
from tvm import relax

from cachec.errors import LinkError
from cachec.programs.artifact import File
from cachec.weights import WeightSet


class LinkedMachine:
    """A virtual machine with its weights, copied into memory as TVM aligns it. Call it with one array an input.

    machine: TVM's, whose ``main`` takes the inputs and then the weights in the order of their names.
    """

    def __init__(self, machine: Any, weights: list[Any]) -> None:
        self.machine = machine
        self._weights = weights

    def __call__(self, *inputs: Any) -> Any:
        """Run ``main``: whatever ``numpy.asarray`` takes in, a numpy array out, or a list of them."""
        given = [tvm.runtime.tensor(np.ascontiguousarray(each)) for each in inputs]
        return _to_numpy(self.machine["main"](*given, *self._weights))


def linked(artifact: File, weights: WeightSet) -> LinkedMachine:
    """A machine for a library. Raises LinkError where it is none."""
    try:
        # TVM tells a library by the end of its name, and objects of a store have none.
        with tempfile.TemporaryDirectory(prefix="cachec-") as folder:
            path = os.path.join(folder, "program.so")
            shutil.copyfile(artifact.path, path)  # it follows links
            machine = relax.VirtualMachine(tvm.runtime.load_module(path), tvm.cpu())
    except (RuntimeError, AttributeError, ValueError, OSError) as error:
        raise LinkError(f"{artifact.path} can't be linked: {error}") from error
    return LinkedMachine(machine, [tvm.runtime.tensor(weights[name].read()) for name in sorted(weights)])


def _to_numpy(output: Any) -> Any:
    return output.numpy() if hasattr(output, "numpy") else [_to_numpy(each) for each in output]
