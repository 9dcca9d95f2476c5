"""Settings of a process: each is taken from one process, set in another, and counts where it changes results."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from cachec.key import process_state

#: Setting -> a statement that changes it, and what tells that it is changed.
CHANGES = {
    "current folder": ("import os; os.chdir('/')", "import os; os.getcwd()"),
    "dialects of csv": (
        "import csv; csv.register_dialect('mine', delimiter=';')",
        "import csv; csv.list_dialects()",
    ),
    "size of a field of csv": ("import csv; csv.field_size_limit(99)", "import csv; csv.field_size_limit()"),
    "switch interval": ("import sys; sys.setswitchinterval(0.25)", "import sys; sys.getswitchinterval()"),
    "timeout of sockets": ("import socket; socket.setdefaulttimeout(7)", "import socket; socket.getdefaulttimeout()"),
    "start method of multiprocessing": (
        "import multiprocessing; multiprocessing.set_start_method('spawn')",
        "import multiprocessing; multiprocessing.get_start_method(allow_none=True)",
    ),
    "flags of absl": (
        "from absl import flags; flags.DEFINE_integer('width', 1, ''); flags.FLAGS(['program', '--width=3'])",
        "from absl import flags; 'width' in flags.FLAGS or flags.DEFINE_integer('width', 1, ''); "
        "flags.FLAGS['width'].value",
    ),
    "arguments": ("import sys; sys.argv = ['program', '--fast']", "import sys; sys.argv[:]"),
    "umask": ("import os; os.umask(0o027)", "import os; os.umask(0)"),
    "recursion limit": ("import sys; sys.setrecursionlimit(2345)", "import sys; sys.getrecursionlimit()"),
    "size of stacks of threads": (
        "import threading; threading.stack_size(1 << 20)",
        "import threading; threading.stack_size()",
    ),
    "digits of an int": ("import sys; sys.set_int_max_str_digits(5000)", "import sys; sys.get_int_max_str_digits()"),
    "decimal": (
        "import decimal; c = decimal.getcontext(); c.prec = 5; c.traps[decimal.Inexact] = True",
        "import decimal; str(decimal.getcontext().copy())",
    ),
    "decimal of new threads": (
        "import decimal; decimal.getcontext(); decimal.DefaultContext.rounding = 'ROUND_UP'",
        "import decimal; decimal.DefaultContext.rounding",
    ),
    "locale": ("import locale; locale.setlocale(locale.LC_NUMERIC, 'C.UTF-8')", "import locale; locale.setlocale(1)"),
    "warnings": (
        "import warnings; warnings.filterwarnings('error', 'deep', UserWarning, 'm')",
        "import warnings; str(warnings.filters[0])",
    ),
    "log levels": (
        "import logging; logging.root.setLevel(10); logging.disable(5); logging.getLogger('mine').setLevel(20);"
        " logging.getLogger('off').disabled = True; logging.getLogger('alone').propagate = False",
        "import logging; mine, off, alone = map(logging.getLogger, ('mine', 'off', 'alone'));"
        " [logging.root.level, logging.root.manager.disable, mine.level, off.disabled, alone.propagate]",
    ),
    "numpy errors": ("import numpy; numpy.seterr(divide='raise')", "import numpy; numpy.geterr()"),
    "numpy printing": ("import numpy; numpy.set_printoptions(precision=3)", "import numpy; numpy.get_printoptions()"),
}

SETUP = "import json, pickle, sys; from cachec.key import process_state as p\n"


def _python(program: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SETUP + textwrap.dedent(program)]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, umask=0o022, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.fixture(scope="module")
def fresh() -> dict[str, str]:
    """The digests in a process that has changed nothing."""
    found: dict[str, str] = json.loads(_python("print(json.dumps({name: p.digest(name) for name in p.COUNTED}))"))
    return found


def test_every_setting_has_a_change_here() -> None:
    started_with = {"flags of Python"}  # a worker is started with those of its caller: nothing sets them later
    assert set(CHANGES) == set(process_state._SETTINGS) - started_with


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_goes_from_one_process_to_another(name: str, fresh: dict[str, str], tmp_path: Path) -> None:
    change, shows = CHANGES[name]
    imports, _, expression = shows.rpartition(";")
    sent = tmp_path / "sent"
    changed = json.loads(
        _python(
            f"""
            {change}
            snapshot = p.snapshot()
            digests = {{name: p.digest(name) for name in p.COUNTED}}
            with open({str(sent)!r}, 'wb') as file:
                pickle.dump(snapshot, file)
            {imports}
            print(json.dumps([digests, {expression}]))
            """
        )
    )
    received = json.loads(
        _python(
            f"""
            {imports}
            before = {expression if name != "umask" else 0o022}
            with open({str(sent)!r}, 'rb') as file:
                snapshot = pickle.load(file)
            p.apply(snapshot)
            p.apply(snapshot)
            digests = {{name: p.digest(name) for name in p.COUNTED}}
            assert p.snapshot() == snapshot, p.snapshot()
            print(json.dumps([digests, {expression}, before]))
            """
        )
    )
    assert received[:2] == changed
    assert received[1] != received[2]
    counted = {other for other, digest in changed[0].items() if fresh[other] != digest}
    assert counted == ({name} & set(process_state.COUNTED))


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_is_set_back_to_its_default(name: str, fresh: dict[str, str]) -> None:
    change, _ = CHANGES[name]
    program = f"""
        before = p.snapshot()
        {change}
        p.apply(before)
        assert p.snapshot() == before, (p.snapshot(), before)
        print(json.dumps({{name: p.digest(name) for name in p.COUNTED}}))
    """
    assert json.loads(_python(program)) == fresh


def test_only_filters_that_make_errors_count(fresh: dict[str, str]) -> None:
    program = "import warnings; warnings.simplefilter('ignore', UserWarning); print(p.digest('warnings'))"
    assert _python(program).strip() == fresh["warnings"]


def test_importing_numpy_changes_no_setting_that_counts(fresh: dict[str, str]) -> None:
    program = "import numpy; print(json.dumps({name: p.digest(name) for name in p.COUNTED}))"
    assert json.loads(_python(program)) == fresh


def test_what_does_not_count_has_no_digest() -> None:
    with pytest.raises(KeyError, match="current folder"):
        process_state.digest("current folder")


def test_a_snapshot_can_be_sent() -> None:
    snapshot = process_state.snapshot()
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot  # noqa: S301 - of this process
