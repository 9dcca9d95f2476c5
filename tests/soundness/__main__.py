"""``make soundness``: run many generated cases. ``python -m tests.soundness 20000 --seed 7``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.soundness.cases import cases
from tests.soundness.runner import run


def _memory() -> str | None:
    """Where files cost nothing, if there is such a place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soundness")
    parser.add_argument("count", type=int, nargs="?", default=1500, help="cases; each is looked at up to eight times")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--servers", type=int, default=2, help="processes at a time")
    given = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soundness-", dir=_memory()) as folder:
        report = run(cases(given.seed, given.count), Path(folder), servers=given.servers)
    print(report.text())
    print(f"{given.count} cases, seed {given.seed}, {time.monotonic() - started:.0f} s")
    return 1 if report.wrong or report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
