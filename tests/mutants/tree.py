"""A copy of the project and of its virtual environment, in which sources are changed and processes see it.

Beside the packages of the environment lies ``trace.py``, which tells what each test runs; also in the processes that it
starts, by a ``.pth``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.mutants.trace import FILE

ROOT = Path(__file__).parents[2]
TRACE = "cachec_mutants_trace"


def tree(folder: Path) -> Path:
    """Make the copy, or bring its sources up to date; returns its root."""
    copy = folder / "tree"
    said = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    files = {name for name in said.stdout.split("\0") if name and (ROOT / name).is_file()}
    if copy.exists():
        for found in copy.rglob("*.py"):
            name = str(found.relative_to(copy))
            if not name.startswith(".venv/") and name not in files:
                found.unlink()
    for name in files:
        target = copy / name
        if target.is_file() and target.read_bytes() == (ROOT / name).read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    if not (copy / ".venv" / "ready").exists():
        shutil.rmtree(copy / ".venv", ignore_errors=True)
        _environment(Path(sys.prefix), copy / ".venv")
    site = next((copy / ".venv").glob("lib/python3*/site-packages"))
    shutil.copy2(Path(__file__).with_name("trace.py"), site / f"{TRACE}.py")
    # Only where it is asked for: tests look at what a process has imported.
    (site / f"{TRACE}.pth").write_text(f"import os; os.environ.get({FILE!r}) and __import__({TRACE!r})\n")
    (copy / ".venv" / "ready").touch()
    return copy


def _environment(source: Path, target: Path) -> None:
    """Files are links, but those that name the root: it is another here."""
    shutil.copytree(source, target, symlinks=True, copy_function=_link, ignore=shutil.ignore_patterns("ready"))
    written = [*(target / "bin").iterdir(), target / "pyvenv.cfg", *target.glob("lib/*/site-packages/*.pth")]
    written += target.glob("lib/*/site-packages/cachec*.dist-info/*")
    for path in written:
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            changed = data.replace(os.fsencode(ROOT), os.fsencode(target.parent))
            if changed != data:
                path.with_name("new").write_bytes(changed)
                shutil.copymode(path, path.with_name("new"))
                path.with_name("new").rename(path)


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system
        return str(shutil.copy2(source, target))
    return target
