"""Stages that run in a process of their own: what counts, what does not, and what is run here instead."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cachec
from cachec.base.hashing import FileDigests
from cachec.key import source_parts
from cachec.model import READ_KINDS, Read

#: Runs a script in a project of its own; returns what it printed, and the outcomes of its stages.
Run = Callable[..., tuple[str, list[str]]]

_HEAD = """
import sys, os, cachec
cache = cachec.Cache(os.environ["STORE"], log="off")
def show(stage, *args, **kwargs):
    value, outcome = stage.call(*args, **kwargs)
    print(value)
    print(outcome.reason.value + (f" ({outcome.detail})" if outcome.detail else ""), file=sys.stderr)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / ".git").mkdir()
    return folder


@pytest.fixture
def run(tmp_path: Path, project: Path) -> Run:
    def go(text: str, *args: str, env: dict[str, str] | None = None, folder: Path = project) -> tuple[str, list[str]]:
        (folder / "main.py").write_text(_HEAD + text)
        environ = {**os.environ, "STORE": str(tmp_path / "store"), "CACHEC_ISOLATED": "1", **(env or {})}
        environ["PYTHONDONTWRITEBYTECODE"] = "1"  # its times are in seconds: an edit within one goes unseen by Python
        ended = subprocess.run(
            [sys.executable, "main.py", *args], cwd=folder, env=environ, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
        outcomes = [
            line for line in ended.stderr.splitlines() if line.startswith(("hit", "miss:", "bypass:", "error:"))
        ]
        return ended.stdout, outcomes

    return go


_SCALE = """
import helper
BASE = 10
class Config:
    width = 4
@cache.stage
def f(x):
    return helper.scale(x) + BASE + Config.width, os.getpid()
(value, worker), outcome = f.call(1)
print(value, worker != os.getpid()); print(outcome.reason.value, file=sys.stderr)
"""


def test_a_miss_runs_in_another_process_and_the_next_is_a_hit(project: Path, run: Run) -> None:
    (project / "helper.py").write_text("FACTOR = 3\ndef scale(x):\n    return x * FACTOR\n")
    assert run(_SCALE) == ("17 True\n", ["miss:first-run"])
    assert run(_SCALE) == ("17 True\n", ["hit"])


@pytest.mark.parametrize(
    ("before", "after", "value"),
    [
        ("FACTOR = 3", "FACTOR = 4", 18),
        ("return x * FACTOR", "return x - FACTOR", 12),
        ("def scale", "from math import tau as FACTOR\ndef scale", None),
    ],
)
def test_an_edit_of_a_helper_counts(project: Path, run: Run, before: str, after: str, value: int | None) -> None:
    text = "FACTOR = 3\ndef scale(x):\n    return x * FACTOR\n"
    (project / "helper.py").write_text(text)
    run(_SCALE)
    (project / "helper.py").write_text(text.replace(before, after))
    printed, outcomes = run(_SCALE)
    assert outcomes != ["hit"]
    assert value is None or printed == f"{value} True\n"
    (project / "helper.py").write_text(text)
    assert run(_SCALE)[1] == ["hit"]


@pytest.mark.parametrize("more", ["# a comment\n", '"""A text."""\n'])
def test_comments_and_docstrings_do_not_count(project: Path, run: Run, more: str) -> None:
    text = "FACTOR = 3\ndef scale(x):\n    return x * FACTOR\n"
    (project / "helper.py").write_text(text)
    run(_SCALE)
    (project / "helper.py").write_text(more + text)
    assert run(_SCALE)[1] == ["hit"]


_READS_A_DOCSTRING = """
import helper
@cache.stage
def f():
    return helper.read_docstring(helper.scale)
show(f)
"""


@pytest.mark.parametrize(("edited", "outcome"), [("return x * 3  # three", "hit"), ("'Scales'", "miss")])
def test_docstrings_count_for_code_that_a_library_generates(project: Path, run: Run, edited: str, outcome: str) -> None:
    """As equinox does for its modules; comments do not."""
    text = """
made = {}
exec(compile("def read(function): return function.__doc__", "<generated>", "exec"), made)
read_docstring = made["read"]
def scale(x):
    'Scale'
    return x * 3
"""
    (project / "helper.py").write_text(text)
    assert run(_READS_A_DOCSTRING)[0] == "Scale\n"
    line = edited.partition("  #")[0] if outcome == "hit" else "'Scale'"
    (project / "helper.py").write_text(text.replace(line, edited))
    printed, outcomes = run(_READS_A_DOCSTRING)
    assert outcomes[0].startswith(outcome)
    assert printed == ("Scale\n" if outcome == "hit" else "Scales\n")


def test_what_the_program_sets_before_the_call_counts(project: Path, run: Run) -> None:
    (project / "helper.py").write_text("FACTOR = 3\ndef scale(x):\n    return x * FACTOR\n")
    setting = _SCALE.replace("(value, worker)", "helper.FACTOR = int(sys.argv[1])\n(value, worker)")
    assert run(setting, "3")[0] == "17 True\n"
    assert run(setting, "5") == ("19 True\n", ["miss:dependency-changed"])
    assert run(setting, "3")[1] == ["hit"]
    assert run(setting, "5")[1] == ["hit"]


def test_another_checkout_hits(tmp_path: Path, project: Path, run: Run) -> None:
    (project / "helper.py").write_text("FACTOR = 3\ndef scale(x):\n    return x * FACTOR\n")
    run(_SCALE)
    other = tmp_path / "elsewhere" / "other"
    other.parent.mkdir()
    subprocess.run(["cp", "-r", project, other], check=True)
    assert run(_SCALE, folder=other) == ("17 True\n", ["hit"])


_FILES = """
import subprocess
@cache.stage
def f(how):
    if how == "open":
        return open("data.txt").read()
    if how == "program":
        return subprocess.run(["cat", "data.txt"], capture_output=True, text=True).stdout
    if how == "listed":
        return sorted(name for name in os.listdir(".") if name.startswith("data"))
    if how == "there":
        return os.path.exists("other.txt")
    if how == "variable":
        return os.environ.get("WIDTH")
    return subprocess.run("echo $WIDTH", shell=True, capture_output=True, text=True).stdout
show(f, sys.argv[1])
"""


@pytest.mark.parametrize("how", ["open", "program", "listed", "there", "variable", "variable of a program"])
def test_what_a_run_looks_up_counts(project: Path, run: Run, how: str) -> None:
    (project / "data.txt").write_text("one")
    first, outcomes = run(_FILES, how)
    assert outcomes == ["miss:first-run (no entry of this stage yet)"]
    assert run(_FILES, how) == (first, ["hit"])
    if how in {"open", "program"}:
        (project / "data.txt").write_text("two")
    elif how == "listed":
        (project / "data2.txt").write_text("two")
    elif how == "there":
        (project / "other.txt").write_text("two")
    env = {"WIDTH": "7"} if how.startswith("variable") else {}
    second, outcomes = run(_FILES, how, env=env)
    assert second != first
    assert outcomes[0].startswith("miss:")


def test_a_crash_is_an_exception(run: Run) -> None:
    text = """
@cache.stage
def f():
    import ctypes
    os.write(2, b"about to crash\\n")
    ctypes.string_at(0)
try:
    f()
except cachec.StageCrashed as error:
    print(error.returncode, "about to crash" in error.stderr, "SIGSEGV" in str(error))
"""
    assert run(text)[0] == f"{-signal.SIGSEGV} True True\n"


def test_a_stage_that_takes_too_long_is_ended(run: Run) -> None:
    text = """
import time
@cache.stage(timeout=1.0)
def f():
    time.sleep(60)
try:
    f()
except cachec.StageTimedOut as error:
    print(error)
"""
    assert "did not return within 1 s" in run(text)[0]


def test_an_exception_of_the_stage_is_raised_as_it_is(run: Run) -> None:
    text = """
class Own(Exception): pass
@cache.stage
def f():
    raise Own("mine")
try:
    f()
except Own as error:
    print(error)
"""
    assert run(text)[0] == "mine\n"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("values.append(1); return len(values)", "it changed its argument values"),
        ("global COUNT; COUNT += 1; return COUNT", "it changed COUNT of __main__"),
        ("import random; return random.random() < 2", "it drew from"),
    ],
)
def test_what_changes_the_callers_state_runs_here(run: Run, body: str, why: str) -> None:
    text = f"""
COUNT = 1
@cache.stage
def f(values):
    {body}
show(f, [1, 2])
print(COUNT)
"""
    printed, outcomes = run(text)
    assert outcomes[0].startswith("bypass:not-isolated")
    assert why in outcomes[0]
    assert printed == run(text, env={"CACHEC_ISOLATED": "0"})[0]


