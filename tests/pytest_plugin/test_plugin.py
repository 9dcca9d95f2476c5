"""The pytest plugin, in runs of pytest of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from cachec import Mode, pytest_plugin

TESTS = """
    import threading
    import cachec as package

    cache = package.Cache(mode="on")

    @cache.stage
    def double(n: int) -> int:
        return 2 * n

    def test_one():
        assert double(1) == 2

    def test_again():
        assert double(1) == 2

    def test_thread():
        thread = threading.Thread(target=double, args=(1,))
        thread.start()
        thread.join()
"""


def run(folder: Path, text: str, *words: str, code: int = 0) -> str:
    (folder / "test_it.py").write_text(textwrap.dedent(text))
    environ = {**os.environ, "CACHEC_DIR": str(folder / "store"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    own = ("--basetemp", str(folder / "base"))  # else each removes what earlier runs of these tests left
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "cachec.pytest_plugin", "-p", "no:cacheprovider", *own, *words],
        cwd=folder, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def summary(output: str) -> str:
    found = re.search(r"-+ cachec -+\n(.*)\n", output)
    assert found, output
    return found[1]


def test_the_modes_are_those_of_the_cache() -> None:
    assert tuple(mode.value for mode in Mode) == pytest_plugin.MODES


@pytest.mark.long
def test_counts_are_in_the_summary(tmp_path: Path) -> None:
    output = run(tmp_path, TESTS, "-v")
    assert summary(output).startswith("2 hit, 1 miss; saved ")
    assert "  1 x test_it.double: miss:first-run" in output
    assert summary(run(tmp_path, TESTS)).startswith("3 hit; ")


@pytest.mark.long
def test_require_fails_what_would_compile(tmp_path: Path) -> None:
    output = run(tmp_path, TESTS, "--cachec=require", "-W", "ignore", code=1)
    assert "cachec: mode require" in output
    assert "2 failed, 1 passed" in output, "a thread's exception is its own"
    assert "CacheMissError: stage test_it.double would miss" in output
    assert summary(output).startswith("3 error; ")
    run(tmp_path, TESTS, "--cachec", "on")
    assert summary(run(tmp_path, TESTS, "--cachec=require")).startswith("3 hit; ")


def test_off_goes_round_the_cache(tmp_path: Path) -> None:
    assert summary(run(tmp_path, TESTS, "--cachec=off")).startswith("3 bypass; ")
    assert not (tmp_path / "store" / "index").exists()


def test_an_unknown_mode(tmp_path: Path) -> None:
    run(tmp_path, TESTS, "--cachec=onn", code=4)


def test_the_fixture_isolates_and_adopts(tmp_path: Path) -> None:
    output = run(
        tmp_path,
        TESTS
        + """
    def test_isolated(cachec):
        double(1)
        assert (cachec.hits, len(cachec.misses)) == (1, 0), "another store, which knows it"
        cachec.adopt(cache)
        double(1)
        double(1)
        assert [outcome.reason.value for outcome in cachec.outcomes] == ["hit", "miss:first-run", "hit"]
        assert package.Cache().dir == cachec.dir == cachec.cache.dir
        assert [entry.stage for entry in cachec.cache.store.entries()] == ["test_it.double"]

    def test_isolated_anew(cachec):
        cachec.adopt(cache)
        double(1)
        assert cachec.hits == 0

    def test_and_back():
        assert double.check(1).hit
    """,
    )
    assert "6 passed" in output
    assert summary(output).startswith("4 hit, 3 miss; ")


@pytest.mark.long
def test_require_does_not_hold_in_the_store_of_the_fixture(tmp_path: Path) -> None:
    """It is empty, so the example of docs/howto/warm-and-ci.md could never pass; elsewhere `require` holds."""
    text = """
    import pytest
    import cachec as package
    def stage_of(cache):
        @cache.stage
        def f(n: int) -> int:
            return n
        return f
    def test_it(cachec, tmp_path):
        stage_of(cachec.cache)(1)
        assert (cachec.hits, [each.reason.value for each in cachec.misses]) == (0, ["miss:first-run"])
        with pytest.raises(package.CacheMissError):
            stage_of(package.Cache(tmp_path))(1)
    """
    run(tmp_path, text, "--cachec=require")


def test_a_run_without_stages_imports_nothing_and_says_nothing(tmp_path: Path) -> None:
    text = """
    import sys
    def test_it():
        loaded = {name for name in sys.modules if name.partition(".")[0] in ("cachec", "msgspec", "numpy", "diskcache")}
        assert loaded == {"cachec", "cachec.pytest_plugin", "cachec.base", "cachec.base.call_hooks"}
    """
    assert "cachec ---" not in run(tmp_path, text)


@pytest.mark.long
def test_counts_of_xdist_workers_are_added(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    assert summary(run(tmp_path, TESTS, "-p", "xdist", "-n", "2")).startswith(("2 hit, 1 miss", "1 hit, 2 miss"))


def test_counts_of_another_process_are_added() -> None:
    from cachec.model import Outcome, Reason

    one, other = pytest_plugin.Counts(), pytest_plugin.Counts()
    one(Outcome(reason=Reason.HIT, stage="s", key="", seconds=1.0, saved=5.0))
    other(Outcome(reason=Reason.FIRST_RUN, stage="s", key="", seconds=2.0))
    other.add(one.data())
    assert (dict(other.kinds), other.saved, other.spent) == ({"hit": 1, "miss": 1}, 4.0, 2.0)
    assert dict(other.stages) == {"s: miss:first-run": 1}
