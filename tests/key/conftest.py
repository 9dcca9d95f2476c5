"""A project on disk for the tests of code keys: files are written, imported as a new process would, and keyed."""

from __future__ import annotations

import glob
import importlib
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cachec.key import option_encoding
from cachec.key.code.executed_source import executed_sources
from cachec.key.code.fingerprint import CodeKey, CodeKeys
from tests.key.tools.test_own_checkout import Rows


def encode_value(value: object, path: str) -> bytes:
    return option_encoding.encode(value, lambda _value, _path: None, path)


class Project:
    """``wheels`` are folders below the project that count as installed distributions of their own name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.wheels: set[str] = set()
        self.rows = Rows()
        self.keys = self.new_keys()
        self._before = set(sys.modules)

    def new_keys(self, rows: Rows | None = None) -> CodeKeys:
        """As a new process has them, with what earlier ones kept; with nothing kept where ``rows`` are new."""
        return CodeKeys(self._owner, encode_value, memory=self.rows if rows is None else rows)

    def _owner(self, path: str) -> str | None:
        if "site-packages" in path:
            return "some-wheel"
        relative = Path(path).relative_to(self.root) if Path(path).is_relative_to(self.root) else None
        return relative.parts[0] if relative is not None and relative.parts[0] in self.wheels else None

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))

    def forget(self) -> None:
        """What a new process starts with: nothing imported, nothing remembered."""
        for name in set(sys.modules) - self._before:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file.startswith(str(self.root)) or not file:
                del sys.modules[name]
        importlib.invalidate_caches()
        executed_sources.cache_clear()
        executed_sources()._started = time.time()
        self.keys = self.new_keys()

    def load(self, name: str = "main") -> ModuleType:
        return importlib.import_module(name)

    def key(self, name: str = "main", function: str = "stage", **options: Any) -> CodeKey:
        """The key of a function in a new process."""
        self.forget()
        return self.keys.of(getattr(self.load(name), function), **options)

    def parts(self, **options: Any) -> dict[str, str]:
        return {part.label: part.digest for part in self.key(**options).parts}

    def changed(self, edit: dict[str, str]) -> set[str]:
        """The names of the parts that an edit of files changes, as a new process sees it."""
        before = self.parts()
        self.write(edit)
        after = self.parts()
        return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.syspath_prepend(str(root))
    found = Project(root)
    yield found
    found.forget()


#: So that test files can annotate without importing this one.
ProjectFixture = Callable[[], Project]


def other_pythons() -> list[str]:
    """The supported Pythons beside this one, on PATH or under pyenv."""
    roots = [os.environ.get("PYENV_ROOT", ""), str(Path.home() / ".pyenv")]
    found = {}
    for version in ("3.11", "3.12", "3.13"):
        places = [
            path for root in roots if root for path in glob.glob(f"{root}/versions/{version}*/bin/python{version}")
        ]
        on_path = shutil.which(f"python{version}")
        for place in [*places, *([on_path] if on_path else [])]:
            words = [place, "-c", "import sys; print(sys.version_info[:2])"]
            run = subprocess.run(words, capture_output=True, text=True, check=False)
            if run.returncode == 0:
                found[run.stdout] = place
    found.pop(f"{sys.version_info[:2]}\n", None)
    return sorted(found.values())