def test_an_argument_that_cannot_be_sent_runs_here(run: Run) -> None:
    text = """
@cache.stage(ignore=["log"])
def f(log):
    return log.name
show(f, open("main.py"))
"""
    printed, outcomes = run(text)
    assert printed == "main.py\n"
    assert outcomes[0].startswith("bypass:not-isolated")


def test_one_object_twice_is_not_two_equal_ones(run: Run) -> None:
    text = """
import numpy as np
@cache.stage
def f(a, b):
    return a is b
@cache.stage
def g(value):
    return value[0] is value[1]
show(f, [1], [1])
both = [1]
show(f, both, both)
show(g, ([1], [1]))
show(g, (both, both))
table = np.zeros(3)
show(f, table, table.copy())
show(f, table, table)
show(f, table, table[:])
"""
    printed, outcomes = run(text)
    assert printed.split() == ["False", "True", "False", "True", "False", "True", "False"]
    assert [each for each in outcomes if not each.startswith("miss:")] == [
        "bypass:not-isolated (arrays that share memory)"
    ]
    again, outcomes = run(text)
    assert again == printed
    assert outcomes[:-1] == ["hit"] * 6


def test_what_the_program_sets_on_an_argument_and_its_class_counts(project: Path, run: Run) -> None:
    (project / "helper.py").write_text(
        "class Config:\n    width = 4\n    def area(self):\n        return self.width ** 2\n"
        "def scale(x):\n    return x * scale.factor\nscale.factor = 2\n"
    )
    text = """
import helper
@cache.stage
def f(kind, made, function):
    return kind.width, made.area(), function(3)
helper.Config.width = helper.scale.factor = int(os.environ["N"])
show(f, helper.Config, helper.Config(), helper.scale)
"""
    assert run(text, env={"N": "1"})[0] == "(1, 1, 3)\n"
    assert run(text, env={"N": "5"}) == (
        "(5, 25, 15)\n",
        ["miss:dependency-changed (global helper Config has another value)"],
    )
    assert run(text, env={"N": "1"}) == ("(1, 1, 3)\n", ["hit"])


def test_variables_that_nothing_reads_do_not_count(run: Run) -> None:
    text = """
@cache.stage
def f():
    return 1
show(f)
"""
    run(text, env={"ONE": "1"})
    assert run(text, env={"ONE": "2", "MORE": "3"})[1] == ["hit"]


def test_the_reason_names_the_global_that_cannot_be_sent(project: Path, run: Run) -> None:
    (project / "pool.py").write_text("import weakref\nclass Kind: pass\nPOOL = weakref.WeakValueDictionary()\n")
    text = """
import pool
kept = pool.Kind()
pool.POOL["a"] = kept
@cache.stage
def f():
    return len(pool.POOL)
show(f)
"""
    printed, outcomes = run(text)
    assert printed == "1\n"
    assert outcomes[0].startswith("bypass:not-isolated (it needs POOL of pool, which can't be sent: ")


