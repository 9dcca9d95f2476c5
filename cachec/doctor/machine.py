"""This machine and its settings: clock, kernel, compilers, and what makes results of two machines different."""

from __future__ import annotations

import errno
import os
import platform
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cachec
from cachec import config, report
from cachec.base import __version__
from cachec.base.inotify import IN_ATTRIB, Inotify
from cachec.commands.traced_run import BARE, WORDS, run_traced_apart
from cachec.doctor.case import Case, Finding
from cachec.doctor.releases import compiler_facts
from cachec.errors import ConfigError
from cachec.key.tools.platform import accelerators_digest, platform_facts, platform_part, processor_digest
from cachec.launcher import adapters, exec_settings
from cachec.model import Mode
from cachec.tracing.accesses import TraceProblemKind

#: Seconds that two clocks may differ by, and a file may be ahead.
_AHEAD = 120.0

_LIMITS = "/proc/sys/fs/inotify"

#: The right of a process to inspect others: 2 is for administrators only, 3 for no process.
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"


def settings(case: Case) -> Iterator[Finding]:
    """Settings that were not meant, or that lead nowhere."""
    chosen = case.settings
    for warning in config.unknown_variables(case.environ):
        yield Finding("variable", warning, "rename or unset it; `cachec config` lists the settings")
    if chosen.mode in {Mode.OFF, Mode.REFRESH}:
        what = "calls go round the cache" if chosen.mode is Mode.OFF else "every call compiles anew"
        yield Finding(
            "mode",
            f"mode is {chosen.mode.value} ({chosen.origins['mode']}): {what}",
            "set it to on, if that is not meant",
        )
    if chosen.base_dir is not None and not chosen.base_dir.is_dir():
        yield Finding(
            "base-dir",
            f"base_dir {chosen.base_dir} is no folder ({chosen.origins['base_dir']})",
            "name one that is there",
        )
    for name, folder in (
        ("stats_file", chosen.stats_file and chosen.stats_file.parent),
        ("repro_dir", chosen.repro_dir),
    ):
        why = "" if folder is None else _why_unwritable(folder, may_be_made=name == "repro_dir")
        if why:
            yield Finding(
                name.replace("_", "-"),
                f"{name} is {getattr(chosen, name)} ({chosen.origins[name]}), and {folder} {why}: nothing is written",
                "name a place that can be written, or make the folder",
            )


def commands(case: Case) -> Iterator[Finding]:
    """Tables of the configuration file that ``cachec exec`` reads."""
    del case
    for table, read in (
        ("exec", partial(exec_settings.describe_settings, os.getcwd())),
        ("adapters", adapters.configured_origins),
    ):
        try:
            read()
        except ConfigError as error:
            yield Finding(table, str(error), "correct the file; cachec exec ends with this error")


def _why_unwritable(folder: Path, *, may_be_made: bool) -> str:
    if not folder.exists():
        return "" if may_be_made else "is not there"
    if not folder.is_dir():
        return "is no folder"
    return "" if os.access(folder, os.W_OK, effective_ids=True) else "can't be written by this user"


def clock(case: Case) -> Iterator[Finding]:
    """A clock that is behind what was written by it."""
    now = case.clock()
    marks = [Path(cachec.__file__), *(case.folder / "index" / f"cache.db{end}" for end in ("", "-wal"))]
    marks += [case.folder / "log", case.folder / "tmp"]
    ahead = max((mark.stat().st_mtime for mark in marks if mark.exists()), default=now) - now
    if ahead > _AHEAD:
        yield Finding(
            "clock",
            f"the clock is {report.period(ahead)} behind files that were written here, so that ages, and what gc takes "
            "first, are wrong",
            "set the clock (NTP)",
        )


def kernel(case: Case) -> Iterator[Finding]:
    """Whether the kernel tells of changed files."""
    try:
        queue = Inotify()
        try:
            queue.watch(case.place, IN_ATTRIB)
        finally:
            queue.close()
    except OSError as error:
        name = "max_user_watches" if error.errno == errno.ENOSPC else "max_user_instances"
        yield Finding(
            "inotify",
            f"the kernel gives no more inotify ({error.strerror}): files of packages are looked at one by one at each "
            "call, and `cachec watch` hears of nothing",
            f"sudo sysctl fs.inotify.{name}={2 * max(_limit(name), 128)}",
        )


def _limit(name: str) -> int:
    try:
        return int(Path(_LIMITS, name).read_text())
    except (OSError, ValueError):
        return 0


def tracer(case: Case) -> Iterator[Finding]:
    """Whether the system lets a command be traced: without that ``cachec exec`` stores nothing."""
    del case
    run = run_traced_apart([sys.executable, "-I", "-S", "-c", ""], sys.executable, environ=os.environ, cwd="/")
    for reason, detail in run.accesses.problems:
        if reason in BARE:
            yield Finding("tracer", f"commands of `cachec exec` run uncached: {WORDS[reason]} ({detail})", _way(reason))


def _way(reason: TraceProblemKind) -> str:
    """What a person does about a tracer that is refused."""
    release = os.uname().release
    version = tuple(int(each) for each in re.findall(r"\d+", release)[:2])
    scope = _limit(_YAMA)
    if reason is TraceProblemKind.UNSUPPORTED_MACHINE:
        return "use a machine of x86-64 or aarch64"
    if reason is TraceProblemKind.NESTED:
        return "run it without the other one: a container's runtime, a sandbox or a debugger that takes system calls"
    if version < (5, 5):
        return f"use Linux 5.5 or later, this is {release}; under gVisor another runtime (docker run --runtime=runc)"
    if not os.path.exists("/proc/self/stat"):
        return "mount /proc"
    if scope > 2:
        return f"set kernel.yama.ptrace_scope={scope} to 1 where the system sets it, and start the machine anew"
    if scope > 1:
        return "sudo sysctl kernel.yama.ptrace_scope=1"
    return "allow seccomp(2) with a listener, process_vm_readv(2) and pidfd_open(2), as Docker's own profile does"


def machine_facts(case: Case) -> dict[str, Any]:
    """Return the reported facts about this machine."""
    facts = platform_facts()
    return {
        "cachec": __version__,
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "compilers": compiler_facts(case),
        "platform": {
            "digest": platform_part().digest,
            "portable": platform_part(portable=True).digest,
            **facts,
            "cpu": facts["cpu"].split(),
            "processor_digest": processor_digest(),
            "accelerators_digest": accelerators_digest(),
        },
        "inotify": {name: _limit(f"max_user_{name}") for name in ("instances", "watches")},
    }
