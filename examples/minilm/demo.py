"""``make demo``: a real model compiled once, then never again until something that matters changes.

usage: python demo.py [FOLDER]

Works on a copy of this folder's sources in FOLDER (``.demo/`` in the project), whose helper it edits, with a cache of
its own there; what was in FOLDER goes first. Ends with status 1 where a step did not go as it should.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachec.cli.screen import print_table

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

HERE = Path(__file__).resolve().parent
DEMO = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent.parent / ".demo"
SOURCES = ("checkpoint.py", "layers.py", "model.py", "pipeline.py", "stages.py")

SENTENCES = (
    "A cat is sleeping on the warm windowsill.",
    "The central bank raised interest rates again.",
    "A kitten naps in the sun by the window.",
    "Inflation worries are weighing on the markets.",
    "She scored the winning goal in the last minute.",
    "The striker decided the match just before the whistle.",
)

#: Largest difference allowed between a cached and an uncached compile.
TOLERANCE = 1e-4

#: Characters of a reason in the table; ``cachec why`` tells all of it.
SHOWN = 200


class StepError(Exception):
    """A step did not go as it should."""


@dataclass
class Row:
    """One line of the table: what was done, how each stage ended, why, and how long until it was linked."""

    step: str
    outcome: str
    reasons: list[str]
    seconds: float


class Demo:
    """Runs the steps in order and collects their rows."""

    def __init__(self, console: Any) -> None:
        self._console = console
        self.rows: list[Row] = []

    def step(self, title: str, expected: Mapping[str, str], run: Callable[[], Any]) -> Any:
        """Run one step. expected: stage -> the reason that its outcome must have. Raises StepError otherwise."""
        with self._console.status(title):
            done = run()
        found = {stage: each.reason.value for stage, each in done.outcomes.items()}
        missed = [each for each in done.outcomes.values() if not each.hit]
        self.rows.append(
            Row(
                title,
                "hit"
                if not missed
                else ", ".join(f"{name} {each.reason.kind}" for name, each in done.outcomes.items() if not each.hit),
                [f"{each.reason.value.partition(':')[2]}: {each.detail}" for each in missed],
                done.seconds,
            )
        )
        if found != dict(expected):
            raise StepError(f"{title}: expected {dict(expected)}, found {found}: {self.rows[-1].reasons}")
        return done

    def expect(self, claim: str, holds: bool) -> None:
        """Raise StepError unless it holds."""
        if not holds:
            raise StepError(claim)


HIT = {"lower": "hit", "build": "hit"}


@dataclass
class Ended:
    """A run in a new process. seconds: from before its start until it was linked, interpreter and all."""

    outcomes: dict[str, Any]
    seconds: float
    imported: list[str]
    embeddings: Array


def new_process(source: Path, checkpoint: Path, sentences: Path) -> Ended:
    """The pipeline in a new process."""
    import numpy as np

    from cachec import Outcome, Reason

    command = [sys.executable, str(source / "pipeline.py"), str(checkpoint), str(sentences)]
    start = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    outcomes = {
        stage: Outcome(reason=Reason(reason), stage=stage, key="", detail=detail)
        for stage, (reason, detail) in found["outcomes"].items()
    }
    return Ended(outcomes, found["linked"] - start, found["imported"], np.array(found["embeddings"], np.float32))


def perturbed(weights: Any, path: Path, only: str | None = None) -> Path:
    """Write a checkpoint with every tensor (or only one) changed a little, one tensor in memory at a time.

    Format: https://github.com/huggingface/safetensors (README, "Format"). The data starts at a multiple of 64 bytes,
    so IREE uses it in place.
    """
    import numpy as np

    header, offset = {}, 0
    for name, spec in weights.specs.items():
        header[name] = {"dtype": "F32", "shape": spec.shape, "data_offsets": [offset, offset + spec.nbytes]}
        offset += spec.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    noise = np.random.default_rng(0)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, weight in weights.items():
            values = weight.read()
            if only in (None, name):
                values = values * (1 + 0.05 * noise.standard_normal(values.shape, np.float32))
            file.write(values.astype(np.float32).tobytes())
    return path


def edit(path: Path, old: str, new: str) -> None:
    """Replace the one place where ``old`` stands."""
    text = path.read_text()
    if text.count(old) != 1:
        raise StepError(f"{path.name}: {old!r} stands there {text.count(old)} times, not once")
    path.write_text(text.replace(old, new))


def neighbours(embeddings: Array) -> list[tuple[str, str, float]]:
    """Each sentence, the nearest other one, and the cosine of the angle between them."""
    import numpy as np

    likeness = embeddings @ embeddings.T
    np.fill_diagonal(likeness, -1)
    return [(SENTENCES[i], SENTENCES[row.argmax()], float(row.max())) for i, row in enumerate(likeness)]


def main() -> int:
    """Run the ten steps; 0 if all went as they should."""
    from rich.console import Console

    shutil.rmtree(DEMO, ignore_errors=True)
    source = DEMO / "source"
    source.mkdir(parents=True)
    for name in SOURCES:
        shutil.copy(HERE / name, source)
    # Here and for the new processes: an own, empty cache, and JAX as it is without settings.
    os.environ["CACHEC_DIR"] = str(DEMO / "cache")
    os.environ["CACHEC_LOG"] = "off"
    sys.path[0] = str(source)
    demo = Demo(Console())
    try:
        steps(demo, source)
    except StepError as error:
        show_steps(demo.rows)
        print(f"not as it should be: {error}")
        return 1
    show_steps(demo.rows)
    print(f"\nTo look into the cache: {command('stats')}; then docs/reference/commands.md")
    return 0


def command(words: str) -> str:
    """What to type in the current folder for the cache of the demo."""
    program, store = (
        os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
        for path in (Path(sys.executable).with_name("cachec"), DEMO.absolute() / "cache")
    )
    return f"{shlex.quote(program)} --dir {shlex.quote(store)} {words}"


def steps(demo: Demo, source: Path) -> None:
    """The main job, step by step."""
    import numpy as np
    from checkpoint import folder, open_checkpoint, tokenize
    from pipeline import LENGTH, compiled, compiled_uncached
    from stages import SEGMENT

    checkpoint = folder() / "model.safetensors"
    weights = open_checkpoint(checkpoint)
    batch = len(SENTENCES)
    ids, mask = tokenize(SENTENCES, LENGTH)
    sentences = DEMO / "sentences.json"
    sentences.write_text(json.dumps(SENTENCES))
    new = "miss:new-input"

    cold = demo.step("1 cold", {"lower": new, "build": new}, lambda: compiled(weights, batch))
    numbers = cold.embed(ids, mask)
    show_likeness(numbers)
    demo.step("2 warm, same process", HIT, lambda: compiled(open_checkpoint(checkpoint), batch))

    warm = demo.step("3 warm, new process", HIT, lambda: new_process(source, checkpoint, sentences))
    demo.expect("a hit in a new process imports neither JAX nor the compiler", not warm.imported)
    demo.expect("the new process has the same numbers", np.allclose(warm.embeddings, numbers, rtol=0, atol=TOLERANCE))

    tuned = open_checkpoint(perturbed(weights, DEMO / "tuned.safetensors"))
    other = demo.step("4 a second weight set", HIT, lambda: compiled(tuned, batch)).embed(ids, mask)
    error = float(np.abs(other - compiled_uncached(tuned, batch)(ids, mask)).max())
    moved = float(np.abs(other - numbers).max())
    demo.expect(f"equal to an uncached compile within {TOLERANCE}, found {error:.2g}", error <= TOLERANCE)
    demo.expect(f"other numbers than the first weights, found {moved:.2g}", moved > 100 * TOLERANCE)
    demo.rows[-1].reasons.append(f"its own numbers: {moved:.2g} from the first, {error:.1g} from an uncached compile")

    shorter = weights.select(exclude=["encoder.layer.5.*"])
    demo.step(
        "5 one layer fewer",
        {"lower": "miss:weight-spec-changed", "build": "miss:topology-changed"},
        lambda: compiled(shorter, batch),
    )
    demo.step(
        "6 an option changed",
        {"lower": "hit", "build": "miss:option-changed"},
        lambda: compiled(weights, batch, options=("--iree-opt-level=O1",)),
    )

    edit(source / "layers.py", "(batch, seq), jnp.int32)", '(batch, seq), jnp.dtype("int32"))')
    demo.step(
        "7 a helper edited",
        {"lower": "miss:code-changed", "build": "hit"},
        lambda: new_process(source, checkpoint, sentences),
    )
    demo.rows[-1].reasons.append("the program came out equal, so its build hits")
    edit(source / "layers.py", '"""Shapes and dtypes of', "# what tracing needs\n    " + '"""The shapes and dtypes of')
    demo.step("8 a comment in it edited", HIT, lambda: new_process(source, checkpoint, sentences))

    folded = {"lower": "hit", "fold_segment": new, "build": "miss:topology-changed"}
    demo.step("9 a stage reads a weight", folded, lambda: compiled(weights, batch, fold=True))
    read = open_checkpoint(perturbed(weights, DEMO / "read.safetensors", SEGMENT))
    demo.step(
        "  that weight changed",
        {"lower": "hit", "fold_segment": "miss:weight-content-changed", "build": "miss:topology-changed"},
        lambda: compiled(read, batch, fold=True),
    )
    another = "encoder.layer.0.output.dense.weight"
    unread = open_checkpoint(perturbed(weights, DEMO / "unread.safetensors", another))
    demo.step("  another one changed", {**HIT, "fold_segment": "hit"}, lambda: compiled(unread, batch, fold=True))

    import jax

    jax.config.update("jax_enable_x64", True)
    demo.step(
        "10 jax_enable_x64 flipped",
        {"lower": "miss:ambient-changed", "build": "hit"},
        lambda: compiled(weights, batch),
    )


def show_likeness(embeddings: Array) -> None:
    """Print the nearest sentences."""
    print("nearest sentences (MiniLM-L6, compiled by IREE)\n")
    rows = [(sentence, f"{cosine:.2f}", f"nearest: {other}") for sentence, other, cosine in neighbours(embeddings)]
    print_table(("sentence", "cosine", "nearest other"), rows, right=("cosine",), detail="nearest other")


def show_steps(rows: list[Row]) -> None:
    """Print the steps."""
    print("\nsteps\n")
    cells = [
        (
            row.step,
            f"{row.seconds * 1e3:.1f} ms" if row.seconds < 1 else f"{row.seconds:.2f} s",
            row.outcome,
            "\n".join(reason if len(reason) <= SHOWN else reason[:SHOWN] + " …" for reason in row.reasons),
        )
        for row in rows
    ]
    print_table(("step", "until linked", "outcome", "reason"), cells, right=("until linked",), detail="reason")


if __name__ == "__main__":
    sys.exit(main())
