"""The self-test of the plugin, which ``cachec.programs.self_tests`` runs with new releases. Imports torch."""

from __future__ import annotations

import numpy as np
import torch

import cachec_executorch
import cachec_torch
from cachec.cache import Cache
from cachec.programs.artifact import File
from cachec.programs.program import Program
from cachec.programs.self_test_checks import check_linked
from cachec.weights import WeightSet


def self_test() -> None:
    """Compile a linear layer. Raises where that does not work."""
    cache = Cache()

    @cache.stage(tools=["torch", "executorch"], isolated=False, version="1")
    def build(program: Program) -> File:
        return cachec_executorch.compile(program)

    weights = {"weight": np.arange(6, dtype="f4").reshape(3, 2), "bias": np.ones(3, "f4")}
    program = cachec_torch.to_exported(
        lambda: torch.nn.Linear(2, 3), WeightSet.from_arrays(weights), (torch.empty(2, 2),)
    )
    inputs = (np.array([[1, 2], [3, 5]], "f4"),)
    check_linked(build, program, weights, inputs, lambda arrays, x: x @ arrays["weight"].T + arrays["bias"])
