"""What ``CACHEC_INSTALL`` does in a process, at its end, and in its children. The framework is a toy."""

from __future__ import annotations

import pytest

COMPILE = "import toy; print(toy.compile('a'))"
MISS, HIT = "cachec: 0 hits, 1 miss; saved 0.00 s", "cachec: 1 hit, 0 misses;"


def lines(done) -> list[str]:
    """What it said at the end; where it failed, that fails."""
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if not line.startswith("cachec: miss toy: first-run")]


@pytest.fixture
def toy(run, framework):
    """Runs a program with the toy framework installed."""
    return lambda *words, **variables: run(
        *words, **{"PYTHONPATH": str(framework), "CACHEC_INSTALL": "toy", **variables}
    )


def test_a_program_hits_what_the_one_before_it_compiled(python, toy):
    for expected in (MISS, HIT):
        done = toy(python, "-m", "cachec", "python", "-c", COMPILE)
        (line,) = lines(done)
        assert line.startswith(expected)
        assert done.stdout == "A\n"


def test_the_variable_is_enough(python, toy):
    assert lines(toy(python, "-c", COMPILE)) == [MISS]
    assert lines(toy(python, "-c", COMPILE, CACHEC_INSTALL="")) == []


def test_nothing_of_cachec_is_imported_before_the_framework_is(python, run):
    program = "import sys; print(sorted({name.partition('.')[0] for name in sys.modules} & {names!r}))"
    program = program.replace("{names!r}", "{'cachec', 'cachec_startup', 'typing', 'contextlib', 'importlib'}")
    assert run(python, "-S", "-c", program, CACHEC_INSTALL="jax,torch").stdout == "[]\n"
    assert run(python, "-c", program).stdout == "[]\n"
    assert run(python, "-c", program, CACHEC_INSTALL="jax,torch").stdout == "['cachec_startup']\n"


def test_nothing_is_said_where_nothing_is_asked_or_nobody_listens(python, toy):
    assert lines(toy(python, "-c", "import toy")) == []
    assert lines(toy(python, "-c", COMPILE, CACHEC_LOG="off")) == []
    assert lines(toy(python, "-c", COMPILE, CACHEC_MODE="off")) == []


def test_an_action_waits_for_its_module(python, toy):
    program = "import sys, toy; print('toy.later' in sys.modules); import toy.later; print(toy.later.is_installed)"
    assert toy(python, "-c", program).stdout == "False\nTrue\n"


def test_a_module_is_as_it_is_without(python, toy):
    program = "import toy, inspect; print(toy.__loader__, toy.__spec__, inspect.getsource(toy), toy.__dict__.keys())"
    with_plugin, without = (toy(python, "-c", program, CACHEC_INSTALL=names).stdout for names in ("toy", ""))
    assert [text.partition(" object at ")[0] for text in (with_plugin, without)] == [
        "<_frozen_importlib_external.SourceFileLoader"
    ] * 2
    assert with_plugin.rpartition("origin=")[2] == without.rpartition("origin=")[2]


def test_a_framework_that_fails_to_import_is_imported_again(python, toy, framework):
    (framework / "toy/__init__.py").write_text("import os\nif 'READY' not in os.environ: raise ImportError('no')\n"
                                               "compile = str.upper\n")  # fmt: skip
    program = f"import os\ntry:\n    import toy\nexcept ImportError:\n    os.environ['READY'] = '1'\n{COMPILE}"
    assert lines(toy(python, "-c", program)) == [MISS]


FAULTS = {
    "raises": "def broken(): raise RuntimeError('toy 9 is\\nnot known')\nACTIONS = {'toy': broken}",
    "cannot be imported": "import not_there",
    "has no actions": "",
}


@pytest.mark.parametrize("startup", FAULTS.values(), ids=FAULTS)
def test_the_program_runs_whatever_a_plugin_does(python, toy, framework, startup):
    (framework / "cachec_toy/startup.py").write_text(startup)
    done = toy(python, "-W", "error", "-c", COMPILE)
    (line,) = lines(done)
    assert line.startswith("cachec: toy goes on without the cache: ")
    assert done.stdout == "A\n"


def test_a_plugin_that_installs_nothing_is_named(python, toy, framework):
    for name in ("json", "toy"):
        (framework / "cachec_toy/startup.py").unlink(missing_ok=True)
        (line,) = lines(toy(python, "-c", f"import {name}", CACHEC_INSTALL=name))
        assert f"CACHEC_INSTALL names {name!r}" in line


CHILDREN = """
import {before}os, subprocess, sys
from multiprocessing import get_context

def work(text):
    import toy
    toy.compile(text)

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        process = get_context(method).Process(target=work, args=(method,))
        process.start()
        process.join()
        assert process.exitcode == 0
    subprocess.run([sys.executable, "-c", "import toy; toy.compile('child')"], check=True)
    subprocess.run(["sh", "-c", f"{{sys.executable}} -c 'import toy; toy.compile(str(1))'; true"], check=True)
    pid = os.fork()
    if pid == 0:
        work("forked")
        sys.exit()
    os.waitpid(pid, 0)
"""


@pytest.mark.parametrize("before", ["", "toy, "], ids=["children alone", "the parent too"])
def test_one_line_counts_the_children_too(python, toy, tmp_path, before):
    (tmp_path / "program.py").write_text(CHILDREN.format(before=before))
    assert lines(toy(python, "program.py")) == ["cachec: 0 hits, 6 misses; saved 0.00 s"]
    (line,) = lines(toy(python, "program.py"))
    assert line.startswith("cachec: 6 hits, 0 misses;")


def test_what_replaces_the_program_says_the_line(python, toy):
    program = f"import os, sys, toy\ntoy.compile('b')\nos.execv(sys.executable, [sys.executable, '-c', {COMPILE!r}])"
    assert lines(toy(python, "-c", program)) == [MISS]


def test_a_program_that_closes_all_its_files_keeps_its_own(python, toy, tmp_path):
    program = f"""
import os, toy
os.closerange(3, 1000)
fd = os.open("own.txt", os.O_RDWR | os.O_CREAT)
os.dup2(fd, 200)
{COMPILE}
"""
    assert lines(toy(python, "-c", program)) == []
    assert (tmp_path / "own.txt").read_text() == ""


def test_stages_count_too_and_the_variables_of_a_stage_do_not_change(python, run, tmp_path):
    (tmp_path / "stages.py").write_text(
        "import cachec, os\n@cachec.Cache(log='off').stage\n"
        "def size(n: int) -> int:\n    return len(dict(os.environ))\nsize(1)\n"
    )
    told = [lines(run(python, "stages.py", CACHEC_INSTALL="jax"))[0][:22] for _ in range(2)]
    assert told == ["cachec: 0 hits, 1 miss", "cachec: 1 hit, 0 misse"]


def test_a_command_is_stored_as_a_whole_and_says_itself_how_it_ended(python, toy):
    for _ in range(2):
        done = toy(python, "-m", "cachec", "exec", "--", python, "-P", "-c", f"{COMPILE}; open('out.txt', 'w')")
        assert done.stdout == "A\n", done.stderr
        assert "saved" not in done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("plugin", [[], ["-p", "no:cachec"]], ids=["its plugin", "no plugin"])
def test_pytest(python, toy, tmp_path, plugin):
    (tmp_path / "test_it.py").write_text("def test_it():\n    import toy\n    assert toy.compile('a') == 'A'\n")
    done = toy(python, "-m", "cachec", "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, "test_it.py")
    assert lines(done)[-1] == MISS
    assert "1 passed" in done.stdout