def test_an_object_that_asks_itself_for_attributes_before_it_has_any(run: Run) -> None:
    text = """
class Lazy:
    def __init__(self, name):
        self.name = name
    def __getattr__(self, attribute):
        return getattr(__import__(self.name), attribute)
lazy = Lazy("json")
@cache.stage
def f(x):
    return lazy.dumps(x)
@cache.stage
def g(x):
    return x
show(f, 1)
show(g, 1)
"""
    printed, outcomes = run(text)
    assert printed == "1\n1\n"
    assert "it needs lazy of __main__, which can't be sent: a Lazy, whose __getattr__ raises" in outcomes[0]
    assert outcomes[1].startswith("miss:first-run")


def test_where_a_library_saves_time_does_not_count() -> None:
    program = """
from cachec.worker.untraced_lookups import VariableRecorder
variables = VariableRecorder(lambda path: path == "mine.py")
variables.install()
for file in ("library.py", "mine.py"):
    text = "import os; os.environ.get('TRITON_CACHE_DIR'); os.environ.get('OTHER')"
    exec(compile(text, file, "exec"), {"__name__": file})
    print([read.where for read in variables.reads()])
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == ["['OTHER']", "['OTHER', 'TRITON_CACHE_DIR']"]


def test_an_object_that_poses_as_a_module_is_left_alone(tmp_path: Path, run: Run) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "ops.py").write_text(
        "import sys, types\n"
        "class Ops(types.ModuleType):\n"
        "    __file__ = '_ops.py'\n"
        "    def __init__(self):\n"
        "        super().__init__('ops.all')\n"
        "        self.names = []\n"
        "sys.modules['ops.all'] = all = Ops()\n"
    )
    text = """
sys.path.append(os.environ["LIBRARY"])
import ops
ops.all.more = open(os.devnull)
@cache.stage
def f():
    return ops.all.names == []
show(f)
"""
    printed, outcomes = run(text, env={"LIBRARY": str(library)})
    assert printed == "True\n"
    assert outcomes[0].startswith("miss:first-run")


def test_both_ways_are_compared(run: Run) -> None:
    text = """
@cache.stage
def f():
    return os.getpid()
@cache.stage
def g():
    return 3
value, outcome = f.call()
print(value == os.getpid(), outcome.reason.value)
show(g)
"""
    printed, outcomes = run(text, env={"CACHEC_MODE": "both", "CACHEC_ISOLATED": "0"})
    assert printed == "True bypass:isolation-differs\n3\n"
    assert outcomes[0].startswith("miss:first-run")


_KINDS = """
import helper, decimal
class Config:
    width = 4
@cache.stage
def f(x):
    with open("data.txt") as file:
        text = file.read()
    return helper.scale(x) + Config.width + len(text) + len(os.getcwd() * 0) + len(os.environ.get("EXTRA", ""))
Config.width = 5
show(f, 1)
"""


def _cachec(store: Path, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "CACHEC_DIR": str(store), **(env or {})}
    command = [sys.executable, "-m", "cachec", *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def test_what_a_run_looked_up_can_be_shown_and_selected(tmp_path: Path, project: Path, run: Run) -> None:
    (project / "helper.py").write_text("def scale(x):\n    return x * 3\n")
    (project / "data.txt").write_text("data")
    run(_KINDS)
    store = tmp_path / "store"
    (listed,) = json.loads(_cachec(store, "ls", "--json").stdout)["entries"]
    shown = _cachec(store, "show", listed["key"], "--reads", "--check", "--full")
    assert shown.returncode == 0, shown.stderr
    assert {"helper.py", "data.txt", "EXTRA", "__main__.Config"} <= set(shown.stdout.split())
    gone = _cachec(store, "invalidate", "--source", str(project / "helper.py"), "--yes")
    assert gone.returncode == 0, gone.stderr
    assert run(_KINDS)[1] != ["hit"]


def test_an_entry_of_a_remote_hits_in_another_checkout(tmp_path: Path, project: Path, run: Run) -> None:
    (project / "helper.py").write_text("def scale(x):\n    return x * 3\n")
    (project / "data.txt").write_text("data")
    (tmp_path / "remote").mkdir()
    remote = {"CACHEC_REMOTE": f"file://{tmp_path}/remote"}
    value, _ = run(_KINDS, env=remote)
    sent = _cachec(tmp_path / "store", "push", env=remote)
    assert sent.returncode == 0, sent.stderr
    other = tmp_path / "elsewhere" / "other"
    other.parent.mkdir()
    subprocess.run(["cp", "-r", project, other], check=True)
    again, outcomes = run(_KINDS, env={**remote, "STORE": str(tmp_path / "another store")}, folder=other)
    assert (again, outcomes) == (value, ["hit"])


def test_variables_that_only_cachec_reads_do_not_count(project: Path, run: Run) -> None:
    text = "@cache.stage\ndef f(x):\n    return x\nshow(f, 1)"
    assert run(text, env={"ONE": "1", "CACHEC_REMOTE_TOKEN": "a", "CC": "gcc"})[1] == [
        "miss:first-run (no entry of this stage yet)"
    ]
    assert run(text, env={"ONE": "2", "CACHEC_REMOTE_TOKEN": "b", "CC": "clang"})[1] == ["hit"]


def test_every_kind_of_read_has_words() -> None:
    """Those that have none are refused from another store, and can't be shown."""
    texts = [path.read_text() for path in Path(cachec.__file__).parent.rglob("*.py")]
    made = {kind for text in texts for kind in re.findall(r"\bRead\(\"([a-z]+)\"", text)}
    assert made <= READ_KINDS
    assert "source" in made


