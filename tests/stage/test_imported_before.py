"""Modules that a stage imports inside: imported before the run, kept from being imported, found elsewhere, and read as
files. Each process of a case is a new one, and what the last one gives must be what the stage itself gives there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

_HEAD = "import cachec\ncache = cachec.Cache()\n@cache.stage\ndef stage(x):\n"
_CALL = "import proj\nprint(proj.stage(1))\n"


class Case(NamedTuple):
    """body: of the stage. files: beside it. first: a program. edit: of files after it. last: the program whose answer
    counts. env: for the last."""

    body: str
    files: dict[str, str]
    first: str
    last: str = _CALL
    edit: dict[str, str] = {}  # noqa: RUF012 - never changed
    env: dict[str, str] = {}  # noqa: RUF012 - never changed


_FOUND = "    try: import {0}; return 'there'\n    except ImportError: return 'missing'\n"
_BARRED = "import sys; sys.modules['{0}'] = None\n"
_FINDER = """import sys, importlib.machinery as m
class F:
    @staticmethod
    def find_spec(n, p, t=None):
        if n == 'plug': return m.ModuleSpec(n, m.SourceFileLoader(n, 'alt.py'), origin='alt.py')
sys.meta_path.insert(0, F)
"""
_AHEAD = "import sys; sys.path.insert(0, 'sub')\n"
_OF_FILE = {"lz.py": "V = open('d.txt').read()\n", "d.txt": "1"}
_WROTE = "open('d.txt', 'w').write('2')\n"

CASES = {
    "file of a module, whole": Case(
        "    import kern, pathlib\n    return pathlib.Path(kern.__file__).read_bytes().hex()\n",
        {"kern.py": "K = 1\n"}, _CALL, edit={"kern.py": "K = 1\n# c\n"},
    ),
    "file of a module, as text": Case(
        "    import kern\n    return repr(open(kern.__file__).read())\n",
        {"kern.py": "K = 1\n"}, _CALL, edit={"kern.py": "K = 1\n# c\n"},
    ),
    "size of a module's file": Case(
        "    import kern, os\n    return os.path.getsize('kern.py')\n",
        {"kern.py": "K = 1\n"}, _CALL, edit={"kern.py": "K = 1\n# c\n"},
    ),
    "another module of the name comes first": Case(
        "    import plug\n    return plug.K\n",
        {"plug.py": "K = 1\n", "sub/plug.py": "K = 2\n"}, "import plug\n" + _AHEAD + _CALL, _AHEAD + _CALL,
    ),
    "another finder": Case(
        "    import plug\n    return plug.K\n",
        {"plug.py": "K = 1\n", "alt.py": "K = 2\n"}, "import plug\n" + _FINDER + _CALL, _FINDER + _CALL,
    ),
    "a package's submodules elsewhere": Case(
        "    import pk.b\n    return pk.b.K\n",
        {"pk/__init__.py": "", "pk/b.py": "K = 1\n", "sub/b.py": "K = 2\n"},
        "import pk; pk.__path__.insert(0, 'sub')\n" + _CALL,
    ),
    "Python's module barred before": Case(_FOUND.format("fractions"), {}, _BARRED.format("fractions") + _CALL),
    "Python's module barred": Case(_FOUND.format("fractions"), {}, _CALL, _BARRED.format("fractions") + _CALL),
    "installed module barred": Case(_FOUND.format("click"), {}, _CALL, _BARRED.format("click") + _CALL),
    "project's module barred": Case(
        _FOUND.format("plug"), {"plug.py": ""}, _CALL, _BARRED.format("plug") + _CALL
    ),
    "project's submodule barred": Case(
        _FOUND.format("pk.b"), {"pk/__init__.py": "", "pk/b.py": ""}, _CALL, _BARRED.format("pk.b") + _CALL
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_the_stages_own(name: str, tmp_path: Path) -> None:
    case = CASES[name]

    def write(files: dict[str, str]) -> None:
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)

    def run(text: str, mode: str, env: dict[str, str] | None = None) -> str:
        write({"main.py": text})
        done = subprocess.run(
            [sys.executable, "-B", "main.py"],
            cwd=tmp_path,
            env={
                **os.environ,
                "CACHEC_DIR": str(tmp_path / "store"),
                "CACHEC_LOG": "off",
                "CACHEC_MODE": mode,
                **(env or {}),
            },
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()[-1]

    write({"pyproject.toml": "", "proj.py": _HEAD + case.body, **case.files})
    run(case.first, "on")
    write(case.edit)
    got = run(case.last, "on", case.env)
    assert got == run(case.last, "off", case.env)
