"""Pages of docs/ as programs: their scripts, the commands of their consoles, and their tables."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def text_of(page: str, heading: str = "") -> str:
    """Return the text of a page, or of one section of it with the sections below."""
    text = (DOCS / page).read_text()
    if not heading:
        return text
    level = len(heading) - len(heading.lstrip("#"))
    code = re.sub(r"```.*?```", lambda block: re.sub(r"^#", "\0", block[0], flags=re.MULTILINE), text, flags=re.DOTALL)
    begin = re.search(rf"^{re.escape(heading)}$", code, re.MULTILINE)
    assert begin is not None, f"docs/{page} has no heading {heading!r}"
    end = re.search(rf"^#{{1,{level}}} ", code[begin.end() :], re.MULTILINE)
    return code[begin.end() :][: None if end is None else end.start()].replace("\0", "#")


def blocks(language: str, page: str, heading: str = "") -> list[str]:
    """Return the blocks of code of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(page, heading), re.DOTALL | re.MULTILINE)


def commands(page: str, heading: str = "") -> list[str]:
    """Return the command lines of all consoles, without comments."""
    lines = [line for block in blocks("console", page, heading) for line in block.splitlines()]
    return [re.sub(r"  +# .*", "", line.removeprefix("$ ")) for line in lines if line.startswith("$ ")]


def table(page: str, heading: str = "") -> list[list[str]]:
    """Return the cells of each row of all tables, without the heads."""
    rows: list[list[str]] = []
    lines = text_of(page, heading).splitlines()
    for number, line in enumerate(lines):
        is_head = number + 1 < len(lines) and lines[number + 1].startswith("|--")
        if line.startswith("|") and not line.startswith("|--") and not is_head:
            rows.append([cell.strip() for cell in line.strip().strip("|").split(" |")])
    return rows


def names(cell: str) -> list[str]:
    """Return what stands between backquotes."""
    return re.findall(r"`([^`]+)`", cell)


def scripts(page: str, folder: Path, heading: str = "") -> None:
    """Write every ``# name.py`` of a page to a folder."""
    for script in blocks("python", page, heading):
        name = re.match(r"# (\w+\.py)", script)
        if name is not None:
            (folder / name[1]).write_text(script)


def outputs(lines: list[str], folder: Path, **variables: str) -> list[str]:
    """Run commands in a folder with a store of its own, and return what each prints."""
    environ = {**os.environ, "CACHEC_DIR": str(folder / "store"), "CACHEC_SERVER": "off", **variables}
    printed = []
    programs = {"python": sys.executable, "cachec": str(Path(sys.executable).with_name("cachec"))}
    for line in lines:
        words = line.split()
        done = subprocess.run(
            [programs[words[0]], *words[1:]], cwd=folder, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (line, done.stderr)
        printed.append(done.stdout)
    return printed