@pytest.mark.parametrize("name", ["", "[]", "{", '["x"]', "[1, null]", '["' + "0" * 64 + '", null, "x"]', "[" * 9000])
@pytest.mark.parametrize("kind", ["source", "modules"])
def test_a_damaged_read_is_no_hit_and_no_error(tmp_path: Path, kind: str, name: str) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    read = Read(kind, str(tmp_path / "a.py" if kind == "source" else tmp_path), name, "0" * 64)
    digests = FileDigests()
    present = source_parts.present(read, digests) if kind == "source" else source_parts.present_modules(read)
    assert present != read.digest
    if kind == "source":
        assert source_parts.explain(read, digests, "main.py")


def test_constants_of_a_library_that_only_the_stage_imports(run: Run) -> None:
    text = """
@cache.stage
def f(x):
    import numpy as np
    return float(np.pi) * x
show(f, 1)
import numpy as library
library.pi = float(sys.argv[1])
show(f, 1)
"""
    # The program sets something in numpy, once it is imported here: what it holds counts from then on.
    first, second = run(text, "3.141592653589793")[1]
    assert (first, second.partition(" ")[0]) == (
        "miss:first-run (no entry of this stage yet)",
        "miss:dependency-changed",
    )
    assert run(text, "3.141592653589793")[1] == ["hit", "hit"]
    printed, outcomes = run(text, "3")
    assert printed == "3.141592653589793\n3.0\n"
    assert outcomes[0] == "hit"


@pytest.mark.parametrize("asked", ["datetime.datetime.fromtimestamp(0).hour", "time.localtime(0).tm_hour"])
def test_the_time_zone_counts(project: Path, run: Run, asked: str) -> None:
    (project / "helper.py").write_text(f"import datetime, time\ndef g():\n    return {asked}\n")
    stage = "import helper\n@cache.stage\ndef f(x):\n    return helper.g()\nshow(f, 1)"
    assert run(stage, env={"TZ": "UTC"})[0] == "0\n"
    assert run(stage, env={"TZ": "Asia/Tokyo"})[0] == "9\n"
    assert run(stage, env={"TZ": "UTC"})[1] == ["hit"]


def test_times_of_files_keep_a_result_out(project: Path, run: Run) -> None:
    (project / "data").write_text("x")
    stage = "@cache.stage\ndef f(x):\n    return os.path.getmtime('data') > 0\nshow(f, 1)"
    for _ in range(2):
        assert run(stage)[1][0].startswith("bypass:volatile-input")


def test_names_of_the_script_count_for_its_own_code_alone(project: Path, run: Run) -> None:
    text = "class C:\n    def __init__(self):\n        self.start = 1\ndef g():\n    return C().start\n"
    (project / "helper.py").write_text(text)
    stage = "import helper, time\n@cache.stage\ndef f(x):\n    return helper.g()\nstart = time.time()\nshow(f, 1)"
    run(stage)
    assert run(stage)[1] == ["hit"]
    own = stage.replace("helper.g()", "helper.g() + (start > 0)")
    run(own)
    assert run(own)[1] != ["hit"]


def test_a_miss_is_told_by_the_run_that_is_nearest(project: Path, run: Run) -> None:
    stage = "SCALE = 1\n@cache.stage\ndef f(x):\n    return open('data').read() * SCALE\nshow(f, 1)"
    for text in ("a", "b"):
        (project / "data").write_text(text)
        run(stage)
    assert run(stage)[1] == ["hit"]
    (project / "data").write_text("c")
    assert run(stage)[1] == ["miss:dependency-changed (content data has other content)"]
    (project / "data").write_text("a")
    (outcome,) = run(stage.replace("SCALE = 1", "SCALE = 2"))[1]
    assert "data" not in outcome


def test_a_stage_within_a_stage_leaves_alone_what_was_not_sent(run: Run) -> None:
    text = (
        "import threading\n@cache.stage\ndef inner(x):\n    return x * 2\n@cache.stage\ndef f(x):\n"
        "    return inner(x) + 1\ndef main():\n    show(f, 1)\n"
        "thread = threading.Thread(target=main)\nthread.start()\nthread.join()"
    )
    assert run(text) == ("3\n", ["miss:first-run (no entry of this stage yet)"])
    assert run(text) == ("3\n", ["hit"])


def test_a_global_of_the_script_counts_for_a_function_that_is_an_argument(run: Run) -> None:
    text = "BASE = 0\n@cache.stage\ndef f(make):\n    return make()\nBASE = int(sys.argv[1])\nshow(f, lambda: BASE)"
    assert run(text, "3")[0] == "3\n"
    assert run(text, "4")[0] == "4\n"
    assert run(text, "3") == ("3\n", ["hit"])


_FINDING = [
    *("eval('helper.' + name)", "getattr(h, name)", "vars(h)[name]", "operator.attrgetter(name)(h)"),
    *("inspect.getmembers(h)", "[getattr(h, each) for each in dir(h)]", "('{0.%s}' % name).format(h)"),
    *("sys._getframe().f_globals['h'].__dict__[name]", "getattr(TABLE[0], name)", "eval(name.lower())"),
]


@pytest.mark.parametrize("how", _FINDING)
def test_globals_count_that_code_finds_by_names_which_are_not_in_it(project: Path, run: Run, how: str) -> None:
    (project / "helper.py").write_text("FACTOR = 3\n")
    text = (
        "import helper, inspect, operator\nh = helper\nTABLE = [helper]\nfactor = 0\n"
        f"@cache.stage\ndef f(name):\n    return str({how})\n"
        "factor = helper.FACTOR = int(sys.argv[1])\nshow(f, 'FACTOR')"
    )
    for number in ("7", "8"):
        assert number in run(text, number)[0]
    assert run(text, "7")[1] == ["hit"]


