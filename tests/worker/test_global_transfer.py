"""Globals that the caller has changed, set in a fresh process: afterwards both have the same table."""

from __future__ import annotations

import contextvars
import functools
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from cachec.key.canonical_forms import Forms
from cachec.worker.global_transfer import Attributes, ContextValue, UnsendableError, assign, to_send

CONFIG = """
import contextvars, functools, logging, threading
LIMIT = 3
NAMES = ["a"]
OLD = 1
from json import loads as parse
class Config:
    rate = 0.1
    names = []
    class Inner:
        depth = 1
    def run(self):
        return self.rate
settings = Config()
def helper(x): return x + LIMIT
variable = contextvars.ContextVar("variable", default=1)
local = threading.local()
log = logging.getLogger("project.config")
@functools.cache
def read(name): return [name]
"""

USER = """
from config import NAMES, Config, settings
"""

CHANGE = """
config.LIMIT = 5
config.NAMES.append("b")
del config.OLD
import json, pathlib
config.parse = json.dumps
config.Kind = pathlib.PurePath
config.NEW = {"x": config.settings}
config.Config.rate = 0.5
config.Config.more = (1, 2)
config.Config.Inner.depth = 7
config.settings.rate = 9
config.helper.calls = 2
config.variable.set([1])
config.local.depth = 4
config.read("a")
"""

PROGRAM = """
import pickle, sys
sys.path.insert(0, sys.argv[1])
import config, user
from cachec.worker.global_transfer import DeletedGlobal, UnsendableError, assign, to_send
from cachec.key.canonical_forms import Forms
from cachec.key.module_globals import differences, table
def forms():
    return Forms(lambda path: path.startswith(sys.argv[1]))
modules = {"config": config, "user": user}
"""

WORKER = """
with open(sys.argv[2], "wb") as file:
    pickle.dump(table(modules, forms()), file)
"""

CALLER = """
theirs = pickle.load(open(sys.argv[2], "rb"))
mine = table(modules, forms())
sent, missing = {}, []
for module, name in differences(mine, theirs):
    try:
        sent[module, name] = to_send(vars(modules[module])[name], forms()) if name in mine[module] else DeletedGlobal()
    except UnsendableError:
        missing.append(name)
with open(sys.argv[2], "wb") as file:
    pickle.dump((mine, sent, missing), file)
"""

RECEIVER = """
mine, sent, missing = pickle.load(open(sys.argv[2], "rb"))
before = forms()
kept = config.Config.names
for (module, name), value in sent.items():
    assign(modules[module], name, value, before)
now = table(modules, forms())
assert config.Config.names is kept
assert user.settings is config.settings is config.NEW["x"]
assert user.NAMES is config.NAMES == ["a", "b"]
assert config.variable.get() == [1] and config.local.depth == 4 and config.Config().run() == 0.5
print(sorted(name for module in mine for name in mine[module] if now[module].get(name) != mine[module][name]))
print(sorted(set(now["config"]) - set(mine["config"])), missing)
"""


def _python(*arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_the_caller_has_changed_is_set_in_a_worker(tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text(CONFIG)
    (tmp_path / "user.py").write_text(USER)
    arguments = (str(tmp_path), str(tmp_path / "message"))
    _python(PROGRAM + WORKER, *arguments)
    _python(PROGRAM + CHANGE + CALLER, *arguments)
    assert _python(PROGRAM + RECEIVER, *arguments) == "[]\n[] []\n"


@pytest.fixture
def forms() -> Forms:
    """Of a project that this file is in."""
    return Forms(lambda path: path == __file__)


def test_a_memo_and_a_variable_that_is_not_set_can_not_be_sent(forms: Forms) -> None:
    with pytest.raises(UnsendableError, match="remembers results"):
        to_send(functools.cache(len), forms)
    with pytest.raises(UnsendableError, match="no longer set"):
        to_send(contextvars.ContextVar("unset"), forms)


def test_what_a_fresh_process_has_not_can_not_be_set(forms: Forms) -> None:
    module = ModuleType("module")
    with pytest.raises(UnsendableError, match="has no Nothing in a fresh process"):
        assign(module, "value", Attributes("pathlib", "Nothing", {}), forms)
    with pytest.raises(UnsendableError, match=r"no _?contextvars\.ContextVar there"):
        assign(module, "value", ContextValue(1), forms)


def test_plain_values_go_as_they_are(forms: Forms) -> None:
    module, lock = ModuleType("module"), threading.Lock()
    assert to_send(lock, forms) is lock
    for value in ({"a": 1}, [1], None, pickle):
        assign(module, "value", to_send(value, forms), forms)
        assert vars(module)["value"] is value


def test_classes_within_a_class_that_a_fresh_process_has_not(forms: Forms) -> None:
    class Outer:
        class Inner:
            depth = 1

    sent = Attributes(__name__, Outer.__qualname__, {"Other": Attributes(__name__, "Outer.Other", {})})
    module = ModuleType("module")
    with pytest.raises(UnsendableError, match="has no Outer"):
        assign(module, "Outer", Attributes(__name__, "Outer", {}), forms)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "Outer", Outer)
        with pytest.raises(UnsendableError, match=r"has no Outer\.Other"):
            assign(module, "Outer", sent._replace(qualname="Outer"), forms)
