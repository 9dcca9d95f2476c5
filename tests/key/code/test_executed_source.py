"""Which text a module ran from, where the clock can't tell: the file was written just before the process began."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_STAGE = """
import cachec
import functools
@functools.lru_cache(4)
def memo(x): return x
held = [memo]
@cachec.Cache().stage
def stage(x): return held[0](x)
"""
_RUN = """
import importlib, os, pathlib, sys
import stages
from cachec.key.code import executed_source
executed_source.executed_sources()._started = executed_source.IMPORTED_AT = 0  # no file was there before
path = pathlib.Path(stages.__file__)
text = path.read_text()
{edit}
print(stages.stage.key(1))
path.write_text(text)
"""
_OTHER = "path.write_text(text.replace('lru_cache(4)', 'lru_cache(5)'))"
#: What happens to the file between the import and the first key, and whether two processes have one key.
EDITS = {
    "none": ("", True),
    "a comment": ("path.write_text(text + '# a comment')", True),
    "another text": (_OTHER, False),
    "a reload of another text": (f"{_OTHER}\nimportlib.reload(stages)\npath.write_text(text)", False),
}


@pytest.mark.parametrize("edit", EDITS)
def test_code_of_a_module_that_imports_cachec_tells_its_text(tmp_path: Path, edit: str) -> None:
    statements, is_equal = EDITS[edit]
    (tmp_path / "stages.py").write_text(_STAGE)
    (tmp_path / "run.py").write_text(_RUN.format(edit=statements))
    env = {**os.environ, "CACHEC_DIR": str(tmp_path / "store"), "PYTHONDONTWRITEBYTECODE": "1"}
    keys = {
        subprocess.run(
            [sys.executable, "run.py"], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    }
    assert (len(keys) == 1) is is_equal