def test_globals_that_a_program_adds_count_for_code_that_finds_any(project: Path, run: Run) -> None:
    (project / "helper.py").write_text("FACTOR = 3\n")
    text = "import helper\n@cache.stage\ndef f(x):\n    return sorted(n for n in vars(helper) if n.isupper())\n"
    assert run(text + "show(f, 1)")[0] == "['FACTOR']\n"
    assert run(text + "helper.OTHER = 1\nshow(f, 1)")[0] == "['FACTOR', 'OTHER']\n"
    assert run(text + "show(f, 1)")[1] == ["hit"]


def test_a_method_named_eval_finds_no_globals(run: Run) -> None:
    text = (
        "import time\nstart = time.time()\nclass Model:\n    def eval(self):\n        return getattr(self, 'x', 1)\n"
        "@cache.stage\ndef f(x):\n    return Model().eval()\nshow(f, 1)"
    )
    run(text)
    assert run(text)[1] == ["hit"]


_PLUGINS = """
import importlib.util, types
def load(path):
    spec = importlib.util.spec_from_file_location("plug", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
def execute(path):
    module = types.ModuleType("plug")
    exec(compile(open(path).read(), path, "exec"), vars(module))
    return module
HELD = {}
@cache.stage
def by_module(x): return HELD["module"].run(x)
@cache.stage
def by_function(x): return HELD["function"](x)
if __name__ == "__main__":
    HELD["module"] = HOW("plug.py")
    HELD["function"] = HELD["module"].run
    show(by_module, 3)
    show(by_function, 3)
    HELD["module"].run = lambda x: x - 1
    show(by_module, 3)
"""


@pytest.mark.parametrize("how", ["load", "execute"])
@pytest.mark.parametrize(("before", "after"), [("x * K", "x + K"), ("K = 2", "K = 20")])
def test_a_module_that_nothing_registered_counts(project: Path, run: Run, how: str, before: str, after: str) -> None:
    text = _PLUGINS.replace("HOW", how)
    plugin = "K = 2\ndef run(x): return x * K\n"
    (project / "plug.py").write_text(plugin)
    assert run(text)[0].split() == ["6", "6", "2"]
    assert run(text)[1] == ["hit"] * 3
    (project / "plug.py").write_text(plugin.replace(before, after))
    value = "5" if before == "x * K" else "60"
    assert run(text)[0].split() == [value, value, "2"]


_SENTINELS = """
import dataclasses
UNSET = object()
class Auto: pass
class Options: NONE = object()
AUTO = Auto()
@cache.stage
def by_object(x, opt=UNSET): return opt is UNSET
@cache.stage
def by_class(x, *, target=AUTO): return target is AUTO
@cache.stage
def of_library(x=dataclasses.MISSING): return x is dataclasses.MISSING
@cache.stage
def within(x): return x[0] is UNSET
@cache.stage
def of_class(x): return x is Options.NONE
if __name__ == "__main__":
    show(by_object, 1)
    show(by_object, 1, opt=object())
    show(by_class, 1)
    show(by_class, 1, target=Auto())
    show(of_library)
    show(within, [UNSET])
    show(of_class, Options.NONE)
"""


def test_an_object_that_only_its_identity_tells_apart_is_the_workers_own(run: Run) -> None:
    for _ in range(2):
        printed, outcomes = run(_SENTINELS)
        assert printed.split() == ["True", "False", "True", "False", "True", "True", "True"]
    assert outcomes.pop(1).endswith("(an object() that is no global: its copy would be another)")
    assert outcomes == ["hit"] * 6


_WEAK_TABLE = """
import weakref
class Width:
    held = weakref.WeakKeyDictionary()
    def __get__(self, owner, kind=None): return self.held.get(owner, 4)
    def __set__(self, owner, value): self.held[owner] = value
class Model:
    width = Width()
@cache.stage
def f(model): return model.width
@cache.stage
def nested(models): return models[0].width
if __name__ == "__main__":
    model = Model()
    show(f, model)
    model.width = int(sys.argv[1])
    show(f, model)
    show(nested, [model])
"""


def test_an_argument_that_a_weak_table_holds_something_for_stays_here(run: Run) -> None:
    for value in ("7", "8"):
        printed, outcomes = run(_WEAK_TABLE, value)
        assert printed.split() == ["4", value, value]
        assert ["a Model is in a weak table (weakref)" in each for each in outcomes] == [False, True, True]


_PYTREE = """
import jax
class Pair:
    def __init__(self, a, b): self.a, self.b = a, b
@cache.stage
def named(n): return len(jax.tree.leaves(Pair(1, n)))
@cache.stage
def given(pair): return len(jax.tree.leaves(pair))
if __name__ == "__main__":
    if "register" in sys.argv:
        for each in (Pair,):
            jax.tree_util.register_pytree_node(each, lambda p: ((p.a, p.b), None), lambda _, parts: each(*parts))
    show(named, 3)
    show(given, [Pair(1, 2)])
"""


def test_a_class_that_jax_knows_here_alone_stays_here(run: Run) -> None:
    pytest.importorskip("jax")
    assert run(_PYTREE)[0] == "1\n1\n"
    printed, outcomes = run(_PYTREE, "register")
    assert printed == "2\n2\n"
    assert all(each.startswith("bypass:not-isolated (") for each in outcomes)
    assert run(_PYTREE)[1] == ["hit"] * 2


