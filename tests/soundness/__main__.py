"""``make soundness``: run many generated cases. ``python -m tests.soundness 20000 --seed 7 --kind projects,jax``."""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.soundness.cases import projects
from tests.soundness.kinds import SHARES, missing, run_kind
from tests.soundness.runner import Report, run


def _folders(given: list[Path]) -> list[Path]:
    """Where projects are put: on a disk, and in memory if there is such a place."""
    memory = Path("/dev/shm")
    return given or [Path(tempfile.gettempdir()), *([memory] if os.access(memory, os.W_OK) else [])]


def _kinds(text: str) -> list[str]:
    chosen = text.split(",")
    unknown = [each for each in chosen if each not in SHARES]
    if unknown:
        raise argparse.ArgumentTypeError(f"expected some of {','.join(SHARES)}, found {unknown[0]!r}")
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soundness")
    parser.add_argument("count", type=int, nargs="?", default=1500, help="cases, of all kinds together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--kind", type=_kinds, default=[], help=f"some of {','.join(SHARES)}; else all whose tools exist"
    )
    parser.add_argument("--servers", type=int, default=2, help="processes at a time, of projects")
    parser.add_argument("--folder", type=Path, action="append", default=[], help="where cases are put; repeatable")
    given = parser.parse_args()
    kinds = given.kind or [kind for kind in SHARES if not missing(kind)]
    for kind in [] if given.kind else SHARES.keys() - kinds:
        print(f"left out: {kind}, needs {missing(kind)}")
    print(f"Python {sys.version.split()[0]}, seed {given.seed}")
    is_right = True
    for kind in kinds:
        count = round(given.count * SHARES[kind] / sum(SHARES[each] for each in kinds))
        started, before = time.monotonic(), _processor_seconds()
        with ExitStack() as made:
            folders = [
                Path(made.enter_context(tempfile.TemporaryDirectory(prefix="soundness-", dir=each)))
                for each in _folders(given.folder)
            ]
            report = _run(kind, given.seed, count, folders, given.servers)
        print(f"--- {kind}\n{report.text()}")
        print(f"{time.monotonic() - started:.0f} s, {_processor_seconds() - before:.0f} s of the processor", flush=True)
        is_right = is_right and not report.wrong and not report.failed
    return 0 if is_right else 1


def _run(kind: str, seed: int, count: int, folders: Sequence[Path], servers: int) -> Report:
    if kind == "projects":
        return run(projects(seed), count, folders, servers=servers)
    return run_kind(kind, seed, count, folders[0])


def _processor_seconds() -> float:
    spent = [resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)


if __name__ == "__main__":
    sys.exit(main())
