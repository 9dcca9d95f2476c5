"""Modules that a stage imports inside of itself: what the import, and the run, do to such a module changes no input.

Each idiom is stored by a first process and hits in a second one. Inside a process each has a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import cachec
from tests.key.conftest import other_pythons

from .conftest import Program

#: Modules with a function ``f``, by what is special about them.
IDIOMS = {
    "an abstract class": """
import abc
class Base(abc.ABC):
    @abc.abstractmethod
    def go(self): ...
class Real(Base):
    def go(self): return 3
def f(): return Real().go()
""",
    "a registry by __init_subclass__": """
class Plugin:
    known = {}
    def __init_subclass__(cls, **kw):
        super().__init_subclass__(**kw)
        Plugin.known[cls.__name__] = cls
class A(Plugin):
    def go(self): return 4
def f(): return Plugin.known["A"]().go()
""",
    "a module's __getattr__": """
def __getattr__(name):
    if name == "late":
        return 7
    raise AttributeError(name)
def f():
    return 3
""",
    "a singleton that a first call makes": """
_X = None
class T:
    def __init__(self): self.v = 5
def get():
    global _X
    if _X is None:
        _X = T()
    return _X
def f(): return get().v
""",
    "a dict that a first call makes": """
_X = None
def get():
    global _X
    if _X is None:
        _X = {"a": 5}
    return _X
def f(): return get()["a"]
""",
    "all sorts of statements": """
import logging, typing, functools, collections
log = logging.getLogger(__name__)
P = collections.namedtuple("P", "a b")
class NT(typing.NamedTuple):
    a: int = 1
T = typing.TypeVar("T")
try:
    import nothing_there
except ImportError:
    nothing_there = None
HAS = nothing_there is not None
@functools.singledispatch
def sd(x): return 1
@sd.register
def _(x: str): return 2
def wraps(fn):
    @functools.wraps(fn)
    def inner(*a): return fn(*a)
    return inner
@wraps
def dec(x): return x
class Meta(type):
    def __new__(m, n, b, ns): return super().__new__(m, n, b, ns)
class UsesMeta(metaclass=Meta):
    x = 1
with open(__file__) as fh:
    FIRST = fh.readline()
del fh
lam = lambda x: x + 1
if True:
    import json
    def cond(): return 1
else:
    def cond(): return 2
a, *b = 1, 2, 3
x = y = [0]
x.append(1)
dec.attribute = 3
def f():
    made = P(1, 2).a + NT().a + UsesMeta.x + dec.attribute
    return made + sd("") + dec(1) + lam(1) + cond() + len(x) + len(log.name)
""",
    "a counter of a class": """
class Node:
    count = 0
    def __init__(self):
        Node.count += 1
def f():
    Node()
    return Node.count
""",
    "a list that a call appends to": """
LOG = []
def f():
    LOG.append(1)
    return len(LOG)
""",
    "abstract properties and a protocol": """
import typing, abc
@typing.runtime_checkable
class Pr(typing.Protocol):
    def go(self): ...
class R:
    def go(self): return 1
class M(metaclass=abc.ABCMeta):
    @property
    @abc.abstractmethod
    def v(self): ...
    @classmethod
    @abc.abstractmethod
    def c(cls): ...
class MM(M):
    v = 3
    @classmethod
    def c(cls): return 1
def f(): return int(isinstance(R(), Pr)) + MM().v + MM.c()
""",
    "attributes and globals by computed names": """
class C: pass
for n in ("a", "b"):
    setattr(C, n, property(lambda self, n=n: n))
globals()["made"] = 3
def f(): return C().a + str(made)
""",
    "an abstract class beside a comprehension": """
import collections
class Base(collections.UserDict):
    pass
