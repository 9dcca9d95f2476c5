"""Warnings about arguments that work but are keyed in a way that their author may not mean; only ever on a miss."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Mapping
from typing import Any

from cachec.base.distributions import OWN_FOLDER
from cachec.errors import CachecWarning
from cachec.key.arguments import path_like_text
from cachec.key.inventory import Inventory
from cachec.key.options import StageOptions
from cachec.weights import WeightSet


def warn_on_miss(
    options: StageOptions, arguments: Mapping[str, Any], inventory: Inventory, annotations: Mapping[str, Any]
) -> None:
    """Warn of large plain arrays (hashed at every call), once an argument, of text that names a file, and of a dict
    where weights are asked for. annotations: of the stage's function."""
    for name, value in arguments.items():
        wanted = annotations.get(name)
        if isinstance(value, dict) and (wanted is WeightSet or str(wanted).rpartition(".")[2] == "WeightSet"):
            _warn(
                f"stage {options.name}: argument {name} is a dict, and annotated as a WeightSet; pass "
                f"cachec.WeightSet.from_tree({name}), which is keyed by names"
            )
    for name, (count, nbytes) in inventory.large.items():
        _warn(
            f"stage {options.name}: {name}: {count} {'array' if count == 1 else 'arrays'}, {nbytes / 1e6:.0f} MB, "
            "keyed by content; pass a WeightSet to key them by name (cachec.open_weights, WeightSet.from_tree)"
        )
    texts = {} if options.isolated else {k: v for k, v in arguments.items() if k not in options.ignore}
    for name in path_like_text(texts):  # what an isolated stage opens counts
        _warn(
            f"stage {options.name}: argument {name}={arguments[name]!r} names a file but is a str, so it is "
            "keyed by its text; pass pathlib.Path or cachec.File to key it by content"
        )


def warn_unrepeatable(stage: str, seen: Collection[str]) -> None:
    """Warn of what a run looked at and no later look can see alike."""
    _warn(
        f"stage {stage}: its run looked at {', '.join(sorted(seen)[:3])}, which can't be read again alike, so a hit "
        "takes no notice of it; pass what it gives as an argument"
    )


def undeclared_program(program: str, module: str, place: str) -> str:
    """Why nothing is stored of a run that used a program outside of ``cachec.run``.

    program: a path, a name, or words for a process or pool. module, place: the code that used it; may be empty.
    """
    by = f"{module} ({place}) " if module else "it "
    if program.startswith("a "):  # words of ``recording.processes``
        used, way_out = program, "do the work in this process, or in a ThreadPoolExecutor"
    else:
        used, way_out = repr(program), "start it by cachec.run(command, inputs=[...])"
    return f"{by}used {used}: {way_out}, or pass its result as an argument; cachec does not see what it reads"


def warn_undeclared_program(stage: str, said: str) -> None:
    """Warn of a stage of which nothing is stored, as a program or process works for it."""
    _warn(f"stage {stage} is not stored: {said}")


def warn_unstorable(stage: str, said: str) -> None:
    """Warn of a stage of which nothing is stored, as its result has no stored form; Python tells it once."""
    _warn(f"stage {stage} is not stored: {said}")


def _warn(message: str) -> None:
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OWN_FOLDER):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, CachecWarning, stacklevel=level)
