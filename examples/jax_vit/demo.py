"""A ViT in pure JAX: compiled once by XLA and by IREE; then other weights and another checkout, in new processes.

usage: python demo.py [FOLDER]

Copies these sources into FOLDER (by default ``.demo-vit`` in the current folder; what was there goes first), twice, as
two checkouts that share a store. Ends with status 1 where a step did not go as it should.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCES = ("config.py", "config.yaml", "layers.py", "run.py", "stages.py", "vit.py")
MISS, HIT = "miss:first-run", "hit"

#: What is done, by which road, with the weights of which seed, in which checkout, and how each of its stages ends.
STEPS = (
    ("inference, plain JAX", "plain", 0, "one", []),
    ("inference, plain JAX, tuned", "plain", 1, "one", []),
    ("compile_xla, cold", "xla", 0, "one", [MISS]),
    ("compile_xla, warm", "xla", 0, "one", [HIT]),
    ("compile_xla, tuned", "xla", 1, "one", [HIT]),
    ("compile_xla, tuned, other checkout", "xla", 1, "other", [HIT]),
    ("cachec_jax.jit, cold", "jit", 0, "one", [MISS]),
    ("cachec_jax.jit, tuned, other checkout", "jit", 1, "other", [HIT]),
    ("IREE, cold", "iree", 0, "one", [MISS, "miss:new-input"]),
    ("IREE, tuned, other checkout", "iree", 1, "other", [HIT, HIT]),
    ("training, plain JAX", "plain-train", 1, "one", []),
    ("training, cold", "train", 0, "one", [MISS]),
    ("training, other seed and checkout", "train", 1, "other", [HIT]),
)

#: Largest difference from plain JAX; XLA gives the same bits.
TOLERANCES = {"iree": 1e-4}


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".demo-vit").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    for checkout in ("one", "other"):
        (folder / checkout).mkdir(parents=True)
        for name in SOURCES:
            shutil.copyfile(HERE / name, folder / checkout / name)
    environ = {**os.environ, "CACHEC_DIR": str(folder / "cache"), "CACHEC_LOG": "off"}
    plain: dict[tuple[bool, int], list[float]] = {}
    wrong = 0
    for words, road, seed, checkout, expected in STEPS:
        ran = subprocess.run(
            [sys.executable, "run.py", road, str(seed)],
            cwd=folder / checkout,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            print(ran.stderr, file=sys.stderr)
            return 1
        told: dict[str, Any] = json.loads(ran.stdout)
        reference = plain.setdefault(("train" in road, seed), told["numbers"]) if "plain" in road else None
        reference = reference or plain.get(("train" in road, seed))
        error = max((abs(a - b) for a, b in zip(told["numbers"], reference or [], strict=bool(reference))), default=0.0)
        fine = told["outcomes"] == expected and error <= TOLERANCES.get(road, 0.0)
        wrong += not fine
        ended = ", ".join(told["outcomes"]) or "-"
        print(
            f"{words:40} {ended:32} {told['seconds']:6.2f} s  error {error:.1e}{'' if fine else '  WRONG'}", flush=True
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
