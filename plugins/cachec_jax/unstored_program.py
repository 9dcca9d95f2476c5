"""The result of ``compile_xla`` if this package can't store programs of the installed JAX. It is never stored."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from cachec.programs.artifact import File
from cachec.weights import WeightSet


class UnstoredProgram(File):
    """A ``jax.stages.Compiled`` that takes the weights as a tree, as an artifact that ``cachec.link`` takes.

    A stage that returns it is not cached, and its outcome has the reason.
    """

    #: The ``jax.stages.Compiled``.
    compiled: Any
    #: Why it can't be stored.
    reason: str

    def __init__(self, compiled: Any, reason: str, *, kind: str, weights: WeightSet) -> None:
        super().__init__(Path("unstored.xla"), kind=kind, manifest=weights.manifest)
        self.__dict__.update(compiled=compiled, reason=reason)


class UnstoredFunction:
    """An ``UnstoredProgram`` bound to weights, called as an ``XlaFunction`` is."""

    def __init__(self, compiled: Callable[..., Any], weights: WeightSet) -> None:
        self.compiled = compiled
        self._weights = weights

    @cached_property
    def weights(self) -> Any:
        """The weights as arrays of JAX, in their tree, or as a dict by name if they have no tree."""
        import jax

        return self._weights.unflatten(lambda weight: jax.numpy.array(weight.read()))

    def __call__(self, *inputs: Any, **named_inputs: Any) -> Any:
        """Run the program, and return the function's result."""
        return self.compiled(self.weights, *inputs, **named_inputs)

    def numpy(self, *inputs: Any, **named_inputs: Any) -> Any:
        """The same result as NumPy arrays."""
        import jax
        import numpy as np

        return jax.tree.map(np.asarray, self(*inputs, **named_inputs))
