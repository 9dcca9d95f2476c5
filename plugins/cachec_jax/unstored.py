"""What ``compile_xla`` gives where this package can't store what the installed JAX compiles: it is never stored."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from cachec.programs.artifact import File
from cachec.weights import WeightSet


class UnstoredProgram(File):
    """A ``jax.stages.Compiled`` that takes the weights as a tree, as an artifact that ``cachec.link`` takes.

    reason: why it can't be stored. A stage that returns it is not cached, and its outcome says so.
    """

    compiled: Any
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
        """As arrays of JAX's, in their tree; where they hang in none, a dict by name."""
        import jax

        return self._weights.unflatten(lambda weight: jax.numpy.array(weight.read()))

    def __call__(self, *inputs: Any, **named_inputs: Any) -> Any:
        """What the function returns."""
        return self.compiled(self.weights, *inputs, **named_inputs)

    def numpy(self, *inputs: Any, **named_inputs: Any) -> Any:
        """The same as NumPy's arrays."""
        import jax
        import numpy as np

        return jax.tree.map(np.asarray, self(*inputs, **named_inputs))
