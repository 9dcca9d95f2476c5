"""The command line, against the start of Python itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench.harness import Row, interleaved, sparse_checkpoint
from bench.processes import _STAGE, _command, cpu_of_children, environment

#: What a person types, and at how many times a bare Python it is to answer.
_COMMANDS = {
    "--help": ["--help"],
    "ls": ["ls"],
    "stats": ["stats"],
    "check": ["check", "--input", "in.txt", "--output", "out.txt", "--", "cp", "in.txt", "out.txt"],
}
_BAR = 5.0


def run(folder: Path, *, scale: float = 1.0) -> list[Row]:
    """scale: share of the full number of rounds."""
    store, script = folder / "cache", folder / "stage_script.py"
    checkpoint = sparse_checkpoint(folder / "w.safetensors", 200, 1 << 30)
    script.write_text(_STAGE)
    (folder / "in.txt").write_text("text")
    environ = environment(CACHEC_DIR=str(store))
    subprocess.run(_command(script, store, checkpoint, folder / "ran"), check=True, capture_output=True, env=environ)
    entry = os.path.join(os.path.dirname(sys.executable), "cachec")
    tasks = {name: [sys.executable, entry, *args] for name, args in _COMMANDS.items()}
    executed = [sys.executable, entry, "exec", *_COMMANDS["check"][1:]]
    subprocess.run(executed, cwd=folder, env=environ, check=True, capture_output=True)
    tasks["bare"] = [sys.executable, "-c", "pass"]
    times = interleaved(
        {
            name: lambda command=command: subprocess.run(
                command, check=True, capture_output=True, cwd=folder, env=environ
            )
            for name, command in tasks.items()
        },
        max(2, int(21 * scale)),
        clock=cpu_of_children,
    )
    bare = times.pop("bare")
    return [
        Row(
            f"cachec {name}",
            seconds * 1e3,
            "ms CPU",
            f"<= {_BAR:g}x python -c pass",
            seconds <= _BAR * bare,
            f"python -c pass {bare * 1e3:.0f} ms",
            seconds / bare,
        )
        for name, seconds in times.items()
    ]
