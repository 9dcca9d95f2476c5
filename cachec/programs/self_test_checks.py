"""What self-tests of plugins ask of a library: a hit after a miss, and the numbers of the weights that are linked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from cachec.errors import PluginError
from cachec.model import Outcome
from cachec.programs.linker import link
from cachec.programs.program import Program
from cachec.weights import WeightSet


class TestedStage(Protocol):
    """A stage, as far as self-tests call it; ``cachec.stage.decorator.Stage`` is one."""

    def call(self, /, *arguments: Any, **named: Any) -> tuple[Any, Outcome]: ...


def call_twice(stage: TestedStage, *arguments: Any) -> tuple[Any, Any]:
    """The results of a miss and of a hit of a stage. Raises PluginError where the calls are something else."""
    (cold, first), (warm, second) = (stage.call(*arguments) for _ in range(2))
    found = first.reason.kind, second.reason.kind
    if found != ("miss", "hit"):
        details = f"{first.detail}; {second.detail}"
        raise PluginError(f"two calls of {first.stage} were {found}, expected a miss and a hit: {details}")
    return cold, warm


def check_numbers(found: Any, expected: Any) -> None:
    """Raise PluginError unless two arrays are equal but for rounding."""
    if np.shape(found) != np.shape(expected) or not np.allclose(found, expected, rtol=1e-4, atol=1e-5):
        raise PluginError(f"the numbers are {np.asarray(found).ravel()[:4]}, expected {np.ravel(expected)[:4]}")


def check_linked(
    build: TestedStage, program: Program, weights: Mapping[str, Any], inputs: Any, expected: Callable[..., Any]
) -> None:
    """Compile a program twice, link both results to two weight sets, and compare what they compute.

    build: a stage, from the program to what is linked. expected: of the arrays of a weight set by name, and the inputs.
    """
    for artifact in call_twice(build, program):
        for factor in (1, 3):
            arrays = {name: array * array.dtype.type(factor) for name, array in weights.items()}
            run = link(artifact, WeightSet.from_arrays(arrays))
            check_numbers(run(*inputs), expected(arrays, *inputs))
