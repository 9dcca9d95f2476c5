"""Pairs of MLIR modules: cachec's hash of the topology against what MLIR itself prints of the two.

An edit of a module either is of layout, names, places or bytes of resources, which no program sees, or any change at
random. MLIR is the judge of either: two modules are one program where it prints the same of both in its generic
notation, with aliases spelt out, values numbered and locations left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from cachec.errors import CheckpointError
from cachec_mlir import topology
from cachec_mlir.live.bindings import Bindings, generic, write_bytecode
from tests.plugins.mlir import test_dialect_attributes as attributes
from tests.plugins.mlir import test_metamorphic as programs
from tests.plugins.mlir import test_topology as neutral
from tests.plugins.mlir.conftest import inline_program, program
from tests.soundness.runner import Report

#: Modules by name: a text, or what makes one by chance; and the MLIR that reads it.
SOURCES: dict[str, tuple[Callable[[random.Random], str], str]] = {
    "jax": (lambda _: programs.JAX, "jax"),
    "loops": (lambda _: programs.LOOPS, "iree"),
    "signatures": (lambda _: programs.SIGNATURES, "iree"),
    "control flow": (lambda _: neutral.CONTROL_FLOW, "iree"),
    "resources": (lambda r: program(r.randrange(9)), "iree"),
    "inline constants": (lambda r: inline_program(r.randrange(9)), "iree"),
    "dialect attributes": (attributes.module, "iree"),
    "dialect attributes of jax": (attributes.module, "jax"),
}

Edit = Callable[[str, random.Random], str]
#: Edits that no program sees.
NEUTRAL: list[Edit] = [*neutral.SAME, attributes.layout]


def twice(text: str, r: random.Random) -> str:
    return programs.mutated(programs.mutated(text, r), r)


def spaced(text: str, r: random.Random) -> str:
    return neutral.spaces(programs.mutated(text, r), r)


#: Any changes.
ANY: list[Edit] = [programs.mutated, attributes.letters, programs.mutated, twice, spaced]


class Module:
    """A text as one MLIR reads it. Raises CheckpointError where it does not."""

    def __init__(self, text: str, through: str) -> None:
        self.text, self.through = text, through
        self.live = Bindings(through).parse(text.encode())
        self.printed = generic(self.live)

    def by_text(self) -> str:
        return topology(self.text.encode())

    def by_bindings(self) -> str:
        return topology(self.text.encode(), bindings=self.through)

    def by_bytecode(self, folder: Path) -> str:
        path = folder / "m.mlirbc"
        write_bytecode(self.live, path)
        return topology(path, bindings=self.through)


def run_modules(seed: int, folder: Path) -> Iterator[Report]:
    """Reports without end, one for each module with some edits: two hashes of each pair, a third now and then."""
    rng = random.Random(seed)
    while True:
        for name, (make, through) in SOURCES.items():
            try:
                module = Module(make(rng), through)
            except CheckpointError:
                continue  # made by chance, and no module
            report = Report(projects=1)
            for change in (*rng.sample(NEUTRAL, 3), *ANY):
                other = _changed(module, change, rng)
                if other is not None:
                    _compare(report, f"{name} / {change.__name__}", module, other, folder, rng)
            yield report


def _changed(module: Module, change: Edit, rng: random.Random) -> Module | None:
    """An edited module; None where a few tries gave none, or the same text."""
    for _ in range(6):
        text = change(module.text, rng)
        if text != module.text:
            with suppress(CheckpointError):  # MLIR can't read it
                return Module(text, module.through)
    return None


def _compare(report: Report, name: str, one: Module, other: Module, folder: Path, rng: random.Random) -> None:
    report.cases += 1
    is_one = one.printed == other.printed
    report.neutral += is_one
    ways: dict[str, Callable[[Module], str]] = {"by text": Module.by_text, "through bindings": Module.by_bindings}
    if rng.random() < 0.2:
        ways["by bytecode"] = lambda module: module.by_bytecode(folder)
    for way, hashed in ways.items():
        report.looks += 1
        try:
            is_hit = hashed(one) == hashed(other)
        except CheckpointError as error:
            report.refused.append(f"{name}, {way}: {error}")
            continue
        report.hits += is_hit
        if is_hit != is_one:
            said = "one hash, and MLIR prints two programs" if is_hit else "two hashes of what MLIR prints alike"
            found = report.wrong if is_hit else report.needless
            found.append(f"{name}, {way}: {said}:\n{one.text}\n---\n{other.text}")