@pytest.mark.parametrize("how", ["pickle.load(open('config.pickle', 'rb')).width", "helper.width_of(f.__wrapped__)"])
def test_globals_of_the_script_count_that_others_name(project: Path, run: Run, how: str) -> None:
    (project / "helper.py").write_text("import inspect\ndef width_of(f):\n    return inspect.getmodule(f).WIDTH\n")
    (project / "config.pickle").write_bytes(b"c__main__\nConfig\n.")  # made elsewhere
    text = (
        "import helper, pickle\nWIDTH = 0\nclass Config:\n    width = 0\n"
        f"@cache.stage\ndef f(x):\n    return {how}\n"
        "WIDTH = Config.width = int(sys.argv[1])\nshow(f, 1)"
    )
    assert [run(text, number)[0] for number in ("7", "8", "7")] == ["7\n", "8\n", "7\n"]
    assert run(text, "7")[1] == ["hit"]


def test_what_python_notes_of_warnings_is_no_global(run: Run) -> None:
    text = (
        "import warnings\nwarnings.warn('once')\n"
        "@cache.stage\ndef f(path):\n    return sorted(globals())[0], eval('1')\nshow(f, 'data.txt')"
    )
    run(text)
    assert run(text)[1] == ["hit"]


def test_a_function_that_is_an_argument_finds_globals_by_names_that_are_not_in_it(project: Path, run: Run) -> None:
    text = (
        "def make():\n    def get(name):\n        import helper\n        return getattr(helper, name)\n    return get\n"
        "@cache.stage\ndef f(get, name):\n    return get(name)\nshow(f, make(), 'FACTOR')"
    )
    for number in ("3", "4", "3"):
        (project / "helper.py").write_text(f"FACTOR = {number}\n")
        assert run(text)[0] == f"{number}\n"
    assert run(text)[1] == ["hit"]


@pytest.mark.parametrize(
    "how",
    [
        "lambda: BASE",
        "make(1)",
        "functools.partial(lambda x: x + BASE, 0)",
        "[lambda: BASE][0]",
        "TABLE['get']",
        "local",
    ],
)
def test_a_global_of_the_script_counts_for_a_function_without_a_name(run: Run, how: str) -> None:
    text = (
        "import functools\nBASE = 0\ndef make(n):\n    return lambda: n * BASE\nTABLE = {'get': lambda: BASE}\n"
        "@cache.stage\ndef f(held):\n    return held[0]()\n"
        "def main():\n    def local():\n        return BASE\n"
        f"    show(f, [{how}])\nBASE = int(sys.argv[1])\nmain()"
    )
    assert [run(text, number)[0] for number in ("3", "4", "3")] == ["3\n", "4\n", "3\n"]
    assert run(text, "3")[1] == ["hit"]


@pytest.mark.parametrize("body", ["x + BASE", "x + i"])
def test_a_global_counts_for_a_stage_that_is_defined_in_a_loop(run: Run, body: str) -> None:
    text = (
        "BASE = 0\nstages = []\nfor i in (1, int(sys.argv[1])):\n"
        f"    @cache.stage\n    def f(x):\n        return {body}\n    stages.append(f)\n"
        "BASE = int(sys.argv[1])\nshow(stages[0], 1)"
    )
    assert [run(text, number)[0] for number in ("3", "4", "3")] == ["4\n", "5\n", "4\n"]
    assert run(text, "3")[1] == ["hit"]


_REPLACED = """
import helper, types
@cache.stage
def f(x):
    from helper import scale
    return scale(x)
other = types.ModuleType("helper")
other.scale = lambda x: x * 5
if sys.argv[1] == "whole":
    sys.modules["helper"] = other
elif sys.argv[1] == "function":
    helper.scale = helper.other
show(f, 2)
"""


@pytest.mark.parametrize(("how", "value"), [("whole", "10\n"), ("function", "8\n")])
@pytest.mark.parametrize("first", ["", "none"])
def test_a_module_that_the_program_replaced_counts(project: Path, run: Run, how: str, value: str, first: str) -> None:
    (project / "helper.py").write_text("def scale(x):\n    return x * 3\ndef other(x):\n    return x * 4\n")
    if first:
        run(_REPLACED, first)
    assert run(_REPLACED, how)[0] == value
    assert run(_REPLACED, "none")[0] == "6\n"
    ended = run(_REPLACED, how)
    assert ended[0] == value
    if how == "whole":
        assert "sys.modules has another object in place of the project's module helper" in ended[1][0]


@pytest.mark.parametrize("module", ["helper", "colorsys"])
def test_an_import_that_the_program_blocked_counts(project: Path, run: Run, module: str) -> None:
    (project / "helper.py").write_text("FACTOR = 3\n")
    text = (
        f"@cache.stage\ndef f(x):\n    try:\n        import {module}\n        return 'there'\n"
        "    except ImportError:\n        return 'blocked'\n"
        f"if sys.argv[1:]: sys.modules['{module}'] = None\nshow(f, 2)"
    )
    assert run(text, "block")[0] == "blocked\n"
    assert run(text)[0] == "there\n"
    assert run(text, "block")[0] == "blocked\n"
    assert run(text)[1] == ["hit"]


def test_the_function_counts_that_a_module_makes_attributes_with(project: Path, run: Run) -> None:
    (project / "helper.py").write_text("def __getattr__(name):\n    return name\n")
    text = (
        "import helper\n@cache.stage\ndef f(x):\n    return helper.thing\n"
        "if sys.argv[1:]: helper.__getattr__ = lambda name: 'other'\nshow(f, 2)"
    )
    assert run(text)[0] == "thing\n"
    assert run(text, "other")[0] == "other\n"
    assert run(text)[1] == ["hit"]


def test_what_a_program_makes_in_a_temporary_folder_is_no_input(project: Path, run: Run) -> None:
    text = (
        "import subprocess, tempfile\n@cache.stage\ndef f(x):\n    path = tempfile.mkdtemp() + '/made'\n"
        "    subprocess.run(f'echo 1 > {path}; chmod +x {path}', shell=True, check=True)\n    return 1\nshow(f, 2)"
    )
    run(text)
    assert run(text)[1] == ["hit"]


