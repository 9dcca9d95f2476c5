"""Warnings about arguments whose key may not be what their author means; only on a miss."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from cachec.base.callers import warn_caller
from cachec.key.argument_info import ArgumentInfo
from cachec.key.arguments import path_like_text
from cachec.key.stage_options import StageOptions
from cachec.weights import WeightSet


def warn_on_miss(
    options: StageOptions, arguments: Mapping[str, Any], inventory: ArgumentInfo, annotations: Mapping[str, Any]
) -> None:
    """Warn of large plain arrays (hashed at every call), once an argument, of text that names a file, and of a dict
    where weights are asked for. annotations: of the stage's function."""
    for name, value in arguments.items():
        wanted = annotations.get(name)
        if isinstance(value, dict) and (wanted is WeightSet or str(wanted).rpartition(".")[2] == "WeightSet"):
            warn_caller(
                f"stage {options.name}: argument {name} is a dict, and annotated as a WeightSet; pass "
                f"cachec.WeightSet.from_tree({name}), which is keyed by names"
            )
    for name, (count, nbytes) in inventory.large.items():
        warn_caller(
            f"stage {options.name}: {name}: {count} {'array' if count == 1 else 'arrays'}, {nbytes / 1e6:.0f} MB, "
            "keyed by content; pass a WeightSet to key them by name (cachec.open_weights, WeightSet.from_tree)"
        )
    texts = {} if options.isolated else {k: v for k, v in arguments.items() if k not in options.ignore}
    for name in path_like_text(texts):  # what an isolated stage opens counts
        warn_caller(
            f"stage {options.name}: argument {name}={arguments[name]!r} names a file but is a str, so it is "
            "keyed by its text; pass pathlib.Path or cachec.File to key it by content"
        )


def warn_unrepeatable(stage: str, reads: Collection[str]) -> None:
    """Warn of what a run looked at and no later look can see alike."""
    warn_caller(
        f"stage {stage}: its run looked at {', '.join(sorted(reads)[:3])}, which can't be read again alike, so a hit "
        "takes no notice of it; pass what it gives as an argument"
    )


def undeclared_program(program: str, module: str, place: str) -> str:
    """Why nothing is stored of a run that used a program outside of ``cachec.run``.

    program: a path, a name, or words for a process or pool. module, place: the code that used it; may be empty.
    """
    by = f"{module} ({place}) " if module else "it "
    if program.startswith("a "):  # words of ``recording.unobserved_processes``
        used, way_out = program, "do the work in this process, or in a ThreadPoolExecutor"
    else:
        used, way_out = repr(program), "start it by cachec.run(command, inputs=[...])"
    return f"{by}used {used}: {way_out}, or pass its result as an argument; cachec does not see what it reads"


def warn_undeclared_program(stage: str, program: str) -> None:
    """Warn of a stage of which nothing is stored, as a program or process works for it."""
    warn_caller(f"stage {stage} is not stored: {program}")
