"""Reads of a run are in its trace, and a hit checks them, both for edits that must miss and for neighbours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cachec
from cachec import CachecWarning, Reason
from tests.soundness.runner import Server

_HEAD = """
import os, cachec
cache = cachec.Cache(os.environ['SOUNDNESS_STORE'], log='off', mode='on')
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    asked = Server()
    yield asked
    asked.close()


@pytest.fixture
def ask(server: Server, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """A call in a new process, of a project of these files, after these steps."""
    (tmp_path / "p").mkdir()

    def asked(files: dict[str, str | None], *steps: tuple[Any, ...], folder: Path = tmp_path / "p") -> dict[str, Any]:
        if "main.py" in files:
            files = {**files, "main.py": _HEAD + str(files["main.py"])}
        answer: dict[str, Any] = _last(server, folder, ("write", files), *steps, ("call",))
        if answer["reason"] == "hit":
            assert answer["value"] == answer["truth"]
        return answer

    return asked


def _last(server: Server, folder: Path, *steps: tuple[Any, ...]) -> dict[str, Any]:
    """The last answer of a new process that takes these steps."""
    (answers,) = server(folder.with_name(f"{folder.name}-store"), [(folder, steps)])
    assert "failed" not in answers, answers
    answer: dict[str, Any] = answers[-1]
    return answer


def test_a_variable_that_project_code_looks_up(ask: Any) -> None:
    files = {
        "main.py": "import importlib\n@cache.stage\ndef stage(m='mo' + 'de'): return importlib.import_module(m).get()\n"
    }
    files |= {"mode.py": "import os\ndef get(): return os.environ.get('NET_MODE', 'none')\n", "cachec.toml": ""}
    given = ("exec", "os", "environ['NET_MODE'] = 'fast'")
    assert ask(files)["reason"] == "miss:first-run"
    assert ask(files)["reason"] == "hit"
    changed = ask(files, given)
    assert (changed["reason"], changed["detail"]) == ("miss:environment-changed", "env NET_MODE has another value")
    assert ask(files, given)["reason"] == "hit"
    assert ask(files)["reason"] == "hit"


def test_a_variable_that_the_run_itself_sets_is_taken_as_it_was(ask: Any) -> None:
    files = {"main.py": "import os\n@cache.stage\ndef stage(x=1): return os.environ.setdefault('NET_SET', 'own')\n"}
    assert ask(files)["stored"]
    assert ask(files)["reason"] == "hit"
    assert ask(files, ("exec", "os", "environ['NET_SET'] = 'given'"))["value"] == "given"


HANDLER = """
import codecs, msgspec
def handler(error): return said(), error.end
def said(): return msgspec.json and 'one'
def other(): return 'other'
REGISTERED = codecs.register_error('net-handler', handler)
"""


def test_code_that_the_library_calls_counts_though_no_name_leads_to_it(ask: Any) -> None:
    main = "import helper\n@cache.stage\ndef stage(x='\\xe9'): return x.encode('ascii', 'net-handler').decode()\n"
    assert ask({"main.py": main, "helper.py": HANDLER})["stored"]
    assert ask({})["reason"] == "hit"
    assert ask({"helper.py": HANDLER.replace("'other'", "'another'")})["reason"] == "hit"
    changed = ask({"helper.py": HANDLER.replace("one", "two")})
    assert (changed["reason"], changed["value"]) == ("miss:code-changed", "two")


def test_why_names_the_code_that_ran(ask: Any) -> None:
    main = "import importlib\n@cache.stage\ndef stage(n='hel' + 'per'): return importlib.import_module('first').go(n)\n"
    files = {
        "main.py": main,
        "first.py": "import importlib\ndef go(n): return getattr(importlib.import_module(n), 'f')()\n",
    }
    assert ask({**files, "helper.py": "def f(): return 1\n"})["stored"]
    answer = ask({"helper.py": "def f(): return 2\n"})
    assert answer["reason"] == "miss:code-changed"
    assert answer["detail"] == "module helper changed (it ran, though no name leads to it)"


def test_which_modules_are_imported(ask: Any) -> None:
    main = "import sys\n@cache.stage\ndef stage(): return [name for name in ('one', 'two') if name in sys.modules]\n"
    files = {"main.py": main, "one.py": "", "two.py": "", "cachec.toml": ""}
    assert ask(files, ("exec", "one", ""))["stored"]
    assert ask({}, ("exec", "one", ""))["reason"] == "hit"
    assert ask({}, ("exec", "two", ""))["value"] == ["two"]


SCRIPT = """
import sys, cachec
cache = cachec.Cache(sys.argv[1], log="off", mode="on")
N = {}
@cache.stage
def stage(name="__ma" + "in__"): return vars(sys.modules[name])["N"]
print(*cache.call(stage)[0:1], cache.call(stage)[1].reason.value)
"""


def test_the_script_that_runs_counts_where_modules_are_looked_up(tmp_path: Path) -> None:
    said = []
    for number in (1, 2):
        (tmp_path / "script.py").write_text(SCRIPT.format(number))
        command = [sys.executable, "script.py", str(tmp_path / "store")]
        said.append(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout)
    assert said == ["1 hit\n", "2 hit\n"]


NESTED = """
import importlib
@cache.stage
def stage(n='inn' + 'er'): return importlib.import_module(n).within(1) + 1
"""
INNER = """
import main
@main.cache.stage(depends=['table.txt'])
def within(x): return x + {}
"""


def test_a_nested_stage_counts_with_all_that_it_declares_though_it_hit(ask: Any) -> None:
    files = {"main.py": NESTED, "inner.py": INNER.format(5), "table.txt": "1", "cachec.toml": ""}
    assert ask(files, ("exec", "inner", "within(1)"))["stored"]  # the inner one hits within the outer
    assert ask({})["reason"] == "hit"
    assert ask({"table.txt": "2"})["reason"].startswith("miss:")
    assert ask({})["reason"] == "hit"
    assert ask({"inner.py": INNER.format(6)})["value"] == 8


def test_another_checkout_and_home_hit_where_the_content_is_equal_and_never_where_not(
    server: Server, tmp_path: Path
) -> None:
    main = "import importlib\n@cache.stage\ndef stage(n='plu' + 'g'):\n"
    main += "    return importlib.import_module(n).go(), open('t.txt').read()\n"
    files = {"main.py": _HEAD + main, "plug.py": "def go(): return 1\n", "t.txt": "one", "cachec.toml": ""}
    store = {}

    def call(folder: Path, files: dict[str, str]) -> dict[str, Any]:
        # One store for both: the server names it after the folder.
        given = folder.with_name(folder.name + "-store")
        if not given.exists():
            given.symlink_to(store["path"])
        home = ("exec", "os", f"environ['HOME'] = {str(folder)!r}")
        answer: dict[str, Any] = _last(server, folder, ("write", files), home, ("call",))
        assert answer["value"] == answer["truth"]
        return answer

    store["path"] = tmp_path / "store"
    store["path"].mkdir()
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    assert call(first, files)["reason"] == "miss:first-run"
    assert call(first, {})["reason"] == "hit"
    shutil.copytree(first, second)
    assert call(second, {})["reason"] == "hit"
    assert call(second, {"t.txt": "two"})["reason"] == "miss:dependency-changed"
    assert call(first, {})["reason"] == "hit"
    assert call(second, {"plug.py": "def go(): return 2\n"})["reason"] == "miss:code-changed"
    assert call(first, {"plug.py": "def go(): return 3\n"})["reason"] == "miss:code-changed"


def test_a_trace_holds_nothing_that_is_not_the_projects_business(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.txt").write_text("t")
    cache = cachec.Cache(tmp_path / "store", log="off")

    @cache.stage
    def stage(n: int) -> str:
        import decimal
        import json
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            place = os.path.join(folder, "x")
            with open(place, "w") as file:
                file.write(json.dumps([n, str(decimal.Decimal(1))]))
            os.listdir(os.path.dirname(json.__file__))  # Python's own
            with open(place) as file, open("t.txt") as more:
                return file.read() + more.read()

    _, outcome = cache.call(stage, 1)
    assert outcome.stored, outcome
    entry = cache.store.lookup(outcome.key)
    assert entry is not None
    reads = {(read.kind, read.where) for trace in entry.traces for read in trace.reads}
    assert {where for kind, where in reads if kind == "file"} == {"t.txt"}, reads
    libraries = {kind for kind, where in reads if where in {"decimal", "json", "tempfile"}}
    assert libraries == {"library", "unset"}
    assert {kind for kind, _ in reads} <= {"file", "state"} | libraries, reads  # the state: decimal's context


def test_a_file_that_is_gone_or_other_by_the_end_keeps_the_result_out(tmp_path: Path) -> None:
    cache = cachec.Cache(tmp_path / "store", log="off")

    @cache.stage(ignore=["folder"])
    def stage(folder: str, n: int) -> str:
        path = os.path.join(folder, "t.txt")
        with open(path) as file:
            text = file.read()
        if n == 1:
            os.remove(path)
        elif n == 2:
            with open(path, "w") as file:
                file.write("other")
        return text

    for n, word in ((1, "is gone by now"), (2, "was written to meanwhile")):
        (tmp_path / "t.txt").write_text("t")
        _, outcome = cache.call(stage, str(tmp_path), n)
        assert (outcome.reason, outcome.stored) == (Reason.INPUT_CHANGED, False)
        assert word in outcome.detail
    (tmp_path / "t.txt").write_text("t")
    assert cache.call(stage, str(tmp_path), 3)[1].stored


@pytest.mark.parametrize("name", ["w.bin", ".config", "pyproject.toml", "table.py"])
def test_what_native_code_opens_beside_an_argument_counts_whatever_its_name(tmp_path: Path, name: str) -> None:
    import ctypes

    cache = cachec.Cache(tmp_path / "cache", log="off")

    @cache.stage(ignore=["beside"])
    def stage(model: Path, beside: bytes) -> int:
        fd = ctypes.CDLL(None).open(beside, os.O_RDONLY)
        try:
            return len(os.read(fd, 100))
        finally:
            os.close(fd)

    model, beside = tmp_path / "in" / "model.onnx", tmp_path / "in" / name
    model.parent.mkdir()
    model.write_text("model")
    beside.write_text("1")
    assert stage(model, os.fsencode(beside)) == 1
    assert cache.call(stage, model, os.fsencode(beside))[1].hit
    beside.write_text("22")
    assert stage(model, os.fsencode(beside)) == 2


def test_what_cannot_be_read_again_alike_is_warned_of_once_a_stage(tmp_path: Path) -> None:
    cache = cachec.Cache(tmp_path / "store", log="off")

    @cache.stage
    def stage(n: int) -> int:
        with open("/proc/self/status") as file:
            return len(file.read()) * 0 + n

    with pytest.warns(CachecWarning, match="/proc/self/status"):
        assert cache.call(stage, 1)[1].stored
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.call(stage, 2)[1].stored


def test_without_recording_a_computed_name_is_refused_and_files_go_unseen(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("1")
    for record in ("off", "auto"):
        cache = cachec.Cache(tmp_path / f"store-{record}", log="off", record=record)

        @cache.stage(ignore=["path"])
        def stage(path: str) -> str:
            with open(path) as file:
                return file.read()

        @cache.stage
        def computed(name: str) -> str:
            import importlib

            return importlib.import_module(name).__name__

        assert cache.call(stage, str(tmp_path / "t.txt"))[1].stored
        (tmp_path / "t.txt").write_text(f"other {record}")
        _, outcome = cache.call(stage, str(tmp_path / "t.txt"))
        assert (outcome.reason is Reason.HIT) == (record == "off")
        if record == "off":
            value, outcome = cache.call(computed, "json")
            assert (value, outcome.reason, outcome.stored) == ("json", Reason.UNRESOLVED_CODE, False)
        else:
            assert computed("json") == "json"


def test_a_hit_imports_no_observer(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        "import sys, cachec\ncache = cachec.Cache('store', log='off')\n"
        "@cache.stage\ndef stage(x): return x\n"
        "print(cache.call(stage, 1)[1].reason.value)\n"
        "own = ('cachec.recording.', 'cachec.stage.folder_watch')\n"
        "print(sorted(m for m in sys.modules if m.startswith(own)))\n"
    )
    told = [
        subprocess.run([sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert "cachec.recording.audit_observer" in told[0]
    assert told[1].splitlines() == ["hit", "['cachec.recording.thread_owner']"]


def test_what_was_stored_without_a_record_is_no_hit_for_whoever_records(tmp_path: Path) -> None:
    """An entry of ``record=off`` may depend on more than its trace says."""

    def build(record: str) -> Any:
        cache = cachec.Cache(tmp_path / "cache", log="off", record=record)

        @cache.stage(name="stage")
        def stage(n: int) -> int:
            return n + 1

        return stage

    assert build("off")(1) == 2
    assert build("off").check(1).hit
    outcome = build("auto").check(1)
    assert (outcome.hit, outcome.reason) == (False, Reason.STAGE_CHANGED)
    assert build("auto")(1) == 2
    assert build("auto").check(1).hit
    assert build("off").check(1).hit