@pytest.mark.parametrize("wraps", ["@functools.wraps(f)", ""])
def test_a_decorator_may_stand_above_a_stage(run: Run, wraps: str) -> None:
    text = (
        f"import functools\ndef twice(f):\n    {wraps or '# nameless'}\n    def g(*a):\n        show(f, *a)\n"
        "    return g\nBASE = int(sys.argv[1])\n@twice\n@cache.stage\ndef f(x):\n    return x + BASE\nf(1)"
    )
    assert [run(text, number)[0] for number in ("3", "4")] == ["4\n", "5\n"]
    assert run(text, "3") == ("4\n", ["hit"])


def test_a_stage_within_a_stage_is_stored_where_the_script_has_a_table_of_stages(run: Run) -> None:
    text = (
        "stages = []\nfor _ in (1, 2):\n    @cache.stage\n    def loop(x):\n        return x\n"
        "    stages.append(loop)\n"
        "@cache.stage\ndef inner(x):\n    return x * 3\n"
        "@cache.stage\ndef outer(x):\n    return inner(x) + 1\nshow(outer, 4)"
    )
    assert run(text) == ("13\n", ["miss:first-run (no entry of this stage yet)"])
    assert run(text) == ("13\n", ["hit"])


_LEAVES_OUT = """
import threading
class Counted:
    def __init__(self):
        self.count, self.lock = int(sys.argv[1]), None
    def __getstate__(self):
        return {}
    def __setstate__(self, state):
        self.count, self.lock = -1, None
counted = {kind}
@cache.stage
def f(x):
    return x
@cache.stage
def g(x):
    return counted[0].count
counted[0].count += 1
show(f, 1)
show(g, 1)
"""


@pytest.mark.parametrize("kind", ["[Counted()]", "[Counted(), threading.Lock()]"])
def test_an_object_whose_pickle_leaves_something_out_keeps_only_its_users_in_process(run: Run, kind: str) -> None:
    text = _LEAVES_OUT.replace("{kind}", kind)
    run(text, "5")
    value, outcomes = run(text, "6")
    assert value == "1\n7\n"
    assert outcomes[0] == "hit"
    assert "bypass:not-isolated (it needs counted of __main__, which" in outcomes[1]


def test_the_change_of_a_file_is_named_without_its_folder(project: Path, run: Run) -> None:
    for number in (3, 4):
        (project / "helper.py").write_text(f"def scale(x):\n    return x * {number}\n")
        outcome = run("@cache.stage\ndef f(x):\n    import helper\n    return helper.scale(x)\nshow(f, 1)")[1]
    assert outcome == ["miss:code-changed (project:helper.py changed)"]


def test_attributes_that_are_called_as_globals_of_the_script_do_not_count(run: Run) -> None:
    text = (
        "import threading, time\nstart = time.time()\nclass C:\n    stop = 2\n@cache.stage\ndef f(x):\n"
        "    thread = threading.Thread(target=int)\n    thread.start()\n    thread.join()\n    return C().stop\n"
        "stop = int(sys.argv[1])\nshow(f, 1)"
    )
    run(text, "1")
    assert run(text, "2")[1] == ["hit"]
    assert run(text.replace("C().stop", "(C().stop, stop)"), "2")[0] == "(2, 2)\n"
    assert run(text.replace("C().stop", "(C().stop, stop)"), "3")[0] == "(2, 3)\n"


def test_a_global_that_can_be_sent_but_not_compared_keeps_a_stage_here(run: Run) -> None:
    text = (
        "K = int(sys.argv[1])\nfor _ in range(200):\n    K = [K]\n"
        "@cache.stage\ndef f(x):\n    k = K\n    while isinstance(k, list):\n        k = k[0]\n    return k\nshow(f, 1)"
    )
    for number in ("3", "4"):
        printed, (outcome,) = run(text, number)
        assert printed == f"{number}\n"
        assert "it needs K of __main__" in outcome


_LOCATED = """
from pathlib import Path
import located
HERE = Path(__file__).resolve().parent
@cache.stage
def f(x):
    return (HERE / "data").read_text() + located.place()
show(f, 1)
"""


def test_the_size_of_a_script_that_finds_its_folder_does_not_count(project: Path, run: Run) -> None:
    (project / "data").write_text("d")
    module = project / "located.py"
    module.write_text("import os\ndef place():\n    return os.path.basename(os.path.realpath(__file__))\n")
    assert run(_LOCATED) == ("dlocated.py\n", ["miss:first-run (no entry of this stage yet)"])
    module.write_text(f"# a comment\n{module.read_text()}")
    assert run(f"# another\n{_LOCATED}") == ("dlocated.py\n", ["hit"])


@pytest.mark.parametrize("size", ["os.path.getsize(__file__)", 'os.popen(f"ls -l {__file__}").read().split()[4]'])
def test_it_counts_where_the_code_asks_for_it_or_starts_programs(run: Run, size: str) -> None:
    text = f"@cache.stage\ndef f(x):\n    return int({size})\nshow(f, 1)\n"
    for script in (text, f"# a comment\n{text}"):
        value, outcomes = run(script)
        assert int(value) == len(_HEAD + script)
        assert outcomes != ["hit"]


_PARTLY_PICKLED = """
class Settings:
    def __init__(self):
        self.level, self.fields = 1, set()
    def __getstate__(self):
        return {"level": self.level, "fields": set()}
SETTINGS = Settings()
@cache.stage
def uses(x):
    return SETTINGS.level + len(SETTINGS.fields)
@cache.stage
def other(x):
    return x
if __name__ == "__main__":
    SETTINGS.fields.add("level")
    show(uses, 1)
    show(other, 1)
"""


