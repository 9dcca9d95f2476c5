"""What the tests of the tracer share: a folder, compiled C programs, and traced runs without output."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cachec.tracing import supervisor
from cachec.tracing.accesses import Accesses, TraceProblemKind
from cachec.tracing.supervisor import trace
from tests.needs import need

SOURCES = Path(__file__).parent


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one. Its path has no links in it."""
    folder = Path(os.path.realpath(tmp_path)) / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LC_ALL", "C")
    return folder


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a process that was told to end takes longer to do so."""
    monkeypatch.setattr(supervisor, "_GRACE_SECONDS", 20.0)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Compiles a C file of this folder, or a text, once; returns the program's path."""
    need("cc")
    folder = tmp_path_factory.mktemp("programs")

    def compile_program(name: str, text: str | None = None, flags: Sequence[str] = ()) -> str:
        program = folder / name
        if not program.exists():
            source = folder / f"{name}.c"
            if text is None:
                shutil.copy(SOURCES / f"{name}.c", source)
            else:
                source.write_text(text)
            subprocess.run(["cc", "-O1", "-w", "-pthread", str(source), "-o", str(program), *flags], check=True)
        return str(program)

    return compile_program


def run(*command: object, **options: object) -> Accesses:
    """One traced run without input and output."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        streams = {"stdin": null, "stdout": null, "stderr": null, **options}
        return trace([str(word) for word in command], **streams)  # type: ignore[arg-type]
    finally:
        os.close(null)


def output(*command: object, **options: object) -> tuple[Accesses, str]:
    """One traced run, and what it wrote to standard output."""
    fd = os.memfd_create("output")
    with os.fdopen(fd, "r+b") as file:
        accesses = run(*command, stdout=fd, **options)
        file.seek(0)
        return accesses, file.read().decode()


def kinds(accesses: Accesses, path: object) -> int:
    """How a run used a path, by its full text or the end of it."""
    found = 0
    for each in accesses.inputs:
        full = os.path.normpath(os.path.join(each.folder, each.path))
        if full == str(path) or full.endswith(f"/{path}"):
            found |= each.kinds
    return found


def reasons(accesses: Accesses) -> set[TraceProblemKind]:
    return {problem.reason for problem in accesses.problems}
