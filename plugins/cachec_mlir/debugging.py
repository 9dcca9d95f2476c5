"""Names, locations and comments in what a compiler makes or reads: refused where the key leaves them out."""

from __future__ import annotations

from collections.abc import Iterable

from cachec.errors import UsageError
from cachec.programs.program import Program


def check_unnamed(program: Program, keeping: Iterable[str]) -> None:
    """Raise UsageError where ``program`` is keyed without names and locations, and flags keep these in the result, or
    read comments (``// -----`` of --split-input-file).

    keeping: such flags, among those that the compiler is to get. With one, two programs of one key would give two
    results, and a hit the other one's names.
    """
    first = next(iter(keeping), None)
    if first is not None and program.canonical is not None:
        raise UsageError(
            f"{first} keeps names or locations of the program in the result, or reads its comments, and this program "
            "is keyed without them; make it with cachec_mlir.program(..., locations=True), or leave the flag out"
        )