TABLE = [name for name in ("a", "b")]
def f(): return len(TABLE) + len(Base())
""",
}

_STAGES = "import cachec\ncache = cachec.Cache()\nSTAGES = []\n" + "".join(
    f"@cache.stage\ndef stage{number}():\n    import idiom{number}\n    return idiom{number}.f()\n"
    f"STAGES.append(stage{number})\n"
    for number, _ in enumerate(IDIOMS)
)
#: Calls each stage in a process of its own, which is forked before any of the modules is imported.
_RUN = """
import json, os, stages
ended = []
for stage in stages.STAGES:
    reading, writing = os.pipe()
    if not os.fork():
        value, outcome = stage.call()
        os.write(writing, json.dumps([repr(value), outcome.reason.value, outcome.detail]).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        ended.append(json.load(pipe))
    os.wait()
print(json.dumps(ended))
"""


def _write(folder: Path) -> Path:
    files = {"pyproject.toml": "", "stages.py": _STAGES, "run.py": _RUN}
    files |= {f"idiom{number}.py": text for number, text in enumerate(IDIOMS.values())}
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder / "run.py"


def _check(first: str, second: str) -> None:
    once, again = (dict(zip(IDIOMS, json.loads(each), strict=True)) for each in (first, second))
    assert {name: ended[1:] for name, ended in once.items() if ended[1] != "miss:first-run"} == {}
    assert {name: ended[1:] for name, ended in again.items() if ended[1] != "hit"} == {}
    assert {name: ended[0] for name, ended in again.items()} == {name: ended[0] for name, ended in once.items()}


def test_each_idiom_hits_in_the_second_process(tmp_path: Path, program: Program) -> None:
    script = _write(tmp_path)
    store = str(tmp_path / "store")
    _check(program(script, CACHEC_DIR=store), program(script, CACHEC_DIR=store))


@pytest.mark.long
def test_each_idiom_hits_on_every_supported_python(tmp_path: Path) -> None:
    needed = "import blake3, click, diskcache, ml_dtypes, msgspec, numpy"
    pythons = [
        each for each in other_pythons() if not subprocess.run([each, "-c", needed], check=False, stderr=-3).returncode
    ]
    if not pythons:
        pytest.skip("no other supported Python has the dependencies")
    for python in pythons:
        (folder := tmp_path / Path(python).name).mkdir()
        script = _write(folder)
        env = {**os.environ, "CACHEC_LOG": "off", "CACHEC_DIR": str(folder / "store")}
        env["PYTHONPATH"] = str(Path(cachec.__file__).parents[1])
        run = [subprocess.run([python, script], env=env, capture_output=True, text=True, check=True) for _ in range(2)]
        _check(run[0].stdout, run[1].stdout)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (("Real(Base):\n    def go(self): return 3", "Real(Base):\n    def go(self): return 4"), "miss:code-changed"),
        (("self.v = 5", "self.v = 6"), "miss:code-changed"),
        (("return 4\ndef f(): return Plugin", "return 5\ndef f(): return Plugin"), "miss:code-changed"),
    ],
)
def test_an_edit_of_such_a_module_misses(tmp_path: Path, program: Program, edit: tuple[str, str], reason: str) -> None:
    ((number, text),) = [(number, text) for number, text in enumerate(IDIOMS.values()) if edit[0] in text]
    script = _write(tmp_path)
    (tmp_path / "stages.py").write_text(_STAGES + f"STAGES = [STAGES[{number}]]\n")
    before = json.loads(program(script, CACHEC_DIR=str(tmp_path / "store")))
    (tmp_path / f"idiom{number}.py").write_text(text.replace(*edit))
    after = json.loads(program(script, CACHEC_DIR=str(tmp_path / "store")))
    assert after[0][1] == reason
    assert before[0][0] != after[0][0]


def test_a_package_that_fills_in_a_name_says_what_to_do(tmp_path: Path, program: Program) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "__init__.py").write_text(
        "import importlib\ndef __getattr__(name):\n    if name != 'conv': raise AttributeError(name)\n"
        "    globals()[name] = value = importlib.import_module('._conv', __name__).conv\n    return value\n"
    )
    (tmp_path / "lib" / "_conv.py").write_text("K = 3\ndef conv(n): return n * K\n")
    main = (
        "import cachec, lib\nBEFORE\ncache = cachec.Cache('store')\n@cache.stage\ndef run(n: int) -> int:\n"
        "    return lib.conv(n)\nvalue, outcome = run.call(2)\nprint(value, outcome.hit, outcome.detail)\n"
    )
    (tmp_path / "main.py").write_text(main.replace("BEFORE", ""))
    assert program(tmp_path / "main.py") == (
        "6 False helper lib._conv.conv added, as the run set a name that leads to it (a lazy import): use that before "
        "the call"
    )
    (tmp_path / "main.py").write_text(main.replace("BEFORE", "lib.conv"))
    assert program(tmp_path / "main.py").startswith("6 False")
    assert program(tmp_path / "main.py").startswith("6 True")
