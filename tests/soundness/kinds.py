"""The kinds of cases beside projects: what each needs, and how much of a run is of it."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

from tests.soundness.runner import Report

#: The kinds, each with its share of a run: what a case costs differs by a factor of a hundred.
SHARES = {
    "projects": 64,
    "looks": 15,
    "races": 4,
    "hands": 2,
    "weights": 8,
    "modules": 4,
    "commands": 2,
    "toys": 4,
    "jax": 1,
    "isolated": 4,
}
#: For each: a module, a function of a seed and a folder that yields reports without end, and packages that it needs.
_KINDS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "looks": ("tests.soundness.looks", "run_looks", ()),
    "races": ("tests.soundness.races", "run_races", ("safetensors",)),
    "hands": ("tests.soundness.hands", "run_hands", ()),
    "weights": ("tests.soundness.weights", "run_weights", ()),
    "modules": ("tests.soundness.modules", "run_modules", ("jaxlib", "iree", "pytest", "hypothesis")),
    "commands": ("tests.soundness.commands", "run_commands", ()),
    "toys": ("tests.soundness.toys", "run_toys", ()),
    "isolated": ("tests.soundness.isolated", "run_isolated", ()),
    "jax": ("tests.soundness.jax_programs", "run_jax", ("jax",)),
}


def missing(kind: str) -> str:
    """Packages that a kind needs and that are not installed; empty for none."""
    needs = _KINDS[kind][2] if kind in _KINDS else ()
    return ", ".join(each for each in needs if importlib.util.find_spec(each) is None)


def run_kind(kind: str, seed: int, count: int, folder: Path) -> Report:
    """As many programs of a kind as it takes for ``count`` cases."""
    module, name, _ = _KINDS[kind]
    total = Report()
    reports = getattr(importlib.import_module(module), name)(seed, folder)
    for report in reports:
        total.add(report)
        if total.cases >= count:
            break
    reports.close()
    return total
