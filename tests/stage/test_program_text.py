"""``python -c``: Python 3.13 registers the program's text as that of ``<string>``, where code of others is, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MODULE = """
from dataclasses import dataclass

import cachec

@dataclass
class Shape:
    rows: int

cache = cachec.Cache(log="off")

@cache.stage
def size(rows: int) -> int:
    return Shape(rows).rows
"""

PROGRAM = """
import linecache
linecache.cache.setdefault("<string>", (8, None, ["import x\\n"], "<string>"))
import stages
print([stages.size.call(rows)[1].reason.value for rows in (1, 1, 2)])
"""


def test_methods_of_a_dataclass_are_no_code_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "stages.py").write_text(MODULE)
    environ = {**os.environ, "CACHEC_DIR": str(tmp_path / "store")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.stdout == "['miss:first-run', 'hit', 'miss:option-changed']\n", done.stderr
