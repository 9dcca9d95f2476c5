"""Programs with isolated stages print what they print with ``CACHEC_MODE=off``: on a fresh store, and again.

Each is of a kind: state of this process that a worker has not, or that its end takes with it.
"""

# Programs are easier to read as they are.
# ruff: noqa: E501

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest


class Program(NamedTuple):
    """name: of its kind. main: the script, below the making of ``cache``. lib: the text of a module that it imports."""

    name: str
    main: str
    lib: str = ""


_STAGE = "@cache.stage\ndef f(n):\n    return "

#: What a stage leaves behind, and a program uses afterwards.
_FILLED = [
    Program(
        f"filled: {name}",
        f"{_STAGE}lib.get('default') * n\nprint(f(1))\nlib.get('configured')\nprint(f(2))",
        lib,
    )
    for name, lib in {
        "a global": "one = None\ndef get(k):\n    global one\n    if one is None: one = k\n    return one\n",
        "a new global": "def get(k):\n    global one\n    try: return one\n    except NameError: one = k\n    return one\n",
        "a dictionary": "held = {}\ndef get(k): return held.setdefault('k', k)\n",
        "a list": "held = []\ndef get(k):\n    if not held: held.append(k)\n    return held[0]\n",
        "an attribute of a class": "class C: one = None\ndef get(k):\n    C.one = C.one or k\n    return C.one\n",
        "an attribute of an object": (
            "class C: pass\nc = C()\ndef get(k):\n    c.__dict__.setdefault('one', k)\n    return c.one\n"
        ),
        "an attribute of a function": "def get(k):\n    get.one = getattr(get, 'one', k)\n    return get.one\n",
        "a thread-local": (
            "import threading\nl = threading.local()\ndef get(k):\n    l.one = getattr(l, 'one', k)\n    return l.one\n"
        ),
    }.items()
]

#: What a program sets in a library: before its first call, where ``V`` is set, and after one.
_SET = [
    Program(f"set: {name}", f"{imports}\n{_STAGE}{use}\nif lib.V:\n    {sets}\nprint(f(1))\n{sets}\nprint(f(1))", lib)
    for name, imports, use, sets in [
        ("a registration by a class", "import yaml", "yaml.safe_load('[3]')", "yaml.SafeLoader.add_constructor('tag:yaml.org,2002:int', lambda l, n: 300)"),
        ("a registration by a module", "import mimetypes", "mimetypes.guess_type('x.mlir')", "mimetypes.add_type('text/mlir', '.mlir')"),
        ("an attribute of a class", "import textwrap", "textwrap.fill('a b')", "textwrap.TextWrapper.unicode_whitespace_trans = {98: '-'}"),
        ("an attribute of an object", "import json", "json.dumps([1, n])", "json._default_encoder.item_separator = ';'"),
        ("a pattern", "import re, string", "string.Template('%x $x').safe_substitute(x=n)", "string.Template.pattern = re.compile(r'%(?:(?P<escaped>%)|(?P<named>[a-z]+)|(?P<braced>!)|(?P<invalid>))')"),
        ("an item", "import mimetypes", "mimetypes.guess_type('x.mlir')", "mimetypes.init(); mimetypes.types_map['.mlir'] = 'text/mlir'"),
        ("a method by setattr", "import textwrap", "textwrap.fill('a b')", "setattr(textwrap.TextWrapper, 'fill', lambda self, text: 'set')"),
    ]
    for lib in ("V = 0\n", "V = 1\n")
]  # fmt: skip

#: Values that only seem to be the same.
_ALIKE = [
    Program(
        "alike: a compiled value",
        f"import struct\n{_STAGE}lib.s.size\nprint(f(1))\nlib.s = struct.Struct('<q')\nprint(f(1))",
        "import struct\ns = struct.Struct('<i')\n",
    ),
    Program(
        "alike: attributes of an array",
        f"{_STAGE}getattr(lib.a, 'unit', '')\nprint(f(1))\nlib.a.unit = 'km'\nprint(f(1))",
        "import numpy as np\nclass Q(np.ndarray): pass\na = np.arange(2.0).view(Q)\n",
    ),
    Program(
        "alike: attributes of an argument that is an array",
        "@cache.stage\ndef f(a):\n    return getattr(a, 'unit', '')\na = lib.Q([2]); a.unit = 'm'\nprint(f(a))",
        "import numpy as np\nclass Q(np.ndarray): pass\n",
    ),
    *(
        Program(
            f"alike: {what}",
            f"{_STAGE}str({use})\nprint(f(1))\n{sets}\nprint(f(1))",
            'def g(n: int):\n    """doc"""\nclass C:\n    """doc"""\n    def h(self): "doc"\n',
        )
        for what, use, sets in [
            ("a docstring of a function", "lib.g.__doc__", "lib.g.__doc__ = 'set'"),
            ("a docstring of a class", "lib.C.__doc__", "lib.C.__doc__ = 'set'"),
            ("a docstring of a method", "lib.C.h.__doc__", "lib.C.h.__doc__ = 'set'"),
            ("the name of a function", "lib.g.__name__", "lib.g.__name__ = 'set'"),
            ("the name of a class", "lib.C.__name__", "lib.C.__name__ = 'set'"),
            ("annotations", "lib.g.__annotations__", "lib.g.__annotations__ = {'n': str}"),
        ]
    ),
]

#: What a stage raises.
_RAISED = [
    Program(
        "raised: its context", f"{_STAGE}1 // 0\ntry: f(1)\nexcept ZeroDivisionError as error: print(error.__context__)"
    ),
    Program("a module named as one of Python's", f"import quopri\n{_STAGE}quopri.X + n\nprint(f(1))"),
]

_PROGRAMS = [*_FILLED, *_SET, *_ALIKE, *_RAISED]


@pytest.mark.parametrize("program", _PROGRAMS, ids=[f"{each.name} {each.lib[:5].strip()}" for each in _PROGRAMS])
def test_it_prints_what_it_prints_without_a_cache(program: Program, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / ".git").mkdir()
    (folder / "lib.py").write_text(program.lib)
    if "quopri" in program.main:
        (folder / "quopri.py").write_text("X = 1\n")
    (folder / "main.py").write_text(f"import cachec, lib\ncache = cachec.Cache(log='off')\n{program.main}\n")

    def printed(**env: str) -> str:
        environ = {**os.environ, "CACHEC_DIR": str(tmp_path / "store"), "PYTHONDONTWRITEBYTECODE": "1", **env}
        ended = subprocess.run(
            [sys.executable, "main.py"], cwd=folder, env=environ, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    expected = printed(CACHEC_MODE="off")
    assert [printed(CACHEC_ISOLATED="1") for _ in range(2)] == [expected, expected]
