"""``make soundness``: run many generated cases. ``python -m tests.soundness 20000 --seed 7``."""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.soundness.cases import projects
from tests.soundness.runner import run


def _folders(given: list[Path]) -> list[Path]:
    """Where projects are put: on a disk, and in memory if there is such a place."""
    memory = Path("/dev/shm")
    return given or [Path(tempfile.gettempdir()), *([memory] if os.access(memory, os.W_OK) else [])]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soundness")
    parser.add_argument("count", type=int, nargs="?", default=1500, help="cases (see runner.py for what is one)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--servers", type=int, default=2, help="processes at a time")
    parser.add_argument("--folder", type=Path, action="append", default=[], help="where projects are put; repeatable")
    given = parser.parse_args()
    started = time.monotonic()
    with ExitStack() as made:
        folders = [
            Path(made.enter_context(tempfile.TemporaryDirectory(prefix="soundness-", dir=each)))
            for each in _folders(given.folder)
        ]
        report = run(projects(given.seed), given.count, folders, servers=given.servers)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"Python {sys.version.split()[0]}, seed {given.seed}")
    print(report.text())
    print(f"{time.monotonic() - started:.0f} s, {spent.ru_utime + spent.ru_stime:.0f} s of the processor")
    return 1 if report.wrong or report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
