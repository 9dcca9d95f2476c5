"""A ``cachec`` on the path, and the projects of ``tests/warm``."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("warm_helpers", Path(__file__).parents[1] / "warm" / "conftest.py")
assert _spec is not None
assert _spec.loader is not None
helpers = sys.modules.setdefault("warm_helpers", importlib.util.module_from_spec(_spec))
_spec.loader.exec_module(helpers)
project = helpers.project

ROOT = Path(__file__).parents[2]


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in front of the path, with this very cachec as ``cachec``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "cachec"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m cachec "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder
