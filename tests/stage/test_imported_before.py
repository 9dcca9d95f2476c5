"""Modules that a stage imports inside: imported before the run, kept from being imported, found elsewhere, and read as
files. Each process of a case is a new one, and what the last one gives must be what the stage itself gives there."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from .conftest import Program

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
_SET = "import cfg; cfg.K = 2\n"
_TWO = "import proj\nproj.stage(1)\nprint(proj.stage(2))\n"
_STATE = {"lz.py": "STATE = {'a': [1]}\ndef get(): return STATE['a']\n"}
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
    "filled from a file by an import before": Case(
        "    import lz\n    return lz.V\n", _OF_FILE, "import lz\n" + _WROTE + _CALL,
    ),
    "filled from a file by an earlier run": Case("    import lz\n    return lz.V\n", _OF_FILE, _CALL + _WROTE + _CALL),
    "filled from a file, other calls": Case(
        "    import lz\n    return lz.V, x\n", _OF_FILE, _TWO, _TWO, edit={"d.txt": "2"},
    ),
    "filled from a variable": Case(
        "    import lz\n    return lz.V\n", {"lz.py": "import os\nV = os.environ.get('QQ')\n"},
        _CALL + "import os; os.environ['QQ'] = '2'\nprint(proj.stage(1))\n", env={"QQ": "2"},
    ),
    "a default from a variable": Case(
        "    import lz\n    return lz.f()\n", {"lz.py": "import os\ndef f(v=os.environ.get('QQ')): return v\n"},
        "import lz\n" + _CALL, env={"QQ": "2"},
    ),
    "a class value from a variable": Case(
        "    from lz import A\n    return A.v\n", {"lz.py": "import os\nclass A:\n    v = os.environ.get('QQ')\n"},
        "import lz\n" + _CALL, env={"QQ": "2"},
    ),
    "by condition of a variable": Case(
        "    import lz\n    return lz.V\n",
        {"lz.py": "import os\nif os.environ.get('QQ'):\n    V = 1\nelse:\n    V = 2\n"},
        "import lz\n" + _CALL, env={"QQ": "2"},
    ),
    "made of another module's value": Case(
        "    import lz\n    return lz.V\n", {"cfg.py": "K = 1\n", "lz.py": "import cfg\nV = cfg.K * 10\n"},
        _CALL + _SET + _CALL, "import proj\n" + _SET + _CALL,
    ),
    "made of another module's value by a call": Case(
        "    import lz\n    return lz.V\n",
        {"cfg.py": "K = 1\n", "lz.py": "import cfg\ndef c(): return cfg.K * 10\nV = c()\n"},
        _CALL + _SET + "print(proj.stage(1))\n", "import proj\n" + _SET + _CALL,
    ),
    "state that was changed": Case(
        "    import lz\n    return lz.get()\n", _STATE, "", _CALL + "import lz; lz.STATE['a'] = [2]\n" + _CALL,
    ),
    "state that was changed within": Case(
        "    import lz\n    return lz.get()\n", _STATE, "", _CALL + "import lz; lz.STATE['a'][0] = 2\n" + _CALL,
    ),
    "a table by names that was changed": Case(
        "    import lz\n    return lz.T['f']()\n",
        {"lz.py": "def f(): return 1\ndef g(): return 2\nT = {'f': f}\n"}, "",
        _CALL + "import lz; lz.T['f'] = lz.g\n" + _CALL,
    ),
}  # fmt: skip


def _write(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def _run(program: Program, folder: Path, text: str, mode: str = "on", **env: str) -> str:
    """What the last line of a new process says."""
    _write(folder, {"main.py": text})
    said = program(folder / "main.py", CACHEC_DIR=str(folder / "store"), CACHEC_MODE=mode, **env)
    return said.rpartition("\n")[2]


@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_the_stages_own(name: str, tmp_path: Path, program: Program) -> None:
    case = CASES[name]
    _write(tmp_path, {"pyproject.toml": "", "proj.py": _HEAD + case.body, **case.files})
    if case.first:
        _run(program, tmp_path, case.first)
    _write(tmp_path, case.edit)
    got = _run(program, tmp_path, case.last, **case.env)
    # Programs write to files themselves: the stage's own answer is what they come to now.
    assert got == _run(program, tmp_path, case.last, "off", **case.env)


@pytest.mark.parametrize(
    "text",
    [
        "V = 1\n",
        "A = 2\nV = A * 3 + len('ab')\n",
        "def c(n): return n * 2\nV = c(3)\n",
        "A = 2\nV = A\nA = 3\n",
        "import os\nV = os.environ.get('QQ')\n",
        "V = {str(n): n for n in range(3)}\n",
        "def f(): pass\nT = dict(a=1)\nT.update(b=2)\nV = len(T)\n",
        "class C:\n    def __init__(self): self.n = 3\nV = C().n\n",
        "V = open('d.txt').read()\n",
        "import logging, re\nl = logging.getLogger(__name__)\nR = re.compile('x')\ndef c(): return R\nV = c().flags\n",
    ],
)
def test_later_calls_hit_in_a_process_that_has_not_imported_it(text: str, tmp_path: Path, program: Program) -> None:
    body = "    import lz\n    return lz.V, x\n"
    _write(tmp_path, {"pyproject.toml": "", "proj.py": _HEAD + body, "lz.py": text, "d.txt": "1"})
    _run(program, tmp_path, "import proj\nfor n in range(3): proj.stage(n)\n")
    asks = "import proj\nprint([proj.stage.call(n)[1].reason.value for n in (2, 0, 1, 2)])\n"
    assert _run(program, tmp_path, asks) == "['hit', 'hit', 'hit', 'hit']"


@pytest.mark.parametrize(
    "text",
    [
        "V = {}\nfor n in range(3):\n    V[str(n)] = n\n",
        "V = []\nfor n in range(3):\n    V.append(n)\n",
        "V = {'a': 1}\nV.update(b=2)\n",
        "def f(): pass\nT = dict(a=1)\nT.update(b=2)\nV = len(T)\n",
    ],
)
def test_a_table_that_its_module_fills_hits_in_another_process(text: str, tmp_path: Path, program: Program) -> None:
    body = "    import lz\n    return lz.V, x\n"
    _write(tmp_path, {"pyproject.toml": "", "proj.py": _HEAD + body, "lz.py": text})
    asks = "import proj\nprint(proj.stage.call(1)[1].reason.value)\n"
    assert [_run(program, tmp_path, each) for each in (asks, asks, "import lz\n" + asks)] == [
        "miss:first-run",
        "hit",
        "hit",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "M = []\nM.append(0)\nM.clear()\n",
        "M = {}\nM.update(a=1)\nM.clear()\n",
        "import collections\nM = collections.deque()\n",
        "import types\nN = types.SimpleNamespace(v=None)\n",
        "import numpy as np\nM = np.zeros(1, int)\n",
    ],
)
def test_what_a_run_put_into_a_table_is_no_imports(text: str, tmp_path: Path, program: Program) -> None:
    body = "    import lz\n    return lz.f(x)\n"
    fill = "M.setdefault(0, x)" if "{}" in text else "M.append(x)"
    lazy = f"{text}def f(x):\n    if not M: {fill}\n    return M[0]\n"
    if "Simple" in text:
        lazy = f"{text}def f(x):\n    if not N.v: N.v = x\n    return N.v\n"
    if "numpy" in text:
        lazy = f"{text}def f(x):\n    if not M[0]: M[0] = x\n    return int(M[0])\n"
    _write(tmp_path, {"pyproject.toml": "", "proj.py": _HEAD + body, "lz.py": lazy})
    assert _run(program, tmp_path, "import proj\nprint(proj.stage(1), proj.stage(5))\n") == "1 1"
    assert _run(program, tmp_path, "import proj\nprint(proj.stage(5))\n") == "5"
