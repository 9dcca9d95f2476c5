"""Scripts whose stages run in workers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

#: Starts a script; returns its process, whose output is text.
Script = Callable[[str], "subprocess.Popen[str]"]

#: ``meet(name, count)``: wait until so many runs are there, and say whether they came. ``log``: what runs wrote.
_HEAD = """
import asyncio, os, signal, subprocess, sys, threading, time
import cachec
HERE = os.environ["HERE"]
cache = cachec.Cache(os.path.join(HERE, "store"), log="off")

def note(words):
    with open(os.path.join(HERE, "log"), "a") as file:
        file.write(f"{words}\\n")

def log():
    path = os.path.join(HERE, "log")
    return open(path).read().split() if os.path.exists(path) else []

def until(condition):
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(condition())

def meet(count):
    note(f"met-{os.getpid()}")
    return until(lambda: len([line for line in log() if line.startswith("met-")]) >= count)

def parent(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])

def is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
"""


@pytest.fixture
def start(tmp_path: Path) -> Script:
    (tmp_path / "project" / ".git").mkdir(parents=True)

    def go(text: str) -> subprocess.Popen[str]:
        script = tmp_path / "project" / "main.py"
        script.write_text(_HEAD + text)
        environ = {**os.environ, "HERE": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        environ.pop("CACHEC_ISOLATED", None)
        return subprocess.Popen(
            [sys.executable, script.name],
            cwd=script.parent,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return go


@pytest.fixture
def run(start: Script) -> Callable[[str], list[str]]:
    """Runs a script to its end; returns the lines that it printed."""

    def go(text: str) -> list[str]:
        process = start(text)
        out, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        return out.splitlines()

    return go