def test_a_global_that_arrives_as_another_bars_only_stages_that_name_it(run: Run) -> None:
    value, (uses, other) = run(_PARTLY_PICKLED)
    assert value == "2\n1\n"
    assert "it needs SETTINGS of __main__, which has another value once it was sent" in uses
    assert other == "miss:first-run (no entry of this stage yet)"


_FILLS = """
class Settings:
    instance = None
    @classmethod
    def get(cls):
        if cls.instance is None:
            cls.instance = cls()
        return cls.instance
@cache.stage
def f(x):
    import late
    return x, Settings.get().__class__.__name__, late.__name__
show(f, 1)
"""


def test_what_a_stage_fills_keeps_it_here_both_ways(project: Path, run: Run) -> None:
    (project / "late.py").write_text("")
    both = {"CACHEC_MODE": "both", "CACHEC_ISOLATED": "1"}
    for env in (None, both):
        assert run(_FILLS, env=env)[1] == ["bypass:not-isolated (it changed Settings.instance of __main__)"]


@pytest.mark.parametrize("asks", ["os.path.samefile('cur', 'v1')", "os.stat('cur').st_ino == os.stat('v1').st_ino"])
def test_a_stage_that_asks_which_file_a_path_leads_to_is_not_stored(project: Path, run: Run, asks: str) -> None:
    text = f"@cache.stage\ndef f(x):\n    return {asks}\nshow(f, 1)"
    for name in ("v1", "v2"):
        (project / name).write_text("")
        (project / "cur").unlink(missing_ok=True)
        (project / "cur").symlink_to(name)
        printed, (outcome,) = run(text)
        assert printed == f"{name == 'v1'}\n"
        assert "it asks which file a path leads to" in outcome


def test_a_difference_between_both_ways_is_told_in_words(run: Run) -> None:
    text = "X = [object()]\n@cache.stage\ndef f():\n    return [os.getpid() > 0, id(cache)]\nshow(f)\n"
    outcome = run(text, env={"CACHEC_MODE": "both"})[1][0]
    assert re.search(r"a process of its own gives \[True, \d+\], this one \[True, \d+\]", outcome), outcome


_NEEDS_A_LOCK = """
cache = cachec.Cache(os.environ["STORE"], log="all")
import threading
LOCK = threading.Lock()
LOCK.acquire()
@cache.stage(isolated=True)
def inner(x):
    return LOCK.locked()
@cache.stage(isolated=True)
def outer(x):
    return inner(x)
print(outer(1))
"""


def test_a_stage_that_fell_back_within_another_is_no_error(tmp_path: Path, run: Run) -> None:
    assert run(_NEEDS_A_LOCK)[0] == "True\n"
    command = [sys.executable, "-m", "cachec", "log"]
    environ = {**os.environ, "CACHEC_DIR": str(tmp_path / "store")}
    log = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "inner" in log
    assert "error" not in log


def test_a_stage_within_another_that_needs_what_was_not_sent_is_no_error(tmp_path: Path, project: Path) -> None:
    (project / "main.py").write_text(_HEAD + _NEEDS_A_LOCK)
    environ = {**os.environ, "STORE": str(tmp_path / "store")}
    command = [sys.executable, "main.py"]
    ended = subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, check=True)
    assert ended.stdout == "True\n"
    assert "bypass __main__.inner: not-isolated" in ended.stderr
    assert "ForbiddenUseError" not in ended.stderr


def test_variables_that_are_as_before_again_are_not_set(run: Run) -> None:
    """``patch.dict`` empties the environment, and fills it again: what is asked for next is the caller's."""
    text = (
        "from unittest import mock\n@cache.stage\ndef f(x):\n"
        '    with mock.patch.dict(os.environ, MODE="x"): mode = os.environ["MODE"]\n'
        '    return mode, os.environ.get("HOME")\nshow(f, 1)'
    )
    assert run(text, env={"HOME": "/one"}) == ("('x', '/one')\n", ["miss:first-run (no entry of this stage yet)"])
    assert run(text, env={"HOME": "/one"}) == ("('x', '/one')\n", ["hit"])
    printed, outcomes = run(text, env={"HOME": "/two"})
    assert printed == "('x', '/two')\n"
    assert outcomes == ["miss:environment-changed (env HOME has another value)"]
    assert run(text.replace("mode, ", "os.environ.setdefault('NEW', '1'), "))[1] == [
        "bypass:not-isolated (it set the variable NEW)"
    ]


def test_a_module_without_a_file_bars_the_stages_that_name_it(run: Run) -> None:
    text = (
        "import types\nconf = types.ModuleType('appconf')\nconf.K = 3\nsys.modules['appconf'] = conf\n"
        "@cache.stage\ndef one(x): return x\n@cache.stage\ndef two(x): return x * conf.K\nshow(one, 2)\nshow(two, 2)"
    )
    printed, outcomes = run(text)
    assert printed == "2\n6\n"
    assert outcomes == [
        "miss:first-run (no entry of this stage yet)",
        "bypass:not-isolated (it needs conf of __main__, which can't be sent: the module appconf, which the program "
        "has put into sys.modules)",
    ]


def test_a_script_that_can_not_be_replayed_says_what_was_left_out(project: Path, run: Run) -> None:
    (project / "hooks.py").write_text("import sys\ndef install(): sys.modules['virtual'] = type(sys)('virtual')\n")
    [outcome] = run("import hooks\nhooks.install()\nimport virtual\n@cache.stage\ndef f(x): return x\nshow(f, 1)")[1]
    assert "No module named 'virtual'" in outcome
    assert "hooks.install() in line 9 was not replayed" in outcome
