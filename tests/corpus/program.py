"""Load the programs of the corpus and apply their edits: README.md beside this file describes the format."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
MANIFEST = "program.toml"
#: What a run may leave behind in a program's folder of the source tree.
_NOT_COPIED = shutil.ignore_patterns(MANIFEST, "__pycache__", ".pytest_cache")


class InvalidProgram(Exception):
    """A program does not follow the format: the message names the program, the field and what is expected."""


@dataclass(frozen=True)
class Edit:
    """One change of a checkout: text that is replaced, a file that is added, variables that are set."""

    file: str = ""
    find: str = ""
    replace: str = ""
    #: Of a file that is added.
    content: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.file:
            return " ".join(f"{name}={value}" for name, value in self.env.items())
        return f"{self.file}: {self.find!r} -> {self.replace!r}" if self.find else f"{self.file} added"

    def apply(self, checkout: Path) -> None:
        """Change the files of ``checkout``."""
        if not self.file:
            return
        path = checkout / self.file
        if not self.find:
            if path.exists():
                raise InvalidProgram(f"an edit adds {self.file}, which is there already; give find and replace")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.content)
            return
        if not path.is_file():
            raise InvalidProgram(f"an edit names {self.file}, which is not there")
        text = path.read_text()
        if (count := text.count(self.find)) != 1:
            raise InvalidProgram(f"an edit expects {self.find!r} once in {self.file}, found it {count} times")
        path.write_text(text.replace(self.find, self.replace))

    def revert(self, checkout: Path, program: Program) -> None:
        """Undo ``apply``."""
        if self.find:
            shutil.copyfile(program.folder / self.file, checkout / self.file)
        elif self.file:
            (checkout / self.file).unlink()


@dataclass(frozen=True)
class Program:
    """A program of the corpus."""

    name: str
    folder: Path
    about: str
    run: list[str]
    needs: list[str]
    idioms: list[str]
    ordinary: bool
    neutral: list[Edit]
    semantic: list[Edit]
    prepare: list[str] = field(default_factory=list)
    env: Mapping[str, str] = field(default_factory=dict)

    def missing(self) -> list[str]:
        """The distributions that it needs and that are not installed."""
        return [name for name in self.needs if not _is_installed(name)]

    def copy_to(self, checkout: Path) -> None:
        """Make a checkout of it."""
        shutil.copytree(self.folder, checkout, ignore=_NOT_COPIED)
        (checkout / ".git").mkdir()
        (checkout / ".git" / "HEAD").write_text("ref: refs/heads/main\n")


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def load(folder: Path) -> Program:
    """The program in ``folder``. Raises InvalidProgram."""
    raw: dict[str, Any] = tomllib.loads((folder / MANIFEST).read_text())
    try:
        edits: dict[str, Any] = {kind: [Edit(**each) for each in raw.pop(kind, [])] for kind in ("neutral", "semantic")}
        program = Program(name=folder.name, folder=folder, **edits, **raw)
    except TypeError as error:
        raise InvalidProgram(f"{folder.name}: {error}") from None
    if not 1 <= len(program.neutral) <= 3 or not 2 <= len(program.semantic) <= 4:
        raise InvalidProgram(f"{folder.name}: expected 1 to 3 neutral and 2 to 4 semantic edits")
    if program.run[0] not in ("python", "pytest", "notebook"):
        raise InvalidProgram(f"{folder.name}: run starts with python, pytest or notebook, not {program.run[0]!r}")
    for edit in (*program.neutral, *program.semantic):
        if (bool(edit.find) + bool(edit.content)) != bool(edit.file) or not (edit.file or edit.env):
            raise InvalidProgram(f"{folder.name}: an edit is file, find, replace; file, content; or env alone: {edit}")
    return program


def load_all() -> list[Program]:
    """All programs, by name."""
    return [load(path.parent) for path in sorted(PROGRAMS.glob(f"*/{MANIFEST}"))]
