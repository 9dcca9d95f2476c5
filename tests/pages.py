"""Pages of docs/ as programs: the scripts that name themselves in their first line, and the commands of a console."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def scripts(page: str, folder: Path) -> None:
    """Write every ``# name.py`` of a page to a folder."""
    for script in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL):
        name = re.match(r"# (\w+\.py)", script)
        if name is not None:
            (folder / name[1]).write_text(script)


def said(page: str, folder: Path, **variables: str) -> list[str]:
    """What each command of the first console of a page prints, run in a folder with a store of its own."""
    block = re.findall(r"```console\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)[0]
    environ = {**os.environ, "CACHEC_DIR": str(folder / "store"), "CACHEC_SERVER": "off", **variables}
    outputs = []
    for command in re.findall(r"\$ (.*)", block):
        words = command.partition("#")[0].split()
        names = {"python": sys.executable, "cachec": str(Path(sys.executable).with_name("cachec"))}
        words[0] = names[words[0]]
        done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    return outputs
