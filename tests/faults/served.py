"""Builds through servers of ``cachec exec`` that are killed at random, or a child of theirs: nobody may notice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cachec.commands.process import end_session
from cachec.store.locks import SERVES
from tests.faults.campaign import Verdicts

#: Commands of a build, and how many are there at once.
_FILES, _JOBS = 50, 4
#: Seconds after which a command counts as stuck.
_PATIENCE = 120

#: Writes in two pieces, by a process of its own, and is not ended by SIGTERM once it has said so.
_COMPILER = """#!/bin/sh
trap '' TERM
echo began >&2
( cat "$1"; sleep "$3"; echo compiled ) > "$2"
echo said; echo told >&2
"""
#: What a command may end with: well, or by a SIGTERM that came before it could ignore that.
_RIGHT = (0, b"said\n", b"began\ntold\n", True), (-signal.SIGTERM, b"", b"", False)

_SCRIPT = f"#!{sys.executable} -P\nimport sys\nfrom cachec.__main__ import main\nsys.exit(main())\n"


def served(folder: Path, seed: int, count: int) -> Verdicts:
    """``count`` kills, in as many builds as that takes."""
    verdicts = Verdicts()
    number = 0
    while sum(verdicts.counts[each] for each in verdicts.counts if each[1] == "killed") < count:
        _build(folder / str(number), random.Random(f"{seed}:{number}"), verdicts)
        number += 1
    return verdicts


def _build(folder: Path, rng: random.Random, verdicts: Verdicts) -> None:
    for name in ("bin", "work", "store"):
        (folder / name).mkdir(parents=True)
    for name, text in (("cachec", _SCRIPT), ("compiler", _COMPILER)):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    for number in range(_FILES):
        (folder / "work" / f"{number}.in").write_text(f"{rng.random()}\n" * 999)
    ended = threading.Event()
    killer = threading.Thread(target=_kill, args=(folder, rng, ended, verdicts))
    killer.start()
    seconds = [f"{rng.uniform(0, 0.1):.3f}" for _ in range(_FILES)]
    with ThreadPoolExecutor(_JOBS) as jobs:
        list(jobs.map(lambda number: _command(folder, number, seconds[number], "auto", verdicts), range(_FILES)))
    ended.set()
    killer.join()
    for pid in _servers(folder):
        os.kill(pid, signal.SIGKILL)
    for number in range(_FILES):  # what is stored
        (folder / "work" / f"{number}.out").unlink(missing_ok=True)
        _command(folder, number, seconds[number], "off", verdicts)


def _command(folder: Path, number: int, seconds: str, server: str, verdicts: Verdicts) -> None:
    wanted = (folder / "work" / f"{number}.in").read_text() + "compiled\n"
    written = folder / "work" / f"{number}.out"
    script, compiler = (os.fspath(folder / "bin" / name) for name in ("cachec", "compiler"))
    line = [script, "exec", f"--input={number}.in", f"--output={number}.out", "--"]
    line += [compiler, f"{number}.in", f"{number}.out", seconds]
    environ = {**os.environ, "CACHEC_DIR": str(folder / "store"), "CACHEC_LOG": "off", "CACHEC_SERVER": server}
    with subprocess.Popen(
        line, cwd=folder / "work", env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            said = process.communicate(timeout=_PATIENCE)
            found = (process.returncode, *said, written.exists() and written.read_text() == wanted)
            verdict = "right" if found in _RIGHT[: 1 if server == "off" else 2] else "wrong"
            verdicts.add(f"command, server {server}", "", verdict, f"{folder} {number}: {found}")
        except subprocess.TimeoutExpired:
            process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            end_session(process.pid)
            verdicts.add(f"command, server {server}", "", "stuck", f"{folder} {number}")


def _kill(folder: Path, rng: random.Random, ended: threading.Event, verdicts: Verdicts) -> None:
    while not ended.wait(rng.uniform(0, 0.4)):
        servers = [*_servers(folder)]
        children = [pid for server in servers for pid in _children(server)]
        for name, chosen in (("a server", servers), ("a child of one", children)):
            number = rng.choice((signal.SIGKILL, signal.SIGTERM))
            if chosen and rng.random() < (0.2 if chosen is servers else 0.8):
                try:
                    os.kill(rng.choice(chosen), number)
                    verdicts.counts[name, "killed", "right"] += 1
                except ProcessLookupError:
                    continue


def _servers(folder: Path) -> Iterator[int]:
    """Processes of this folder's script that are in no folder of the build, and no child of a server."""
    for entry in Path("/proc").iterdir():
        try:
            is_ours = (
                entry.name.isdigit() and os.fsencode(folder / "bin" / "cachec") in (entry / "cmdline").read_bytes()
            )
            if is_ours and os.readlink(entry / "cwd") == "/" and not (entry / "comm").read_text().startswith(SERVES):
                yield int(entry.name)
        except OSError:
            continue


def _children(server: int) -> Iterator[int]:
    try:
        yield from map(int, Path(f"/proc/{server}/task/{server}/children").read_text().split())
    except OSError:
        return
