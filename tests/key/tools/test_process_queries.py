"""State of the process as what a run may have asked for: by which names, and what changes it."""

from __future__ import annotations

import decimal
import locale
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from cachec.key.tools import process_queries
from cachec.key.tools.process_queries import queried_states, state_digest

NAMES = {
    "arguments of the process": ("argv", "orig_argv", "parse_args", "parse_known_args"),
    "user": ("getuid", "geteuid", "getgid", "getegid", "getuser", "getlogin"),
    "host": ("uname", "gethostname", "getfqdn"),
    "processors": ("cpu_count", "sched_getaffinity"),
    "locale": ("getlocale", "setlocale", "localeconv", "strxfrm", "strcoll"),
    "decimal context": ("Decimal", "getcontext", "localcontext"),
    "limit of recursion": ("getrecursionlimit",),
    "mask of new files": ("st_mode", "ST_MODE", "umask"),
    "first day of the week": ("calendar",),
    "numpy's errors": ("numpy", "geterr", "errstate", "seterr"),
    "encoding of files": ("open", "fdopen", "read_text", "TextIOWrapper", "getencoding"),
}


#: Which name an encoding has is a state of its own.
ENCODINGS = {"tables of encodings.aliases"}


@pytest.mark.parametrize(("state", "name"), [(state, name) for state, names in NAMES.items() for name in names])
def test_the_names_by_which_code_asks(state: str, name: str) -> None:
    assert queried_states([(compile(f"module.{name}()", "", "exec"), {})]) - ENCODINGS == {state}
    assert queried_states([(compile(f"module.{name}x()", "", "exec"), {})]) == set()


ALIASES: dict[str, tuple[str, dict[str, object]]] = {
    "decimal context": ("D(1)", {"D": decimal.Decimal}),
    "user": ("who()", {"who": os.getuid}),
    "numpy's errors": ("x.log(0)", {"x": np}),
    "flags of the interpreter": ("s.flags", {"s": sys}),
    "folders of imports": ("s.path", {"s": sys}),
    "encoding of files": ("o('x')", {"o": open}),
}


@pytest.mark.parametrize("state", ALIASES)
def test_code_asks_under_other_names_too(state: str) -> None:
    text, namespace = ALIASES[state]
    assert queried_states([(compile(text, "", "exec"), namespace)]) - ENCODINGS == {state}
    assert queried_states([(compile(text, "", "exec"), {})]) == set()


TABLES: dict[str, tuple[str, dict[str, object]]] = {
    "mimetypes": ("import mimetypes", {}),
    "encodings.aliases": ("text.encode('name')", {}),
    "locale": ("n('de')", {"n": locale.normalize}),
    "shutil": ("m()", {"m": shutil.make_archive}),
}


@pytest.mark.parametrize("module", TABLES)
def test_the_tables_that_code_asks_for(module: str) -> None:
    text, namespace = TABLES[module]
    assert f"tables of {module}" in queried_states([(compile(text, "", "exec"), namespace)])
    assert queried_states([(compile("other(x)", "", "exec"), namespace)]) == set()


@pytest.mark.parametrize(
    ("state", "text", "value"),
    [
        ("decimal context", "k / 3", decimal.Decimal(1)),
        ("numpy's errors", "1 / k", np.zeros(1)),
        ("numpy's errors", "log(0)", np.log),
        ("flags of the interpreter", "k.optimize", sys.flags),
    ],
)
def test_values_ask_for_what_their_package_answers_by(state: str, text: str, value: object) -> None:
    assert queried_states([(compile(text, "", "exec"), {"k": value, "log": value})]) == {state}


DECIMAL = {"prec": 5, "rounding": decimal.ROUND_UP, "Emin": -5, "Emax": 5, "capitals": 0, "clamp": 1}
CHANGES: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], object]]] = {
    "argv": ("arguments of the process", lambda patch: patch.setattr(sys, "argv", ["other"])),
    "uid": ("user", lambda patch: patch.setattr(os, "getuid", lambda: 12345)),
    "gid": ("user", lambda patch: patch.setattr(os, "getgid", lambda: 12345)),
    "processors": ("processors", lambda patch: patch.setattr(os, "cpu_count", lambda: 999)),
    "affinity": ("processors", lambda patch: patch.setattr(os, "sched_getaffinity", lambda _: {999})),
    "locale": ("locale", lambda patch: patch.setattr(process_queries, "setlocale", lambda _: "other")),
    "encoding": ("encoding of files", lambda patch: patch.setattr(process_queries, "getencoding", lambda: "latin-1")),
    "array errors": ("numpy's errors", lambda patch: patch.setattr(np, "geterr", lambda: {"divide": "raise"})),
    "decimal traps": (
        "decimal context",
        lambda patch: patch.setitem(decimal.getcontext().traps, decimal.Inexact, True),  # type: ignore[arg-type]
    ),
}


@pytest.mark.parametrize("name", DECIMAL)
def test_what_of_a_decimal_context_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = state_digest("decimal context")
    monkeypatch.setattr(decimal.getcontext(), name, DECIMAL[name])
    assert state_digest("decimal context") != before


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_a_state(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state, change = CHANGES[name]
    before = {each: state_digest(each) for each in NAMES}
    change(monkeypatch)
    after = {each: state_digest(each) for each in NAMES}
    assert {each for each in NAMES if before[each] != after[each]} == {state}


def test_the_limit_of_recursion_counts() -> None:
    limit, before = sys.getrecursionlimit(), state_digest("limit of recursion")
    try:
        sys.setrecursionlimit(limit + 1)
        assert state_digest("limit of recursion") != before
    finally:
        sys.setrecursionlimit(limit)


def test_the_host_is_what_uname_says() -> None:
    assert socket.gethostname() == os.uname().nodename
    assert state_digest("host") == state_digest("host") != state_digest("user") != state_digest("unknown")


def test_a_forked_process_began_with_its_parent_whose_imports_it_has() -> None:
    program = (
        "import os, time\n"
        "began = time.time()\n"
        "while time.time() < began + 0.1: pass\n"
        "if not os.fork():\n"
        "    from cachec.key.tools.process_queries import process_start\n"
        "    os._exit(0 if process_start() < began else 1)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
