"""Targets that are commands: run through ``cachec exec``, and checked as by ``cachec check``."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from cachec import config
from cachec.base import fsio
from cachec.errors import CachecError
from cachec.events import EventLog, read_outcomes
from cachec.launcher.explain import explain, output_folders
from cachec.model import Mode, Outcome, Reason
from cachec.warm.model import Row, Task

#: Runs the command line of this very cachec, without its console script, which need not be on the path.
_EXEC = (sys.executable, "-P", "-m", "cachec", "exec")


class TargetFailed(CachecError):
    """The command of a target ended with another status than 0, or can't be cached."""


def run_command(task: Task) -> list[Outcome]:
    """Run the command of a row, or with ``check`` say if it would hit; how its call ended.

    A look that is ``counted`` and hits runs it too where its files are ``needed``: that puts them in place. Raises
    TargetFailed where the command fails, or would go round the cache; what ``cachec check`` raises.
    """
    outcomes = [_check_command(task.row)] if task.check else _execute_command(task.row)
    if task.counted and task.needed and outcomes[0].hit:
        outcomes = _execute_command(task.row)
    for outcome in outcomes:
        if outcome.reason.kind == "bypass":
            raise TargetFailed(f"{task.row.command[0]} goes round the cache ({outcome.reason.value}: {outcome.detail})")
    return outcomes


def _check_command(row: Row) -> Outcome:
    if row.folder and os.path.realpath(row.folder) != os.getcwd():
        raise TargetFailed(
            f"{row.id} belongs in {row.folder}, and commands are looked at in the current folder; leave out executor="
        )
    explanation = explain([*row.options, "--", *row.command], {"mode": Mode.REQUIRE.value}).outcome
    if explanation.hit or explanation.reason.kind == "bypass":
        return explanation
    detail = f"{explanation.reason.value}: {explanation.detail}" if explanation.detail else explanation.reason.value
    return Outcome(reason=Reason.REQUIRED, stage=explanation.stage, key=explanation.key, detail=detail)


def _execute_command(row: Row) -> list[Outcome]:
    for folder in output_folders([*row.options, "--", *row.command]):  # a fresh checkout has none of them
        os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cachec-warm-") as folder:
        record = Path(folder, "outcomes.jsonl")
        done = subprocess.run(
            [*_EXEC, *row.options, "--", *row.command],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "CACHEC_STATS_FILE": str(record)},
            cwd=row.folder or None,
            check=False,
        )
        outcomes = list(read_outcomes(record))
        _pass_on(record)
    if done.returncode:
        raise TargetFailed(f"`{shlex.join(row.command)}` ended with status {done.returncode}")
    return outcomes


def count(outcome: Outcome) -> None:
    """Record that the entry of a command is in use, as ``cachec exec`` would have."""
    settings = config.load()
    EventLog(settings.dir, log=settings.log, stats_file=settings.stats_file).emit(outcome)


def _pass_on(record: Path) -> None:
    """Copy the records to the ``stats_file`` that was set for this process, which the command could not see."""
    wanted = os.environ.get("CACHEC_STATS_FILE")
    if not wanted or not record.exists():
        return
    with fsio.closing(os.open(wanted, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)) as fd:
        os.write(fd, record.read_bytes())
