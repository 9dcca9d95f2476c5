"""A command line with other files in the place of some: weights that are synthetic, outputs that go elsewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

#: What separates a path from what stands before or behind it in an argument: ``--params=model=/w.irpa,/v.irpa``.
_PIECES = re.compile(r"([=,])")


def substituted(argv: Sequence[str], places: Mapping[str, str], cwd: str) -> tuple[list[str], set[str]]:
    """(the command line, the paths that stand in it). places: absolute path -> the one that takes its place."""
    replaced: set[str] = set()
    out = [argv[0]]
    for word in argv[1:]:
        pieces = _PIECES.split(word)
        out.append("".join(_piece(piece, places, cwd, replaced) for piece in pieces))
    return out, replaced


def _piece(piece: str, places: Mapping[str, str], cwd: str, replaced: set[str]) -> str:
    for path, other in places.items():
        real = os.path.normpath(path)
        if piece and not piece.startswith("-") and os.path.normpath(os.path.join(cwd, piece)) == real:
            replaced.add(path)
            return other
        joined = re.fullmatch(r"(-{1,2}[A-Za-z])(.+)", piece)  # -oPATH
        if joined is not None and os.path.normpath(os.path.join(cwd, joined[2])) == real:
            replaced.add(path)
            return joined[1] + other
    return piece
